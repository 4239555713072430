"""Gathering: streams of streams. A grouping decides which elements of the parents go together."""

from __future__ import annotations

import dataclasses
import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra.groupings.base import Group, Grouping
from grain_jax._execution.joined_runs import Joined, as_one
from grain_jax._execution.parents import Around, Later, Parents, Place
from grain_jax._execution.runs import END, PENDING, Cursor, Run, Stream
from grain_jax._values.faults import without_frames

__all__ = ["Complete", "Gathering", "Passed"]

_PULLS = 32
"""So many runs are passed on before all parents are asked to work ahead; elements of a run."""

_MOST = 256
"""Elements between two restart points that are passed on as one run, at most."""

_CURSOR = operator.attrgetter("cursor")


@dataclasses.dataclass(slots=True)
class Complete:
    """A group whose elements are here."""

    group: Group
    runs: list[Run]
    before: Place
    after: Place


class Gathering(Parents):
    """Pulls parents as a grouping wants, from a place on.

    Args:
      parents: the streams, each at its cursor in `place`.
      grouping: decides.
      place: where to begin; of the groups since its restart point no output is made again.
      again: returns one of the parents at its start, where the grouping can want that.
    """

    def __init__(
        self,
        parents: Sequence[Stream],
        grouping: Grouping,
        place: Place,
        again: Callable[[int], Stream] | None = None,
    ) -> None:
        cursors, self._kept, self._since = self._place = place
        super().__init__(parents, cursors, again)
        self._grouper = grouping.begin(self._kept, len(parents))
        self._measures = grouping.measure is not None
        self._passed = self._since
        self._since = 0
        self._groups: deque[Group] = deque()

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
                self._begin_anew(number)
            run = parent.stream.pull(most, block)
            if run is PENDING:
                return PENDING
            if run is END:
                parent.has_ended = True
                self._grouper.end(number)
            else:
                if epoch := self._grouper.epoch(number):
                    run.places = Later(run.places, epoch)
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
                *(parent.stream.left_over if parent.has_ended else ()),
            )
        ]
        self.close()
        return END


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
        if not self._passed and (inside := self._inside(most)) is not None:
            return inside
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

    def _inside(self, most: int) -> Run | None:
        """Returns the elements that are here and come before the next restart point, if any do."""
        groups, parents = self._groups, self._parents
        rows: list[tuple[Run, int]] = []
        while groups and groups[0].restart is None and len(rows) < min(most, _MOST):
            ((number, first, _),) = groups.popleft().members
            rows.append(parents[number].at(first))
        if not rows:
            return None
        inside = _Inside(rows, self._place, self._measures)
        self._since += len(rows)
        self._place = *self._place[:2], self._since
        return Run(inside, inside, 0, len(rows))

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


class _Inside(Joined):
    """Elements between two restart points: behind each it is one output more since the first."""

    def __init__(self, rows: Sequence[tuple[Run, int]], before: Place, measures: bool) -> None:
        super().__init__(rows, measures)
        self._before = before

    def cursor(self, row: int) -> Cursor:
        cursors, kept, since = self._before
        return (cursors, kept, since + row + 1), 0


class _Behind(Around):
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
