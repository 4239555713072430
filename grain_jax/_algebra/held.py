"""What code of the user's hands out and keeps: neither side's changes are the other's.

What is kept elsewhere, too, is seen by its number of references: that of an object which was just
made is known. So what is made afresh is handed on as it is. Of what is kept, containers are copied.
Arrays that a source keeps come as read-only views, as from a container; those that an operation
keeps are copied, since it may write to them at its next call.
"""

from __future__ import annotations

import array
import collections
import copy
import gc
import mmap
import operator
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from grain_jax._algebra.packing import frozen_array
from grain_jax._values.arrays import copied_view
from grain_jax._values.trees import IMMUTABLE_TYPES

__all__ = ["detach", "is_kept", "separated"]

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_OTHERS = (set, bytearray, collections.deque, array.array)
_BUFFERS = (bytearray, array.array)
# What holds the memory of arrays of which only those who have a hold on it can write to.
_KNOWN = (types.NoneType, bytes, mmap.mmap, *_BUFFERS)


def separated(records: list[Any]) -> list[Any]:
    """Returns records by which nothing can be changed that somebody else has a hold on.

    Containers are copied, arrays are read-only views; objects of other classes stay as they are.

    Args:
        records: a list that is the caller's own; nothing else of the caller's refers to its
            elements. It is changed, and returned.
    """
    if not set(map(type, records)) <= IMMUTABLE_TYPES:
        found = _Found(_frozen_array)
        for row in range(len(records)):
            _visit(records, row, found)
            found.made.clear()  # a record that comes twice is two
        found.settle()
    return records


def detach(elements: list[Any], row: int) -> None:
    """Makes an element that an operation returned one that nobody else can change.

    Containers and writable arrays that somebody else has a hold on are copied; objects of other
    classes stay as they are.

    Args:
        elements: a list that is the caller's own; nothing else of the caller's refers to the
            element. It is changed.
        row: which element.
    """
    value = elements[row]
    if sys.getrefcount(value) <= _OF_PART:
        kind = type(value)
        if kind is dict:
            for part in value.values():
                kind = type(part)
                if kind is np.ndarray:
                    if sys.getrefcount(part) > _OF_PART or _lies_in_another(part):
                        break
                elif kind not in IMMUTABLE_TYPES:
                    break
            else:
                return
            del part
        elif kind is np.ndarray and not _lies_in_another(value):
            return
    del value
    found = _Found(_own_array)
    _visit(elements, row, found)
    found.settle()


def _lies_in_another(value: Any) -> bool:
    """Whether an array may lie in memory that somebody else can write to."""
    if value.base is None:
        return False
    if not value.flags.writeable:
        return _is_strided(value)
    if type(value.base) is np.ndarray and value.base.base is None:
        return _base_references(value) > _OF_BASE
    return type(value.base) is not memoryview or not _is_own(value)


def _is_strided(value: Any) -> bool:
    """Whether it is of `sliding_window_view`, say, which makes arrays read-only that are not."""
    base = value.base
    if type(base) is np.ndarray:
        base = base.base
    return type(base).__name__ == "DummyArray"


def _is_own(value: Any) -> bool:
    """Whether the memory of an array that is no view of another one is nobody else's.

    Of what neither NumPy nor Python has made (a tensor, memory of C) nobody can tell.
    """
    if value.base is None:
        return True
    if type(value.base) is memoryview and type(value.base.obj) in _BUFFERS:
        return all(map(operator.le, _view_references(value), _OF_VIEW))
    return False


def _own_array(array: Any) -> Any:
    if array.flags.writeable or _is_strided(array):
        return array.copy(order="K")
    return array


def _frozen_array(array: Any) -> Any:
    """Returns a read-only view, or a copy where nobody can tell who else writes to the memory."""
    base = _last(array).base
    kind = type(base.obj if type(base) is memoryview else base)
    return frozen_array(array) if kind in _KNOWN else array.copy(order="K")


def is_kept(holder: Any, key: Any) -> bool:
    """Whether somebody else has a hold on an entry of a dict or list, or on what is inside it."""
    references = _references(holder, key)
    value = holder[key]
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return False
    if references > _OF_FRESH:
        return True
    if kind is memoryview:
        return type(value.obj) is not bytes
    if isinstance(value, np.ndarray):
        if type(value.base) is np.ndarray and value.base.base is None:
            return _base_references(value) > _OF_BASE
        return _lies_in_another(value) and not _is_own(value)
    if kind in _DICTS:
        return any(is_kept(value, name) for name in value)
    if _is_tuple(kind):
        value = list(value)
    return kind is list and any(is_kept(value, row) for row in range(len(value)))


