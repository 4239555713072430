"""Data sources: records by index, from anything that has a length and an index."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from grain_jax._algebra import tables
from grain_jax._algebra.access import Source, describe, of_class
from grain_jax._algebra.columns import Column, Columns
from grain_jax._algebra.containers import (
    ContainerSource,
    RangeSource,
    array_column,
    elements_of,
    is_list,
)
from grain_jax._algebra.lazy import LazyColumn, is_array_like, is_lazy
from grain_jax._algebra.lists import ListColumn
from grain_jax._values.arrays import is_key, what_is_lost
from grain_jax._values.errors import InvalidTypeError, InvalidValueError, OutOfRangeError
from grain_jax._values.trees import flatten, paths, unflatten

__all__ = ["RandomAccessDataSource", "RangeDataSource", "adapt", "check_not_empty"]

T_co = TypeVar("T_co", covariant=True)

_INT64 = np.iinfo(np.int64)


@runtime_checkable
class RandomAccessDataSource(Protocol[T_co]):
    """Records by index: what a loader can read.

    Any object with `__len__` and `__getitem__` is one: a list, a NumPy array, a TFDS or Hugging
    Face dataset, a class of your own. Two more methods are used where a source has them:

    - `__getitems__(indices: list[int])` returns a sequence of records, order and duplicates kept.
    - `__getbatch__(indices: np.ndarray)` returns a tree of arrays with one row for each index. It
      is used where nothing between the source and `Batch` works on single records.

    They count where a class defines them together with `__getitem__`, or a class derived from it
    does: not those of the bases of a class that has a `__getitem__` of its own, nor what its
    `__getattr__` finds in another object.

    A dict (or tree) of equally long arrays is a source too; its records have one row of each.

    Example:
      >>> import grain_jax as grain
      >>> class Squares:
      ...     def __len__(self):
      ...         return 4
      ...     def __getitem__(self, index):
      ...         return int(index) ** 2
      >>> list(grain.load(Squares(), num_epochs=1))
      [0, 1, 4, 9]
    """

    def __len__(self) -> int:
        """The number of records."""

    def __getitem__(self, index: int, /) -> T_co:
        """The record of an index from 0 to `len(self) - 1`."""


class RangeDataSource:
    """The integers from `start` on, before `stop`, in steps of `step`: a source for tests.

    >>> source = RangeDataSource(2, 20, 3)
    >>> source, len(source), source[1]
    (RangeDataSource(start=2, stop=20, step=3), 6, 5)

    Raises:
        InvalidValueError: if `step` is 0 or leads away from `stop`.
    """

    def __init__(self, start: int, stop: int, step: int) -> None:
        if step == 0:
            raise InvalidValueError("step must not be 0; write step=1 for every integer.")
        if (stop - start) * step < 0:
            raise InvalidValueError(
                f"step={step} leads from start={start} away from stop={stop}; swap the two, or "
                f"write step={-step}."
            )
        self.values = range(start, stop, step)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self.values):
            raise OutOfRangeError(f"Index {index} out of range for {len(self.values)}")
        return self.values[index]

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        return [self[index] for index in indices]

    def __repr__(self) -> str:
        r = self.values
        return f"RangeDataSource(start={r.start}, stop={r.stop}, step={r.step})"


def adapt(source: Any) -> Source:
    """Looks at a source once and returns how to read it.

    Raises:
        InvalidTypeError: if it is no source.
        InvalidValueError: if it is a tree of arrays whose lengths differ.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str | bytes):
        raise InvalidTypeError(
            f"{source!r} is text, not a data source. For a file of records write "
            "grain_jax.sources.ArrayRecordDataSource(path)."
        )
    kind = type(source)
    if kind is range or kind is RangeDataSource:
        values = source if kind is range else source.values
        if all(_INT64.min <= v <= _INT64.max for v in (values.start, values.stop, values.step)):
            return RangeSource(source)
        return ContainerSource(source, lambda _: Columns(ListColumn(values)))
    if tables.is_table(source):
        return ContainerSource(source, _table)
    if tables.is_column(source):
        return ContainerSource(source, _series)
    if isinstance(source, np.ndarray) or (is_array_like(source) and not is_key(source)):
        return ContainerSource(source, _array)
    if isinstance(source, dict) and not _is_numbered(source):
        return ContainerSource(source, _tree)
    _refuse_named(source)
    for name, does in (("__len__", "its number of records"), ("__getitem__", "a record by index")):
        if not callable(of_class(source, name)):
            raise InvalidTypeError(
                f"{describe(source)} is no data source: it has no {name} ({does}). Give a list, an "
                "array, a dict of arrays, or an object with __len__ and __getitem__; from an "
                "iterable, make list(...)."
            )
    if is_list(source):
        return ContainerSource(source, _list)
    return Source(source)


