"""Arrays of one memory, on their way to the workers: by itself pickle makes each one of its own.

A view is sent as a part of what owns its memory, an array, a `bytearray` or an `array.array`, so
that what code writes to one shows in the other. A small part of a large array is sent alone, unless
the same pickle has another part of it that overlaps.
"""

from __future__ import annotations

import array
import bisect
from typing import Any

import numpy as np

from grain_jax._algebra import handles

__all__ = ["Overlaps", "SharedError"]

_SMALL = 1 << 20  # bytes of an owner that is always sent
_RATIO = 4  # how much larger than a view it may else be

_OWNERS = (np.ndarray, bytearray, array.array)


class SharedError(Exception):
    """Two parts of one memory were met, of which one has been written alone; `number` is whose."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Overlaps:
    """Which memory one pickle has, and who owns it.

    Args:
      shared: numbers of objects whose parts are not to be sent alone.
    """

    def __init__(self, shared: frozenset[int] = frozenset()) -> None:
        self._shared = set(shared)
        self._kept: list[Any] = []  # so that no number is given twice
        self._alone: dict[int, list[tuple[int, int]]] = {}  # bounds of parts, by their owner

    def reduce(self, given: Any) -> tuple[Any, ...] | None:
        """How to pickle an array or a memoryview of memory that another object owns, else None.

        Raises:
          SharedError: a part of it has been written by itself.
        """
        view = given
        if type(given) is memoryview:
            try:
                view = np.asarray(given)
            except (TypeError, ValueError):
                return None
        if view.dtype.hasobject or not view.nbytes:
            return None
        owner = _owner(given)
        if type(owner) not in _OWNERS:
            return None
        if owner is given:
            self._meet(owner, view)
            self._shared.add(id(owner))  # its parts need not be sent
            return None
        whole = np.frombuffer(owner, np.uint8) if type(owner) is not np.ndarray else owner
        is_small = whole.nbytes <= max(_SMALL, _RATIO * view.nbytes)
        if not is_small and id(owner) not in self._shared:
            self._meet(owner, view)
            return None
        if type(owner) is np.ndarray and not (owner.flags.c_contiguous or owner.flags.f_contiguous):
            return None
        offset = _address(view) - _address(whole)
        if type(given) is memoryview:
            if not given.c_contiguous:
                return None
            place = offset, given.nbytes, given.format, given.shape, given.readonly
            return _memory, (owner, *place)
        is_writable = view.flags.writeable
        return _part, (owner, view.dtype, view.shape, view.strides, offset, is_writable)

    def _meet(self, owner: Any, view: np.ndarray[Any, Any]) -> None:
        low, high = handles.bounds(view)
        known = self._alone.setdefault(id(owner), [])
        at = bisect.bisect(known, (low, high))
        if any(low < end and begin < high for begin, end in known[max(at - 1, 0) : at + 1]):
            raise SharedError(id(owner))
        known.insert(at, (low, high))
        self._kept.append(owner)


def _owner(given: Any) -> Any:
    """Returns what owns the memory of an array."""
    while True:
        if type(given) is memoryview:
            given = given.obj
        elif type(given) is np.ndarray and given.base is not None:
            given = given.base
        elif type(given).__name__ == "DummyArray" and type(given).__module__.startswith("numpy."):
            given = given.base  # of what `as_strided` makes
        else:
            return given


def _address(view: np.ndarray[Any, Any]) -> int:
    address: int = view.__array_interface__["data"][0]
    return address


def _part(
    owner: Any, dtype: Any, shape: Any, strides: Any, offset: int, is_writable: bool
) -> np.ndarray[Any, Any]:
    memory = owner.reshape(-1, order="A").view(np.uint8) if type(owner) is np.ndarray else owner
    view: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memory, offset, strides)
    if not is_writable:
        view.setflags(write=False)
    return view


def _memory(
    owner: Any, offset: int, size: int, form: str, shape: tuple[int, ...], is_readonly: bool
) -> memoryview:
    flat: Any = owner
    if type(owner) is np.ndarray:
        flat = owner.reshape(-1, order="A").view(np.uint8)
    view = memoryview(flat).cast("B")[offset : offset + size]
    if shape != (size,) or form != "B":
        view = view.cast(form) if len(shape) == 1 else view.cast(form, shape)  # type: ignore[call-overload]
    return view.toreadonly() if is_readonly else view
