"""Filters that drop much: the same elements and error as in Grain, and a line in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax
from tests.compat.pairs import flat_map, plain_list


def kept(part: float, salt: int) -> Callable[[Any], bool]:
    """Keeps about this part of all numbers, differently for each salt."""
    return lambda x: (int(x) * 2654435761 + salt * 40503) % 1000 < 1000 * part


def with_options(library: ModuleType, ds: Any, **ratios: float | None) -> Any:
    options = library.experimental.DatasetOptions(**ratios)
    return library.experimental.WithOptionsIterDataset(ds, options)


def result(ds: Any) -> tuple[list[Any], str]:
    """The elements up to an error, and the part of the last window that was dropped."""
    found: list[Any] = []
    try:
        for element in ds:
            found.append(element)
    except ValueError as error:
        (percent,) = re.findall(r"([\d.]+) %", str(error))
        return plain_list(found), f"{float(percent):.2f}"
    return plain_list(found), ""


def filtered(library: ModuleType, shape: str, parts: list[float], count: int) -> Any:
    """A stream of `count` numbers with filters somewhere."""
    ds = library.MapDataset.range(count)
    tests = [kept(part, salt) for salt, part in enumerate(parts)]
    if shape == "random access":
        for test in tests:
            ds = ds.filter(test)
        return ds.to_iter_dataset(library.ReadOptions(num_threads=0))
    ds = ds.to_iter_dataset(library.ReadOptions(num_threads=0))
    for number, test in enumerate(tests):
        ds = ds.filter(test)
        if shape == "batched" and not number:
            ds = ds.batch(3).map(lambda batch: batch[0])
        if shape == "flat" and not number:
            ds = library.experimental.FlatMapIterDataset(ds, flat_map(library, 3, 3))
    return ds


@settings(max_examples=80, deadline=None)
@given(
    shape=st.sampled_from(["stream", "random access", "batched", "flat"]),
    parts=st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.95, 1.0]), min_size=1, max_size=3),
    ratio=st.sampled_from([0.0, 0.2, 0.4, 0.5, 0.6, 0.9, 1.0, None]),
    count=st.sampled_from([999, 1000, 1001, 3500]),
)
def test_the_error_comes_where_it_does_in_grain(
    reference_grain: ModuleType, shape: str, parts: list[float], ratio: float | None, count: int
) -> None:
    ours, theirs = (
        result(
            with_options(
                library,
                filtered(library, shape, parts, count),
                filter_warn_threshold_ratio=None,
                filter_raise_threshold_ratio=ratio,
            )
        )
        for library in (grain_jax, reference_grain)
    )
    assert ours == theirs


@pytest.mark.parametrize("dropped", [499, 500, 501])
@pytest.mark.parametrize("last", [False, True])
def test_the_threshold_itself_is_too_much(
    reference_grain: ModuleType, dropped: int, last: bool
) -> None:
    def made(library: ModuleType) -> Any:
        ds = library.MapDataset.range(3000).to_iter_dataset()
        test = (lambda x: x < 1000 - dropped or x > 999) if last else (lambda x: x >= dropped)
        return with_options(library, ds.filter(test), filter_raise_threshold_ratio=0.5)

    found, percent = result(made(grain_jax))
    assert (found, percent) == result(made(reference_grain))
    assert percent == ("" if dropped == 499 else f"{dropped / 10:.2f}")
    # The element that ends the window is not delivered, be it kept or not.
    assert len(found) == (2501 if dropped == 499 else 1000 - dropped - (not last))


ORDERS: list[Callable[[ModuleType, Any], Any]] = [
    lambda library, ds: with_options(library, ds, filter_raise_threshold_ratio=0.5).filter(few),
    lambda library, ds: with_options(
        library,
        with_options(library, ds.filter(few), filter_raise_threshold_ratio=0.5),
        filter_raise_threshold_ratio=None,
    ),
    lambda library, ds: with_options(
        library,
        with_options(library, ds.filter(few), filter_raise_threshold_ratio=None),
        filter_raise_threshold_ratio=0.5,
    ),
    lambda library, ds: with_options(
        library, with_options(library, ds.filter(few), filter_raise_threshold_ratio=0.5)
    ),
    lambda library, ds: library.experimental.LimitIterDataset(
        with_options(library, ds.filter(few), filter_raise_threshold_ratio=0.5), 2000
    ),
    lambda library, ds: with_options(
        library,
        library.experimental.ZipIterDataset([ds.filter(few), ds.filter(few)]),
        filter_raise_threshold_ratio=0.5,
    ),
]


def few(x: int) -> bool:
    return x % 10 == 0


@pytest.mark.parametrize("made", ORDERS)
def test_options_hold_before_and_behind_and_the_last_counts(
    reference_grain: ModuleType, made: Callable[[ModuleType, Any], Any]
) -> None:
    ours, theirs = (
        result(made(library, library.MapDataset.range(3000).to_iter_dataset()))
        for library in (grain_jax, reference_grain)
    )
    assert ours == theirs


def test_merged_options(reference_grain: ModuleType) -> None:
    names = [
        "filter_warn_threshold_ratio",
        "filter_raise_threshold_ratio",
        "execution_tracking_mode",
        "min_shm_size",
    ]
    for one, other in [
        ({"min_shm_size": 3}, {"min_shm_size": 4, "filter_warn_threshold_ratio": None}),
        ({}, {"filter_raise_threshold_ratio": 0.2}),
        ({"filter_warn_threshold_ratio": 0.9}, {"filter_warn_threshold_ratio": 0.3}),
        ({"filter_warn_threshold_ratio": 0.3}, None),
    ]:
        found = []
        for library in (grain_jax, reference_grain):
            options = library.experimental.DatasetOptions
            second = None if other is None else options(**other)
            merged = options(**one).merge(second)
            assert merged == options(**one).merge(second)
            values = {name: getattr(merged, name) for name in names}
            values["execution_tracking_mode"] = values["execution_tracking_mode"].name
            found.append(values)
        assert found[0] == found[1]
    modes = [
        [(mode.name, mode.value) for mode in library.experimental.ExecutionTrackingMode]
        for library in (grain_jax, reference_grain)
    ]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shape", ["stream", "random access", "batched", "flat"])
@pytest.mark.usefixtures("no_process_left")
def test_workers_change_nothing(shape: str, workers: int) -> None:
    def made(workers: int) -> Any:
        ds = filtered(grain_jax, shape, [0.8, 0.6], 9000)
        ds = with_options(grain_jax, ds, filter_raise_threshold_ratio=0.41)
        if workers:
            ds = ds.mp_prefetch(grain_jax.MultiprocessingOptions(num_workers=workers))
        with iter(ds) as iterator:
            return result(iterator)

    expected = made(0)
    assert expected[1]
    assert made(workers) == expected


def test_a_filter_that_drops_nine_of_ten_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ds = grain_jax.MapDataset.range(5000).to_iter_dataset().filter(few).filter(bool)
    with caplog.at_level(logging.WARNING, logger="grain_jax"):
        assert len(list(ds)) == 499
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith("step 1: filter(few) dropped 90 % of the last 1000 elements")
    assert "filter_warn_threshold_ratio=None" in text
    caplog.clear()
    assert len(list(with_options(grain_jax, ds, filter_warn_threshold_ratio=None))) == 499
    assert not caplog.records


def test_an_error_leaves_the_position_alone() -> None:
    ds = grain_jax.MapDataset.range(3000).to_iter_dataset().filter(lambda x: x >= 600)
    iterator = iter(with_options(grain_jax, ds, filter_raise_threshold_ratio=0.5))
    found, percent = result(iterator)
    assert (found, percent) == (list(range(600, 999)), "60.00")
    state = iterator.get_state()
    assert next(iterator) == 999
    iterator.set_state(state)
    assert next(iterator) == 999


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"filter_warn_threshold_ratio": 1.9}, "between 0 and 1, or be None .* got 1.9"),
        ({"filter_raise_threshold_ratio": "x"}, "filter_raise_threshold_ratio must .* got 'x'"),
        ({"min_shm_size": -1}, "min_shm_size must be at least 0, got -1"),
        ({"execution_tracking_mode": 3}, "must be an ExecutionTrackingMode, got 3"),
    ],
)
def test_options_that_cannot_be(given: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        grain_jax.experimental.DatasetOptions(**given)


def test_what_takes_options() -> None:
    made = grain_jax.experimental.WithOptionsIterDataset
    options = grain_jax.experimental.DatasetOptions()
    with pytest.raises(TypeError, match=r"ds\.to_iter_dataset\(\)"):
        made(grain_jax.MapDataset.range(3), options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"experimental\.DatasetOptions, got 0.5"):
        made(grain_jax.MapDataset.range(3).to_iter_dataset(), 0.5)  # type: ignore[arg-type]
