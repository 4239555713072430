"""Records that a source of the user's own hands out and keeps: an operation gets a copy.

What is kept elsewhere, too, is seen by its number of references: that of a record which was just
made is known. So the records of a source that makes them afresh are handed on as they are.
"""

from __future__ import annotations

import collections
import copy
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from grain_jax._values.trees import LEAF_TYPES

__all__ = ["distinct", "separated"]

_IMMUTABLE = (LEAF_TYPES - {np.ndarray, np.void}) | {type(None)}
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_OTHERS = (set, bytearray, collections.deque)


def separated(records: list[Any]) -> list[Any]:
    """Returns records without what somebody else has a hold on: containers and arrays are copied.

    Objects of other classes stay as they are.

    Args:
        records: a list that is the caller's own; nothing else of the caller's refers to its
            elements. It is changed, and returned.
    """
    if not set(map(type, records)) <= _IMMUTABLE:
        for row in range(len(records)):
            _visit(records, row)
    return records


def distinct(elements: list[Any]) -> list[Any]:
    """Returns elements of which none is the same container or array as one before it."""
    if len(set(map(id, elements))) == len(elements):
        return elements
    seen: set[int] = set()
    found = []
    for element in elements:
        found.append(_copied(element) if id(element) in seen else element)
        seen.add(id(element))
    return found


def _visit(holder: Any, key: Any) -> None:
    """Replaces an entry of a dict or list, or what is inside it, where that is kept elsewhere."""
    references = _references(holder, key)
    value = holder[key]
    kind = type(value)
    if kind in _IMMUTABLE:
        return
    if references > _OF_FRESH or (kind is np.ndarray and _is_part(value)):
        holder[key] = _copied(value)
    elif kind in _DICTS:
        for name in value:
            _visit(value, name)
    elif kind is list:
        for row in range(len(value)):
            _visit(value, row)
    elif _is_tuple(kind) and not set(map(type, value)) <= _IMMUTABLE:
        parts = list(value)
        holder[key] = value = None  # only the list refers to the parts now
        for row in range(len(parts)):
            _visit(parts, row)
        holder[key] = _tuple(kind, parts)


def _references(holder: Any, key: Any) -> int:
    return sys.getrefcount(holder[key])


def _is_part(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array lies in another one that somebody else refers to."""
    return _owner_references(array) > _OF_OWNER


def _owner_references(array: np.ndarray[Any, Any]) -> int:
    """Counts the references to the array that has the memory of another; 0 if there is none."""
    owner = array.base
    while type(owner) is np.ndarray and type(owner.base) is np.ndarray:
        owner = owner.base
    return sys.getrefcount(owner) if type(owner) is np.ndarray else 0


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        return value.copy(order="K")
    if kind in _DICTS:
        made = copy.copy(value)
        for name in made:
            made[name] = _copied(made[name])
        return made
    if kind is list:
        return list(map(_copied, value))
    if _is_tuple(kind):
        return _tuple(kind, map(_copied, value))
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
_OF_OWNER = _owner_references(np.zeros(4)[1:])
