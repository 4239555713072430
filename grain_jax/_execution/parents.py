"""Parents: the streams whose elements are grouped or merged, and what of them is here."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra.groupings.base import EPOCH
from grain_jax._algebra.running import Skip
from grain_jax._execution.runs import Cursor, Run, Stream, Whereabouts

__all__ = ["Around", "Later", "Parents", "Part", "Place", "Through", "skips_of"]

Place = tuple[tuple[Cursor, ...], tuple[int, ...], int]
"""Cursors of the parents, the grouping's own numbers, and how many groups since."""

_NONE = Run((), None, 0, 0)
"""Stands where one was whose elements are delivered."""


class _Parent:
    """A stream, and those of its elements that are pulled and not delivered."""

    def __init__(self, stream: Stream, cursor: Cursor) -> None:
        self.stream = stream
        self.cursor = cursor
        self.has_ended = False
        self._waiting: list[Skip] = []
        self.first = self._count = 0  # numbers of the first element that is here, and of the next
        self._runs: list[Run] = []
        self._ends: list[int] = []  # of each run, the number behind its last element
        self._delivered = 0  # so many of these runs are

    def add(self, run: Run) -> None:
        if self._waiting:
            skips = run.places.skips
            skips[run.begin] = (*self._waiting, *skips.get(run.begin, ()))
            self._waiting = []
        self._count += len(run)
        self._runs.append(run)
        self._ends.append(self._count)

    @property
    def runs(self) -> list[Run]:
        """Those whose elements are here."""
        return self._runs[self._delivered :]

    @property
    def count(self) -> int:
        """How many elements are here."""
        return self._count - self.first

    def take(self, count: int) -> list[Run]:
        """Returns the next elements, which are delivered."""
        runs = self.between(self.first, self.first + count)
        self.deliver(self.first + count)
        return runs

    def skips_at_end(self) -> list[Skip]:
        """Returns what was left out after the last element."""
        return [*self._waiting, *self.stream.left_over]

    def begin_anew(self, stream: Stream) -> None:
        """Goes on with the same stream from its start; what it left out at its end comes first."""
        self._waiting += self.stream.left_over
        self.stream, self.has_ended = stream, False

    def between(self, first: int, end: int) -> list[Run]:
        """Returns elements, by their numbers, as parts of runs."""
        found = []
        first = max(first, self.first)
        place = bisect.bisect_right(self._ends, first, self._delivered)
        while first < end and place < len(self._runs):
            run, behind = self._runs[place], self._ends[place]
            stop = min(end, behind)
            found.append(
                Run(run.held, run.places, run.end - behind + first, run.end - behind + stop)
            )
            first, place = stop, place + 1
        return found

    def at(self, number: int) -> tuple[Run, int]:
        """Returns an element that is here, by its number: the run, and the row in it."""
        place = bisect.bisect_right(self._ends, number, self._delivered)
        run = self._runs[place]
        return run, run.end - self._ends[place] + number

    def deliver(self, end: int) -> None:
        """Lets go of the elements before number `end`; the cursor stands behind them."""
        ends = self._ends
        self.first = end
        place = bisect.bisect_left(ends, end, self._delivered)
        run = self._runs[place]
        run.begin = run.end - (ends[place] - end)
        self.cursor = run.places.cursor(run.begin - 1)
        place += run.begin == run.end
        self._runs[self._delivered : place] = [_NONE] * (place - self._delivered)
        self._delivered = place
        if 2 * place > len(ends):
            del self._runs[:place], ends[:place]
            self._delivered = 0

    def skips_of_last(self, count: int) -> list[Skip]:
        """Returns what was left out before and among the last elements that are here."""
        runs = self.between(self._count - count, self._count)
        return [*(skip for run in runs for _, skip in skips_of(run)), *self._waiting]


def skips_of(run: Run) -> list[tuple[int, Skip]]:
    """Returns what was left out before each element of a run, with its place in the run."""
    skips = run.places.skips
    if not skips:
        return []
    rows = range(run.begin, run.end)
    return [(place, skip) for place, row in enumerate(rows) for skip in skips.get(row, ())]


