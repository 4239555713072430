"""Rebatch: each row once, in order, in batches of one size."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax.experimental import RebatchIterDataset
from tests.property import trees
from tests.property.registered import Plain


def batches(*counts: int) -> list[Any]:
    """Batches of so many rows of different numbers."""
    ends = np.cumsum((0, *counts)).tolist()
    return [
        {"x": np.arange(begin, end), "y": {"z": np.arange(2 * begin, 2 * end).reshape(-1, 2)}}
        for begin, end in itertools.pairwise(ends)
    ]


def expected(counts: tuple[int, ...], size: int, drop: bool) -> list[Any]:
    rows = sum(counts)
    (whole,) = batches(rows)
    end = rows // size * size if drop else rows
    cuts = [slice(begin, min(begin + size, end)) for begin in range(0, end, size)]
    return [{"x": whole["x"][cut], "y": {"z": whole["y"]["z"][cut]}} for cut in cuts]


COUNTS = [(), (7,), (3, 3, 3, 1), (1, 9, 2), (4, 4), (0, 2, 0, 3, 0), (0,)]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 20])
@pytest.mark.parametrize("counts", COUNTS)
def test_every_row_comes_once(counts: tuple[int, ...], size: int, drop: bool) -> None:
    stream = trees.of(batches(*counts), lambda parent: RebatchIterDataset(parent, size, drop))
    found = trees.check(stream, workers=(0,))
    assert trees.same(found, expected(counts, size, drop))


def test_with_workers(no_process_left: None) -> None:
    counts = (3, 0, 9, 1, 1, 5)
    stream = trees.of(batches(*counts), lambda parent: RebatchIterDataset(parent, 4, True))
    assert trees.same(trees.check(stream, workers=(2,)), expected(counts, 4, True))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_batches_of_one_element_draw_differently_wherever_it_begins(size: int) -> None:
    def make(parent: grain.IterDataset[Any]) -> grain.IterDataset[Any]:
        batches = RebatchIterDataset(parent, size).seed(3)
        return batches.random_map(lambda batch, rng: float(rng.random()))

    draws = trees.check(trees.of(batches(3, 11, 2, 6, 1)[:], make), workers=(0,))
    assert len(set(draws)) == len(draws)


def test_batches_of_outputs_of_batches_draw_differently_however_deep() -> None:
    def make(parent: grain.IterDataset[Any]) -> grain.IterDataset[Any]:
        for _ in range(3):
            parent = RebatchIterDataset(parent.flat_map(lambda batch: [batch, batch]), 1)
        return parent.seed(3).random_map(lambda batch, rng: float(rng.random()))

    draws = trees.check(trees.of([np.arange(4), np.arange(3)], make), workers=(0,), every=9)
    assert len(set(draws)) == len(draws) == 7 * 2**3


def test_leaves_of_any_kind() -> None:
    given = [
        (Plain(np.array([1, 2]), np.array(["a", "b"])), [np.array([None, "u"], object)]),
        (Plain(np.array([3]), np.array(["ccc"])), [np.array([5], object)]),
    ]
    (found,) = trees.whole(trees.of(given, lambda parent: RebatchIterDataset(parent, 3)))
    plain, (objects,) = found
    assert isinstance(plain, Plain)
    assert plain.x.tolist() == [1, 2, 3]
    assert plain.y.tolist() == ["a", "b", "ccc"]
    assert objects.tolist() == [None, "u", 5]


def test_dicts_may_have_their_keys_in_any_order() -> None:
    given = [{"x": np.array([1]), "y": np.array([2])}, {"y": np.array([3]), "x": np.array([4])}]
    (found,) = trees.whole(trees.of(given, lambda parent: RebatchIterDataset(parent, 2)))
    assert {key: value.tolist() for key, value in found.items()} == {"x": [1, 4], "y": [2, 3]}


def test_integers_stay_integers() -> None:
    mixed = [np.array([1], np.uint64), np.array([-2], np.int64)]
    (found,) = trees.whole(trees.of(mixed, lambda parent: RebatchIterDataset(parent, 2)))
    assert found.dtype == np.int64
    assert found.tolist() == [1, -2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"x": np.ones(2), "y": np.ones(3)}], r"\['x'\] has 2, the leaf \['y'\] has 3"),
        ([{"x": 1}], r"the leaf \['x'\] has no axis for its rows. Write .batch"),
        ([{}], "this element has no arrays"),
        ([{"x": np.ones(1)}, {"y": np.ones(1)}], r"differ in structure: {'x': \*} .* {'y': \*}"),
        ([np.ones((1, 2)), np.ones((1, 3))], r"rows of shape \(2,\) in element 0 .* \(3,\) in"),
        ([np.array([2**60 + 1]), np.array([0.5])], "int64 in element 0 .* and float64 in"),
        ([np.ma.masked_array([1, 2])], "the element itself is a masked array"),
    ],
)
def test_what_is_no_batch_is_an_error(given: list[Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        trees.whole(trees.of(given, lambda parent: RebatchIterDataset(parent, 2)))
    assert "rebatch(2)" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, None])
def test_sizes_that_cannot_be(size: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="batch_size must be"):
        trees.of([np.ones(1)], lambda parent: RebatchIterDataset(parent, size))


def test_a_state_of_other_data_is_told() -> None:
    def make(rows: int) -> grain.IterDataset[Any]:
        return trees.of([np.arange(rows)], lambda parent: RebatchIterDataset(parent, 4))

    with iter(make(9)) as iterator:
        next(iterator), next(iterator)
        state = iterator.get_state()
    with iter(make(7)) as iterator:
        iterator.set_state(state)
        with pytest.raises(grain.errors.StateError, match="8 rows of an element with 7 rows"):
            next(iterator)


def test_what_is_left_out_behind_the_last_batch_is_counted() -> None:
    def fail(x: Any) -> Any:
        if len(x) == 3:
            raise ValueError("bad")
        return x

    given = [np.ones(2), np.ones(3), np.ones(1), np.ones(3)]
    options = grain.MultiprocessingOptions(on_error=grain.ErrorPolicy(skip=ValueError))
    stream = trees.of(given, lambda one: RebatchIterDataset(one.map(fail), 2, True))
    with iter(stream.mp_prefetch(options)) as iterator:
        assert [len(batch) for batch in iterator] == [2]
        assert iterator.skipped_count == 2
