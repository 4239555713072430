"""Sources that are containers in memory: lists, arrays, tables and trees of arrays.

Their records belong to the container, which the pipeline reads again in the next epoch and which
worker processes see a copy of. So a record comes as a read-only view or as a copy of its own,
whatever its type: no operation changes what later epochs, or other readers, read.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import access
from grain_jax._algebra.access import Keys, Source
from grain_jax._algebra.columns import ArrayColumn, Column, Columns
from grain_jax._algebra.guard import SOURCE, Guard
from grain_jax._algebra.lists import ListColumn
from grain_jax._algebra.stacking import Allocate, owned_empty

__all__ = ["ContainerSource", "RangeSource", "array_column", "elements_of", "is_list"]


class ContainerSource(Source):
    """Records made of columns.

    Args:
        given: the user's container.
        look: returns its columns, as they are now.
    """

    def __init__(self, given: Any, look: Callable[[Any], Columns]) -> None:
        self._look: Callable[[Any], Columns] | None = look
        self._enter(given, access.describe(given), look(given))

    def _enter(self, given: Any, text: str, columns: Columns) -> None:
        self.given, self._text, self._columns = given, text, columns
        self.length = columns.columns[0].length
        self.in_memory = all(column.in_memory for column in columns.columns)
        self.get = self._get
        self.get_many = None if self.in_memory else self._get_many
        # A lazy array may be of a class of the user's.
        self.guard = Guard(SOURCE, not self.in_memory)

    def code(self) -> list[Any]:
        return [self._get]

    def __reduce__(self) -> tuple[Any, ...]:
        return _moved, (self._text, self._columns, self.has_gaps)

    @functools.cached_property
    def has_gaps(self) -> bool:  # type: ignore[override]
        """Whether a record is None; it is looked for once, as it is asked."""
        return self._columns.has_gaps

    def snapshot(self) -> Source:
        """The container as it is now; what its owner adds or replaces later does not show."""
        if self._look is None:
            return self
        return ContainerSource(self.given, self._look)

    @property
    def description(self) -> str:
        """The type of the container and its length."""
        return f"{self._text} of length {self.length}"

    @property
    def has_batches(self) -> bool:
        """Whether all columns gather."""
        return self._columns.gathers

    def _get(self, key: int) -> Any:
        return self.read(np.array([key], np.int64))[0]

    def _get_many(self, keys: list[int]) -> Sequence[Any]:
        return self._columns.rows(np.array(keys, np.int64))

    def read(self, keys: Keys) -> list[Any]:
        """Views or copies."""
        self.check(keys)
        try:
            return self._columns.rows(keys)
        except BaseException as error:
            wanted = keys.tolist()
            row = access.failing_row(self._get_one, wanted, error) if len(wanted) > 1 else 0
            access.mark_failure(error, self, row, wanted)
            raise

    def _get_one(self, key: int) -> Any:
        return self._columns.rows(np.array([key], np.int64))[0]

    def read_batch(self, keys: Keys, allocate: Allocate | None = None) -> Any:
        """Each column in one copy."""
        if not self.has_batches:
            return None
        self.check(keys)
        return self._columns.gather(keys, allocate)


def _moved(text: str, columns: Columns, has_gaps: bool) -> ContainerSource:
    """The source in another process, where the user's container is not."""
    source = ContainerSource.__new__(ContainerSource)
    source._look = None
    source._enter(None, text, columns)
    source.__dict__["has_gaps"] = has_gaps
    return source


class RangeSource(Source):
    """Integers in arithmetic progression: a `range`, or anything that holds one."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.in_memory = True
        self.get_many = None
        values = given if isinstance(given, range) else given.values
        self.get = values.__getitem__
        self._start, self._step = values.start, values.step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.given,)

    @property
    def has_batches(self) -> bool:
        return True

    def read(self, keys: Keys) -> list[Any]:
        self.check(keys)
        records: list[int] = (keys * self._step + self._start).tolist()
        return records

    def read_batch(self, keys: Keys, allocate: Allocate | None = None) -> Any:
        self.check(keys)
        out = (allocate or owned_empty)(keys.shape, np.dtype(np.int64))
        np.multiply(keys, self._step, out=out)
        out += self._start
        return out


_GETTERS = (
    list.__getitem__,
    tuple.__getitem__,
    dict.__getitem__,
    collections.deque.__getitem__,
    collections.UserList.__getitem__,
)


def is_list(given: Any) -> bool:
    """Whether indexing gives what a container of the standard library holds.

    A subclass that computes its items makes records afresh.
    """
    return type(given).__getitem__ in _GETTERS


def elements_of(given: Any) -> list[Any]:
    """The elements by key, in a list of their own."""
    if isinstance(given, dict):
        return [given[key] for key in range(len(given))]
    return (
        list(given)
        if type(given) in (list, tuple, collections.deque)
        else [given[key] for key in range(len(given))]
    )


def array_column(given: np.ndarray[Any, Any]) -> Column:
    """The column of an array's rows."""
    if type(given) is np.memmap:
        given = np.asarray(given)  # its rows are not files of their own
    if given.dtype.hasobject:
        return ListColumn(list(given))
    return ArrayColumn(given)
