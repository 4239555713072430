"""Snapshots: copies of the user's objects, so that later changes do not reach an iteration.

Worker processes get such copies by their nature; this makes `worker_count=0` behave alike.
"""

from __future__ import annotations

import io
import pickle
import types
from typing import Any, TypeVar

import numpy as np

from grain_jax._algebra import access

__all__ = ["snapshot"]

T = TypeVar("T")

_SHARED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    np.ndarray,
    np.ufunc,
    access.Source,
)


class _Pickler(pickle.Pickler):
    """Writes numbers for what is shared."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file, protocol=5)
        self._kept = kept

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, _SHARED):
            return None
        self._kept.append(obj)
        return len(self._kept) - 1


class _Unpickler(pickle.Unpickler):
    """Puts back what is shared."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, pid: Any) -> Any:
        return self._kept[pid]


def snapshot(original: T) -> T:
    """Returns a copy that shares sources, arrays, functions and classes with the original.

    What cannot be copied, because of a lock or an open file in it, is returned as it is.
    """
    kept: list[Any] = []
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, kept).dump(original)
        buffer.seek(0)
        copy: T = _Unpickler(buffer, kept).load()
    except Exception:
        return original
    return copy
