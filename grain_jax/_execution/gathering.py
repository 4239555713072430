"""Gathering: streams of streams. A grouping decides which elements of the parents go together."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra.groupings.base import Group, Grouping
from grain_jax._algebra.running import Skip
from grain_jax._datasets.program import Gathered, Outcome
from grain_jax._execution.inline import Outputs
from grain_jax._execution.leaves import MOST_UNITS, QUICK_SECONDS
from grain_jax._execution.runs import END, PENDING, Cursor, Run, Stream, Whereabouts

__all__ = ["Each", "Groups", "Passed", "Place"]

Place = tuple[tuple[Cursor, ...], tuple[int, ...], int]
"""Cursors of the parents, the grouping's own numbers, and how many groups since."""


_CURSOR = operator.attrgetter("cursor")


class _Parent:
    """A stream, and those of its elements that are pulled and not delivered."""

    def __init__(self, stream: Stream, cursor: Cursor) -> None:
        self.stream = stream
        self.cursor = cursor
        self._runs: deque[Run] = deque()
        self.first = 0  # number of the first element of the first run

    def add(self, run: Run) -> None:
        self._runs.append(run)

    def between(self, first: int, end: int) -> list[Run]:
        """Returns elements, by their numbers, as parts of runs."""
        found = []
        number = self.first
        for run in self._runs:
            if number >= end:
                break
            begin = run.begin + max(0, first - number)
            stop = min(run.end, run.begin + end - number)
            if begin < stop:
                found.append(Run(run.held, run.places, begin, stop))
            number += run.end - run.begin
        return found

    def deliver(self, end: int) -> None:
        """Lets go of the elements before number `end`; the cursor stands behind them."""
        while self.first < end:
            run = self._runs[0]
            count = min(run.end - run.begin, end - self.first)
            run.begin += count
            self.first += count
            if self.first == end:
                self.cursor = run.places.cursor(run.begin - 1)
            if run.begin == run.end:
                self._runs.popleft()

    def skips_of_last(self, count: int) -> list[Skip]:
        """Returns what was left out before and among the last elements that are here."""
        total = self.first + sum(run.end - run.begin for run in self._runs)
        runs = self.between(total - count, total)
        return [skip for run in runs for _, skip in _skips(run)]


def _skips(run: Run) -> list[tuple[int, Skip]]:
    """Returns what was left out before each element of a run, with its place in the run."""
    skips = run.places.skips
    if not skips:
        return []
    rows = range(run.begin, run.end)
    return [(place, skip) for place, row in enumerate(rows) for skip in skips.get(row, ())]


@dataclasses.dataclass(slots=True)
class _Gathered:
    """A group whose elements are here."""

    group: Group
    runs: list[Run]
    before: Place
    after: Place


class _Gathering:
    """Pulls parents as a grouping wants, from a place on.

    Args:
      parents: the streams, each at its cursor in `place`.
      grouping: decides.
      place: where to begin; of the groups since its restart point no output is made again.
    """

    def __init__(self, parents: Sequence[Stream], grouping: Grouping, place: Place) -> None:
        self._place = place
        cursors, self._kept, self._since = place
        self._parents = [_Parent(*pair) for pair in zip(parents, cursors, strict=True)]
        self._grouper = grouping.begin(self._kept, len(parents))
        self._passed = self._since
        self._since = 0
        self._groups: deque[Group] = deque()
        self.left_over: list[Skip] = []

    def advance(self) -> None:
        for parent in self._parents:
            parent.stream.advance()

    @property
    def has_group(self) -> bool:
        """Whether the elements of a group are here."""
        return len(self._groups) > self._passed

    def next(self, block: bool) -> Any:
        """Returns the next group with its elements, PENDING or END."""
        while True:
            while self._groups:
                found = self._gathered(self._groups.popleft())
                if not self._passed:
                    return found
                self._passed -= 1
            wanted = self._grouper.wants()
            if wanted is None:
                return self._end()
            number, most = wanted
            parent = self._parents[number]
            run = parent.stream.pull(most, block)
            if run is PENDING:
                return PENDING
            if run is END:
                self._grouper.end(number)
            else:
                parent.add(run)
                self._grouper.take(number, run.end - run.begin)
            self._groups += self._grouper.made()

    def _gathered(self, group: Group) -> _Gathered:
        before = self._place
        runs: list[Run] = []
        for number, first, end in group.members:
            runs += self._parents[number].between(first, end)
        self._since += 1
        if group.restart is not None:
            self._since, self._kept = 0, group.restart.kept
            for parent, end in zip(self._parents, group.restart.delivered, strict=True):
                if parent.first < end:
                    parent.deliver(end)
        cursors = tuple(map(_CURSOR, self._parents))
        self._place = cursors, self._kept, self._since
        return _Gathered(group, runs, before, self._place)

    def _end(self) -> Any:
        self.left_over = [
            skip
            for number, parent in enumerate(self._parents)
            for skip in (
                *parent.skips_of_last(self._grouper.dropped(number)),
                *parent.stream.left_over,
            )
        ]
        return END


