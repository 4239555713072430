"""Pieces: parts of arrays that become one array, side by side along the first axis.

No value changes on the way: the dtype is the one that a batch of the pieces would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from grain_jax._algebra import mixing
from grain_jax._algebra.stacking import MixedTypesError, StackError, named, stack
from grain_jax._values import arrays, options
from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from grain_jax._values.memory import owned_empty
from grain_jax._values.trees import LEAF_TYPES, flatten, paths, split, unflatten

__all__ = [
    "as_array",
    "batch_and_pad",
    "filled",
    "joined",
    "row_count",
    "segments",
    "unbatch",
    "value_of",
]

T = TypeVar("T")

Array = np.ndarray[Any, Any]


def as_array(value: Any, name: str) -> Array:
    """An array or number as an array.

    Args:
        value: what an element has.
        name: what messages call it.

    Raises:
        InvalidTypeError: if it is neither, or would lose something.
    """
    if type(value) is np.ndarray:
        return value
    why = None
    if isinstance(value, np.ndarray):
        why = arrays.what_is_lost(value)
    elif isinstance(value, str | bytes) or arrays.is_key(value):
        why = f"is a value of type {type(value).__qualname__}, which has no rows."
    elif type(value) not in LEAF_TYPES and split(value) is not None:
        why = f"is a {type(value).__qualname__}. Make it an array in a map: np.asarray(x)."
    if why is None:
        array = np.asarray(value)
        # NumPy wraps what it does not know; arrays of objects, and large integers, are by intent.
        if array.dtype != object or isinstance(value, int | np.ndarray):
            return array
        why = f"is a value of type {type(value).__qualname__}, which is no array."
    raise InvalidTypeError(f"{name} {why}")


def joined(pieces: Sequence[Array], name: str) -> Array:
    """The pieces one behind the other.

    Raises:
        StackError: if their types or the shapes of their rows have nothing in common.
    """
    dtype, shape = _common(pieces, name)
    out = owned_empty((sum(map(len, pieces)), *shape), dtype)
    # No value changes: `_common` has seen to it.
    return np.concatenate(pieces, out=out, casting="unsafe")


def filled(
    pieces: Sequence[Array], places: Iterable[int], length: int, name: str, padding: Any = None
) -> Array:
    """An array of `length` rows in which each piece has its place.

    Args:
        pieces: at least one.
        places: where each begins.
        length: rows of the result.
        name: what messages call it.
        padding: what all other rows hold; None for zeros.

    Raises:
        StackError: if the types of the pieces or the shapes of their rows have nothing in common.
        InvalidValueError: if the dtype does not hold the padding.
    """
    dtype, shape = _common(pieces, name)
    out = owned_empty((length, *shape), dtype)
    out[...] = np.zeros((), dtype) if padding is None else value_of(padding, dtype, name)
    for piece, place in zip(pieces, places, strict=True):
        out[place : place + len(piece)] = piece
    return out


def segments(
    pieces: Sequence[Array], places: Iterable[int], numbers: Iterable[int], length: int
) -> tuple[Array, Array]:
    """Which piece each row of `filled` is of, by number, 0 elsewhere; and its place in that.

    Both are int32, of shape (length,).
    """
    of_piece, inside = np.zeros(length, np.int32), np.zeros(length, np.int32)
    count = np.arange(length, dtype=np.int32)
    for piece, place, number in zip(pieces, places, numbers, strict=True):
        size = len(piece)
        of_piece[place : place + size] = number
        inside[place : place + size] = count[:size]
    return of_piece, inside


def batch_and_pad(values: Sequence[T], *, batch_size: int, pad_value: Any = 0) -> T:
    """A batch of `batch_size` rows, with rows of `pad_value` behind if there are fewer values.

    For `batch`, which calls it with what is left at the end, too:
    `ds.batch(8, batch_fn=functools.partial(batch_and_pad, batch_size=8))`.

    Args:
        values: at least one element, at most `batch_size`.
        batch_size: rows of the result.
        pad_value: what the rows behind hold, in every leaf.

    Raises:
        InvalidValueError: if there are too many values, or the dtype of a leaf does not hold the
            padding.
        StackError: if the values do not stack.

    >>> batch_and_pad([{"x": 1}, {"x": 2}], batch_size=4, pad_value=-1)
    {'x': array([ 1,  2, -1, -1])}
    """
    options.check_count("batch_size", batch_size, minimum=1)
    if len(values) > batch_size:
        raise InvalidValueError(
            f"batch_and_pad was given {len(values)} values for a batch of {batch_size}. Give it "
            "the size that batch(...) has."
        )
    batch = stack(values)
    if len(values) == batch_size:
        return batch  # type: ignore[no-any-return]
    leaves, structure = flatten(batch)
    padded = []
    for leaf, way in zip(leaves, paths(batch), strict=True):
        name = named(way)
        padded.append(filled([as_array(leaf, name)], [0], batch_size, name, pad_value))
    return unflatten(structure, padded)  # type: ignore[no-any-return]


def row_count(element: Any, what: str) -> int:
    """The rows of a batch: the first axis of its arrays.

    Args:
        element: the batch.
        what: the operator, for error texts.

    Raises:
        InvalidValueError: if they differ, or there are none.
    """
    leaves = flatten(element)[0]
    counts = [np.shape(leaf)[:1] for leaf in leaves]
    if counts and counts[0] and counts.count(counts[0]) == len(counts):
        return int(counts[0][0])
    ways = paths(element)
    for way, count in zip(ways, counts, strict=True):
        if not count:
            raise InvalidValueError(
                f"{what} takes batches, and {named(way)} has no axis for its rows. Write "
                ".batch(...) for elements that are no batches."
            )
    if not counts:
        raise InvalidValueError(
            f"{what} takes batches, and this element has no arrays: nothing says how many rows "
            "it has."
        )
    found = ", ".join(f"{named(w)} has {c[0]}" for w, c in zip(ways, counts, strict=True))
    raise InvalidValueError(
        f"the arrays of a batch must have equally many rows (their first axes): {found}."
    )


def unbatch(batch: Any) -> list[Any]:
    """The elements of a batch: trees of its structure, of one row of each array."""
    count = row_count(batch, "unbatch")
    leaves, structure = flatten(batch)
    ways = paths(batch)
    columns = [list(as_array(leaf, named(way))) for leaf, way in zip(leaves, ways, strict=True)]
    return [unflatten(structure, [column[row] for column in columns]) for row in range(count)]


def _common(pieces: Sequence[Array], name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and the shape of a row that all pieces have in common."""
    first = pieces[0]
    dtype, shape = first.dtype, first.shape[1:]
    alike = dtype.isnative
    for row, piece in enumerate(pieces):
        if piece.shape[1:] != shape:
            raise StackError(
                f"{name} has rows of shape {shape} in element 0 of those that go together and "
                f"{piece.shape[1:]} in element {row}; all but the first axis must be the same.",
                name,
                0,
                row,
            )
        if piece.dtype is not dtype and piece.dtype != dtype:
            alike = False
    if alike:
        return dtype, shape
    try:
        return mixing.common_dtype(pieces), shape
    except mixing.UnlikeError as error:
        raise MixedTypesError(
            f"{name} has dtype {pieces[error.first].dtype} in element {error.first} of those that "
            f"go together and {pieces[error.second].dtype} in element {error.second}, {error.why}."
            " Convert the records to one dtype before.",
            name,
            error.first,
            error.second,
        ) from error


def value_of(padding: Any, dtype: np.dtype[Any], name: str) -> Array:
    """A number, or other value, as one of a dtype that holds it."""
    given = np.asarray(padding)
    try:
        with np.errstate(all="ignore"):
            found = given.astype(dtype)
        same = bool(found == given) or bool(found != found)
    except (TypeError, ValueError, OverflowError):
        same = False
    if given.ndim or not same:
        raise InvalidValueError(
            f"{name} would hold {padding!r}, which is no value of its dtype {dtype}. Give a "
            "value that is, or convert the records before."
        )
    return found
