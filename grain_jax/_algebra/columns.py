"""Columns: what the records of a container are made of, read at many keys at once."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra.packing import Array, Keys, frozen_array
from grain_jax._algebra.stacking import Allocate, owned_empty
from grain_jax._values.trees import flatten, unflatten

__all__ = ["ArrayColumn", "Column", "Columns"]


class Column(abc.ABC):
    """One value for each key.

    Attributes:
        length: how many.
        in_memory: whether reading neither waits nor calls the user's code.
        gathers: whether `gather` gives what stacking the rows gives.
        has_none: whether a value is None.
    """

    length: int
    in_memory = True
    gathers = False
    has_none = False

    @abc.abstractmethod
    def rows(self, keys: Keys) -> list[Any]:
        """The values of these keys: read-only views, or copies."""

    def gather(self, keys: Keys, allocate: Allocate | None) -> Array:
        """The values of these keys as one array."""
        raise NotImplementedError


class ArrayColumn(Column):
    """The rows of an array without objects in it."""

    def __init__(self, given: Array) -> None:
        self._array = frozen_array(given)
        self.length = len(given)
        self.gathers = type(given) is np.ndarray

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._array,)

    def rows(self, keys: Keys) -> list[Any]:
        """Rows as indexing gives them: scalars of NumPy from one axis, else read-only views."""
        array = self._array
        if array.ndim > 1 or not self.gathers:
            return [array[key] for key in keys.tolist()]
        picked = array[keys]
        picked.setflags(write=False)  # a row of a structured array is a view
        return list(picked)

    def gather(self, keys: Keys, allocate: Allocate | None) -> Array:
        """The rows in one copy; text as objects, as it stacks."""
        array = self._array
        if array.ndim == 1 and array.dtype.kind in "US":
            return array[keys].astype(object)
        dtype = np.result_type(array.dtype)
        out = (allocate or owned_empty)((len(keys), *array.shape[1:]), dtype)
        if array.flags.c_contiguous and array.flags.aligned and dtype == array.dtype:
            # "raise" would gather into a temporary first; the keys have been checked.
            np.take(array, keys, axis=0, out=out, mode="clip")
        else:
            out[...] = array[keys]
        return out


class Columns:
    """The columns of a container, and how a record is built of one value of each.

    Args:
        tree: a column, whose values are the records, or a tree of columns. The dicts of records
            have their keys in its order.
    """

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._names: tuple[Any, ...] | None = None
        if type(tree) is dict and all(isinstance(value, Column) for value in tree.values()):
            self._names, self.columns = tuple(tree), list(tree.values())
        else:
            self.columns, self._shape = flatten(tree, is_sorted=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._tree,)

    @property
    def gathers(self) -> bool:
        """Whether each column gathers."""
        return all(column.gathers for column in self.columns)

    @property
    def has_gaps(self) -> bool:
        """Whether a record is None."""
        return self._tree is self.columns[0] and self.columns[0].has_none

    def rows(self, keys: Keys) -> list[Any]:
        """The records of these keys."""
        if self._tree is self.columns[0]:
            values: list[Any] = self.columns[0].rows(keys)
            return values
        rows: Iterator[Sequence[Any]]
        rows = zip(*[column.rows(keys) for column in self.columns], strict=True)
        if self._names is not None:
            names = self._names
            return [dict(zip(names, row)) for row in rows]  # noqa: B905  # equal by construction
        return [unflatten(self._shape, row) for row in rows]

    def gather(self, keys: Keys, allocate: Allocate | None) -> Any:
        """The records of these keys as a batch."""
        leaves = [column.gather(keys, allocate) for column in self.columns]
        if self._names is not None:
            return dict(zip(self._names, leaves, strict=True))
        return leaves[0] if self._tree is self.columns[0] else unflatten(self._shape, leaves)
