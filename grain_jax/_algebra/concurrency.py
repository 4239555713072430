"""Sources that several threads may read at once, told by looking at them.

A source with an open file, a connection or a buffer of its own gives wrong records when two threads
are inside it. So threads start by themselves only where all that reading reaches is data, and the
code of the user's changes none of it. Of all other sources nobody knows: they are read by one
thread, unless the user gives a number.
"""

from __future__ import annotations

import enum
import functools
import logging
import os
import re
import threading
import types
from typing import Any

import numpy as np

from grain_jax._algebra import reach
from grain_jax._algebra.mentions import mentions, nested, writes

__all__ = ["may_share"]

_MOST = 10_000
_MOST_PARTS = 1_000  # of a container that is looked through part by part

# Names by which code changes an array or a container that it has.
_CHANGES = frozenset(
    """
    add append appendleft byteswap clear copyto discard extend fill insert itemset move_to_end out
    partition place pop popitem popleft put putmask readinto recv_into remove resize reverse
    setdefault setfield setflags shuffle sort update
    """.split()  # noqa: SIM905
)

_DATA = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    type(None),
    type(...),
    np.generic,
    np.dtype,
    np.ufunc,
    enum.Enum,
    logging.Logger,
    os.PathLike,
    re.Pattern,
    threading.local,
    type(threading.Lock()),
    type(threading.RLock()),
)
_CODE = (
    type,
    property,
    staticmethod,
    classmethod,
    functools.partial,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)
_FIXED = (tuple, frozenset, types.MappingProxyType)
_CHANGING = (list, dict, set, bytearray, np.ndarray)


def may_share(source: Any) -> bool:
    """Whether several threads may certainly be inside the `__getitem__` of a source.

    Look after the first records were read: a source may open its file then.
    """
    read = getattr(source, "__getitem__", None)
    if not isinstance(read, types.MethodType) or not reach.is_users(type(source).__module__):
        return False  # code that is not read here
    is_changing = changes = False
    for number, found in enumerate(reach.reach([read])):
        if number > _MOST:
            return False
        if found.kind == reach.FUNCTION:
            if any(map(writes, nested(found.value.__code__))):  # what may outlive the call
                return False
            changes = changes or not _CHANGES.isdisjoint(mentions(found.value.__code__).names)
        elif not _is_data(found.value):
            return False
        is_changing = is_changing or isinstance(found.value, _CHANGING)
    return not (is_changing and changes)


def _is_data(value: Any) -> bool:
    """Whether a value has no position and no inner state, as far as its kind goes."""
    owner = getattr(value, "__self__", None)
    if isinstance(value, types.BuiltinFunctionType | types.MethodType) and owner is not None:
        return isinstance(owner, types.ModuleType | type) or _is_data(owner)
    if isinstance(value, (list, dict, set, *_FIXED)) and len(value) > _MOST_PARTS:
        parts = value.values() if isinstance(value, dict | types.MappingProxyType) else value
        return all(issubclass(kind, _DATA) for kind in set(map(type, parts)))
    if isinstance(value, (*_DATA, *_CODE, *_FIXED)):
        return True
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    if type(value) in _CHANGING:
        return True
    # An object of the user's is what it holds, and what its code does: both are looked at, too.
    kinds = [kind for kind in type(value).__mro__ if kind is not object]
    return all(reach.is_users(kind.__module__) for kind in kinds)
