"""Values that lose something where NumPy converts them: masks, units, keys of JAX, text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = [
    "copied_view",
    "is_key",
    "owner_of",
    "reduce_swapped",
    "reduce_text",
    "reduce_view",
    "stack_keys",
    "what_is_lost",
]


def what_is_lost(array: np.ndarray[Any, Any]) -> str | None:
    """What an array loses by becoming a plain one, as a sentence about it; None if nothing.

    A masked array loses its mask. A class that redefines NumPy's functions gives its values a
    meaning (a unit, say). Other subclasses (memory map, matrix, record array) are their values.
    """
    kind = type(array)
    if kind is np.ndarray:
        return None
    if isinstance(array, np.ma.MaskedArray):
        return (
            "is a masked array, and JAX has none: its mask would be lost. Give x.filled(value)"
            " instead, with x.mask as a leaf of its own."
        )
    if (
        kind.__array_function__ is not np.ndarray.__array_function__
        or kind.__array_ufunc__ is not np.ndarray.__array_ufunc__
    ):
        return (
            f"is an array of the class {kind.__qualname__}, which gives NumPy's functions a meaning"
            " of its own (a unit, say) that a plain array would lose. Give np.asarray(x) instead,"
            " in the unit that you want."
        )
    return None


def owner_of(given: Any) -> Any:
    """What an array or a memoryview lies in, such as a bytearray; None where arrays are all."""
    while isinstance(given, np.ndarray | memoryview):
        given = given.obj if type(given) is memoryview else given.base
    return given


def reduce_text(text: Any) -> Any:
    """How `np.str_` and `np.bytes_` are pickled with every byte: NumPy drops zeros at the end."""
    return type(text), (text[:],)


def reduce_view(view: memoryview) -> Any:
    """How a `memoryview` is pickled: as a copy of its memory, of the same format and shape.

    Raises:
        TypeError: for formats that no copy can have: of structures, or in the other byte order.
    """
    data = view.tobytes() if view.readonly else bytearray(view.tobytes())
    shape: tuple[int, ...] = view.shape or ()
    try:
        _view(data, view.format, shape)
    except (ValueError, TypeError):
        raise TypeError(
            f"a memoryview of the format {view.format!r} cannot be copied; give np.asarray(view)"
        ) from None
    return _view, (data, view.format, shape)


def copied_view(view: memoryview) -> memoryview:
    """A `memoryview` of a copy of its memory; for the formats that `reduce_view` knows."""
    make, arguments = reduce_view(view)
    made: memoryview = make(*arguments)
    return made


def _view(data: Any, form: Any, shape: Any) -> memoryview:
    # `cast` knows no shape without elements.
    given: Any = np.ndarray(shape, form) if 0 in shape else data
    return memoryview(given) if 0 in shape else memoryview(given).cast(form, shape)


def reduce_swapped(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """How arrays in the byte order of another machine are pickled; None for all others.

    NumPy would pickle times, and what does not lie in one piece, in native byte order.
    """
    dtype = array.dtype
    if dtype.isnative or dtype.fields is not None or not dtype.itemsize:
        return None
    return _viewed, (array.view(f"V{dtype.itemsize}"), dtype)


def _viewed(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return array.view(dtype)


def is_key(value: Any) -> bool:
    """Whether a value is a typed key of JAX, or an array of such keys; JAX is not imported."""
    jax = sys.modules.get("jax")
    if jax is None or isinstance(value, np.ndarray):
        return False
    # While another thread imports JAX, nobody has a key yet.
    array = getattr(jax, "Array", None)
    if array is None or not isinstance(value, array):
        return False
    return bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))


def stack_keys(keys: Sequence[Any]) -> Any:
    """An array of keys, with a new first axis, of keys of one shape and implementation."""
    return sys.modules["jax"].numpy.stack(keys)
