"""Merges: random-access nodes with several parents, one of which has the element at an index."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from grain_jax._algebra import seeded
from grain_jax._algebra.blocks import Block
from grain_jax._algebra.selections import Selection
from grain_jax._datasets import nodes
from grain_jax._values import errors

__all__ = ["SelectedNode", "ZippedNode", "checked"]

T = TypeVar("T")


def checked(
    kind: type[T], what: str, datasets: Any, hint: str = "MapDataset.source(...)"
) -> list[T]:
    """Returns the datasets that are to be merged; at least one.

    Args:
      kind: what each of them has to be.
      what: the operator, for error texts.
      datasets: what the user gave.
      hint: what makes one of the kind, for error texts.

    Raises:
      InvalidTypeError, InvalidValueError: naming what is none.
    """
    if isinstance(datasets, kind) or not isinstance(datasets, Sequence):
        raise errors.InvalidTypeError(
            f"{what} takes a list of datasets, got {datasets!r}. Write {what}([...])."
        )
    for place, part in enumerate(datasets):
        if not isinstance(part, kind):
            raise errors.InvalidTypeError(
                f"dataset {place} of {what} is {part!r}, which is no {kind.__name__}. Write {hint}."
            )
    if not datasets:
        raise errors.InvalidValueError(f"{what} got no datasets. Give one at least.")
    return list(datasets)


@dataclasses.dataclass(frozen=True)
class SelectedNode:
    """Elements of several nodes, as a selection says: mixtures, concatenations.

    Attributes:
      parents: the parts.
      selection: says which part has an element.
      title: what error messages call it.
      closed: after how many epochs the elements come again; None for never.
    """

    parents: tuple[nodes.Node, ...]
    selection: Selection
    title: str
    closed: int | None = None

    @property
    def length(self) -> int:
        """What the selection says."""
        return self.selection.length

    @property
    def has_gaps(self) -> bool:
        """Whether a step of any part may make elements absent."""
        return any(parent.has_gaps for parent in self.parents)

    def key(self, index: int) -> int | None:
        """Keys of several sources do not tell records apart."""
        return None

    def whence(self, index: int) -> str:
        """Says in words which record of which part an index ends at."""
        (part,), (inner,) = self._select(np.array([index], np.int64))
        found = nodes.whence(self.parents[part], int(inner))
        return f"dataset {part} of {self.title}, {found or f'index {inner}'}"

    def read(self, indices: nodes.Indices, read: seeded.Read) -> Block:
        """Reads each part at once."""
        nodes.check_not_empty(self.length, indices)
        parts, inner = self._select(indices)
        data: list[Any] = [None] * len(indices)
        there: list[int] = []
        for part in np.unique(parts).tolist():
            rows = np.flatnonzero(parts == part)
            block = self.parents[part].read(inner[rows], read)
            kept = rows.tolist() if block.rows is None else rows[block.rows].tolist()
            for place, row in enumerate(kept):
                data[row], block.data[place] = block.data[place], None
            there += kept
        block = Block(data, indices.tolist())
        return block if len(there) == len(data) else block.take(sorted(there))

    def _select(self, indices: nodes.Indices) -> tuple[nodes.Indices, nodes.Indices]:
        if self.closed is not None:
            indices = indices % (self.closed * self.length)
        return self.selection(indices)


@dataclasses.dataclass(frozen=True)
class ZippedNode:
    """Tuples of the elements that several nodes have at an index; absent where one of them is."""

    parents: tuple[nodes.Node, ...]

    def __post_init__(self) -> None:
        lengths = [parent.length for parent in self.parents]
        if len(set(lengths)) > 1:
            raise errors.InvalidValueError(
                f"zip takes datasets of equal lengths, and these have {lengths}. Cut the longer "
                f"ones: ds[:{min(lengths)}]."
            )

    @property
    def length(self) -> int:
        """That of all parts."""
        return self.parents[0].length

    @property
    def has_gaps(self) -> bool:
        """Whether a step of any part may make elements absent."""
        return any(parent.has_gaps for parent in self.parents)

    def key(self, index: int) -> int | None:
        """The parts may have others at the same index."""
        return None

    def whence(self, index: int) -> str | None:
        """Says in words which record the first part has there."""
        return nodes.whence(self.parents[0], index)

    def read(self, indices: nodes.Indices, read: seeded.Read) -> Block:
        """Reads all parts, and of each what the ones before have."""
        rows = list(range(len(indices)))
        columns: list[dict[int, Any]] = []
        for parent in self.parents:
            block = parent.read(indices[rows], read)
            rows = rows if block.rows is None else [rows[row] for row in block.rows]
            columns.append(dict(zip(rows, block.data, strict=True)))
            del block
        tuples = [tuple(column.pop(row) for column in columns) for row in rows]
        found = Block(tuples, indices[rows].tolist())
        if len(rows) < len(indices):
            found.rows = rows
        return found