class _Found:
    """What is left to do after a look at all records.

    Attributes:
        of_array: what stands in for an array that somebody else has a hold on.
        made: what stands in for parts of this record that somebody else has a hold on, with these,
            by their ids: what a record refers to twice is one object in it, itself included.
        parts: entries that are arrays which lie in another one.
        tuples: entries that were tuples, their classes, and lists of what was in them.
    """

    __slots__ = ("made", "of_array", "parts", "tuples")

    def __init__(self, of_array: Callable[[Any], Any]) -> None:
        self.of_array = of_array
        self.made: dict[int, tuple[Any, Any]] = {}
        self.parts: list[tuple[Any, Any]] = []
        self.tuples: list[tuple[Any, Any, type, list[Any]]] = []

    def settle(self) -> None:
        """Does it."""
        self.made.clear()  # it has a hold on parts, too
        if self.parts:
            _separate_parts(self.parts, self.of_array)
        for holder, key, kind, inside in self.tuples:  # those inside others come first
            holder[key] = _tuple(kind, inside)


def _visit(holder: Any, key: Any, found: _Found) -> None:
    """Replaces an entry of a dict or list, or what is inside it, where that is kept elsewhere."""
    references = _references(holder, key)
    value = holder[key]
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return
    if kind is np.memmap:  # a copy of a row is one, too, and lies in no file
        references, kind = _OF_FRESH, np.ndarray
        value = holder[key] = value.view(np.ndarray)
    if references > _OF_FRESH or kind is memoryview:
        holder[key] = _separate(value, found)
    elif kind is np.ndarray or isinstance(value, np.ndarray):
        if _lies_in_another(value):
            last = _last(value)
            if value.base is last:
                found.parts.append((holder, key))
            elif last is not value or not _is_own(value):
                holder[key] = found.of_array(value)
    elif kind in _DICTS:
        for name in value:
            _visit(value, name, found)
    elif kind is list:
        for row in range(len(value)):
            _visit(value, row, found)
    elif _is_tuple(kind) and not set(map(type, value)) <= IMMUTABLE_TYPES:
        inside = list(value)
        holder[key] = value = None  # only the list refers to what is inside now
        for row in range(len(inside)):
            _visit(inside, row, found)
        found.tuples.append((holder, key, kind, inside))


def _references(holder: Any, key: Any) -> int:
    return sys.getrefcount(holder[key])


def _part_references(parts: Iterable[Any]) -> int:
    for part in parts:
        return sys.getrefcount(part)
    raise AssertionError


def _separate_parts(parts: list[tuple[Any, Any]], of_array: Callable[[Any], Any]) -> None:
    """Replaces arrays that lie in one which others than these arrays refer to."""
    lying: dict[int, list[tuple[Any, Any]]] = {}
    for holder, key in parts:
        lying.setdefault(id(holder[key].base), []).append((holder, key))
    for places in lying.values():
        holder, key = places[0]
        is_kept = _base_references(holder[key]) - len(places) > _OF_BASE - 1
        if is_kept or not _is_own(holder[key].base):
            for holder, key in places:
                holder[key] = of_array(holder[key])


def _base_references(array: Any) -> int:
    base = array.base
    return sys.getrefcount(base)


def _last(array: Any) -> Any:
    """Returns the array that another one is a view of, or itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _view_references(array: Any) -> tuple[int, ...]:
    """Returns how many refer to a memoryview, to what all slices of it share, and to its object."""
    (shared,) = gc.get_referents(array.base)
    return tuple(map(sys.getrefcount, (array.base, shared, array.base.obj)))


def _separate(value: Any, found: _Found) -> Any:
    """Returns a container copied, with what is inside; for an array, what stands in for it."""
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    known = found.made.get(id(value))
    if known is not None:
        return known[1]
    made: Any
    if isinstance(value, np.ndarray):
        made = found.of_array(value.view(np.ndarray) if kind is np.memmap else value)
    elif kind is memoryview:
        made = value if type(value.obj) is bytes else copied_view(value)
    elif kind in _DICTS:
        made = copy.copy(value)
        found.made[id(value)] = value, made
        for name in made:
            made[name] = _separate(made[name], found)
        return made
    elif kind is list:
        made = []
        found.made[id(value)] = value, made
        made += [_separate(part, found) for part in value]
        return made
    elif _is_tuple(kind):
        parts = [_separate(part, found) for part in value]
        known = found.made.get(id(value))  # it was inside itself, by way of a list
        made = _tuple(kind, parts) if known is None else known[1]
    else:
        made = copy.copy(value) if kind in _OTHERS else value
    found.made[id(value)] = value, made
    return made


def _is_tuple(kind: type) -> bool:
    return kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _tuple(kind: Any, parts: Iterable[Any]) -> Any:
    return tuple(parts) if kind is tuple else kind(*parts)


# What the counts are where nobody else refers to something, by the very functions that look.
_OF_FRESH = max(
    _references([bytearray(1)], 0),
    _references({"a": bytearray(1)}, "a"),
)
_OF_PART = _part_references({"a": bytearray(1)}.values())
_OF_BASE = _base_references(np.zeros(4)[1:])
_OF_VIEW = _view_references(np.frombuffer(bytearray(8), np.uint8))
