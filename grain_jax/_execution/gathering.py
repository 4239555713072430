"""Gathering: streams of streams. A grouping decides which elements of the parents go together."""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra.groupings.base import EPOCH, Group, Grouping
from grain_jax._algebra.running import Skip
from grain_jax._execution.joined_runs import as_one
from grain_jax._execution.runs import END, PENDING, Cursor, Run, Stream, Whereabouts
from grain_jax._values.faults import without_frames

__all__ = ["Complete", "Gathering", "Part", "Passed", "Place", "skips_of"]

Place = tuple[tuple[Cursor, ...], tuple[int, ...], int]
"""Cursors of the parents, the grouping's own numbers, and how many groups since."""


_PULLS = 32
"""So many runs are passed on before all parents are asked to work ahead; elements of a run."""

_NONE = Run((), None, 0, 0)
"""Stands where one was whose elements are delivered."""

_CURSOR = operator.attrgetter("cursor")


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


@dataclasses.dataclass(slots=True)
class Complete:
    """A group whose elements are here."""

    group: Group
    runs: list[Run]
    before: Place
    after: Place


class Gathering:
    """Pulls parents as a grouping wants, from a place on.

    Args:
      parents: the streams, each at its cursor in `place`.
      grouping: decides.
      place: where to begin; of the groups since its restart point no output is made again.
      again: returns one of the parents at its start, where the grouping can want that.

    Attributes:
      left_over: records that were left out after the last group; read at the end.
    """

    def __init__(
        self,
        parents: Sequence[Stream],
        grouping: Grouping,
        place: Place,
        again: Callable[[int], Stream] | None = None,
    ) -> None:
        self._again = again
        self._place = place
        cursors, self._kept, self._since = place
        self._parents = [_Parent(*pair) for pair in zip(parents, cursors, strict=True)]
        self._grouper = grouping.begin(self._kept, len(parents))
        self._measures = grouping.measure is not None
        self._passed = self._since
        self._since = 0
        self._groups: deque[Group] = deque()
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

    @property
    def has_group(self) -> bool:
        """Whether the elements of a group are here."""
        return len(self._groups) > self._passed

    def gather(self, block: bool) -> Any:
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
            if parent.has_ended:
                assert self._again is not None
                parent.begin_anew(self._again(number))
            run = parent.stream.pull(most, block)
            if run is PENDING:
                return PENDING
            if run is END:
                parent.has_ended = True
                self._grouper.end(number)
            else:
                if epoch := self._grouper.epoch(number):
                    run.places = _Later(run.places, epoch)
                parent.add(run)
                measures = run.places.measures(0, run.begin, run.end) if self._measures else None
                self._grouper.take(number, run.end - run.begin, measures)
            self._groups += self._grouper.made()

    def _gathered(self, group: Group) -> Complete:
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
        return Complete(group, runs, before, self._place)

    def _end(self) -> Any:
        self.left_over = [
            skip
            for number, parent in enumerate(self._parents)
            for skip in (
                *parent.skips_of_last(self._grouper.dropped(number)),
                *parent.stream.left_over,
            )
        ]
        self.close()
        return END


def _bundles(run: Run) -> list[Any]:
    """Returns the results of workers that a run is part of."""
    if not hasattr(run.held, "inputs"):
        return []
    pairs = run.held.inputs(run.begin, run.end)
    return [bundle for bundle, _ in pairs if hasattr(bundle, "place")]


class Passed(Gathering):
    """A stream whose outputs are elements of its parents, as they are."""

    def __init__(
        self,
        parents: Sequence[Stream],
        grouping: Grouping,
        place: Place,
        again: Callable[[int], Stream] | None = None,
    ) -> None:
        super().__init__(parents, grouping, place, again)
        self._pulled = 0
        self._failure: BaseException | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the next element is here."""
        if self._failure is not None or self._passed:
            return False
        return bool(self._groups) or self._parent_is_ready()

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run of the next element and of others that are here, PENDING or END."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            try:
                raise failure
            finally:
                del failure  # the traceback holds this frame
        # Whichever parent is pulled gets its own work going; the others want it now and then.
        if self._pulled % _PULLS == 0:
            self.advance()
        self._pulled += 1
        found = self.gather(block)
        if not isinstance(found, Complete):
            return found
        (run,) = found.runs
        if most == 1 or not self.is_ready:
            places = _Behind(run.places, found.after, self._measures)
            return Run(run.held, places, run.begin, run.end)
        runs, cursors = [run], [(found.after, 0)]
        for _ in range(min(most, _PULLS) - 1):
            if (more := self._more()) is None:
                break
            runs += more.runs
            cursors.append((more.after, 0))
        return as_one(runs, cursors, self._measures)

    def _more(self) -> Complete | None:
        """Returns the next group if it is here."""
        try:
            found = self.gather(False) if self.is_ready else None
        except Exception as error:
            self._failure = without_frames(error)  # behind the elements that are here
            return None
        return found if isinstance(found, Complete) else None

    def _parent_is_ready(self) -> bool:
        """Whether the parent that is wanted has an element."""
        try:
            wanted = self._grouper.wants()
        except Exception:  # it is raised when its turn comes
            return False
        return wanted is not None and self._parents[wanted[0]].stream.is_ready


class _Around:
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


class _Behind(_Around):
    """Places of an element that a grouping has let pass."""

    def __init__(self, places: Any, after: Place, measures: bool) -> None:
        super().__init__(places)
        self._after = after
        self._measures = measures

    def cursor(self, row: int) -> Cursor:
        return self._after, 0

    def measures(self, which: int, begin: int, end: int) -> Sequence[Any]:
        # The first ones are those that the grouping itself has asked for.
        return super().measures(which + self._measures, begin, end)


class Part:
    """A stream that is one of several of which elements are grouped.

    Positions tell records apart, so that position p of part k of n becomes n p + k.

    Args:
      stream: which.
      number: k.
      several: n.
    """

    def __init__(self, stream: Stream, number: int, several: int) -> None:
        self._stream = stream
        self._number = number
        self._several = several

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
        run = self._stream.pull(most, block)
        if isinstance(run, Run):
            run.places = _Renumbered(run.places, self._number, self._several)
        return run


class _Later(_Around):
    """Places in a stream that has begun anew, in which records have positions of their own."""

    def __init__(self, places: Any, epoch: int) -> None:
        super().__init__(places)
        self._first = epoch * EPOCH

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        positions, outputs, rngs = super().whereabouts(begin, end)
        return [self._first + position for position in positions], outputs, rngs


class _Renumbered(_Around):
    def __init__(self, places: Any, number: int, several: int) -> None:
        super().__init__(places)
        self._number = number
        self._several = several

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        positions, outputs, rngs = super().whereabouts(begin, end)
        n, k = self._several, self._number
        return [n * position + k for position in positions], outputs, rngs
