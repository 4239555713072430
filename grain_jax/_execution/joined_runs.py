"""Joined runs: elements of several runs, in any order, as one run."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from grain_jax._algebra.running import Skip
from grain_jax._execution.runs import Cursor, Run, Whereabouts

__all__ = ["Joined", "as_one", "rows_of"]

_Pair = tuple[int, int]


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
      rows: each element's run and row there.
      measure: which of the measures that the runs know is the first one of the elements here.

    Attributes:
      skips: by row, the records that were left out since the element before.
    """

    def __init__(self, rows: Iterable[tuple[Run, int]], measure: int = 0) -> None:
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
        for run, first, last, pairs in self._by_run(begin, end):
            where, numbers, generators = run.places.whereabouts(first, last + 1)
            for row, inner in pairs:
                positions[row] = where[inner - first]
            if numbers is not None:
                outputs = outputs or [0] * count
                for row, inner in pairs:
                    outputs[row] = numbers[inner - first]
            if generators is not None:
                rngs = rngs or [None] * count
                for row, inner in pairs:
                    rngs[row] = generators[inner - first]
        return positions, outputs, rngs

    def measures(self, which: int, begin: int, end: int) -> Sequence[Any]:
        """Returns what a grouping behind has to know of some elements, the nearest being 0."""
        found: list[Any] = [None] * (end - begin)
        for run, first, last, pairs in self._by_run(begin, end):
            measured = run.places.measures(which + self._measure, first, last + 1)
            for row, inner in pairs:
                found[row] = measured[inner - first]
        return found

    def _by_run(self, begin: int, end: int) -> Iterator[tuple[Run, int, int, list[_Pair]]]:
        """Yields each run, the first and last row of it, and pairs of a row here and one there."""
        found: dict[int, tuple[Run, list[_Pair]]] = {}
        for row, (run, inner) in enumerate(self._rows[begin:end]):
            found.setdefault(id(run), (run, []))[1].append((row, inner))
        for run, pairs in found.values():
            inners = [inner for _, inner in pairs]
            yield run, min(inners), max(inners), pairs


class _InOrder(Joined):
    def __init__(
        self, rows: Iterable[tuple[Run, int]], cursors: Sequence[Cursor], measure: int
    ) -> None:
        super().__init__(rows, measure)
        self._cursors = cursors

    def cursor(self, row: int) -> Cursor:
        return self._cursors[row]


def _stretches(rows: Sequence[tuple[Run, int]]) -> Iterator[tuple[Run, int, int]]:
    """Yields neighbours of one run: the run, the first of them and the last."""
    last: Run | None = None
    first = end = 0
    for run, inner in rows:
        if run is last and inner == end:
            end += 1
            continue
        if last is not None:
            yield last, first, end - 1
        last, first, end = run, inner, inner + 1
    if last is not None:
        yield last, first, end - 1
