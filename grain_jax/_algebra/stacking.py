"""Elements to a batch: `np.stack` per leaf, written once, into memory that the caller chooses.

The result is the one of `np.stack([np.asarray(leaf) for leaf in leaves])` for every leaf of the
elements' trees, result type over all of them included, where that holds every value as it is
(`mixing.py`). Text and bytes become object arrays, typed keys of JAX arrays of keys. The short cuts
below are for speed only; whatever they do not recognise goes the general way.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import mixing
from grain_jax._values import arrays as kinds
from grain_jax._values.errors import InvalidTypeError, StackError
from grain_jax._values.memory import is_owned, owned_empty
from grain_jax._values.trees import LEAF_TYPES, flatten, split, static_difference

__all__ = [
    "Allocate",
    "MixedTypesError",
    "OpaqueLeafError",
    "StackError",
    "copy_into",
    "is_owned",
    "named",
    "owned_empty",
    "stack",
]

Array = np.ndarray[Any, Any]
Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]

# The scalars that a short cut knows, with the dtype that each has by itself.
_NUMBERS: dict[type, np.dtype[Any]] = {
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    bool: np.dtype(np.bool_),
    complex: np.dtype(np.complex128),
} | {np.dtype(code).type: np.dtype(code) for code in "?bBhHiIlLqQefdFD"}

_WHOLE = frozenset(kind for kind, dtype in _NUMBERS.items() if dtype.kind in "iu")

# Below this size the cost of a record is Python's, and one call for all rows is faster than a loop.
_SMALL_ROW = 4096

# Characters of a user's value in a message.
_LONGEST = 80

# From this last axis on a copy of rows that are not contiguous runs at full speed.
_SHORT_AXIS = 8


class MixedTypesError(StackError, InvalidTypeError):
    """Leaves whose types have no common one, which `np.stack` refuses with a TypeError, too."""


class OpaqueLeafError(StackError, InvalidTypeError):
    """A leaf of a class that NumPy does not stack as it is, or that this process does not know.

    Another process may know it: a class registered with `jax.tree_util` is a leaf where JAX has
    not been imported.
    """


def stack(elements: Sequence[Any], allocate: Allocate | None = None) -> Any:
    """One tree of arrays with a new leading axis from elements of equal structure.

    Args:
        elements: at least one element.
        allocate: gives uninitialised memory for `(shape, dtype)`; not asked for dtypes that hold
            Python objects. By default the library's own memory.

    >>> stack([{"x": 1, "y": (2.0, None)}, {"x": 3, "y": (4.0, None)}])
    {'x': array([1, 3]), 'y': (array([2., 4.]), None)}

    Raises:
        StackError: if structures, shapes or types differ.
    """
    if not len(elements):
        raise StackError("a batch of no elements has no structure.", "", 0, 0)
    try:
        return _stack(elements if type(elements) is list else list(elements), "", allocate)
    except RecursionError as error:
        raise StackError(
            f"an element of the batch, {_kind(elements[0])}, contains itself (a node that knows "
            "its parent, say) or is nested too deeply for a tree of arrays. Convert it in a Map "
            "before Batch, or give Batch a batch_fn.",
            "",
            0,
            0,
        ) from error


def _stack(column: list[Any], leaf: str, allocate: Allocate | None) -> Any:
    """Stacks what sits at one place of all elements' trees."""
    first = column[0]
    kind = type(first)
    if kind is np.ndarray:
        return _stack_arrays(column, leaf, allocate)
    if kind in _NUMBERS:
        return _stack_scalars(column, leaf, allocate)
    if kind is dict:
        return _stack_dicts(column, leaf, allocate)
    if kind in LEAF_TYPES:
        return _stack_any(column, leaf, allocate)
    opened = split(first)
    if opened is None:
        return _stack_any(column, leaf, allocate)
    level, children = opened
    rows = [children]
    for row, element in enumerate(column[1:], 1):
        other = split(element)
        if other is None or other[0] != level or len(other[1]) != len(children):
            raise _structures_differ(column, leaf, row)
        rows.append(other[1])
    labels = level.labels(len(children), first)
    batch = level.build(
        [
            _stack(list(below), leaf + label, allocate)
            for label, below in zip(labels, zip(*rows, strict=True), strict=True)
        ]
    )
    if kind is collections.defaultdict:  # in the order of the first element, as of a dict
        return kind(first.default_factory, ((key, batch[key]) for key in first))
    return batch


