"""SharedMemoryArray: an array in memory that other processes attach to by name."""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]
import contextlib
import dataclasses
import math
import mmap
import os
import secrets
from collections.abc import Iterable
from multiprocessing import shared_memory
from typing import Any

import numpy as np
import numpy.typing as npt

from grain_jax._values import errors

__all__ = ["SharedMemoryArray", "SharedMemoryArrayMetadata"]


@dataclasses.dataclass(frozen=True, slots=True)
class SharedMemoryArrayMetadata:
    """What another process needs to attach to a `SharedMemoryArray`.

    Attributes:
      name: of the memory.
      shape: of the array.
      dtype: of the array.

    Example:
      >>> import grain_jax as grain
      >>> array = grain.multiprocessing.SharedMemoryArray((2, 3), np.float32)
      >>> array.metadata.shape, array.metadata.dtype
      ((2, 3), dtype('float32'))
    """

    name: str
    shape: Iterable[int]
    dtype: npt.DTypeLike

    def close_and_unlink_shm(self) -> None:
        """Takes the name away; who has attached keeps the memory."""
        _posixshmem.shm_unlink(f"/{self.name}")


class SharedMemoryArray(np.ndarray[Any, Any]):
    """An array of NumPy in shared memory: pickling it takes its name along, and no copy.

    The memory is there until an object that `unlink_on_del` was called on is gone, in any process;
    who has attached before keeps it.

    Args:
      shape: of the array, which holds zeros.
      dtype: of the array.

    Example:
      >>> array = SharedMemoryArray((2, 3), np.int32)
      >>> array.unlink_on_del()
      >>> again = SharedMemoryArray.from_metadata(array.metadata)
      >>> again[0, 1] = 7
      >>> int(array[0, 1])
      7
    """

    _memory: Any = None
    _name: str = ""
    _start: int = -1
    _unlinks: bool = False

    def __new__(cls, shape: Iterable[int], dtype: npt.DTypeLike = float) -> SharedMemoryArray:
        lengths, kind = _checked(shape, dtype)
        name = f"psm_{secrets.token_hex(8)}"
        size = max(1, math.prod(lengths) * kind.itemsize)
        descriptor = _posixshmem.shm_open(
            f"/{name}", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600
        )
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        return cls._over(memory, memory, name, lengths, kind)

    @classmethod
    def _over(
        cls, memory: Any, buffer: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> SharedMemoryArray:
        array = super().__new__(cls, shape, dtype, buffer=buffer)
        array._memory, array._name = memory, name
        array._start = array.ctypes.data
        return array

    def __array_finalize__(self, obj: Any) -> None:
        # A view keeps the memory, too; whether it is one is asked where that matters.
        for attribute in ("_memory", "_name", "_start"):
            if hasattr(obj, attribute):
                setattr(self, attribute, getattr(obj, attribute))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Returns results as plain arrays: they are not in the memory."""
        if array is self:
            return array
        return array[()] if return_scalar else np.asarray(array)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._is_named():
            return SharedMemoryArray.from_metadata, (self.metadata,)
        return np.asarray(self).__reduce_ex__(protocol)

    def __del__(self) -> None:
        if self._unlinks:
            with contextlib.suppress(FileNotFoundError):  # somebody else has
                _posixshmem.shm_unlink(f"/{self._name}")

    @property
    def metadata(self) -> SharedMemoryArrayMetadata:
        """What another process attaches with.

        Raises:
          InvalidValueError: for a view that is not the beginning of the memory, or not contiguous.
        """
        if not self._is_named():
            raise errors.InvalidValueError(
                f"this array of shape {self.shape} does not lie at the beginning of its shared "
                "memory, in one piece. Take the metadata of the whole array, and the view there."
            )
        return SharedMemoryArrayMetadata(self._name, self.shape, self.dtype)

    @classmethod
    def from_metadata(cls, metadata: SharedMemoryArrayMetadata) -> SharedMemoryArray:
        """Returns the array that another process, or this one, has made.

        Raises:
          FileNotFoundError: if its name was taken away.
        """
        lengths, kind = _checked(metadata.shape, metadata.dtype)
        descriptor = _posixshmem.shm_open(f"/{metadata.name}", os.O_RDWR, mode=0o600)
        try:
            memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        return cls._over(memory, memory, metadata.name, lengths, kind)

    @classmethod
    def from_shared_memory(
        cls, shm: shared_memory.SharedMemory, shape: Any, dtype: npt.DTypeLike
    ) -> SharedMemoryArray:
        """Returns an array over memory of Python's own, which belongs to the array from now on."""
        return cls._over(shm, shm.buf, shm.name, *_checked(shape, dtype))

    def unlink_on_del(self) -> None:
        """Takes the name of the memory away once this object is gone."""
        self._unlinks = True

    @classmethod
    def enable_async_del(cls, num_threads: int = 1, max_outstanding_requests: int = 50) -> None:
        """Accepted for compatibility: memory is given back at once, which takes microseconds."""

    @classmethod
    def close_shm_async(cls, shm: shared_memory.SharedMemory, unlink: bool) -> None:
        """Closes memory of Python's own, and takes its name away if `unlink` says so; at once."""
        shm.close()
        if unlink:
            shm.unlink()

    def _is_named(self) -> bool:
        """Whether a name and a shape are enough to find it."""
        return bool(self._name) and self.flags.c_contiguous and self.ctypes.data == self._start


def _checked(shape: Any, dtype: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise errors.InvalidTypeError(
            f"dtype {kind} holds objects of this process, which no other one can reach. Share "
            "arrays of numbers or of text of fixed width."
        )
    lengths = (shape,) if isinstance(shape, int) else tuple(int(length) for length in shape)
    return lengths, kind
