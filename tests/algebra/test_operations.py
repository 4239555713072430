"""Legacy operations: the built-in ones are steps, a user's own is called on records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from grain_jax import Record, RecordMetadata, errors, transforms
from grain_jax._algebra import operations, steps
from grain_jax._algebra.operations import (
    BatchOperation,
    FilterOperation,
    MapOperation,
    RandomMapOperation,
)
from grain_jax._values import randomness


def records(*data: Any) -> Iterator[Record[Any]]:
    """Records at positions 10, 11, ... with keys 20, 21, ..."""
    for row, one in enumerate(data):
        yield Record(RecordMetadata(10 + row, 20 + row, np.random.default_rng(row)), one)


def step(kind: str, transform: Any, **settings: Any) -> steps.Step:
    return steps.step_for(kind, transform, number=2, **settings)


def test_map_and_filter() -> None:
    found = list(MapOperation(lambda x: x + 1)(records(1, 2, 3)))
    assert [r.data for r in found] == [2, 3, 4]
    assert [r.metadata.index for r in found] == [10, 11, 12]
    assert [r.data for r in FilterOperation(lambda x: x > 1)(records(1, 2, 3))] == [2, 3]


def test_random_map_uses_the_records_generators() -> None:
    found = RandomMapOperation(lambda x, rng: rng.random())(records(0, 0))
    assert [r.data for r in found] == [np.random.default_rng(row).random() for row in range(2)]


@pytest.mark.parametrize(
    ("drop", "expected"), [(False, [[1, 2], [3, 4], [5]]), (True, [[1, 2], [3, 4]])]
)
def test_batches(drop: bool, expected: list[list[int]]) -> None:
    found = list(BatchOperation(2, drop)(records(1, 2, 3, 4, 5)))
    assert [r.data.tolist() for r in found] == expected
    assert [r.metadata.index for r in found] == [11, 13, 14][: len(expected)]
    assert all(r.metadata.record_key is None for r in found)


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_bad_batch_sizes(size: Any) -> None:
    with pytest.raises(errors.GrainError, match="batch_size"):
        BatchOperation(size)


def test_lowering() -> None:
    def double(x: int) -> int:
        return 2 * x

    for operation, kind in (
        (MapOperation(double), steps.MapStep),
        (FilterOperation(double), steps.FilterStep),
        (RandomMapOperation(double), steps.RandomStep),
    ):
        found = operations.step_of(operation, number=1)
        assert type(found) is kind
        assert found.function is double
        assert not found.keeps_key
    for batch in (BatchOperation(3, True), transforms.Batch(3, True)):
        found = operations.step_of(batch, number=1)
        assert isinstance(found, steps.BatchStep)
        assert (found.size, found.drop, found.function) == (3, True, None)
        assert not found.keeps_key
    assert operations.step_of(double, number=1) is None


@pytest.mark.parametrize("thing", [5, None, "map", transforms.Map, transforms.Batch, object()])
def test_what_is_neither(thing: Any) -> None:
    with pytest.raises(errors.InvalidTypeError):
        operations.step_of(thing, number=1)


def test_outputs_of_a_flat_map_have_draws_of_their_own() -> None:
    given = (Record(RecordMetadata(5), x) for x in (0,))
    todo = [
        step("flat_map", lambda x: [x, x, x]),
        step("filter", lambda x: True),
        step("random_map", lambda x, rng: int(rng.integers(2**40)), seed=3),
    ]
    stream: Iterator[Record[Any]] = given
    for one in todo:  # one by one, as between operations
        stream = operations.run_step(stream, one)
    expected = [int(randomness.generator(3, 5, output).integers(2**40)) for output in range(3)]
    assert [r.data for r in stream] == expected


def test_errors_name_position_and_key() -> None:
    def fails(x: int) -> int:
        raise LookupError(x)

    with pytest.raises(LookupError) as info:
        list(operations.run_step(records(1), step("map", fails)))
    assert "position 10 (record key 20)" in info.value.__notes__[0]


def test_an_operation_that_yields_no_records() -> None:
    with pytest.raises(TypeError, match=r"yields int.*Yield grain_jax.Record\(metadata, data\)"):
        list(operations.run_step(iter([1, 2]), step("map", abs)))  # type: ignore[list-item]
