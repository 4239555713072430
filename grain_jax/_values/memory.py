"""Memory that the library allocated, and how to recognise it later.

JAX on CPU keeps the NumPy buffer that it is given. That is safe for memory which the library
allocated, never writes again and hands to nobody else: the device stage asks `is_owned` before it
hands an array over without a copy.
"""

from __future__ import annotations

import collections
import ctypes
import math
import threading
import weakref
from typing import Any, cast

import numpy as np

from grain_jax._values import forks

__all__ = ["is_owned", "owned_empty"]

# XLA on CPU takes a buffer without a copy from this alignment on.
_ALIGNMENT = 64

# Finding the alignment costs 4 us; below this size copying the array costs less than that.
_ALIGNED_FROM = 4096

_BYTE = np.dtype(np.uint8)

# Fresh memory of this size costs more in page faults than the copy into it, so a few pieces are
# kept for the next batch once nobody refers to them any more.
_KEPT_FROM = 1 << 20
_KEPT_TO = 1 << 28
_KEPT_PIECES = 4

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_kept: collections.deque[_Bytes] = collections.deque(maxlen=_KEPT_PIECES)
_in_use: dict[int, tuple[weakref.ref[Any], _Bytes]] = {}
_kept_lock = threading.Lock()


@forks.call_in_child
def _renew() -> None:
    global _kept_lock
    _kept_lock = threading.Lock()


class _Owned(np.ndarray[Any, Any]):
    """The base of the arrays handed out: its class is the mark.

    NumPy keeps the first owner of a memory as the `base` of all views on it, and skips no array of
    another class on the way, so the mark is found from any view, in any thread, without a registry.
    """

    __slots__ = ()


def owned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Uninitialised C-contiguous memory of the library, aligned to 64 bytes from 4 KiB on.

    Dtypes that hold Python objects give a plain array: their memory never leaves the host.
    """
    if dtype.hasobject:
        return np.empty(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < _ALIGNED_FROM:
        return np.ndarray.view(_Owned(shape, dtype), np.ndarray)
    if _KEPT_FROM <= size <= _KEPT_TO:
        return np.ndarray(shape, dtype, _recycled(size))
    memory = _Owned((size + _ALIGNMENT,), _BYTE)
    offset = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return np.ndarray(shape, dtype, memory, offset)


def _recycled(size: int) -> _Owned:
    """Memory of `size` bytes that comes back when the last reference to it is gone."""
    needed = size + _ALIGNMENT
    memory: _Bytes | None = None
    with _kept_lock:
        for _ in range(len(_kept)):
            piece = _kept.popleft()
            if memory is None and len(piece) == needed:
                memory = piece
            else:
                _kept.append(piece)
    if memory is None:
        memory = np.empty(needed, _BYTE)
    offset = -memory.__array_interface__["data"][0] % _ALIGNMENT
    # NumPy looks for the owner through arrays and memoryviews. It does not look through this, so
    # that the mark is the base of all views.
    holder: Any = (ctypes.c_char * needed).from_buffer(cast("Any", memory))
    base = _Owned((size,), _BYTE, holder, offset)
    reference = weakref.ref(base, _give_back)
    _in_use[id(reference)] = reference, memory
    return base


def _give_back(reference: weakref.ref[Any]) -> None:
    # Called wherever the last reference goes, so without a lock.
    _kept.append(_in_use.pop(id(reference))[1])


def is_owned(array: Any) -> bool:
    """Whether an array is a view on memory that the library allocated."""
    while array is not None:
        if type(array) is _Owned:
            return True
        array = getattr(array, "base", None)
    return False
