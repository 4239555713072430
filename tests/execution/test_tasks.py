"""Stages over an executor that takes its time: order, cursors, errors in their turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from grain_jax._algebra import sources, steps, transforms
from grain_jax._algebra.groupings.batch import Batch
from grain_jax._datasets import nodes, roots, schedule
from grain_jax._datasets.plan import Plan
from grain_jax._datasets.program import Program
from grain_jax._execution import grouped, inline
from grain_jax._execution.leaves import Records
from grain_jax._execution.runs import END, PENDING, Cursor, Run
from grain_jax._execution.tasks import Tasks


class Slow:
    """Does tasks at once and hands results out after so many looks."""

    capacity = 4

    def __init__(self, program: Program, looks: int = 2) -> None:
        self._inner = inline.Inline(program)
        self._looks = looks
        self._left: dict[int, int] = {}
        self.submitted: list[str] = []
        self.open: set[int] = set()

    def submit(
        self,
        kind: int,
        payload: Any,
        inputs: Sequence[tuple[Any, Sequence[int]]] = (),
        label: str = "",
    ) -> int:
        ticket = self._inner.submit(kind, payload, inputs, label)
        self._left[ticket] = self._looks
        self.open.add(ticket)
        self.submitted.append(label)
        return ticket

    def result(self, ticket: int, block: bool = True) -> inline.Bundle | None:
        self._left[ticket] -= 1
        if self._left[ticket] > 0 and not block:
            return None
        self.open.discard(ticket)
        return self._inner.result(ticket)

    def drop(self, ticket: int) -> None:
        self.open.discard(ticket)

    def cancel(self) -> None:
        self._inner.cancel()

    def close(self) -> None:
        self._inner.close()


def step(kind: str, what: Any) -> steps.Step:
    return steps.step_for(kind, what, number=1)


def copies(x: int) -> list[int]:
    return [x] * (x % 3)


def start_of(stages: list[Any]) -> Cursor:
    cursor: Cursor = (0, 0)
    for _ in stages[1:]:
        cursor = ((cursor,), (0, 0), 0), 0
    return cursor


def build(
    todo: list[steps.Step],
    source: Any = range(20),
    cursor: Cursor | None = None,
    root: Any = None,
) -> tuple[Tasks, Slow]:
    root = root or roots.NodeRoot(nodes.SourceNode(sources.adapt(source)))
    pipeline = Plan(root, todo)
    stages = pipeline.stages()
    executor = Slow(Program(pipeline, stages))
    lane = schedule.lane(20, batches=stages[0].batches)

    def stage(place: int, cursor: Cursor) -> Tasks:
        if not place:
            head = Records(root, lane, cursor[0], is_eager=True)
            return Tasks(executor, 0, head, cursor[1], 4)
        parent = stage(place - 1, cursor[0][0][0])
        grouping = Batch(tuple(stages[place].batches))
        size = stages[place].unit
        groups = grouped.Groups([parent], grouping, cursor[0], size, local=True)
        return Tasks(executor, place, groups, cursor[1], 4, [parent])

    return stage(len(stages) - 1, cursor or start_of(stages)), executor


class Output:
    """One output of a run."""

    def __init__(self, run: Run, row: int) -> None:
        self.element = run.held[row]
        self.cursor = run.places.cursor(row)
        positions, outputs, _ = run.places.whereabouts(row, row + 1)
        self.position, self.output = positions[0], outputs[0] if outputs else 0


def drain(stream: Any, most: int = 3) -> list[Output]:
    runs = list(iter(lambda: stream.pull(most, True), END))
    assert all(0 < len(run) <= most for run in runs)
    return [Output(run, row) for run in runs for row in range(run.begin, run.end)]


def pulled(stream: Any, block: bool = True) -> Any:
    run = stream.pull(1, block)
    return run if not isinstance(run, Run) else run.held[run.begin]


def plain(items: list[Output]) -> list[Any]:
    return [getattr(item.element, "tolist", lambda item=item: item.element)() for item in items]


PIPELINES: dict[str, tuple[list[steps.Step], list[Any]]] = {
    "records": ([], list(range(20))),
    "batches": (
        [step("batch", transforms.Batch(3))],
        [list(range(i, min(i + 3, 20))) for i in range(0, 20, 3)],
    ),
    "filter": ([step("filter", lambda x: x % 3 == 1)], [1, 4, 7, 10, 13, 16, 19]),
    "flat map": ([step("flat_map", copies)], [x for i in range(20) for x in [i] * (i % 3)]),
    "filter, batches": (
        [step("filter", lambda x: x % 3 == 1), step("batch", transforms.Batch(2, True))],
        [[1, 4], [7, 10], [13, 16]],
    ),
    "batches of batches": (
        [
            step("filter", lambda x: x < 10),
            step("batch", transforms.Batch(2)),
            step("batch", transforms.Batch(3, True, list)),
        ],
        [[[0, 1], [2, 3], [4, 5]]],
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_outputs_come_in_order_and_each_says_where_to_go_on(name: str) -> None:
    todo, expected = PIPELINES[name]
    expected = [_as_lists(x) for x in expected]
    items = drain(build(todo)[0])
    assert [_as_lists(x) for x in plain(items)] == expected
    for number, item in enumerate(items, 1):
        rest = drain(build(todo, cursor=item.cursor)[0])
        assert [_as_lists(x) for x in plain(rest)] == expected[number:]
        assert [item.position for item in rest] == [item.position for item in items[number:]]
        assert [item.cursor for item in rest] == [item.cursor for item in items[number:]]


def _as_lists(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_as_lists(item) for item in value] if isinstance(value, list) else value


def test_positions_are_those_of_the_last_record() -> None:
    items = drain(build(PIPELINES["filter, batches"][0])[0])
    assert [item.position for item in items] == [4, 10, 16]
    outputs = [item.output for item in drain(build(PIPELINES["flat map"][0])[0])]
    assert outputs == [k for i in range(20) for k in range(i % 3)]


def test_it_does_not_wait_if_it_is_told_so() -> None:
    stream, executor = build([])
    assert pulled(stream, False) is PENDING
    assert len(executor.submitted) == 4
    assert pulled(stream, False) == 0
    assert pulled(stream) == 1


def test_tasks_are_labelled_with_their_positions() -> None:
    stream, executor = build([step("batch", transforms.Batch(3))])
    stream.advance()
    assert executor.submitted[:2] == ["positions 0 to 2", "positions 3 to 5"]
    stream, executor = build(PIPELINES["filter, batches"][0])
    drain(stream)
    assert "the group with positions 1 to 4" in executor.submitted


def test_a_failure_of_a_feed_waits_for_its_turn() -> None:
    class Root(roots.NodeRoot):
        def prepare(self, span: schedule.Span) -> Any:
            if span.ordinal == 4:
                raise OSError("sampler")
            return span

    root = Root(nodes.SourceNode(sources.adapt(range(20))))
    stream, _ = build([], root=root)
    stream.advance()
    # The first four tasks have one record each, so the fifth fails while they are under way.
    assert [pulled(stream) for _ in range(4)] == list(range(4))
    with pytest.raises(OSError, match="sampler"):
        pulled(stream)


def test_a_failing_unit_comes_after_those_before_it() -> None:
    def fails(x: int) -> int:
        if x == 9:
            raise KeyError(x)
        return x

    stream, _ = build([step("map", fails)])
    assert [pulled(stream) for _ in range(9)] == list(range(9))
    with pytest.raises(KeyError):
        pulled(stream)


def test_what_nobody_pulls_is_given_up() -> None:
    stream, executor = build(
        [step("filter", lambda x: x % 3 == 1), step("batch", transforms.Batch(2))]
    )
    assert pulled(stream).tolist() == [1, 4]
    stream.advance()
    assert executor.open
    stream.close()
    assert not executor.open
    assert stream.pull(1, True) is END
