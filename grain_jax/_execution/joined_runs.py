"""Joined runs: elements of several runs, one behind the other, as one run."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra.running import Skip
from grain_jax._execution.runs import Cursor, Run, Whereabouts, joined

__all__ = ["as_one"]


def as_one(runs: Sequence[Run], cursors: Sequence[Cursor], measure: int) -> Run:
    """Returns one run of the elements of runs.

    Args:
      runs: in order.
      cursors: where to go on after each element.
      measure: which of the measures that the runs know is the first one of the elements here.
    """
    joined_runs = _Joined(_neighbours(runs), cursors, measure)
    return Run(joined_runs, joined_runs, 0, len(cursors))


def _neighbours(runs: Sequence[Run]) -> list[Run]:
    """Returns the runs, neighbours in one as one."""
    found: list[Run] = []
    for run in runs:
        last = found[-1] if found else None
        if last and last.end == run.begin and last.held is run.held and last.places is run.places:
            last.end = run.end
        else:
            found.append(Run(run.held, run.places, run.begin, run.end))
    return found


class _Joined:
    """What elements of several runs are, and their places; rows are counted from 0.

    Attributes:
      skips: by row, the records that were left out since the element before.
    """

    def __init__(self, runs: list[Run], cursors: Sequence[Cursor], measure: int) -> None:
        self._runs = runs
        self._cursors = cursors
        self._measure = measure
        self._ends: list[int] = []
        self.skips: dict[int, tuple[Skip, ...]] = {}
        end = 0
        for run in runs:
            if skips := run.places.skips:
                rows = (row for row in range(run.begin, run.end) if row in skips)
                self.skips.update((end + row - run.begin, skips[row]) for row in rows)
            end += len(run)
            self._ends.append(end)

    def __getitem__(self, row: int) -> Any:
        run, inner = self._at(row)
        return run.held[inner]

    def inputs(self, begin: int, end: int) -> list[tuple[Any, Sequence[int]]]:
        """Returns results of tasks, and the rows in them."""
        parts = self._between(begin, end)
        return [pair for run in parts for pair in run.held.inputs(run.begin, run.end)]

    def origin(self, row: int) -> Any:
        """Returns the payload of the task that made an element."""
        run, inner = self._at(row)
        return run.places.origin(inner)

    def cursor(self, row: int) -> Cursor:
        """Returns where to go on after an element."""
        return self._cursors[row]

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        """Returns those of some elements."""
        return joined(
            [run.places.whereabouts(run.begin, run.end) for run in self._between(begin, end)]
        )

    def measures(self, which: int, begin: int, end: int) -> Sequence[Any]:
        """Returns what a grouping behind has to know of some elements, the nearest being 0."""
        found: list[Any] = []
        for run in self._between(begin, end):
            found += run.places.measures(which + self._measure, run.begin, run.end)
        return found

    def _at(self, row: int) -> tuple[Run, int]:
        place = bisect.bisect_right(self._ends, row)
        run = self._runs[place]
        return run, run.end - self._ends[place] + row

    def _between(self, begin: int, end: int) -> list[Run]:
        found = []
        while begin < end:
            run, row = self._at(begin)
            stop = min(run.end, row + end - begin)
            found.append(Run(run.held, run.places, row, stop))
            begin += stop - row
        return found