class Parents:
    """Streams that are pulled for one that is made of their elements.

    Args:
      streams: each at its cursor.
      cursors: of the streams.
      again: returns one of them at its start, where that can be wanted.

    Attributes:
      left_over: records that were left out after the last output; read at the end.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        cursors: Sequence[Cursor],
        again: Callable[[int], Stream] | None,
    ) -> None:
        self._again = again
        self._parents = [_Parent(*pair) for pair in zip(streams, cursors, strict=True)]
        self.left_over: list[Skip] = []

    def advance(self) -> None:
        """Gets work going in all parents."""
        for parent in self._parents:
            parent.stream.advance()

    def close(self) -> None:
        """Gives up what nobody will pull."""
        for parent in self._parents:
            parent.stream.close()

    def held(self) -> tuple[int, int]:
        """Returns how many elements are here, and how many bytes their tasks' results take."""
        runs = [run for parent in self._parents for run in parent.runs if len(run)]
        bundles = {id(bundle): bundle for run in runs for bundle in _bundles(run)}
        size = sum(bundle.place[3] for bundle in bundles.values())
        return sum(map(len, runs)), size

    def _begin_anew(self, number: int) -> None:
        """Goes on with a parent that has ended from its start."""
        assert self._again is not None
        self._parents[number].begin_anew(self._again(number))


def _bundles(run: Run) -> list[Any]:
    """Returns the results of workers that a run is part of."""
    if not hasattr(run.held, "inputs"):
        return []
    pairs = run.held.inputs(run.begin, run.end)
    return [bundle for bundle, _ in pairs if hasattr(bundle, "place")]


class Around:
    """Places of elements that a stream hands on."""

    def __init__(self, places: Any) -> None:
        self._places = places

    def origin(self, row: int) -> Any:
        return self._places.origin(row)

    @property
    def skips(self) -> dict[int, tuple[Skip, ...]]:
        found: dict[int, tuple[Skip, ...]] = self._places.skips
        return found

    def cursor(self, row: int) -> Cursor:
        found: Cursor = self._places.cursor(row)
        return found

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        found: Whereabouts = self._places.whereabouts(begin, end)
        return found

    def measures(self, which: int, begin: int, end: int) -> Sequence[Any]:
        found: Sequence[Any] = self._places.measures(which, begin, end)
        return found


class Through:
    """A stream whose outputs are those of another one; a subclass says what it makes of the runs.

    Args:
      stream: the other one.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def left_over(self) -> list[Skip]:
        """Records that were left out after the last output; read at the end."""
        return self._stream.left_over

    @left_over.setter
    def left_over(self, skips: list[Skip]) -> None:
        self._stream.left_over = skips

    @property
    def is_ready(self) -> bool:
        """Whether the next output is here."""
        return self._stream.is_ready

    def advance(self) -> None:
        """Gets work going."""
        self._stream.advance()

    def close(self) -> None:
        """Gives up what nobody will pull."""
        self._stream.close()

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run of at most so many outputs, PENDING or END."""
        return self._stream.pull(most, block)


class Part(Through):
    """A stream that is one of several of which elements are grouped.

    Positions tell records apart, so that position p of part k of n becomes n p + k.

    Args:
      stream: which.
      number: k.
      several: n.
    """

    def __init__(self, stream: Stream, number: int, several: int) -> None:
        super().__init__(stream)
        self._number = number
        self._several = several

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run of at most so many outputs, PENDING or END."""
        run = super().pull(most, block)
        if isinstance(run, Run):
            run.places = _Renumbered(run.places, self._number, self._several)
        return run


class Later(Around):
    """Places in a stream that has begun anew, in which records have positions of their own."""

    def __init__(self, places: Any, epoch: int) -> None:
        super().__init__(places)
        self._first = epoch * EPOCH

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        positions, outputs, rngs = super().whereabouts(begin, end)
        return [self._first + position for position in positions], outputs, rngs


class _Renumbered(Around):
    def __init__(self, places: Any, number: int, several: int) -> None:
        super().__init__(places)
        self._number = number
        self._several = several

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        positions, outputs, rngs = super().whereabouts(begin, end)
        n, k = self._several, self._number
        return [n * position + k for position in positions], outputs, rngs
