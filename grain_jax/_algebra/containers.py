"""Sources that are containers in memory: lists, arrays and trees of arrays.

Their records belong to the container, which the pipeline reads again in the next epoch and which
worker processes see a copy of. So records come as read-only views: an operation that writes into
one in place fails at once and everywhere alike, instead of changing what later epochs read.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from grain_jax._algebra.access import Keys, Source
from grain_jax._algebra.stacking import Allocate, owned_empty
from grain_jax._values.trees import LEAF_TYPES, flatten, unflatten

__all__ = ["ArraySource", "ListSource", "RangeSource", "TreeSource", "freeze"]

Array = np.ndarray[Any, Any]

_IMMUTABLE = (LEAF_TYPES - {np.ndarray, np.void}) | {type(None)}


def freeze(record: Any) -> Any:
    """The record with its arrays as read-only views and its containers rebuilt.

    Objects that are neither containers, arrays nor dataclasses stay as they are.
    """
    kind = type(record)
    if kind in _IMMUTABLE:
        return record
    if kind is np.ndarray:
        return _freeze_array(record)
    if kind is dict:
        return {key: freeze(value) for key, value in record.items()}
    if isinstance(record, np.ndarray):
        return _freeze_array(record)
    if kind is list:
        return [freeze(value) for value in record]
    if kind is tuple:
        return tuple([freeze(value) for value in record])
    if kind is collections.OrderedDict:
        return kind((key, freeze(value)) for key, value in record.items())
    if kind is collections.defaultdict:
        return kind(record.default_factory, {k: freeze(v) for k, v in record.items()})
    if isinstance(record, tuple) and hasattr(kind, "_fields"):
        return kind(*[freeze(value) for value in record])
    if dataclasses.is_dataclass(record):
        return _freeze_dataclass(record)
    return record


def _freeze_array(array: Array) -> Array:
    view = array[...]
    # By position: it takes a third of the time.
    view.setflags(False)  # type: ignore[call-arg]
    return view


def _freeze_dataclass(record: Any) -> Any:
    frozen = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name, None)
        other = freeze(value)
        if other is not value:
            frozen[field.name] = other
    if not frozen:
        return record
    record = copy.copy(record)
    for name, value in frozen.items():
        object.__setattr__(record, name, value)  # also where the class is frozen
    return record


class ListSource(Source):
    """A list, a tuple, or another sequence of the standard library."""

    in_memory = True

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__(given)
        self.in_memory = True
        self.get = self._get
        self.get_many = None

    def _get(self, key: int) -> Any:
        return freeze(self.given[key])

    def read(self, keys: Keys) -> list[Any]:
        self.check(keys)
        records = _pick(self.given, keys.tolist())
        if records:
            # Records of one immutable type are the rule where the cost of each one counts.
            kind = type(records[0])
            if kind in _IMMUTABLE and list(map(type, records)).count(kind) == len(records):
                return records
        return list(map(freeze, records))


def _pick(sequence: Sequence[Any], keys: list[int]) -> list[Any]:
    if len(keys) > 1:
        return list(operator.itemgetter(*keys)(sequence))
    return [sequence[key] for key in keys]


class RangeSource(Source):
    """Integers in arithmetic progression: a `range`, or anything that holds one."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.in_memory = True
        self.get_many = None
        values = given if isinstance(given, range) else given.values
        self.get = values.__getitem__
        self._start, self._step = values.start, values.step

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


class ArraySource(Source):
    """A NumPy array: its rows are the records."""

    def __init__(self, given: Array) -> None:
        super().__init__(given)
        self.in_memory = True
        self.get_many = None
        self._rows = _freeze_array(np.asarray(given))
        self.get = self._get

    def _get(self, key: int) -> Any:
        return freeze(self._rows[key])

    @property
    def has_batches(self) -> bool:
        return _gathers(self._rows)

    def read(self, keys: Keys) -> list[Any]:
        self.check(keys)
        return _rows_of(self._rows, keys)

    def read_batch(self, keys: Keys, allocate: Allocate | None = None) -> Any:
        if not self.has_batches:
            return None
        self.check(keys)
        return _gather(self._rows, keys, allocate)


class TreeSource(Source):
    """A dict, or any tree, of arrays of equal length: a record has one row of each array."""

    def __init__(self, given: Any) -> None:
        leaves, self._tree = flatten(given)
        self._names: tuple[Any, ...] | None = None
        if type(given) is dict and all(map(_is_array, given.values())):
            self._names = tuple(given)  # a flat dict keeps the user's order of keys
            leaves = list(given.values())
        self._columns = [_freeze_array(np.asarray(leaf)) for leaf in leaves]
        super().__init__(given, len(self._columns[0]))
        self.in_memory = True
        self.get_many = None
        self.get = self._get

    def _get(self, key: int) -> Any:
        return self.read(np.array([key], np.int64))[0]

    @property
    def has_batches(self) -> bool:
        return all(map(_gathers, self._columns))

    def read(self, keys: Keys) -> list[Any]:
        self.check(keys)
        rows = zip(*[_rows_of(column, keys) for column in self._columns], strict=True)
        if self._names is not None:
            names = self._names
            return [dict(zip(names, row)) for row in rows]  # noqa: B905  # equal by construction
        return [unflatten(self._tree, row) for row in rows]

    def read_batch(self, keys: Keys, allocate: Allocate | None = None) -> Any:
        if not self.has_batches:
            return None
        self.check(keys)
        leaves = [_gather(column, keys, allocate) for column in self._columns]
        if self._names is not None:
            return dict(zip(self._names, leaves, strict=True))
        return unflatten(self._tree, leaves)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape")


def _rows_of(array: Array, keys: Keys) -> list[Any]:
    """Rows as indexing gives them: scalars of NumPy from one axis, else read-only views."""
    if array.ndim > 1:
        return [array[key] for key in keys.tolist()]
    picked = array[keys]
    if array.dtype.hasobject:
        return list(map(freeze, picked))
    picked.setflags(write=False)  # a row of a structured array is a view
    return list(picked)


def _gathers(array: Array) -> bool:
    """Whether the rows stack to what one gather gives: objects may be anything."""
    return array.ndim > 1 or not array.dtype.hasobject


def _gather(array: Array, keys: Keys, allocate: Allocate | None) -> Array:
    if array.ndim == 1 and array.dtype.kind in "US":
        return array[keys].astype(object)  # as text stacks
    dtype = np.result_type(array.dtype)
    new = owned_empty if allocate is None or dtype.hasobject else allocate
    out = new((len(keys), *array.shape[1:]), dtype)
    if array.flags.c_contiguous and array.flags.aligned and dtype == array.dtype:
        # "raise" would gather into a temporary first; the keys have been checked.
        np.take(array, keys, axis=0, out=out, mode="clip")
    else:
        out[...] = array[keys]
    return out
