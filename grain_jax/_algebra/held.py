"""Records that a source of the user's own hands out and keeps: no operation can change them.

What is kept elsewhere, too, is seen by its number of references: that of a record which was just
made is known. So the records of a source that makes them afresh are handed on as they are. Of what
is kept, containers are copied, and arrays come as read-only views, as from a container.
"""

from __future__ import annotations

import collections
import copy
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from grain_jax._algebra.packing import frozen_array
from grain_jax._values.trees import IMMUTABLE_TYPES

__all__ = ["distinct", "separated"]

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_OTHERS = (set, bytearray, collections.deque)
_CHANGING = (*_DICTS, *_OTHERS, list, tuple, np.ndarray)


def separated(records: list[Any]) -> list[Any]:
    """Returns records by which nothing can be changed that somebody else has a hold on.

    Containers are copied, arrays are read-only views; objects of other classes stay as they are.

    Args:
        records: a list that is the caller's own; nothing else of the caller's refers to its
            elements. It is changed, and returned.
    """
    if not set(map(type, records)) <= IMMUTABLE_TYPES:
        found = _Found()
        for row in range(len(records)):
            _visit(records, row, found)
        _freeze_parts(found.parts)
        for holder, key, kind, inside in found.tuples:  # those inside others come first
            holder[key] = _tuple(kind, inside)
    return records


def distinct(elements: list[Any]) -> list[Any]:
    """Returns elements of which none is the same container or array as one before it."""
    if len(set(map(id, elements))) == len(elements):
        return elements
    seen: set[int] = set()
    found = []
    for element in elements:
        is_again = id(element) in seen and type(element) in _CHANGING
        found.append(copy.deepcopy(element) if is_again else element)
        seen.add(id(element))
    return found


class _Found:
    """What is left to do after a look at all records.

    Attributes:
        parts: entries that are arrays which lie in another one.
        tuples: entries that were tuples, their classes, and lists of what was in them.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[Any, Any]] = []
        self.tuples: list[tuple[Any, Any, type, list[Any]]] = []


def _visit(holder: Any, key: Any, found: _Found) -> None:
    """Replaces an entry of a dict or list, or what is inside it, where that is kept elsewhere."""
    references = _references(holder, key)
    value = holder[key]
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return
    if references > _OF_FRESH:
        holder[key] = _separate(value)
    elif kind is np.ndarray:
        if type(value.base) is np.ndarray:
            found.parts.append((holder, key))
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


def _freeze_parts(parts: list[tuple[Any, Any]]) -> None:
    """Makes arrays read-only that lie in one which others than these arrays refer to."""
    lying: dict[int, list[tuple[Any, Any]]] = {}
    for holder, key in parts:
        lying.setdefault(id(_owner(holder[key])), []).append((holder, key))
    for places in lying.values():
        holder, key = places[0]
        if _owner_references(holder[key]) - len(places) > _OF_OWNER:
            for holder, key in places:
                holder[key] = frozen_array(holder[key])


def _owner(array: Any) -> Any:
    """Returns the array whose memory another one lies in."""
    owner = array.base
    while type(owner) is np.ndarray and type(owner.base) is np.ndarray:
        owner = owner.base
    return owner


def _owner_references(array: Any) -> int:
    return sys.getrefcount(_owner(array))


def _separate(value: Any) -> Any:
    """Returns a container copied, with what is inside; an array as a view that is read-only."""
    kind = type(value)
    if kind is np.ndarray:
        return frozen_array(value)
    if kind in _DICTS:
        made = copy.copy(value)
        for name in made:
            made[name] = _separate(made[name])
        return made
    if kind is list:
        return list(map(_separate, value))
    if _is_tuple(kind):
        return _tuple(kind, map(_separate, value))
    return copy.copy(value) if kind in _OTHERS else value


def _is_tuple(kind: type) -> bool:
    return kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _tuple(kind: Any, parts: Iterable[Any]) -> Any:
    return tuple(parts) if kind is tuple else kind(*parts)


# What the counts are where nobody else refers to something, by the very functions that look.
_OF_FRESH = max(
    _references([bytearray(1)], 0),
    _references({"a": bytearray(1)}, "a"),
)
_OF_OWNER = _owner_references(np.zeros(4)[1:]) - 1
