"""Rebatch: batches of any sizes, cut and joined to batches of one size."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeVar

from grain_jax._algebra import pieces
from grain_jax._algebra.groupings.base import MANY, Group, Grouper, Grouping, Measure, Restart
from grain_jax._algebra.stacking import StackError, named
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._values import options
from grain_jax._values.errors import StateError
from grain_jax._values.shapes import ShapeDtypeStruct
from grain_jax._values.trees import flatten, paths, unflatten

__all__ = ["RebatchIterDataset"]

T = TypeVar("T", covariant=True)

Cut = tuple[int, int]
"""The first row of an element that a batch has, and the one behind the last."""


class RebatchIterDataset(IterDataset[T]):
    """Batches of `batch_size` rows, of the rows of a stream of batches of any sizes.

    Every row comes once, in order. A batch is a tree of arrays that have equally many rows: their
    first axes.

    Args:
      parent: the stream of batches.
      batch_size: rows of each batch.
      drop_remainder: whether an incomplete last batch is dropped.

    Raises:
      InvalidValueError: as elements come, if leaves of one have different numbers of rows, or
        elements that go together have different structures.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(5).to_iter_dataset().batch(3)
      >>> [batch.tolist() for batch in grain.experimental.RebatchIterDataset(ds, 2)]
      [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self, parent: IterDataset[T], batch_size: int, drop_remainder: bool = False
    ) -> None:
        super().__init__(parent)
        batch_size = options.check_count("batch_size", batch_size, minimum=1)
        text = f"rebatch({batch_size}{', drop_remainder=True' * drop_remainder})"
        grouping = _Rebatch(batch_size, bool(drop_remainder))
        self._make_of([parent], grouping, text, _make, is_fresh=True)


@dataclasses.dataclass(frozen=True)
class _Rebatch(Grouping):
    """So many rows. Its own number is how many rows of the next element are done with."""

    size: int
    drop: bool

    @property
    def measure(self) -> Measure:  # type: ignore[override]
        return functools.partial(pieces.row_count, what="rebatch")

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns 0 rows."""
        return (0,)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper that leaves out so many rows of its first element."""
        return _Cutting(self, *kept)

    def spec(self, parents: Sequence[Any]) -> Any:
        """Returns other numbers of rows."""
        leaves, structure = flatten(parents[0], is_sorted=False)
        size = self.size if self.drop else None
        return unflatten(
            structure, [ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        )


class _Cutting(Grouper):
    def __init__(self, of: _Rebatch, done: int) -> None:
        super().__init__()
        self._of = of
        self._done = done  # rows of the next element that have been handed out
        self._count = 0
        self._over = False
        self._first = 0  # element of the batch to come
        self._cuts: list[Cut] = []
        self._room = of.size

    def wants(self) -> tuple[int, int] | None:
        return None if self._over else (0, MANY)

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        for rows in measures or ():
            self._cut(rows)
            self._count += 1

    def end(self, parent: int) -> None:
        self._over = True
        if self._cuts and not self._of.drop:
            begin, end = self._cuts[-1]
            self._flush(self._count - 1, 0, (end - 1) // self._of.size + 1 if begin else 0)

    def dropped(self, parent: int) -> int:
        return len(self._cuts) - bool(self._cuts and self._cuts[0][0])

    def _cut(self, rows: int) -> None:
        """Hands out the rows of the next element."""
        begin, self._done = self._done, 0
        if begin > rows:
            raise StateError(
                f"the state says that {begin} rows of an element with {rows} rows have been handed "
                "out: it is a state of other data."
            )
        size = self._of.size
        while rows - begin >= self._room:
            end = begin + self._room
            self._cuts.append((begin, end))
            # Batches that end in one element are told apart, also by one who begins in its middle.
            self._flush(self._count, 0 if end == rows else end, (end - 1) // size)
            begin = end
        if begin < rows or self._cuts:
            self._cuts.append((begin, rows))
            self._room -= rows - begin
        else:
            self._first = self._count + 1  # nothing of it is in the next batch

    def _flush(self, last: int, done: int, output: int) -> None:
        """Makes a batch that ends in element `last`, of which `done` rows are out then; 0: all."""
        behind = last if done else last + 1
        members = [(0, self._first, last + 1)]
        restart = Restart((behind,), (done,))
        self.groups.append(Group(members, self._cuts, restart, output=output))
        self._first, self._cuts, self._room = behind, [], self._of.size


def _make(elements: list[Any], cuts: list[Cut]) -> Any:
    """Joins rows of some elements."""
    first, structure = flatten(elements[0])
    ways = list(map(named, paths(elements[0])))
    columns: list[list[Any]] = [[] for _ in first]
    for row, (element, (begin, end)) in enumerate(zip(elements, cuts, strict=True)):
        leaves, other = flatten(element)
        if other != structure:
            raise StackError(
                f"elements that go into one batch differ in structure: {structure!r} in element 0 "
                f"of them and {other!r} in element {row}.",
                "",
                0,
                row,
            )
        for column, leaf, way in zip(columns, leaves, ways, strict=True):
            column.append(pieces.as_array(leaf, way)[begin:end])
    return unflatten(structure, list(map(pieces.joined, columns, ways)))
