"""The serial stage by itself; what a loader makes of it is in tests/product/test_operations.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from grain_jax import MapDataset, Record, RecordMetadata
from grain_jax._algebra import steps, transforms
from grain_jax._datasets import iterators
from grain_jax._datasets.iter_dataset import plan_of
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.serial import Own, Serial
from grain_jax.errors import ClosedError, StateError


class Pairs:
    """Sums of two neighbours."""

    def __init__(self) -> None:
        self.held: Any = None

    def __call__(self, records: Iterator[Any]) -> Iterator[Any]:
        for record in records:
            if self.held is None:
                self.held = record.data
            else:
                first, self.held = self.held, None
                yield Record(record.metadata, first + record.data)


class SavedPairs(Pairs):
    def get_state(self) -> Any:
        return {"held": self.held}

    def set_state(self, state: Any) -> None:
        self.held = state["held"]


def serial(*stages: Any, reads: list[int] | None = None) -> Serial:
    def note(x: int) -> int:
        if reads is not None:
            reads.append(x)
        return x

    dataset = MapDataset.range(9).to_iter_dataset().map(note)
    pipeline = Pipeline(plan_of(dataset), iterators.Setup(), Layout(9))
    named = [
        stage if hasattr(stage, "function") else Own(stage, f"step {n}: operation(Pairs)")
        for n, stage in enumerate(stages, 1)
    ]
    return Serial(pipeline, named, lambda origin, position, *_: RecordMetadata(position, position))


def rest(stage: Serial) -> list[Any]:
    found = []
    while True:
        try:
            found.append(stage.next())
        except StopIteration:
            return found


def test_the_position_is_that_after_the_last_output() -> None:
    stage = serial(SavedPairs())
    assert stage.position == Position()
    assert [stage.next(), stage.next()] == [1, 5]
    there = stage.position
    assert there.cursor == (4, 0)
    assert rest(stage) == [9, 13]
    assert stage.position.cursor == (8, 0)  # the ninth record has no partner
    assert stage.state() == {"outputs": 4, "operations": [{"held": None}]}


def test_saved_operations_go_on_without_reading_again() -> None:
    stage, reads = serial(SavedPairs()), []
    stage.next()
    stage.next()
    resumed = serial(SavedPairs(), reads=reads)
    resumed.go_to(stage.position, Layout(9), stage.state())
    assert reads == []
    assert rest(resumed) == [9, 13]
    assert reads == [4, 5, 6, 7, 8]


def test_other_operations_run_again_from_the_start() -> None:
    stage, reads = serial(Pairs()), []
    stage.next()
    stage.next()
    resumed = serial(Pairs(), reads=reads)
    with pytest.warns(UserWarning, match=r"step 1: operation\(Pairs\).*up to output 2"):
        resumed.go_to(stage.position, Layout(9), stage.state())
    assert (reads, resumed.position) == ([], stage.position)
    assert rest(resumed) == [9, 13]
    assert reads == list(range(9))


def test_a_flat_map_behind_an_operation_makes_it_run_again() -> None:
    double = steps.step_for("flat_map", lambda x: [x, x], number=2)
    stage = serial(SavedPairs(), double)
    assert stage.next() == 1
    assert stage.state() == {"outputs": 1, "operations": None}
    resumed = serial(SavedPairs(), double)
    with pytest.warns(UserWarning, match="run again"):
        resumed.go_to(stage.position, Layout(9), stage.state())
    assert rest(resumed) == [1, 5, 5, 9, 9, 13, 13]


def test_it_begins_anew() -> None:
    batch = steps.step_for("batch", transforms.Batch(2), number=2)
    stage = serial(SavedPairs(), batch)
    assert stage.next().tolist() == [1, 5]
    stage.begin(Layout(8, start=4))
    assert [b.tolist() for b in rest(stage)] == [[9, 13]]


@pytest.mark.parametrize("state", [None, [], {"outputs": 1, "operations": [None, None]}])
def test_what_is_no_state_of_it(state: Any) -> None:
    stage = serial(SavedPairs())
    stage.next()
    with pytest.raises(StateError, match="operation"):
        stage.go_to(Position(), Layout(9), state)
    assert rest(stage) == [5, 9, 13]


def test_closed_is_closed() -> None:
    stage = serial(Pairs())
    stage.next()
    stage.pipeline.close()
    with pytest.raises(ClosedError):
        stage.next()
