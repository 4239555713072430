"""Pipelines: where they stand, how they move, and their end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import MapDataset
from grain_jax._datasets import iterators
from grain_jax._datasets.iter_dataset import plan_of
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.runs import END
from grain_jax.errors import ClosedError


def pipeline(dataset: Any, length: int | None, **layout: Any) -> Pipeline:
    return Pipeline(plan_of(dataset), iterators.Setup(), Layout(length, **layout))


def rest(stream: Pipeline) -> list[Any]:
    return [np.asarray(run.held[row]).tolist() for run, row in iter(stream.next_row, END)]


def batches() -> Any:
    return MapDataset.range(10).to_iter_dataset().batch(3)


def test_it_moves_and_goes_back() -> None:
    stream = pipeline(batches(), 10)
    assert stream.position == Position()
    assert stream.next().tolist() == [0, 1, 2]
    there = stream.position
    assert rest(stream) == [[3, 4, 5], [6, 7, 8], [9]]
    with pytest.raises(StopIteration):
        stream.next()
    stream.go_to(there)
    assert rest(stream) == [[3, 4, 5], [6, 7, 8], [9]]
    stream.go_to(Position(base=8))
    assert rest(stream) == [[8, 9]]


def test_a_stream_that_begins_later() -> None:
    epoch = MapDataset.range(10).repeat(2).to_iter_dataset().batch(4)
    stream = pipeline(epoch, 20, start=10, shard=(1, 2))
    assert stream.position == Position(base=10)
    assert rest(stream) == [[1, 3, 5, 7], [9]]


def test_rows_of_batches_are_those_from_where_it_stands() -> None:
    stream = pipeline(batches(), 10)
    assert stream.batch_rows() == ((3,), 1)
    stream.go_to(Position(base=4))
    assert stream.batch_rows() == ((3,), None)


@pytest.mark.parametrize(
    ("dataset", "elastic"),
    [
        (batches, True),
        (lambda: MapDataset.range(10).filter(bool).to_iter_dataset().batch(3), False),
        (lambda: MapDataset.range(10).to_iter_dataset().flat_map(lambda x: [x]), False),
        (lambda: Mine().map(lambda x: x), False),
    ],
)
def test_what_is_elastic(dataset: Callable[[], Any], elastic: bool) -> None:
    assert pipeline(dataset(), 10).is_elastic == elastic


class Mine(grain.IterDataset[int]):
    def __iter__(self) -> Any:
        return iter([1, 2, 3])


class WithGaps:
    """A source that says only when it is read which records it lacks."""

    def __init__(self, length: int, missing: int) -> None:
        self.length, self.missing = length, missing

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int | None:
        return None if index == self.missing else index


def test_the_first_gap_makes_it_count_from_there_on() -> None:
    dataset = MapDataset.source(WithGaps(12, missing=6)).to_iter_dataset().batch(2)
    stream = pipeline(dataset.map_with_index(lambda i, b: (i, b.tolist())), 12)
    before = [stream.next() for _ in range(3)]
    assert stream.is_elastic
    position = stream.position
    after = [stream.next()]
    assert not stream.is_elastic
    assert stream.position.has_gaps
    after += [run.held[row] for run, row in iter(stream.next_row, END)]
    assert before + after == [
        (0, [0, 1]),
        (1, [2, 3]),
        (2, [4, 5]),
        (3, [7, 8]),
        (4, [9, 10]),
        (5, [11]),
    ]
    stream.go_to(position)
    assert [run.held[row] for run, row in iter(stream.next_row, END)] == after


def test_a_gap_inside_the_outputs_of_a_batch() -> None:
    # Two outputs of every batch; the position inside them survives the change.
    dataset = MapDataset.source(WithGaps(6, missing=3)).to_iter_dataset().batch(2)
    doubled = dataset.flat_map(lambda b: [b, -b])
    stream = pipeline(doubled, 6)
    stream.next()
    position = stream.position
    expected = [[0, -1], [2, 4], [-2, -4], [5], [-5]]
    assert rest(stream) == expected
    stream.go_to(position)
    assert rest(stream) == expected


def test_an_error_leaves_the_position() -> None:
    broken = True

    def fails(x: int) -> int:
        if x == 4 and broken:
            raise KeyError(x)
        return x

    stream = pipeline(MapDataset.range(6).to_iter_dataset().map(fails), 6)
    assert [stream.next() for _ in range(4)] == [0, 1, 2, 3]
    position = stream.position
    for _ in range(2):
        with pytest.raises(KeyError):
            stream.next()
        assert stream.position == position
    broken = False
    assert rest(stream) == [4, 5]


def test_closed_is_closed() -> None:
    stream = pipeline(batches(), 10)
    stream.next()
    for _ in range(2):
        stream.close()
    calls: list[Callable[[], Any]] = [
        stream.next,
        stream.advance,
        lambda: stream.go_to(Position()),
        stream.next_row,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="closed"):
            call()


def test_close_while_a_record_is_read() -> None:
    entered, released = threading.Event(), threading.Event()

    def waits(x: int) -> int:
        entered.set()
        assert released.wait(30)
        return x

    stream = pipeline(MapDataset.range(6).to_iter_dataset().map(waits), 6)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            rest(stream)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert entered.wait(30)
    stream.close()
    released.set()
    thread.join(30)
    assert [type(error) for error in caught] == [ClosedError]
