"""Mixing: the one dtype of leaves whose dtypes differ, or why there is none.

The dtype is NumPy's where it holds every value as it is. NumPy makes floats of unsigned together
with signed 64-bit integers, text of numbers beside text, and durations of integers beside
durations; here the first become the integers that hold all values, and the others do not mix.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["UnlikeError", "common_dtype"]

Array = np.ndarray[Any, Any]
Dtype = np.dtype[Any]

_INT64 = np.iinfo(np.int64)

_EXTENSION = 2
"""What `isbuiltin` says of the dtypes of other packages, such as ml_dtypes."""

_FAMILIES = dict.fromkeys("biufc", "numbers") | {
    "U": "text",
    "T": "text",
    "S": "bytes",
    "M": "times",
    "m": "durations",
    "O": "objects",
}

# What an array of objects holds as Python has it.
_IN_OBJECTS = frozenset({"objects", "numbers", "text", "bytes"})


class UnlikeError(Exception):
    """Two rows that have no dtype in common that holds both.

    Attributes:
        first: one row.
        second: the other one.
        why: goes on after the two dtypes: "which ..." or "and ...".
    """

    def __init__(self, first: int, second: int, why: str) -> None:
        super().__init__(first, second, why)
        self.first = first
        self.second = second
        self.why = why


def common_dtype(arrays: Sequence[Array]) -> Dtype:
    """The dtype, in native byte order, that holds every value of all arrays as it is.

    Raises:
        UnlikeError: if there is none.
    """
    rows: dict[Dtype, int] = {}
    for row, array in enumerate(arrays):
        rows.setdefault(array.dtype, row)
    if len(rows) == 1:
        return np.result_type(arrays[0].dtype)
    _check_families(rows)
    if any(dtype.kind == "O" for dtype in rows):
        return np.dtype(object)  # NumPy's answer depends on the order of text and bfloat16
    try:
        result = _numpys(rows)
    except TypeError as error:
        raise UnlikeError(0, _first_without(list(rows.items())), _none(error)) from error
    family = _family(result)
    if family == "numbers":
        return _number_dtype(arrays, rows, result)
    if family in ("times", "durations"):
        for row, array in enumerate(arrays):
            if array.dtype != result and not _same_times(array, result):
                why = f"and holds a time that {result} does not reach"
                raise UnlikeError(row, _row_of(rows, result, row), why)
    if family == "records":
        for dtype, row in rows.items():
            if not np.can_cast(dtype, arrays[0].dtype, "equiv"):
                raise UnlikeError(0, row, "and structured arrays need the same fields")
    return result


def _family(dtype: Dtype) -> str:
    if dtype.kind == "V":
        # bfloat16 and its kin are void to NumPy, with a scalar type of their own.
        return "records" if issubclass(dtype.type, np.void) else "numbers"
    return _FAMILIES[dtype.kind]


def _check_families(rows: dict[Dtype, int]) -> None:
    families = {dtype: _family(dtype) for dtype in rows}
    found = set(families.values())
    if len(found) == 1 or ("objects" in found and found <= _IN_OBJECTS):
        return
    (_, first), *others = families.items()
    row = next(
        (rows[dtype] for dtype, family in others if {first, family} - {"objects"} != {first}),
        rows[others[0][0]],
    )
    other = next(family for dtype, family in others if rows[dtype] == row)
    raise UnlikeError(0, row, f"and {first} do not stack with {other}")


def _numpys(rows: dict[Dtype, int] | list[Dtype]) -> Dtype:
    # np.result_type takes 64 types at most. With extension types among others its answer depends on
    # their order and number, so that each of them is added to the common one of the others.
    own = [np.empty(0, dtype) for dtype in rows if dtype.isbuiltin != _EXTENSION]
    types = [np.concatenate(own).dtype] if own else []
    types += [dtype for dtype in rows if dtype.isbuiltin == _EXTENSION]
    return functools.reduce(np.promote_types, types)


def _none(error: TypeError) -> str:
    return f"which have no common type ({error})"


def _first_without(items: list[tuple[Dtype, int]]) -> int:
    for place in range(1, len(items)):
        try:
            _numpys([dtype for dtype, _ in items[: place + 1]])
        except TypeError:
            return items[place][1]
    return items[-1][1]


def _row_of(rows: dict[Dtype, int], dtype: Dtype, but: int) -> int:
    """The first row of a dtype, or else of any other than that of row `but`."""
    return rows.get(dtype, next((row for row in rows.values() if row != but), but))


def _number_dtype(arrays: Sequence[Array], rows: dict[Dtype, int], result: Dtype) -> Dtype:
    if _is_whole(result):
        return result
    if all(map(_is_whole, rows)):
        return _integer_dtype(arrays)
    for row, array in enumerate(arrays):
        if _is_whole(array.dtype):
            value = _inexact(array, result)
            if value is not None:
                other = next(r for dtype, r in rows.items() if not _is_whole(dtype))
                why = f"and no {result} is equal to the integer {value} of element {row}"
                raise UnlikeError(min(row, other), max(row, other), why)
    return result


def _is_whole(dtype: Dtype) -> bool:
    return dtype.kind in "biu" or (dtype.kind == "V" and "int" in dtype.name)


def _integer_dtype(arrays: Sequence[Array]) -> Dtype:
    """For unsigned and signed 64-bit integers together."""
    lowest = [int(array.min(initial=0)) for array in arrays]
    highest = [int(array.max(initial=0)) for array in arrays]
    if min(lowest) >= 0:
        return np.dtype(np.uint64)
    if max(highest) <= _INT64.max:
        return np.dtype(np.int64)
    low, high = lowest.index(min(lowest)), highest.index(max(highest))
    why = f"and no integer type holds both {lowest[low]} and {highest[high]}"
    raise UnlikeError(min(low, high), max(low, high), why)


def _inexact(array: Array, result: Dtype) -> int | None:
    """The first integer of an array that would change as a number of the dtype `result`."""
    if array.dtype.kind == "b":
        return None
    whole = array.astype(np.int64) if array.dtype.kind == "V" else array
    limit = 1 << (_mantissa(result) + 1)
    if not whole.size or -limit <= int(whole.min()) <= int(whole.max()) <= limit:
        return None
    with np.errstate(all="ignore"):
        floats = array.astype(result).real.astype(np.promote_types(np.float64, _real(result)))
    for value, number in zip(whole.ravel().tolist(), floats.ravel().tolist(), strict=True):
        if value != number:  # Python compares an integer with a float as they are
            return int(value)
    return None


def _real(result: Dtype) -> Dtype:
    return np.dtype(
        np.longdouble if result.char in "gG" and result.isbuiltin != _EXTENSION else np.float64
    )


def _mantissa(result: Dtype) -> int:
    if result.isbuiltin != _EXTENSION:
        return int(np.finfo(result).nmant)
    # Who has an array of such a dtype has imported it.
    return int(sys.modules["ml_dtypes"].finfo(result).nmant)


def _same_times(array: Array, result: Dtype) -> bool:
    try:
        again = array.astype(result).astype(array.dtype)
    except OverflowError:  # newer versions of NumPy say so
        return False
    return bool(((again == array) | (np.isnat(array) & np.isnat(again))).all())
