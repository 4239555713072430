"""Leaves of unlike dtypes: NumPy's type where each value stays as it is, else an error."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from grain_jax._algebra.mixing import UnlikeError, common_dtype
from grain_jax._algebra.stacking import StackError, stack

LARGE = 2**53 + 1


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**63 + 1, 5], np.uint64),
        ([5, np.uint64(2**64 - 1)], np.uint64),
        ([np.uint64(7), np.int64(-1)], np.int64),
        ([np.uint64(7), np.int64(1)], np.uint64),
        ([np.uint64(7), True], np.uint64),
        ([2**63 - 1, np.uint64(0), -(2**63)], np.int64),
        ([np.int8(-1), np.uint8(255)], np.int16),
        ([np.int8(-1), np.uint32(2**32 - 1)], np.int64),
        ([np.array(2**63, ">u8"), np.array(1, ">i8")], np.uint64),
        ([True, 2], np.int64),
        ([np.bool_(True), np.int8(2)], np.int8),
        ([ml_dtypes.int4(-8), np.int64(3)], np.int64),
    ],
)
def test_integers_stay_integers(values: list[Any], dtype: Any) -> None:
    expected = [int(value) for value in values]
    for column in (values, values[::-1]):
        batch = stack(column)
        assert batch.dtype == dtype
        assert sorted(batch.tolist()) == sorted(expected)
    rows = [np.full((2, 3), value) for value in values]
    batch = stack(rows)
    assert batch.dtype == dtype
    assert [row.ravel().tolist() for row in batch] == [[value] * 6 for value in expected]


def test_integers_of_more_than_64_bits_are_objects() -> None:
    batch = stack([2**64, 5, -1])
    assert batch.dtype == object
    assert batch.tolist() == [2**64, 5, -1]


@pytest.mark.parametrize(
    ("values", "rows", "texts"),
    [
        ([5, 2**63 + 1, -1], (1, 2), ["uint64", "int64", "-1", "9223372036854775809"]),
        ([np.uint64(2**63), np.int32(-3)], (0, 1), ["uint64", "int32", "-3"]),
        ([LARGE, 2.5], (0, 1), ["int64", "float64", "the integer 9007199254740993 of element 0"]),
        ([2.5, 1, -LARGE], (0, 2), ["float64", "int64", "-9007199254740993 of element 2"]),
        ([np.float32(1), LARGE], (0, 1), ["float32", "int64", str(LARGE)]),
        ([1j, LARGE], (0, 1), ["complex128", "int64", str(LARGE)]),
        ([0.5, 2**63 - 1], (0, 1), ["float64", "int64", str(2**63 - 1)]),
        ([0.5, 2**64 - 1], (0, 1), ["float64", "uint64", str(2**64 - 1)]),
        ([ml_dtypes.float8_e4m3fn(1), np.int8(17)], (0, 1), ["float8_e4m3fn", "int8", "17"]),
        ([ml_dtypes.float8_e4m3fn(1), np.uint8(255)], (0, 1), ["float8_e4m3fn", "uint8", "255"]),
    ],
)
def test_a_value_that_would_change_is_an_error(
    values: list[Any], rows: tuple[int, int], texts: list[str]
) -> None:
    for column in (values, [np.full(2, value) for value in values]):
        with pytest.raises(StackError) as caught:
            stack([{"id": value} for value in column])
        assert (caught.value.first, caught.value.second) == rows
        for text in ("['id']", *(f"element {row}" for row in rows), *texts):
            assert text in str(caught.value)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([3, 2.5], np.float64),
        ([2**53, 2.5, -(2**53)], np.float64),
        ([2**60, 2.5], np.float64),  # a power of two is exact
        ([np.float32(0.1), np.int32(2**31 - 1)], np.float64),
        ([np.float32(0.1), np.int16(-(2**15))], np.float32),
        ([np.float16(0.1), 70_000], np.float64),
        ([1, 2.5 + 1j], np.complex128),
        ([np.longdouble(0.1), 2**63 - 1], np.longdouble),
        ([ml_dtypes.bfloat16(0.1), np.uint8(255)], ml_dtypes.bfloat16),
        ([ml_dtypes.float8_e4m3fn(1), np.int8(20)], ml_dtypes.float8_e4m3fn),
        ([ml_dtypes.bfloat16(0.1), np.float32(0.1)], np.float32),
        ([np.float16(0.1), np.float32(0.1), 0.1], np.float64),
    ],
)
def test_integers_with_floats_where_each_is_exact(values: list[Any], dtype: Any) -> None:
    batch = stack(values)
    assert batch.dtype == dtype
    for got, given in zip(batch, values, strict=True):
        assert got == np.asarray(given, dtype)
        assert not isinstance(given, int) or int(got.real) == given


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (np.timedelta64(3, "s"), np.int64(3), "durations do not stack with numbers"),
        (np.int64(3), np.timedelta64(3, "s"), "numbers do not stack with durations"),
        (np.datetime64(3, "s"), np.timedelta64(3, "s"), "times do not stack with durations"),
        (np.array("a"), np.int64(3), "text do not stack with numbers"),
        (np.array("a"), np.array(b"a"), "text do not stack with bytes"),
        (np.array([None])[0:1], np.array(["2020"], "M8[ns]"), "objects do not stack with times"),
        (np.zeros(1, "i4,f4"), np.zeros(1, "i4,f8"), "need the same fields"),
        (np.zeros(1, "i4,f4"), np.zeros(1), "records do not stack with numbers"),
        (np.zeros(2, "V4"), np.zeros(2, "V5"), "no common type"),
        (np.timedelta64(3, "Y"), np.timedelta64(3, "D"), "no common type"),
        (np.datetime64("30000", "D"), np.datetime64("2000", "ns"), r"\[ns\] does not reach"),
        (ml_dtypes.bfloat16(1), np.float16(1), "no common type"),
    ],
)
def test_what_does_not_mix(one: Any, other: Any, text: str) -> None:
    with pytest.raises(StackError, match=text) as caught:
        stack([{"x": one}, {"x": one}, {"x": other}])
    assert str(np.asarray(one).dtype) in str(caught.value)
    assert str(np.asarray(other).dtype) in str(caught.value)
    assert caught.value.second == 2 or caught.value.first == 2


def test_times_of_several_units_stay_the_same_times() -> None:
    column = [np.datetime64("2020-01-01"), np.datetime64("NaT", "ns"), np.datetime64("1990", "Y")]
    batch = stack(column)
    assert batch.dtype == np.dtype("M8[ns]")
    assert batch[0] == column[0]
    assert np.isnat(batch[1])
    assert batch[2] == column[2]


def test_the_order_of_bytes_is_no_difference() -> None:
    for kind in ("i4", "f8", "u2", "c16", "M8[s]", "U3"):
        arrays = [np.zeros(2, ">" + kind), np.zeros(2, "<" + kind), np.zeros(2, ">" + kind)]
        assert common_dtype(arrays) == np.dtype("=" + kind)
        assert common_dtype(arrays[::2]).isnative
    fields = [np.zeros(2, [("a", order + "i4")]) for order in "><"]
    assert common_dtype(fields) == np.dtype([("a", "=i4")])


def test_arrays_without_values_have_a_type_too() -> None:
    empty = [np.zeros((0, 2), np.uint64), np.zeros((0, 2), np.int64)]
    assert common_dtype(empty) == np.uint64
    assert common_dtype([np.zeros(0, np.int64), np.zeros(0)]) == np.float64


def test_the_error_carries_both_rows() -> None:
    with pytest.raises(UnlikeError) as caught:
        common_dtype([np.zeros(1), np.zeros(1), np.zeros(1, "M8[s]")])
    assert (caught.value.first, caught.value.second) == (0, 2)


def test_bfloat16_among_others_in_any_order() -> None:
    """NumPy finds a common type in a few of these orders only."""
    kinds = [np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16), np.dtype(np.int64), np.dtype(bool)]
    for order in itertools.permutations(kinds):
        assert common_dtype([np.ones((), dtype) for dtype in order]) == np.float64
