"""What becomes of one leaf on the host before JAX gets it: kept, cast, copied or padded."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grain_jax._algebra.blocks import Rest
from grain_jax._execution.engine.arena import is_slot_memory
from grain_jax._values.arrays import what_is_lost
from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from grain_jax._values.memory import is_owned, owned_empty

__all__ = [
    "Array",
    "as_array",
    "detach",
    "digest",
    "filled",
    "is_keys",
    "padded_host",
    "prepare",
    "value_text",
]

Array = np.ndarray[Any, Any]

_NUMBERS = (bool, int, float, complex)


def as_array(leaf: Any, name: str) -> Array | jax.Array | None:
    """The leaf as an array that JAX can hold; None if it cannot hold it.

    Raises:
      InvalidTypeError: for an array that would lose its mask, or its unit.
      InvalidValueError: for a Python integer that no array can hold.
    """
    if isinstance(leaf, jax.Array):
        # An array that spans processes is global already.
        return leaf if leaf.is_fully_addressable else None
    if isinstance(leaf, np.ndarray):
        lost = what_is_lost(leaf)
        if lost is not None:
            raise InvalidTypeError(f"{name} {lost}")
    if isinstance(leaf, (np.ndarray, np.generic)):
        return np.asarray(leaf) if _holds(leaf.dtype) else None
    if isinstance(leaf, _NUMBERS):
        array = np.asarray(leaf)
        if array.dtype.hasobject:
            raise InvalidValueError(f"{name} is {leaf}, an integer of more than 64 bits.")
        return array
    return None


def prepare(
    array: Array | jax.Array,
    name: str,
    lead: Sequence[int] | None = None,
    *,
    is_fresh: bool = False,
) -> Array | jax.Array:
    """The array that JAX may keep: of the dtype it will have, in memory nobody else writes.

    JAX keeps the buffer it is given, on CPU as the array itself and elsewhere until the transfer is
    done, so an array that somebody may still write to is copied: once, together with a cast or the
    padding.

    Args:
      array: the leaf.
      name: what to call it in errors.
      lead: if not None, the lengths to which the first axes are padded with zeros.
      is_fresh: whether nobody else has a hold on it, if its memory is the library's.

    Raises:
      InvalidValueError: if a 64-bit integer does not fit the 32 bits that JAX gives it.
    """
    if isinstance(array, jax.Array):
        if lead is None:
            return array
        if is_keys(array):
            raise InvalidTypeError(_no_zeros(name, array))
        array = np.asarray(array)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("="))
    if dtype != array.dtype and array.dtype.kind in "iu":
        _check_range(array, dtype, name)
    if lead is None and dtype == array.dtype and _is_safe(array, is_fresh):
        return array
    lead = lead or ()
    out = owned_empty((*lead, *array.shape[len(lead) :]), dtype)
    inside: tuple[Any, ...] = (*map(slice, array.shape[: len(lead)]), ...)
    _cast_into(out[inside], array, name)
    zero = np.zeros((), dtype)  # of float8_e8m0fnu, which has none, the smallest number
    for axis in range(len(lead)):
        out[(slice(None),) * axis + (slice(array.shape[axis], None),)] = zero
    return out


def is_keys(array: Any) -> bool:
    """Whether an array has typed keys of `jax.random`, which lie on devices only."""
    return isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def value_text(array: Array | jax.Array) -> str:
    """The value of an array without axes, in full."""
    return str(np.asarray(jax.random.key_data(array) if is_keys(array) else array))


def detach(leaf: Any, *, is_fresh: bool = False) -> Any:
    """The leaf for a user who receives it later: an array that may be written to is copied."""
    if not isinstance(leaf, np.ndarray) or _is_safe(leaf, is_fresh):
        return leaf
    if leaf.dtype.hasobject or type(leaf) is not np.ndarray:
        return leaf.copy()
    out = owned_empty(leaf.shape, leaf.dtype)
    np.copyto(out, leaf)
    return out


def padded_host(leaf: Any, short: Sequence[int], lead: Sequence[int]) -> Any:
    """A leaf that stays on the host, with its first axes padded from `short` to `lead`.

    The fill is what is empty in its dtype: `''`, `b''`, `None` for objects, the epoch for times.
    """
    axes = len(lead)
    if not isinstance(leaf, np.ndarray) or leaf.shape[:axes] != tuple(short):
        return leaf
    out = np.zeros((*lead, *leaf.shape[axes:]), leaf.dtype)
    if leaf.dtype.kind == "O":
        out[...] = None
    out[tuple(map(slice, short))] = leaf
    return out


def digest(arrays: Iterable[Any]) -> str:
    """Returns what stands for the contents of the arrays among these that are on the host."""
    sha = hashlib.sha256()
    for array in arrays:
        if isinstance(array, np.ndarray):
            sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:32]


def filled(rest: Rest) -> Any:
    """The batch of batches that a rest began, filled up with zeros and what `padded_host` takes.

    Raises:
      InvalidTypeError: for typed keys, of which there are no zeros.
    """
    unit = prod(rest.sizes)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            raise InvalidTypeError(_no_zeros("a leaf of the last batch", leaf))
        return padded_host(leaf, (rest.count,), (unit,)).reshape(*rest.sizes, *leaf.shape[1:])

    return jax.tree_util.tree_map(fill, rest.batch)


def _no_zeros(name: str, array: jax.Array) -> str:
    return (
        f"{name} is a short batch of {array.dtype}, for which there are no zeros to pad with. Use"
        " remainder='drop', or make the keys from integers after the transfer."
    )


@functools.lru_cache(maxsize=256)
def _holds(dtype: np.dtype[Any]) -> bool:
    """Whether JAX has arrays of this dtype: numbers and booleans, bfloat16 and its kin included."""
    if dtype.kind == "m":  # signed integers, to NumPy
        return False
    number = jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)
    extended_precision = dtype in (np.dtype(np.longdouble), np.dtype(np.clongdouble))
    if not number or (extended_precision and dtype.itemsize > 8 and _is_long(dtype)):
        return False
    return dtype.isbuiltin != 2 or _takes(dtype)


def _takes(dtype: np.dtype[Any]) -> bool:
    # ml_dtypes has more of them than JAX, which calls them all numbers.
    try:
        jax.device_put(np.zeros(1, dtype), jax.local_devices()[0])
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def _is_long(dtype: np.dtype[Any]) -> bool:
    # Where the platform's long double is a double, it is an ordinary float64.
    return dtype not in (np.dtype(np.float64), np.dtype(np.complex128))


def _is_safe(array: Array, is_fresh: bool) -> bool:
    """Whether nobody can write to this memory any more.

    That is memory of the library's which it hands to nobody else, and what is read-only down to its
    owner.
    """
    if is_fresh and (is_owned(array) or is_slot_memory(array)):
        return True
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    # Who owns an array may make it writable again.
    return type(base) is bytes


def _cast_into(out: Array, array: Array, name: str) -> None:
    """Copies; says which leaf it is where a number is too large for the floats of `out`."""
    ignored = np.geterr()["over"] == "ignore"
    try:
        with np.errstate(over="ignore" if ignored else "raise"):
            np.copyto(out, array, casting="unsafe")
    except FloatingPointError:
        with np.errstate(over="ignore"):
            np.copyto(out, array, casting="unsafe")
        # Without the number, so that Python's filters show it once for a leaf.
        warnings.warn(
            f"{name} holds numbers that do not fit {out.dtype.name}, and arrive as infinite: JAX"
            f" holds {array.dtype.name} as {out.dtype.name} unless jax_enable_x64 is on. Call"
            " jax.config.update('jax_enable_x64', True) at the start of the program, or clip the"
            " leaf.",
            RuntimeWarning,
            stacklevel=2,
        )


def _check_range(array: Array, dtype: np.dtype[Any], name: str) -> None:
    if array.size == 0:
        return
    bounds = np.iinfo(dtype)
    if array.min() >= bounds.min and array.max() <= bounds.max:
        return
    bad = np.argwhere((array < bounds.min) | (array > bounds.max))[0]
    value = array[tuple(bad)]
    place = f"{name}, row {bad[0]}," if array.ndim else name
    raise InvalidValueError(
        f"{place} holds {value}, which does not fit {dtype.name}: JAX holds 64-bit integers in 32"
        " bits, and would wrap this one without a word, unless jax_enable_x64 is on. Call"
        " jax.config.update('jax_enable_x64', True) at the start of the program, or map the leaf to"
        f" values from {bounds.min} to {bounds.max}."
    )
