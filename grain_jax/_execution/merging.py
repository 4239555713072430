"""Merging: streams whose outputs are elements of their parents as they are, by a schedule.

No element decides which one is next, so that many are taken at once: as many as are here. Where
each of them stands is only worked out for those that somebody asks about.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra.groupings.base import Schedule
from grain_jax._execution.joined_runs import Joined, rows_of
from grain_jax._execution.parents import Later, Parents, Place
from grain_jax._execution.runs import END, PENDING, Cursor, Run, Stream
from grain_jax._values.faults import without_frames

__all__ = ["Merged"]

_TOGETHER = 32
"""Elements of a run, at most."""

_PULLS = 8
"""So many runs are passed on before parents are asked to work ahead."""

_AHEAD = 256
"""So many elements are looked ahead for the parents that are."""


class Merged(Parents):
    """A stream whose outputs are elements of its parents, as they are.

    Args:
      parents: the streams, each at its cursor in `place`.
      schedule: says which one is next, from `place` on.
      place: where to begin.
      again: returns one of the parents at its start, where the schedule can want that.
      most: how many parents work ahead: those that are wanted next.
    """

    def __init__(
        self,
        parents: Sequence[Stream],
        schedule: Schedule,
        place: Place,
        again: Callable[[int], Stream] | None = None,
        most: int = 1,
    ) -> None:
        super().__init__(parents, place[0], again)
        self._schedule = schedule
        self._most = most
        self._failures: dict[int, BaseException] = {}  # of parents, behind what is here of them
        self._ended: set[int] = set()  # parents of whose ends the schedule knows
        self._pulled = 0

    @property
    def is_ready(self) -> bool:
        """Whether the next element is here."""
        numbers, _ = self._schedule.next(1)
        if not numbers:
            return False
        parent = self._parents[numbers[0]]
        return parent.count > 0 or (not parent.has_ended and parent.stream.is_ready)

    def advance(self) -> None:
        """Gets work going in the parents that come next."""
        numbers = self._schedule.ahead()
        if numbers is None and len(self._parents) > self._most:
            wanted, _ = self._schedule.next(_AHEAD)
            numbers = list(itertools.islice(dict.fromkeys(wanted), self._most))
        for number in range(len(self._parents)) if numbers is None else numbers:
            self._parents[number].stream.advance()

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run of the next element and of others that are here, PENDING or END."""
        # Whichever parent is pulled gets its own work going; the others want it now and then.
        if self._pulled % _PULLS == 0:
            self.advance()
        self._pulled += 1
        while True:
            numbers, kept = self._schedule.next(min(most, _TOGETHER))
            if not numbers:
                return self._end()
            first = numbers[0]
            parent = self._parents[first]
            if not parent.count and not self._ask(first, numbers.count(first), block):
                return PENDING
            if parent.count:
                return self._run(numbers, kept)

    def _ask(self, number: int, most: int, block: bool) -> bool:
        """Pulls the parent whose turn it is; whether there is an answer."""
        if failure := self._failures.pop(number, None):
            try:
                raise failure
            finally:
                del failure  # the traceback holds this frame
        parent = self._parents[number]
        if parent.has_ended and number in self._ended:
            self._ended.discard(number)
            self._begin_anew(number)
        if not parent.has_ended and not self._add(number, most, block):
            return False
        if parent.has_ended:
            self._ended.add(number)
            self._schedule.end(number)
        return True

    def _add(self, number: int, most: int, block: bool) -> bool:
        """Pulls elements of a parent, or hears that there are no more; whether either is so."""
        parent = self._parents[number]
        run = parent.stream.pull(most, block)
        if run is PENDING:
            return False
        if run is END:
            parent.has_ended = True
        else:
            if epoch := self._schedule.epoch(number):
                run.places = Later(run.places, epoch)
            parent.add(run)
        return True

    def _run(self, numbers: Sequence[int], kept: Sequence[tuple[int, ...]]) -> Run:
        """Returns a run of as many of these elements as are here."""
        for number, count in Counter(numbers).items():
            self._look_for(number, count)
        here = {number: self._parents[number].count for number in set(numbers)}
        count = 0
        for number in numbers:
            if not here[number]:
                break
            here[number] -= 1
            count += 1
        numbers = numbers[:count]
        before = tuple(parent.cursor for parent in self._parents)
        runs = {number: self._parents[number].take(n) for number, n in Counter(numbers).items()}
        self._schedule.take(count)
        window = _Window(numbers, runs, before, kept)
        return Run(window, window, 0, count)

    def _look_for(self, number: int, count: int) -> None:
        """Adds elements that cost nobody any work until there are so many, if there are."""
        parent = self._parents[number]
        try:
            while (
                parent.count < count
                and not parent.has_ended
                and number not in self._failures
                and self._add(number, count - parent.count, False)
            ):
                pass
        except Exception as error:
            self._failures[number] = without_frames(error)  # behind the elements that are here

    def _end(self) -> Any:
        self.left_over = [
            skip for number in sorted(self._ended) for skip in self._parents[number].skips_at_end()
        ]
        self.close()
        return END


class _Window(Joined):
    """Elements of several parents.

    Args:
      numbers: of each element, its parent.
      runs: of each parent, the elements.
      before: cursors of all parents before the first element.
      kept: the schedule's own numbers behind each element.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        runs: dict[int, list[Run]],
        before: tuple[Cursor, ...],
        kept: Sequence[tuple[int, ...]],
    ) -> None:
        given = {number: rows_of(found) for number, found in runs.items()}
        super().__init__(next(given[number]) for number in numbers)
        self._numbers = numbers
        self._before = before
        self._kept = kept

    def cursor(self, row: int) -> Cursor:
        """Returns where to go on after an element."""
        last = dict(zip(self._numbers[: row + 1], self._rows[: row + 1], strict=True))
        cursors = list(self._before)
        for number, (run, inner) in last.items():
            cursors[number] = run.places.cursor(inner)
        return (tuple(cursors), self._kept[row], 0), 0