def _stack_dicts(column: list[dict[Any, Any]], leaf: str, allocate: Allocate | None) -> Any:
    # Keeps the first element's order of keys; as trees, dicts with other orders are equal.
    first = column[0]
    rows = len(column)
    if (
        list(map(type, column)).count(dict) != rows
        or list(map(len, column)).count(len(first)) != rows
    ):
        other = next(i for i, e in enumerate(column) if type(e) is not dict or len(e) != len(first))
        raise _structures_differ(column, leaf, other)
    batch = {}
    for key in first:
        try:
            below = [element[key] for element in column]
        except KeyError:
            row = next(row for row, element in enumerate(column) if key not in element)
            raise _structures_differ(column, leaf, row) from None
        batch[key] = _stack(below, f"{leaf}[{key!r}]", allocate)
    return batch


def _stack_scalars(column: list[Any], leaf: str, allocate: Allocate | None) -> Any:
    types = list(map(type, column))
    first, count = types[0], len(column)
    if types.count(first) == count:
        try:
            result = np.fromiter(column, _NUMBERS[first], count)
        except OverflowError:
            return _stack_any(column, leaf, allocate)
    else:
        found = set(types)
        if not found <= _NUMBERS.keys():
            return _stack_any(column, leaf, allocate)
        result = np.array(column)
        # Integers must not become floats unseen.
        if result.dtype.kind not in "biu" and not (
            result.dtype.kind in "fc" and found.isdisjoint(_WHOLE)
        ):
            return _stack_any(column, leaf, allocate)
    if allocate is None:
        return result
    out = allocate(result.shape, result.dtype)
    out[...] = result
    return out


def _stack_arrays(column: list[Any], leaf: str, allocate: Allocate | None) -> Any:
    first = column[0]
    shape, dtype = first.shape, np.result_type(first.dtype)  # in native byte order
    count = len(column)
    if list(map(type, column)).count(np.ndarray) != count or dtype.hasobject:
        return _stack_any(column, leaf, allocate)
    if first.nbytes < _SMALL_ROW and shape:
        out = (allocate or owned_empty)((count, *shape), dtype)
        try:
            # One call for all rows checks ranks, later axes and, by "equiv", dtypes. Only the first
            # axis, along which they are concatenated, is left.
            np.concatenate(column, out=out.reshape(-1, *shape[1:]), casting="equiv")
        except (TypeError, ValueError):
            return _stack_any(column, leaf, allocate)
        if list(map(len, column)).count(shape[0]) != count:
            return _stack_any(column, leaf, allocate)
        return out
    for array in column:
        if array.shape != shape or array.dtype != dtype:
            return _stack_any(column, leaf, allocate)
    out = (allocate or owned_empty)((count, *shape), dtype)
    for row, array in enumerate(column):
        copy_into(out[row, ...], array)
    return out


def copy_into(out: Array, array: Array) -> None:
    """Copies an array into another of the same shape and dtype.

    NumPy copies along the last axis. Where that has a few values only and the rows do not follow
    each other in memory (an image flipped with `[:, ::-1]`), one copy per channel is four times
    as fast.
    """
    if (
        array.ndim > 1
        and array.shape[-1] < _SHORT_AXIS
        and array.strides[-2] != array.shape[-1] * array.itemsize
        and array.shape[-2] > 2 * _SHORT_AXIS
    ):
        for channel in range(array.shape[-1]):
            out[..., channel] = array[..., channel]
    else:
        out[...] = array


def _stack_any(column: list[Any], leaf: str, allocate: Allocate | None) -> Any:
    """The general way for leaves: the definition, and all the errors."""
    if isinstance(column[0], str | bytes):
        return _stack_text(column, leaf)
    if kinds.is_key(column[0]):
        return _stack_keys(column, leaf)
    arrays = [_as_array(column, row, leaf) for row in range(len(column))]
    shape = arrays[0].shape
    for row, array in enumerate(arrays):
        if array.shape != shape:
            raise StackError(
                f"{named(leaf)} has shape {shape} in element 0 of the batch and {array.shape} "
                f"in element {row}; a batch needs one shape. Crop, pad or resize the records "
                "before Batch, or give it a batch_fn.",
                leaf,
                0,
                row,
            )
    try:
        dtype = mixing.common_dtype(arrays)
    except mixing.UnlikeError as error:
        raise MixedTypesError(
            f"{named(leaf)} has dtype {arrays[error.first].dtype} in element {error.first} of the "
            f"batch and {arrays[error.second].dtype} in element {error.second}, {error.why}. "
            "Convert the records to one dtype before Batch.",
            leaf,
            error.first,
            error.second,
        ) from error
    if dtype.hasobject or allocate is None:
        out = owned_empty((len(arrays), *shape), dtype)
    else:
        out = allocate((len(arrays), *shape), dtype)
    # No value changes: `common_dtype` has seen to it.
    return np.stack(arrays, out=out, casting="unsafe")


