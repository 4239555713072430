"""Joined runs: elements of several runs, in any order, as one run."""

from __future__ import annotations

import abc
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from grain_jax._algebra.running import Skip
from grain_jax._execution.runs import Cursor, Run, Whereabouts

__all__ = ["Joined", "as_one", "rows_of"]


def as_one(runs: Sequence[Run], cursors: Sequence[Cursor], measure: int) -> Run:
    """Returns one run of the elements of runs, one behind the other.

    Args:
      runs: in order.
      cursors: where to go on after each element.
      measure: which of the measures that the runs know is the first one of the elements here.
    """
    joined = _InOrder(rows_of(_neighbours(runs)), cursors, measure)
    return Run(joined, joined, 0, len(cursors))


def rows_of(runs: Sequence[Run]) -> Iterator[tuple[Run, int]]:
    """Yields the elements of runs, each as its run and its row there."""
    return ((run, row) for run in runs for row in range(run.begin, run.end))


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


class Joined(abc.ABC):
    """What elements of several runs are, and their places; rows are counted from 0.

    Args:
      rows: each element's run and row there. The elements of one run are neighbours there, and in
        order.
      measure: which of the measures that the runs know is the first one of the elements here.

    Attributes:
      skips: by row, the records that were left out since the element before.
    """

    def __init__(self, rows: Iterator[tuple[Run, int]], measure: int = 0) -> None:
        self._rows = list(rows)
        self._measure = measure
        self.skips: dict[int, tuple[Skip, ...]] = {}
        if any(run.places.skips for run in {id(run): run for run, _ in self._rows}.values()):
            for row, (run, inner) in enumerate(self._rows):
                if skips := run.places.skips.get(inner):
                    self.skips[row] = skips

    @abc.abstractmethod
    def cursor(self, row: int) -> Cursor:
        """Returns where to go on after an element."""

    def __getitem__(self, row: int) -> Any:
        run, inner = self._rows[row]
        return run.held[inner]

    def inputs(self, begin: int, end: int) -> list[tuple[Any, Sequence[int]]]:
        """Returns results of tasks, and the rows in them."""
        return [
            pair
            for run, first, last in _stretches(self._rows[begin:end])
            for pair in run.held.inputs(first, last + 1)
        ]

    def origin(self, row: int) -> Any:
        """Returns the payload of the task that made an element."""
        run, inner = self._rows[row]
        return run.places.origin(inner)

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        """Returns those of some elements."""
        count = end - begin
        positions, outputs, rngs = [0] * count, None, None
        for run, first, last, rows in self._by_run(begin, end):
            where, numbers, generators = run.places.whereabouts(first, last + 1)
            for row, position in zip(rows, where, strict=True):
                positions[row] = position
            if numbers is not None:
                outputs = outputs or [0] * count
                for row, number in zip(rows, numbers, strict=True):
                    outputs[row] = number
            if generators is not None:
                rngs = rngs or [None] * count
                for row, generator in zip(rows, generators, strict=True):
                    rngs[row] = generator
        return positions, outputs, rngs

    def measures(self, which: int, begin: int, end: int) -> Sequence[Any]:
        """Returns what a grouping behind has to know of some elements, the nearest being 0."""
        found: list[Any] = [None] * (end - begin)
        for run, first, last, rows in self._by_run(begin, end):
            measured = run.places.measures(which + self._measure, first, last + 1)
            for row, value in zip(rows, measured, strict=True):
                found[row] = value
        return found

    def _by_run(self, begin: int, end: int) -> Iterator[tuple[Run, int, int, list[int]]]:
        """Yields each run with the first and the last of its elements here, and their rows."""
        rows: dict[int, list[int]] = {}
        for row, (run, _) in enumerate(self._rows[begin:end]):
            rows.setdefault(id(run), []).append(row)
        for here in rows.values():
            run, first = self._rows[begin + here[0]]
            yield run, first, first + len(here) - 1, here


class _InOrder(Joined):
    def __init__(
        self, rows: Iterator[tuple[Run, int]], cursors: Sequence[Cursor], measure: int
    ) -> None:
        super().__init__(rows, measure)
        self._cursors = cursors

    def cursor(self, row: int) -> Cursor:
        return self._cursors[row]


def _stretches(rows: Sequence[tuple[Run, int]]) -> Iterator[tuple[Run, int, int]]:
    """Yields neighbours of one run: the run, the first of them and the last."""
    for run, found in itertools.groupby(rows, key=operator.itemgetter(0)):
        inner = [row for _, row in found]
        yield run, inner[0], inner[-1]