class Groups:
    """Tasks of a stage that makes an output of each group.

    Args:
      parents: the streams, each at its cursor in `place`.
      grouping: decides which of their elements go together.
      place: where to begin.
      size: elements of the stream before a group, for each group before it.
      local: whether the stage runs in this process.
    """

    def __init__(
        self,
        parents: Sequence[Stream],
        grouping: Grouping,
        place: Place,
        size: int,
        local: bool,
    ) -> None:
        self._gathering = _Gathering(parents, grouping, place)
        self._size = size
        self._local = local
        self._most = 1

    @property
    def left_over(self) -> list[Skip]:
        """Records that were left out after the last group."""
        return self._gathering.left_over

    @left_over.setter
    def left_over(self, skips: list[Skip]) -> None:
        self._gathering.left_over = skips

    def next(self, block: bool) -> Any:
        """Returns a task for the next groups that are complete, PENDING, or END."""
        found = self._gathering.next(block)
        if not isinstance(found, _Gathered):
            return found
        groups = [found]
        while len(groups) < self._most and self._gathering.has_group:
            groups.append(self._gathering.next(False))
        return self._task(groups)

    def rest(self, task: _Task, done: int) -> _Task:
        """Returns the task for the groups after the first `done`."""
        return self._task(task.groups[done:])

    def learn(self, outcome: Outcome) -> None:
        """Takes more groups at once while they are quick."""
        if self._local:
            return
        if outcome.seconds < QUICK_SECONDS and self._most < MOST_UNITS:
            self._most *= 2
        elif outcome.seconds > 4 * QUICK_SECONDS and self._most > 1:
            self._most //= 2

    def _task(self, groups: list[_Gathered]) -> _Task:
        runs: list[Run] = []
        sizes: list[int] = []
        skips: list[tuple[int, Skip]] = []
        places = [groups[0].before]
        for unit, group in enumerate(groups):
            size = 0
            for run in group.runs:
                size += run.end - run.begin
                if run.places.skips:
                    skips += [(unit, skip) for _, skip in _skips(run)]
            runs += group.runs
            sizes.append(size)
            places.append(group.after)
        payload = _payload(runs, groups[0].group.layout * self._size)
        payload.sizes = sizes
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
    groups: list[_Gathered]

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
    positions: list[int] = []
    outputs: list[int] | None = None
    rngs: list[Any] | None = None
    for run in runs:
        where, numbers, generators = run.places.whereabouts(run.begin, run.end)
        if numbers is not None:
            outputs = outputs or [0] * len(positions)
        if generators is not None:
            rngs = rngs or [None] * len(positions)
        positions += where
        if outputs is not None:
            outputs += [0] * len(where) if numbers is None else numbers
        if rngs is not None:
            rngs += [None] * len(where) if generators is None else generators
    return Gathered(positions, outputs, ordinal, rngs)


def _inputs(runs: Sequence[Run], local: bool) -> Sequence[tuple[Any, Sequence[int]]]:
    if local:
        elements = [run.held[row] for run in runs for row in range(run.begin, run.end)]
        return [(Outputs(elements), range(len(elements)))]
    return [(run.held.bundle, range(run.begin, run.end)) for run in runs]


class Each:
    """Tasks of a stage that acts on each element by itself, some of them together.

    Args:
      parent: the stream, at its cursor in `place`.
      place: where to begin; its own number is how many elements come before.
      most: elements of a task.
      local: whether the stage runs in this process.
    """

    def __init__(self, parent: Stream, place: Place, most: int, local: bool) -> None:
        ((self._cursor,), (self._ordinal,), _) = place
        self._parent = parent
        self._most = most
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
        """The parent decides how many there are."""


class _Elements:
    """Neighbouring elements, each of which is a unit."""

    def __init__(self, run: Run, cursor: Cursor, ordinal: int, local: bool) -> None:
        self._held: Any = run.held
        self._places = run.places
        self._begin = run.begin
        self._cursor = cursor
        self._local = local
        self.units = len(run)
        self.skips = _skips(run)
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


class Passed:
    """A stream whose outputs are elements of its parents, as they are.

    Args:
      parents: the streams, each at its cursor in `place`.
      grouping: decides whose elements come next.
      place: where to begin.
    """

    def __init__(self, parents: Sequence[Stream], grouping: Grouping, place: Place) -> None:
        self._gathering = _Gathering(parents, grouping, place)

    @property
    def left_over(self) -> list[Skip]:
        """Records that were left out after the last output."""
        return self._gathering.left_over

    @left_over.setter
    def left_over(self, skips: list[Skip]) -> None:
        self._gathering.left_over = skips

    def advance(self) -> None:
        """Gets work going in all of them."""
        self._gathering.advance()

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run of one element, PENDING or END."""
        self.advance()
        found = self._gathering.next(block)
        if not isinstance(found, _Gathered):
            return found
        (run,) = found.runs
        return Run(run.held, _Behind(run.places, found.after), run.begin, run.end)


class _Behind:
    """Places of an element that a stream has passed on."""

    def __init__(self, places: Any, after: Place) -> None:
        self._places = places
        self._after = after

    @property
    def origin(self) -> Any:
        return self._places.origin

    @property
    def skips(self) -> dict[int, tuple[Skip, ...]]:
        found: dict[int, tuple[Skip, ...]] = self._places.skips
        return found

    def cursor(self, row: int) -> Cursor:
        return self._after, 0

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        found: Whereabouts = self._places.whereabouts(begin, end)
        return found