def _stack_keys(column: list[Any], leaf: str) -> Any:
    """Typed keys of JAX, as an array of keys."""
    first = column[0]
    for row, key in enumerate(column):
        if not kinds.is_key(key) or key.dtype != first.dtype or key.shape != first.shape:
            raise MixedTypesError(
                f"{named(leaf)} is {_kind(first)} in element 0 of the batch and {_kind(key)} in "
                f"element {row}; keys stack with keys of one shape and implementation.",
                leaf,
                0,
                row,
            )
    return kinds.stack_keys(column)


def _stack_text(column: list[Any], leaf: str) -> Any:
    plain = list(map(type, column)).count(type(column[0])) == len(column)
    for row, element in enumerate(() if plain else column):
        if not isinstance(element, str | bytes):
            raise StackError(
                f"{named(leaf)} is {_kind(column[0])} in element 0 of the batch and "
                f"{_kind(element)} in element {row}; text does not stack with anything else.",
                leaf,
                0,
                row,
            )
    out = np.empty(len(column), object)
    # Scalars of NumPy become plain text. Their `item` would lose zeros at the end.
    out[:] = [e[:] if isinstance(e, np.str_ | np.bytes_) else e for e in column]
    return out


def _as_array(column: list[Any], row: int, leaf: str) -> Array:
    value = column[row]
    if type(value) is np.ndarray:
        return value
    if type(value) not in LEAF_TYPES and split(value) is not None:
        raise _structures_differ(column, leaf, row)
    if isinstance(value, str | bytes):
        raise StackError(
            f"{named(leaf)} is {_kind(column[0])} in element 0 of the batch and {_kind(value)} in "
            f"element {row}; text does not stack with anything else.",
            leaf,
            0,
            row,
        )
    if isinstance(value, np.ndarray):
        lost = kinds.what_is_lost(value)
        if lost is not None:
            raise OpaqueLeafError(
                f"{named(leaf)} in element {row} of the batch {lost}", leaf, row, row
            )
    try:
        array = np.asarray(value)
    except Exception as error:
        raise _opaque(leaf, row, value, f": {error}") from error
    # NumPy wraps what it does not know in an array of objects. An array of objects, or an integer
    # of more than 64 bits, is one by intent.
    if array.dtype == object and not isinstance(value, int | np.ndarray):
        raise _opaque(leaf, row, value, "")
    return array


def _opaque(leaf: str, row: int, value: Any, why: str) -> OpaqueLeafError:
    return OpaqueLeafError(
        f"{named(leaf)} is {_kind(value)} in element {row} of the batch, which is no array, "
        f"number or text{why}. Convert it in a Map before Batch (for example to a dict of arrays), "
        "register its class with jax.tree_util, or give Batch a batch_fn.",
        leaf,
        row,
        row,
    )


def _structures_differ(column: list[Any], leaf: str, row: int) -> StackError:
    static = static_difference(column[0], column[row])
    if static is not None:
        what, first, other = static
        name = type(column[0]).__qualname__
        return StackError(
            f"{named(leaf)} is a {name} whose {what} is {_brief(first)} in element 0 of the batch "
            f"and {_brief(other)} in element {row}; a batch has one {name}, and so one value of "
            "what is static. Make it a field with data, or give every record the same (static "
            "values have to compare with ==).",
            leaf,
            0,
            row,
        )
    remedy = "Return the same keys and lengths for every record"
    if column[0] is None or column[row] is None:
        remedy = "Give a value instead of None (a missing value of a table is one), or filter"
    return StackError(
        f"the elements of the batch differ in structure: {named(leaf)} is {_structure(column[0])} "
        f"in element 0 and {_structure(column[row])} in element {row}. {remedy}, or give Batch a "
        "batch_fn.",
        leaf,
        0,
        row,
    )


def _structure(value: Any) -> str:
    if split(value) is None:
        return _kind(value)
    return repr(flatten(value)[1])


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    if kinds.is_key(value):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"a value of type {type(value).__qualname__}"


def named(leaf: str) -> str:
    """What messages call a leaf, by its way from the element."""
    return f"the leaf {leaf}" if leaf else "the element itself"
