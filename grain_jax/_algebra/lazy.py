"""Arrays whose rows are read when they are asked for: of h5py, zarr, and others like them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from grain_jax._algebra.columns import Column
from grain_jax._algebra.packing import Array, Keys
from grain_jax._algebra.stacking import Allocate, owned_empty
from grain_jax._values.arrays import what_is_lost
from grain_jax._values.errors import InvalidTypeError

__all__ = ["LazyColumn", "is_array_like", "is_lazy"]

# Arrays of these libraries are in memory.
_IN_MEMORY = ("jax", "jaxlib", "torch")


def is_array_like(value: Any) -> bool:
    """Whether a value says by its attributes that it is an array."""
    has = all(hasattr(type(value), name) for name in ("shape", "dtype", "__getitem__"))
    # An object with a length and records may have a shape, too, for reasons of its own.
    return has and (hasattr(value, "__array__") or not hasattr(value, "__len__"))


def is_lazy(value: Any) -> bool:
    """Whether an array is not in memory."""
    root = type(value).__module__.partition(".")[0]
    return not isinstance(value, np.ndarray) and root not in _IN_MEMORY


class LazyColumn(Column):
    """The rows of an array that is not in memory; each is read afresh."""

    in_memory = False

    def __init__(self, given: Any) -> None:
        self._given = given
        self.length = int(given.shape[0])
        self._tail = tuple(map(int, given.shape[1:]))
        dtype = given.dtype
        self.gathers = isinstance(dtype, np.dtype) and dtype.kind in "biufcmM"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def rows(self, keys: Keys) -> list[Any]:
        """Rows of the user's, writable; scalars of NumPy from one axis, text as text."""
        return list(self._read(keys)) if len(keys) else []

    def gather(self, keys: Keys, allocate: Allocate | None) -> Array:
        """The rows in memory of the library."""
        dtype = np.result_type(self._given.dtype)
        out = (allocate or owned_empty)((len(keys), *self._tail), dtype)
        if len(keys):
            out[...] = self._read(keys)
        return out

    def _read(self, keys: Keys) -> Array:
        """Asks for each row once, in rising order: some libraries know no other."""
        wanted, back = np.unique(keys, return_inverse=True)
        rows = self._read_rising(wanted)
        if rows.shape[:1] != wanted.shape:
            raise InvalidTypeError(
                f"{type(self._given).__qualname__} was asked for {len(wanted)} rows and returned "
                f"an array of shape {rows.shape}; what has a shape and a dtype has to index as an "
                "array does."
            )
        return rows if np.array_equal(back, np.arange(len(wanted))) else rows[back]

    def _read_rising(self, keys: Keys) -> Array:
        given, first, last = self._given, int(keys[0]), int(keys[-1])
        if last - first + 1 == len(keys):
            return self._plain(given[first : last + 1])
        if _is_hdf5(given):
            return self._plain(given[keys.tolist()])
        if hasattr(given, "oindex"):  # of zarr: it opens each chunk once
            return self._plain(given.oindex[keys])
        rows = [self._plain(given[key : key + 1]) for key in keys.tolist()]
        return np.concatenate(rows)

    def _plain(self, rows: Any) -> Array:
        if isinstance(rows, np.ma.MaskedArray):
            if np.ma.is_masked(rows):
                lost = what_is_lost(rows)
                raise InvalidTypeError(f"a row of {type(self._given).__qualname__} {lost}")
            rows = rows.data
        array = np.asarray(rows)
        return array if array.flags.writeable else array.copy()


def _is_hdf5(value: Any) -> bool:
    h5py = sys.modules.get("h5py")
    return h5py is not None and isinstance(value, h5py.Dataset)
