"""Buckets: batches of similar lengths, in an exact order, each element once."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.property import trees


def expected(
    lengths: list[int], bounds: list[int], sizes: list[int], window: int, drop: bool
) -> Iterator[list[int]]:
    """Which elements, by number, each batch has."""
    waiting: list[list[int]] = [[] for _ in sizes]

    def left(most: int, count: int) -> Iterator[list[int]]:
        while any(waiting) and count - min(min(filter(None, waiting))) >= most:
            oldest = min(filter(None, waiting))
            if not drop:
                yield [*oldest]
            oldest.clear()

    for number, length in enumerate(lengths):
        bucket = sum(length > bound for bound in bounds)
        waiting[bucket].append(number)
        if len(waiting[bucket]) == sizes[bucket]:
            yield [*waiting[bucket]]
            waiting[bucket].clear()
        yield from left(window, number + 1)
    yield from left(0, len(lengths))


def element(number: int, length: int) -> dict[str, Any]:
    return {"id": number, "x": np.arange(1, length + 1) + 100 * number}


def batch(elements: list[dict[str, Any]], bounds: list[int]) -> dict[str, Any]:
    lengths = [len(e["x"]) for e in elements]
    width = next((bound for bound in bounds if bound >= max(lengths)), max(lengths))
    rows = np.zeros((len(elements), width), np.int64)
    mask = np.zeros((len(elements), width), bool)
    for row, e in enumerate(elements):
        rows[row, : len(e["x"])], mask[row, : len(e["x"])] = e["x"], True
    return {"id": np.array([e["id"] for e in elements]), "x": rows, "x_mask": mask}


@pytest.mark.parametrize("seed", range(40))
def test_batches_of_random_lengths(seed: int) -> None:
    rng = random.Random(seed)
    bounds = sorted(rng.sample(range(1, 12), rng.randint(1, 3)))
    sizes = [rng.randint(1, 5) for _ in range(len(bounds) + 1)]
    window, drop = rng.choice([1, 2, 5, 11, 1000]), rng.random() < 0.4
    lengths = [rng.randint(0, 15) for _ in range(rng.randrange(50))]
    elements = [element(number, length) for number, length in enumerate(lengths)]

    stream = trees.of(elements).bucket_by_length(
        "x", bounds, sizes, window=window, drop_remainder=drop
    )
    found = trees.check(stream, workers=[0])
    numbers = list(expected(lengths, bounds, sizes, window, drop))
    assert trees.same(found, [batch([elements[n] for n in group], bounds) for group in numbers])
    if not drop:
        assert sorted(n for group in numbers for n in group) == list(range(len(lengths)))
    else:
        assert len({(len(b["id"]), b["x"].shape[1]) for b in found}) <= len(sizes) or any(
            length > bounds[-1] for length in lengths
        )


@pytest.mark.parametrize("window", [7, 4096])
def test_behind_a_filter_with_workers(window: int, no_process_left: None) -> None:
    rng = random.Random(3)
    lengths = [rng.randint(0, 9) for _ in range(90)]
    elements = [element(number, length) for number, length in enumerate(lengths)]
    kept = [e for e in elements if e["id"] % 3]
    stream = trees.of(elements).filter(lambda e: e["id"] % 3 > 0)
    stream = stream.bucket_by_length("x", [3, 6], [4, 3, 2], window=window)
    found = trees.check(stream.map(lambda b: {**b, "sum": int(b["x"].sum())}), workers=[0, 2])
    groups = expected([len(e["x"]) for e in kept], [3, 6], [4, 3, 2], window, False)
    batches = [batch([kept[n] for n in group], [3, 6]) for group in groups]
    assert trees.same(found, [{**b, "sum": int(b["x"].sum())} for b in batches])


def test_lengths_by_a_function_and_batches_by_another() -> None:
    words = ["a", "bcd", "ef", "g", "hijk", "l"]
    stream = trees.of(words).bucket_by_length(len, [1, 4], 2, batch_fn="+".join)
    assert trees.check(stream, workers=[0]) == ["bcd+ef", "a+g", "hijk", "l"]


def test_elements_that_are_no_dicts_are_stacked_as_they_are() -> None:
    rows = [np.arange(n) for n in (1, 2, 2, 1)]
    stream = trees.of(rows).bucket_by_length(lambda row: len(row), [1, 2], 2)
    assert [b.tolist() for b in stream] == [[[0, 1], [0, 1]], [[0], [0]]]


def test_several_features_are_padded() -> None:
    records = [{"x": np.ones(n, int), "y": np.full((n, 2), True), "z": n} for n in (1, 3)]
    stream = trees.of(records).bucket_by_length(
        "x", [4], 2, features=["x", "y"], padding={"x": -1, "y": False}, mask=False
    )
    (found,) = stream
    assert found["x"].tolist() == [[1, -1, -1, -1], [1, 1, 1, -1]]
    assert found["y"].shape == (2, 4, 2)
    assert found["y"].sum() == 8
    assert found["z"].tolist() == [1, 3]
    assert list(found) == ["x", "y", "z"]


def test_random_steps_behind_draw_differently_for_each_batch() -> None:
    stream = trees.of([element(n, n % 5) for n in range(40)])
    batches = stream.bucket_by_length("x", [1, 3, 5], 3, window=9).seed(1)
    draws = trees.check(batches.random_map(lambda b, rng: float(rng.random())), workers=[0])
    assert len(set(draws)) == len(draws) > 10


def test_a_restored_stream_reads_the_last_window_again_at_most() -> None:
    read = []

    def noted(e: dict[str, Any]) -> dict[str, Any]:
        read.append(e["id"])
        return e

    # Bucket 0 is rare: its first element waits while hundreds go by.
    elements = [element(number, 1 if number % 50 == 7 else 5) for number in range(300)]
    stream = trees.of(elements).map(noted).bucket_by_length("x", [2, 5], 4, window=20)
    with iter(stream) as iterator:
        before = [next(iterator)["id"].tolist() for _ in range(60)]
        state = iterator.get_state()
        rest = [b["id"].tolist() for b in iterator]
    with iter(stream) as iterator:
        iterator.set_state(state)
        read.clear()
        assert [b["id"].tolist() for b in iterator] == rest
    assert min(read) >= max(map(max, before)) - 20
    assert sorted(functools.reduce(operator.iadd, before + rest, [])) == list(range(300))


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        (("x", [], 2), {}, TypeError, r"boundaries must be a list of lengths, got \[\]"),
        (("x", 5, 2), {}, TypeError, "boundaries must be a list of lengths, got 5"),
        (("x", [0, 2], 2), {}, ValueError, "boundary 0 must be at least 1, got 0"),
        (("x", [4, 4], 2), {}, ValueError, r"must grow from one to the next, got \(4, 4\)"),
        (("x", [4, 8], [2]), {}, ValueError, "1 sizes for 2 boundaries"),
        (("x", [4, 8], [2, 2, 2, 2]), {}, ValueError, "4 sizes for 2 boundaries"),
        (("x", [4, 8], [2, 0]), {}, ValueError, "batch size 1 must be at least 1, got 0"),
        (("x", [4], 2), {"window": 0}, ValueError, "window must be at least 1, got 0"),
        ((5, [4], 2), {}, TypeError, "length must be the name of a feature or a function, got 5"),
        (("x", [4], 2), {"batch_fn": 3}, TypeError, "batch_fn must be a function, got 3"),
        (("x", [4], 2), {"features": "x"}, TypeError, "features must be a list of names"),
        (("x", [4], 2), {"padding": {"y": 1}}, ValueError, r"pads \['x'\], and padding has val"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_the_call(
    arguments: Any, options: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        trees.of([element(0, 3)]).bucket_by_length(*arguments, **options)


@pytest.mark.parametrize(
    ("given", "length", "message"),
    [
        (element(1, 9), "x", r"length 9, and the last boundary of bucket_by_length is 4\. Give"),
        (element(1, 2), "y", r"features \['id', 'x'\], and not 'y'"),
        (element(1, 2), "id", "the feature 'id' is a number, and has no length"),
        (element(1, 2), lambda e: -1, "what length returns must be at least 0, got -1"),
        (element(1, 2), lambda e: 1.5, "what length returns must be a whole number"),
    ],
)
def test_elements_that_fit_into_no_bucket_are_named(given: Any, length: Any, message: str) -> None:
    stream = trees.of([element(0, 3), given]).bucket_by_length(length, [4], 1)
    with pytest.raises(grain.errors.GrainError, match=message) as raised:
        list(stream)
    assert "bucket_by_length" in "".join(raised.value.__notes__)


def test_a_state_that_no_run_can_have_had_is_refused() -> None:
    elements = [element(number, 1 + number % 2) for number in range(20)]
    stream = trees.of(elements).bucket_by_length("x", [1, 2], 3, window=5)
    with iter(stream) as iterator:
        next(iterator)
        state = iterator.get_state()
        for kept in ([3, 0, 3, 0, 0], [1, 0, 6, 0, 0], [2, 0, 1, 0, 0]):
            state["cursor"][0][1] = kept
            with pytest.raises(grain.errors.StateError, match="are in a bucket of 3"):
                iterator.set_state(state)
