"""Copies of records: what a container holds is handed out as a view or a copy, never as itself.

A record of numbers, text and arrays is copied by hand. Any other goes through pickle and back,
which is what happens to it on its way to a worker process too, so that both give the same. Its
arrays are not copied but come as read-only views.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import io
import itertools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra.packing import Pickler, fields_of, frozen_array, load, seal
from grain_jax._values.trees import IMMUTABLE_TYPES

__all__ = ["of_records"]

_COPY: dict[type, Callable[[Any], Any]] = {dict: dict.copy, list: list.copy, tuple: tuple}

_FLAT = IMMUTABLE_TYPES | {np.ndarray}


def of_records(records: Sequence[Any]) -> list[Any]:
    """The records as an operation may have them.

    Arrays are read-only views; all else that could be changed in place is a copy. What does not
    pickle is handed out as it is, and a warning says so.
    """
    if records:
        # Records of one simple type are the rule where the cost of each one counts.
        kind = type(records[0])
        if list(map(type, records)).count(kind) == len(records):
            if kind in IMMUTABLE_TYPES:
                return list(records)
            if kind in _COPY and _hold_immutables(kind, records):
                return list(map(_COPY[kind], records))
            if kind is np.ndarray and not any(record.dtype.hasobject for record in records):
                return list(map(frozen_array, records))
    result = list(map(_flat, records))
    others = [row for row, record in enumerate(result) if record is NotImplemented]
    if others:
        copier = _Copier()
        for row in others:
            result[row] = copier.copy(records[row])
    return result


def _hold_immutables(kind: type, records: Sequence[Any]) -> bool:
    inside = itertools.chain.from_iterable(records)
    if kind is dict:
        inside = itertools.chain(inside, *map(dict.values, records))
    return set(map(type, inside)) <= IMMUTABLE_TYPES


def _flat(record: Any) -> Any:
    """The copy of a value, or of a container of values; NotImplemented for anything else."""
    kind = type(record)
    if kind in IMMUTABLE_TYPES:
        return record
    if kind is np.ndarray:
        return NotImplemented if record.dtype.hasobject else frozen_array(record)
    if kind is dict:
        values = record.values()
        kinds = {*map(type, record), *map(type, values)}
    elif kind is list or kind is tuple:
        values = record
        kinds = set(map(type, values))
    else:
        return NotImplemented
    if kinds <= IMMUTABLE_TYPES:
        return record if kind is tuple else record.copy()
    if not kinds <= _FLAT:
        return NotImplemented
    copies = list(map(_flat, values))
    if any(value is NotImplemented for value in copies):
        return NotImplemented
    if kind is dict:
        return dict(zip(record, copies, strict=True))
    return copies if kind is list else tuple(copies)


class _Copier:
    """Copies records by way of pickle, without their arrays, functions and classes."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._pickler = Pickler(self._file, apart=False)

    def copy(self, record: Any) -> Any:
        file, pickler = self._file, self._pickler
        file.seek(0)
        file.truncate()
        pickler.forget()
        try:
            pickler.dump(record)
            memories = [buffer.raw().toreadonly() for buffer in pickler.buffers]
            copied = load(file.getvalue(), memories, pickler.objects)
        except Exception as error:  # the user's class decides what it raises here
            _tell(record, error)
            return _rebuilt(record)
        return seal(copied) if pickler.unsealed else copied


_told: weakref.WeakSet[type] = weakref.WeakSet()


def _tell(record: Any, error: Exception) -> None:
    kind = type(record)
    if kind in _told:
        return
    _told.add(kind)
    warnings.warn(
        f"a record of type {kind.__qualname__} does not pickle ({type(error).__name__}: {error}), "
        "so no copy of it can be made: operations get the source's own object, what they change "
        "in it stays changed in later epochs, and worker processes cannot have it. Give plain "
        "data, or make the object in an operation.",
        stacklevel=2,
    )


def _rebuilt(record: Any, made: dict[int, Any] | None = None) -> Any:
    """Containers rebuilt and arrays as read-only views; all else as it is.

    Args:
        record: what to rebuild.
        made: what stands in for containers already, by their ids: one may be inside itself.
    """
    kind = type(record)
    if isinstance(record, np.ndarray):
        return frozen_array(record)
    made = {} if made is None else made
    if id(record) in made:
        return made[id(record)]
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        rebuilt = made[id(record)] = copy.copy(record)
        for key, value in record.items():
            rebuilt[key] = _rebuilt(value, made)
    elif kind is list:
        rebuilt = made[id(record)] = []
        rebuilt += [_rebuilt(value, made) for value in record]
    elif kind is tuple or (isinstance(record, tuple) and hasattr(kind, "_fields")):
        parts = [_rebuilt(value, made) for value in record]
        if id(record) not in made:  # else it was inside itself, by way of a list
            made[id(record)] = tuple(parts) if kind is tuple else kind(*parts)
        rebuilt = made[id(record)]
    elif dataclasses.is_dataclass(record) and not isinstance(record, type):
        rebuilt = made[id(record)] = copy.copy(record)
        for name, value in fields_of(record):
            # Also where the class is frozen.
            object.__setattr__(rebuilt, name, _rebuilt(value, made))
    else:
        return record
    return rebuilt
