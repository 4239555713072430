"""Runs: what travels through streams, and what streams and their feeds are to each other.

Every output has a *cursor*, which says where to go on after it: a place, and how many outputs since
(a user's own iterator has its state there). The place of a leaf is how many records come before; of
any other stream the cursors of its parents, the grouping's own numbers, and how many groups since.
So a cursor is nested as the streams are, its shape never changes, and a stream starts at any one.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Protocol

from grain_jax._algebra.running import Skip
from grain_jax._datasets.outcomes import Outcome
from grain_jax._execution.inline import Bundle

__all__ = [
    "END",
    "PENDING",
    "Cursor",
    "Feed",
    "Held",
    "Places",
    "Run",
    "Stream",
    "Task",
    "Whereabouts",
    "joined",
    "read",
]

Cursor = tuple[Any, Any]
Place = Any
Skips = tuple[Skip, ...]
Whereabouts = tuple[Sequence[int], Sequence[int] | None, Sequence[Any] | None]
"""Positions, flat-map numbers (None: all 0), and a sampler's generators (None: none)."""


class _Signal:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


PENDING = _Signal("PENDING")
"""Nothing is ready yet."""
END = _Signal("END")
"""There is no more."""


def read(place: Place) -> int:
    """Returns how many records are read where a place is, over all leaves."""
    if isinstance(place, int):
        return place
    return sum(read(cursor[0]) for cursor in place[0])


def joined(
    parts: Sequence[Whereabouts],
) -> tuple[list[int], list[int] | None, list[Any] | None]:
    """Returns the whereabouts of the elements of all parts, in order."""
    positions: list[int] = []
    outputs: list[int] | None = None
    rngs: list[Any] | None = None
    for where, numbers, generators in parts:
        if numbers is not None:
            outputs = outputs or [0] * len(positions)
        if generators is not None:
            rngs = rngs or [None] * len(positions)
        positions += where
        if outputs is not None:
            outputs += [0] * len(where) if numbers is None else numbers
        if rngs is not None:
            rngs += [None] * len(where) if generators is None else generators
    return positions, outputs, rngs


class Held:
    """The outputs of a task, decoded once."""

    __slots__ = ("_loaded", "bundle")

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._loaded: list[Any] | None = None

    def __getitem__(self, row: int) -> Any:
        if self._loaded is None:
            self._loaded = self.bundle.load()
        return self._loaded[row]

    def inputs(self, begin: int, end: int) -> list[tuple[Any, Sequence[int]]]:
        """Returns results of tasks, and rows in them, for a task that takes some outputs."""
        return [(self.bundle, range(begin, end))]


class Task(Protocol):
    """Some units of work for one stage."""

    payload: Any
    inputs: Sequence[tuple[Any, Sequence[int]]]
    units: int
    label: str

    def before(self, unit: int) -> Place:
        """Returns the place before a unit; `units` stands for the end."""

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        """Returns those of the last elements of units, that is of their outputs."""

    def release(self) -> None:
        """Lets go of its inputs; what its outputs are made of is still known."""

    @property
    def skips(self) -> Sequence[tuple[int, Skip]]:
        """Records that were left out before and among its elements, with the unit behind each."""


class Places:
    """Where the outputs of a task come from, and where to go on after each.

    Args:
      task: which.
      outcome: of the task.

    Attributes:
      skips: by output, the records that were left out since the output before.
    """

    def __init__(self, task: Task, outcome: Outcome) -> None:
        self._task = task
        self._units = outcome.units
        self._positions = outcome.positions
        self._outputs = outcome.outputs
        self._rngs = outcome.rngs
        self._measures = outcome.measures
        self.skips: dict[int, Skips] = {}

    def origin(self, row: int) -> Any:
        """Returns the payload of the task that made an output."""
        return self._task.payload

    def cursor(self, row: int) -> Cursor:
        """Returns where to go on after an output."""
        units = self._units
        if units is None:
            return self._task.before(row + 1), 0
        unit = units[row]
        if row + 1 == len(units) or units[row + 1] != unit:
            return self._task.before(unit + 1), 0
        return self._task.before(unit), row + 1 - bisect.bisect_left(units, unit)

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        """Returns those of some outputs."""
        rngs = None if self._rngs is None else self._rngs[begin:end]
        if self._units is None:
            positions, outputs, _ = self._task.whereabouts(begin, end)
            return positions, outputs, rngs
        outputs = None if self._outputs is None else self._outputs[begin:end]
        return self._positions[begin:end], outputs, rngs

    def measures(self, which: int, begin: int, end: int) -> Sequence[Any]:
        """Returns what a grouping behind has to know of some outputs, the nearest being 0."""
        assert self._measures is not None
        return self._measures[which][begin:end]


class Run:
    """Neighbouring outputs of one task, not decoded."""

    __slots__ = ("begin", "end", "held", "places")

    def __init__(self, held: Any, places: Any, begin: int, end: int) -> None:
        self.held = held
        self.places = places
        self.begin = begin
        self.end = end

    def __len__(self) -> int:
        return self.end - self.begin

    def split(self, most: int) -> Run:
        """Returns the first outputs, at most so many, which are not in this run any more."""
        begin = self.begin
        self.begin = min(begin + most, self.end)
        return Run(self.held, self.places, begin, self.begin)


class Feed(Protocol):
    """Where a stage's tasks come from.

    Attributes:
      left_over: records that were left out after the last task; read at the end.
    """

    left_over: list[Skip]

    def next(self, block: bool) -> Any:
        """Returns a task, PENDING or END."""

    def rest(self, task: Any, done: int) -> Any:
        """Returns the task for what is left after `done` units."""

    def learn(self, outcome: Outcome) -> None:
        """Hears how a task went."""


class Stream(Protocol):
    """Runs, in order.

    Attributes:
      left_over: records that were left out after the last output; read at the end.
      is_ready: whether the next output is here, so that pulling it costs nobody any work.
    """

    left_over: list[Skip]

    @property
    def is_ready(self) -> bool: ...

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run of at most so many outputs, PENDING or END."""

    def advance(self) -> None:
        """Gets work going without waiting for any."""

    def close(self) -> None:
        """Gives up what nobody will pull."""
