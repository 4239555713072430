"""Grouped: the tasks of later stages, of groups of elements or of single ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra.groupings.base import Grouping
from grain_jax._algebra.running import Skip
from grain_jax._datasets.outcomes import Gathered, Outcome
from grain_jax._execution.gathering import Complete, Gathering
from grain_jax._execution.inline import Outputs
from grain_jax._execution.leaves import MOST_UNITS, QUICK_SECONDS
from grain_jax._execution.parents import Place, skips_of
from grain_jax._execution.runs import END, Cursor, Run, Stream, Whereabouts, joined

__all__ = ["Each", "Groups"]


class Groups(Gathering):
    """Tasks of a stage that makes an output of each group.

    Args:
      parents: the streams, each at its cursor in `place`.
      grouping: decides which of their elements go together.
      place: where to begin.
      size: elements of the stream before a group, for each group before it.
      local: whether the stage runs in this process.
      again: returns one of the parents at its start, where the grouping can want that.
    """

    def __init__(
        self,
        parents: Sequence[Stream],
        grouping: Grouping,
        place: Place,
        size: int,
        local: bool,
        again: Callable[[int], Stream] | None = None,
    ) -> None:
        super().__init__(parents, grouping, place, again)
        self._size = size
        self._local = local
        self._most = 1
        # In this process what is done ahead is in nobody's way where many are read together anyway.
        self._limit = MOST_UNITS if not local or grouping.wanted > 1 else 1

    def next(self, block: bool) -> Any:
        """Returns a task for the next groups that are complete, PENDING, or END."""
        found = self.gather(block)
        if not isinstance(found, Complete):
            return found
        groups = [found]
        while len(groups) < self._most and self.has_group:
            groups.append(self.gather(False))
        return self._task(groups)

    def rest(self, task: _Task, done: int) -> _Task:
        """Returns the task for the groups after the first `done`."""
        return self._task(task.groups[done:])

    def learn(self, outcome: Outcome) -> None:
        """Takes more groups at once while they are quick."""
        if outcome.seconds < QUICK_SECONDS and self._most < self._limit:
            self._most *= 2
        elif outcome.seconds > 4 * QUICK_SECONDS and self._most > 1:
            self._most //= 2

    def _task(self, groups: list[Complete]) -> _Task:
        runs: list[Run] = []
        sizes: list[int] = []
        skips: list[tuple[int, Skip]] = []
        places = [groups[0].before]
        for unit, group in enumerate(groups):
            size = 0
            for run in group.runs:
                size += run.end - run.begin
                if run.places.skips:
                    skips += [(unit, skip) for _, skip in skips_of(run)]
            runs += group.runs
            sizes.append(size)
            places.append(group.after)
        payload = _payload(runs, groups[0].group.number * self._size)
        payload.sizes = sizes
        payload.outputs = _numbered(payload, groups)
        if any(group.group.layout is not None for group in groups):
            payload.layouts = [group.group.layout for group in groups]
        what = "group" if len(groups) == 1 else f"{len(groups)} groups"
        label = f"the {what} with positions {payload.positions[0]} to {payload.positions[-1]}"
        return _Task(payload, _inputs(runs, self._local), places, len(groups), label, skips, groups)


@dataclasses.dataclass(slots=True)
class _Task:
    """Some groups."""

    payload: Gathered
    inputs: Sequence[tuple[Any, Sequence[int]]]
    places: list[Place]
    units: int
    label: str
    skips: Sequence[tuple[int, Skip]]
    groups: list[Complete]

    def before(self, unit: int) -> Place:
        return self.places[unit]

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        payload = self.payload
        ends = list(itertools.accumulate(payload.sizes or ()))[begin:end]
        positions = [payload.positions[at - 1] for at in ends]
        outputs = payload.outputs
        return positions, None if outputs is None else [outputs[at - 1] for at in ends], None

    def release(self) -> None:
        self.inputs, self.groups = (), []


def _payload(runs: Sequence[Run], ordinal: int) -> Gathered:
    parts = [run.places.whereabouts(run.begin, run.end) for run in runs]
    positions, outputs, rngs = joined(parts)
    return Gathered(positions, outputs, ordinal, rngs)


def _numbered(payload: Gathered, groups: Sequence[Complete]) -> list[int] | None:
    """Returns the flat-map numbers, with those of groups in the last element of each.

    They are what tells outputs apart that end in one element.
    """
    if all(found.group.output is None for found in groups):
        return payload.outputs
    outputs = payload.outputs or [0] * len(payload.positions)
    for end, found in zip(itertools.accumulate(payload.sizes or ()), groups, strict=True):
        if found.group.output is not None:
            outputs[end - 1] = (outputs[end - 1] << 32) + found.group.output
    return outputs


def _inputs(runs: Sequence[Run], local: bool) -> Sequence[tuple[Any, Sequence[int]]]:
    if local:
        elements = [run.held[row] for run in runs for row in range(run.begin, run.end)]
        return [(Outputs(elements), range(len(elements)))]
    return [pair for run in runs for pair in run.held.inputs(run.begin, run.end)]


class Each:
    """Tasks of a stage that acts on each element by itself, some of them together.

    Args:
      parent: the stream, at its cursor in `place`.
      place: where to begin; its own number is how many elements come before.
      most: elements of a task.
      local: whether the stage runs in this process.
      adapts: whether tasks begin small, and only grow while they are quick. Otherwise the parent
        decides how many elements there are.
    """

    def __init__(
        self, parent: Stream, place: Place, most: int, local: bool, adapts: bool = False
    ) -> None:
        ((self._cursor,), (self._ordinal,), _) = place
        self._parent = parent
        self._limit = most
        self._most = 1 if adapts else most
        self._adapts = adapts
        self._local = local
        self.left_over: list[Skip] = []

    def next(self, block: bool) -> Any:
        """Returns a task for the next elements, PENDING, or END."""
        run = self._parent.pull(self._most, block)
        if run is END:
            self.left_over = self._parent.left_over
        if not isinstance(run, Run):
            return run
        task = _Elements(run, self._cursor, self._ordinal, self._local)
        self._cursor = run.places.cursor(run.end - 1)
        self._ordinal += len(run)
        return task

    def rest(self, task: _Elements, done: int) -> _Elements:
        """Returns the task for the elements after the first `done`."""
        return task.part(done)

    def learn(self, outcome: Outcome) -> None:
        """Takes more elements at once while they are quick."""
        if not self._adapts:
            return
        if outcome.seconds < QUICK_SECONDS and self._most < self._limit:
            self._most *= 2
        elif outcome.seconds > 4 * QUICK_SECONDS and self._most > 1:
            self._most //= 2


class _Elements:
    """Neighbouring elements, each of which is a unit."""

    def __init__(self, run: Run, cursor: Cursor, ordinal: int, local: bool) -> None:
        self._held: Any = run.held
        self._places = run.places
        self._begin = run.begin
        self._cursor = cursor
        self._local = local
        self.units = len(run)
        self.skips = skips_of(run)
        self.payload = _payload([run], ordinal)
        self.inputs = _inputs([run], local)
        first, last = self.payload.positions[0], self.payload.positions[-1]
        self.label = f"position {first}" if first == last else f"positions {first} to {last}"

    def before(self, unit: int) -> Place:
        cursor = self._cursor
        if unit:
            cursor = self._places.cursor(self._begin + unit - 1)
        return (cursor,), (self.payload.ordinal + unit,), 0

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        payload = self.payload
        return payload.positions[begin:end], payload.outputs and payload.outputs[begin:end], None

    def release(self) -> None:
        self.inputs = ()
        self._held = None

    def part(self, first: int) -> _Elements:
        begin, end = self._begin + first, self._begin + self.units
        rest = Run(self._held, self._places, begin, end)
        cursor = self._places.cursor(begin - 1)
        return _Elements(rest, cursor, self.payload.ordinal + first, self._local)