def check_not_empty(source: Source) -> None:
    """Refuses a source without records.

    Raises:
        InvalidValueError: if it has none.
    """
    if source.length == 0:
        raise InvalidValueError(
            f"the data source ({source.description}) is empty: there is nothing to load. Check "
            "its path, split or filter."
        )


def _refuse_named(source: Any) -> None:
    """Refuses what has arrays by names: an `NpzFile`, a group of h5py or zarr, other mappings."""
    kind = type(source)
    is_group = kind.__module__.partition(".")[0] == "zarr" and kind.__name__ == "Group"
    if isinstance(source, dict) or not (isinstance(source, Mapping) or is_group):
        return
    names = sorted(itertools.islice(source.keys(), 4), key=str)  # zarr has no order
    if names and type(names[0]) is int:
        return
    what = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
    raise InvalidTypeError(
        f"{describe(source)} has entries by names ({what}), and a data source has records by "
        "numbers. Where these are arrays of one length, whose rows are the records, write "
        "dict(source); or give one of them, "
        f"source[{names[0] if names else 'name'!r}]."
    )


def _refuse_lossy(array: Any, name: str) -> None:
    lost = what_is_lost(array) if isinstance(array, np.ndarray) else None
    if lost is not None:
        raise InvalidTypeError(f"{name} {lost}")


def _list(source: Any) -> Columns:
    return Columns(ListColumn(elements_of(source)))


def _table(source: Any) -> Columns:
    return Columns(tables.tree_of(source))


def _series(source: Any) -> Columns:
    return Columns(tables.column_of(source))


def _array(source: Any) -> Columns:
    if isinstance(source, np.ma.MaskedArray):
        _refuse_lossy(source, "the data source")
    if not len(source.shape):
        raise InvalidTypeError(
            f"{describe(source)} without axes is no data source; its first axis would number the "
            "records."
        )
    return Columns(_column(source, "the data source"))


def _column(array: Any, name: str) -> Column:
    if is_lazy(array):
        return LazyColumn(array)
    if isinstance(array, np.ndarray):
        return array_column(array)
    try:
        return array_column(np.asarray(array))
    except (TypeError, RuntimeError, ValueError) as error:
        raise InvalidTypeError(
            f"{name} is {describe(array)}, of which NumPy cannot make an array: {error}. Give one "
            "of NumPy instead."
        ) from error


def _is_numbered(source: dict[Any, Any]) -> bool:
    """Whether a dict maps 0, 1, 2, ... to records."""
    return len(source) > 0 and all(type(k) is int and 0 <= k < len(source) for k in source)


def _tree(source: Any) -> Columns:
    if source and all(map(_is_dataset, source.values())):
        names = ", ".join(map(repr, source))
        raise InvalidTypeError(
            f"{describe(source)} is no data source but several: {names}. Choose one of them: write "
            f"source[{next(iter(source))!r}]."
        )
    leaves, shape = flatten(source, is_sorted=False)
    ways = paths(source, is_sorted=False)
    if not leaves:
        raise InvalidValueError("an empty dict is no data source: it has no arrays and no records.")
    columns = [_leaf(leaf, way) for leaf, way in zip(leaves, ways, strict=True)]
    lengths = {column.length: way for column, way in zip(columns[::-1], ways[::-1], strict=True)}
    if len(lengths) > 1:
        (first, way), (second, other) = sorted(
            lengths.items(), key=lambda item: ways.index(item[1])
        )[:2]
        raise InvalidValueError(
            f"the arrays of a dict as a data source need one length: {way} has {first} rows and "
            f"{other} has {second}."
        )
    return Columns(unflatten(shape, columns))


def _is_dataset(value: Any) -> bool:
    """Whether a value has records, and is no array and no container of Python."""
    if tables.is_table(value):
        return True
    reads = hasattr(value, "__getitem__") or hasattr(value, "__iter__")
    is_array = any(hasattr(value, name) for name in ("shape", "__array__")) and hasattr(
        value, "dtype"
    )
    return reads and not is_array and type(value).__module__ not in ("builtins", "collections")


def _leaf(leaf: Any, way: str) -> Column:
    if tables.is_column(leaf):
        column = tables.column_of(leaf)
        if isinstance(column, Column):
            return column
        raise InvalidTypeError(
            f"{way} is a column of structs; give each of its fields as a leaf, or a table."
        )
    shape = getattr(leaf, "shape", None)
    array = isinstance(shape, tuple) and hasattr(leaf, "dtype") and hasattr(leaf, "__getitem__")
    if not array or not shape:
        raise InvalidTypeError(
            f"a dict is a data source where all its leaves are arrays of equal length; {way} "
            f"is {describe(leaf)}{'' if shape is None else ' without axes'}. Convert it with "
            "np.asarray, or give a list of records."
        )
    name = f"the leaf {way} of the data source"
    _refuse_lossy(leaf, name)
    return _column(leaf, name)
