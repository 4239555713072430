"""Snapshots: copies of the user's objects, so that later changes do not reach an iteration.

Worker processes get such copies by their nature; this makes `worker_count=0` behave alike.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import types
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from grain_jax._algebra import access, sentinels
from grain_jax._datasets import nodes, plan
from grain_jax._values.arrays import owner_of

__all__ = ["of_plan", "snapshot"]

T = TypeVar("T")


class _Same:
    """Something that the copy has, too."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj


_SHARED = (
    _Same,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    np.ndarray,
    np.ufunc,
    access.Source,
    nodes.CustomNode,
)

_NAMED = (types.ModuleType, type, types.NoneType)


class _Pickler(pickle.Pickler):
    """Writes numbers for what is shared."""

    def __init__(self, file: io.BytesIO, kept: list[Any], owners: dict[int, Any]) -> None:
        super().__init__(file, protocol=5)
        self._kept = kept
        self._owners = owners
        self._sources: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, _SHARED) and id(obj) not in self._owners:
            return None
        if type(obj) is types.BuiltinFunctionType and not isinstance(obj.__self__, _NAMED):
            return None  # a method of a list, say, which the copy has one of its own of
        number = len(self._kept)
        if isinstance(obj, access.Source):
            known = self._sources.setdefault(id(obj), number)
            if known != number:
                return known
            obj = obj.snapshot()
        self._kept.append(obj)
        return number

    def reducer_override(self, obj: Any) -> Any:
        if sentinels.is_sentinel(obj):
            return _the_same, (_Same(obj),)
        return NotImplemented


def _the_same(one: _Same) -> Any:
    return one.obj


class _Unpickler(pickle.Unpickler):
    """Puts back what is shared."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, pid: Any) -> Any:
        return self._kept[pid]


def _dumped(original: Any, owners: dict[int, Any]) -> tuple[list[Any], io.BytesIO, Any]:
    kept: list[Any] = []
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, kept, owners)
    pickler.dump(original)
    return kept, buffer, pickler


def _copied(original: T) -> T:
    kept, buffer, pickler = _dumped(original, {})
    # With an array the copy shares the bytearray, or the like, that the array lies in.
    found = [owner_of(one) for one in kept if isinstance(one, np.ndarray)]
    owners = {id(one): one for one in found if one is not None and type(one) is not bytes}
    if owners and not owners.keys().isdisjoint(pickler.memo.copy()):
        kept, buffer, _ = _dumped(original, owners)
    buffer.seek(0)
    copied: T = _Unpickler(buffer, kept).load()
    return copied


def snapshot(original: T) -> T:
    """Returns a copy that shares arrays, functions and classes with the original.

    Of containers in memory it has the elements that they have now, of other sources themselves.

    Of an object with a lock or an open file in it the copy shares all that it refers to; what
    cannot be copied at all is returned as it is.
    """
    for way in (_copied, copy.copy):
        try:
            return way(original)
        except Exception:  # the user's class decides what it raises here
            continue
    return original


def of_plan(given: plan.Plan) -> plan.Plan:
    """Returns the plan with copies of its root and steps; a user's own iterable stays itself."""
    parts = [(_own(one.root), one.steps) for one in given.walk()]
    try:
        # All at once, so that an object that serves in two steps goes on doing so.
        copies = _copied(parts)
    except Exception:
        copies = [(snapshot(own), [snapshot(step) for step in todo]) for own, todo in parts]
    return _rebuilt(given, iter(copies))


def _own(root: Any) -> Any:
    """Returns what a root has of its own to be copied."""
    if isinstance(root, plan.Upstream):
        return None
    return (root.grouping, root.step) if isinstance(root, plan.Grouped) else root


def _rebuilt(given: plan.Plan, copies: Iterator[tuple[Any, Any]]) -> plan.Plan:
    """Returns a plan with the copies of its parts, which come in the order of its `walk`."""
    root = given.root
    if isinstance(root, plan.Grouped):
        parents = tuple(_rebuilt(parent, copies) for parent in root.parents)
        (grouping, step), todo = next(copies)
        frozen: Any = dataclasses.replace(root, parents=parents, grouping=grouping, step=step)
    else:
        frozen, todo = next(copies)
    return dataclasses.replace(given, root=root if frozen is None else frozen, steps=todo)
