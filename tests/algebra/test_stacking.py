"""Stacking equals `np.stack` of `np.asarray`, leaf by leaf, and refuses the rest by name."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import enum
import functools
import pickle
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grain_jax._algebra.stacking import (
    OpaqueLeafError,
    StackError,
    copy_into,
    is_owned,
    owned_empty,
    stack,
)
from grain_jax._values.errors import InvalidTypeError, InvalidValueError


def reference(column: list[Any]) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(x) for x in column])


def whole(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biu" or type(value) is ml_dtypes.int4


def exact(column: list[Any]) -> np.ndarray[Any, Any] | None:
    """What NumPy gives where each number is still equal to itself; integers stay integers."""
    expected = reference(column)
    integers = [int(np.asarray(x).item()) for x in column if whole(x)]
    if len(integers) == len(column) and expected.dtype.kind == "f":
        for kind in (np.uint64, np.int64):
            with contextlib.suppress(OverflowError):
                return np.array(integers, kind)
        return None
    for got, value in zip(expected.tolist(), column, strict=True):
        # The real part: NumPy compares a long complex number with an integer as a short one.
        if whole(value) and got.real != int(np.asarray(value).item()):
            return None
    return expected


def assert_same(got: Any, expected: np.ndarray[Any, Any]) -> None:
    assert type(got) is np.ndarray
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.size < 100:
        assert repr(got.tolist()) == repr(expected.tolist())
    else:
        assert np.array_equal(got, expected)


class Number(enum.IntEnum):
    SEVEN = 7


numbers = (
    st.integers(-5, 5)
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64])
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from(
        [
            *(np.dtype(c).type(3) for c in "?bBhHiIlLqQefdgFDG"),
            ml_dtypes.bfloat16(2.5),
            ml_dtypes.int4(3),
            np.array(3),
            np.array(2.5, np.float32),
            np.array(2**70, object),
            Number.SEVEN,
        ]
    )
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a machine that others use, too
@given(st.lists(numbers, min_size=1, max_size=6))
@example([2**63 + 1, 0j, np.longdouble(3)])
def test_numbers_of_all_kinds(column: list[Any]) -> None:
    try:
        expected = exact(column)
    except TypeError:  # bfloat16 has no common type with most; NumPy finds one in some lists
        with contextlib.suppress(StackError):
            stack(column)
        return
    if expected is None:
        with pytest.raises(StackError, match=r"no .* is equal to the integer|no integer type"):
            stack(column)
    else:
        assert_same(stack(column), expected)


dtypes = (
    hnp.scalar_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.byte_string_dtypes()
    | st.sampled_from(
        [
            np.dtype(ml_dtypes.bfloat16),
            np.dtype(ml_dtypes.float8_e4m3fn),
            np.dtype(object),
            np.dtype([("a", "i4"), ("b", "f8", (2,))]),
            np.dtype([("a", "i8"), ("b", "f8", (2,))]),
        ]
    )
)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@given(st.lists(dtypes, min_size=1, max_size=3), shapes, st.randoms())
def test_arrays_of_all_dtypes(
    kinds: list[np.dtype[Any]], shape: tuple[int, ...], random: Any
) -> None:
    column = [np.zeros(shape, random.choice(kinds)) for _ in range(5)]
    found = {family(array.dtype) for array in column}
    if len(found) > 1 and not ("objects" in found and found <= MIXED_WITH_OBJECTS):
        with pytest.raises(StackError, match="do not stack with"):
            stack(column)
        return
    if found == {"records"} and len({array.dtype.newbyteorder("=") for array in column}) > 1:
        with pytest.raises(StackError, match=r"need the same fields|no common type"):
            stack(column)
        return
    try:
        # Whether NumPy finds objects to be what text and bfloat16 have in common depends on order.
        expected = reference([a.astype(object) for a in column] if "objects" in found else column)
    except TypeError:
        with pytest.raises(StackError, match="no common type"):
            stack(column)
        return
    whole_ones = all(array.dtype.kind in "biu" for array in column)
    if found == {"numbers"} and expected.dtype.kind == "f" and whole_ones:
        expected = expected.astype(np.uint64)
    assert_same(stack(column), expected)


MIXED_WITH_OBJECTS = {"objects", "numbers", "text", "bytes"}


def family(dtype: np.dtype[Any]) -> str:
    for name, kinds in {"numbers": "biufc", "text": "U", "bytes": "S", "objects": "O"}.items():
        if dtype.kind in kinds:
            return name
    if dtype.kind == "V":
        return "numbers" if dtype.names is None else "records"
    return dtype.kind


@given(
    hnp.arrays(np.int16, (2, 7, 20, 5), elements=st.integers(0, 9)),
    st.permutations(range(3)),
    st.tuples(*[st.sampled_from([slice(None), slice(None, None, -1), slice(1, None, 2)])] * 3),
)
def test_views_of_every_layout_are_copied_right(
    images: np.ndarray[Any, Any], axes: list[int], cut: tuple[slice, ...]
) -> None:
    column = [image.transpose(axes)[cut] for image in images]
    expected = reference(column)
    assert_same(stack(column), expected)
    out = np.empty_like(expected)
    for row, array in enumerate(column):
        copy_into(out[row], array)
    assert_same(out, expected)


@pytest.mark.parametrize("channels", [1, 3, 4, 9])
def test_large_flipped_images(channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 255, (4, 64, 48, channels), np.uint8)
    flipped = [image[5:60, ::-1] for image in images]
    assert_same(stack(flipped), reference(flipped))
    transposed = [image.transpose(2, 0, 1) for image in images]
    assert_same(stack(transposed), reference(transposed))


def test_the_result_type_is_over_all_records() -> None:
    mixed = [np.zeros(3, np.float32), np.zeros(3, np.int32), np.ones(3, np.float16)]
    assert_same(stack(mixed), reference(mixed))
    large = [np.zeros(5000, np.uint8), np.full(5000, -1, np.int8)]
    assert_same(stack(large), reference(large))
    for column in (
        [True, 2],
        [True, 2.5],
        [1, 2.5],
        [2**53, 2.5],
        [2**70, 1],
        [np.int64(1), 2, np.uint8(3)],
        [np.float32(1), 2],
        [np.float32(1), 1.5, True],
    ):
        assert_same(stack(column), reference(column))


def test_byte_order_and_time_units() -> None:
    for column in (
        [np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")],
        [np.arange(3, dtype=">i4")] * 2,
        [np.datetime64("2020-01-01"), np.datetime64("2020-01-01T05")],
        [np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-01"], "M8[s]")],
        [np.timedelta64(3, "s"), np.timedelta64(3, "m")],
    ):
        assert_same(stack(column), reference(column))


def test_text_and_bytes_become_object_arrays() -> None:
    batch = stack([{"name": "a", "raw": b"1"}, {"name": "long text", "raw": b"\0"}])
    assert batch["name"].dtype == object
    assert batch["name"].tolist() == ["a", "long text"]
    assert batch["raw"].dtype == object
    assert batch["raw"].tolist() == [b"1", b"\0"]
    assert stack([np.str_("a"), "b"]).dtype == object
    assert stack([np.array("a"), np.array("bc")]).dtype == np.dtype("<U2")


@flax.struct.dataclass
class Sample:
    image: Any
    label: Any


class Pair(NamedTuple):
    left: Any
    right: Any


def test_trees_are_those_of_jax() -> None:
    def element(i: int) -> Any:
        return {
            "list": [np.full(2, i), (i, None)],
            "pair": Pair(i, {"deep": float(i)}),
            "sample": Sample(np.full((2, 2), i), i),
            "ordered": collections.OrderedDict(b=i, a=-i),
            "none": None,
            "empty": {},
        }

    elements = [element(i) for i in range(3)]
    expected = jax.tree.map(lambda *xs: reference(list(xs)), *elements)
    got = stack(elements)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert_same(left, right)
    assert list(got) == list(elements[0])


def test_the_order_of_keys_does_not_matter() -> None:
    for kind in (dict, lambda given: collections.defaultdict(int, given)):
        batch = stack([kind({"b": 1, "a": 2}), kind({"a": 3, "b": 4})])
        assert list(batch) == ["b", "a"]
        assert batch["a"].tolist() == [2, 3]


def test_arrays_of_jax_and_subclasses_of_numpy() -> None:
    for column in (
        [jnp.arange(3), jnp.ones(3)],
        [jnp.bfloat16(1), jnp.bfloat16(2)],
        [jnp.zeros(4, jnp.bfloat16), np.ones(4, ml_dtypes.bfloat16)],
        [np.zeros(2, "i4,f4").view(np.recarray), np.ones(2, "i4,f4")],
    ):
        assert_same(stack(column), reference(column))


def test_memory_comes_from_allocate_except_for_objects() -> None:
    asked = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        memory = np.empty(shape, dtype)
        asked.append(memory)
        return memory

    element = {
        "int": 1,
        "mixed": np.float32(1),
        "small": np.zeros(3),
        "scalar": np.array(1),
        "large": np.zeros((100, 100)),
        "text": "t",
        "object": np.array([None]),
    }
    batch = stack([element, {**element, "mixed": 2}], allocate)
    for name in ("int", "mixed", "small", "scalar", "large"):
        assert any(batch[name] is memory for memory in asked), name
    assert len(asked) == 5


def test_arrays_are_in_memory_of_the_library() -> None:
    for shape in ((), (8,), (100, 100)):
        assert is_owned(stack([np.zeros(shape)] * 3))
    assert is_owned(owned_empty((3,), np.dtype(int)))


def test_records_are_not_written_and_not_aliased() -> None:
    record = np.zeros((100, 100))
    record.flags.writeable = False
    batch = stack([record])
    batch += 1
    assert record.max() == 0


def check(elements: list[Any], leaf: str, rows: tuple[int, int], *texts: str) -> None:
    with pytest.raises(StackError) as caught:
        stack(elements)
    error = caught.value
    assert isinstance(error, InvalidValueError)
    assert isinstance(error, ValueError)
    assert (error.leaf, error.first, error.second) == (leaf, *rows)
    for text in texts:
        assert text in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.leaf, again.second) == (str(error), leaf, rows[1])


def test_different_shapes_name_leaf_shapes_and_elements() -> None:
    good = {"x": [np.zeros((3, 2))]}
    for shape in ((2, 2), (3,), (3, 3), (0, 2), ()):
        bad = {"x": [np.zeros(shape)]}
        check([good, good, bad], "['x'][0]", (0, 2), "['x'][0]", "(3, 2)", str(shape), "element 2")
    # Lengths that cancel in the sum
    check([np.zeros(3), np.zeros(2), np.zeros(4)], "", (0, 1), "element itself", "(3,)", "(2,)")
    check([np.zeros(9000), np.zeros(9000), np.zeros(1)], "", (0, 2), "(9000,)", "(1,)")
    check([1, np.zeros(2)], "", (0, 1), "()", "(2,)")
    check([1.0, np.zeros(1)], "", (0, 1), "()", "(1,)")


def test_shapes_are_compared_before_dtypes() -> None:
    check([np.zeros(2), np.zeros(3, "M8[s]")], "", (0, 1), "shape")


def test_different_structures_show_the_difference() -> None:
    check([{"a": 1, "b": 2}, {"a": 1}], "", (0, 1), "{'a': *, 'b': *}", "{'a': *}")
    check([{"a": 1, "b": 2}, {"a": 1, "c": 2}], "", (0, 1), "'b'", "'c'")
    check([{"a": [1]}, {"a": [1]}, {"a": [1, 2]}], "['a']", (0, 2), "[*]", "[*, *]", "['a']")
    check([{"a": [1]}, {"a": (1,)}], "['a']", (0, 1), "[*]", "(*,)")
    check([{"a": None}, {"a": 1}], "['a']", (0, 1), "None", "type int")
    check([{"a": 1}, {"a": None}], "['a']", (0, 1), "type int", "None")
    check([{"a": np.zeros(2)}, {"a": [0, 0]}], "['a']", (0, 1), "float64", "[*, *]")
    check([{"a": 1}, 1], "", (0, 1), "{'a': *}", "type int")
    check([1, {"a": 1}], "", (0, 1))
    check([1, [2]], "", (0, 1))
    check(["a", ["b"]], "", (0, 1))


def test_text_with_numbers_and_types_without_a_common_one() -> None:
    check(["a", 1], "", (0, 1), "type str", "type int")
    check([1, "a"], "", (0, 1), "type int", "type str")
    check([np.zeros(2), np.zeros(2), np.zeros(2, "M8[s]")], "", (0, 2), "float64", "datetime64[s]")


@pytest.mark.parametrize(
    "value", [object(), datetime.date(2020, 1, 1), {1, 2}, range(3), print, slice(3), open]
)
def test_other_classes_are_refused_by_name(value: Any) -> None:
    if isinstance(value, range):
        assert_same(stack([value, value]), reference([value, value]))
        return
    with pytest.raises(OpaqueLeafError) as caught:
        stack([{"x": 1, "y": value}] * 2)
    assert isinstance(caught.value, InvalidTypeError)
    text = str(caught.value)
    assert "['y']" in text
    assert type(value).__qualname__ in text
    assert "jax.tree_util" in text


def test_no_elements_are_refused() -> None:
    with pytest.raises(StackError, match="no elements"):
        stack([])


def test_typed_keys_make_an_array_of_keys_and_raw_ones_stack() -> None:
    keys = [jax.random.key(i) for i in range(3)]
    batch = stack([{"key": key, "two": jax.random.split(key)} for key in keys])
    assert batch["key"].shape == (3,)
    assert batch["two"].shape == (3, 2)
    assert batch["key"].dtype == batch["two"].dtype == keys[0].dtype
    expected = np.stack([jax.random.key_data(key) for key in keys])
    np.testing.assert_array_equal(jax.random.key_data(batch["key"]), expected)
    raw = stack([jax.random.PRNGKey(i) for i in range(3)])
    assert_same(raw, expected)


def test_keys_stack_with_their_like_only() -> None:
    key = jax.random.key(0)
    for other in (jax.random.key(0, impl="rbg"), jax.random.split(key), np.zeros(2), "text", None):
        check([{"k": key}, {"k": other}], "['k']", (0, 1), "key<fry> of shape ()", "element 1")
        with pytest.raises(StackError, match=r"\['k'\]"):
            stack([{"k": other}, {"k": key}])


class Metres(np.ndarray[Any, Any]):
    """Gives sums another meaning."""

    def __array_ufunc__(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.ma.MaskedArray([1, 2], [True, False]), "its mask would be lost. Give x.filled"),
        (np.ma.MaskedArray([1, 2]), "its mask would be lost"),
        (np.ma.masked, "its mask would be lost"),
        (np.zeros(2).view(Metres), "class Metres.*np.asarray"),
    ],
)
def test_what_an_array_says_besides_its_values_is_not_lost(value: Any, why: str) -> None:
    plain = np.zeros(np.shape(value))
    for column in ([value, value], [plain, value], [value, plain]):
        with pytest.raises(OpaqueLeafError, match=rf"\['x'\] in element .*{why}"):
            stack([{"x": x} for x in column])
    for first in (1, 1.5, True):
        with pytest.raises(StackError):
            stack([{"x": first}, {"x": value}])


def test_scalars_of_text_keep_every_byte() -> None:
    given = [np.bytes_(b"ab\0"), np.bytes_(b""), b"\0"]
    assert stack(given).tolist() == [b"ab\0", b"", b"\0"]
    texts = [np.str_("a\0"), "b", np.str_("\0\0")]
    assert stack(texts).tolist() == ["a\0", "b", "\0\0"]
    assert {type(text) for text in stack(texts)} == {str}
    assert {type(text) for text in stack(given)} == {bytes}


@flax.struct.dataclass
class Sound:
    wave: Any
    rate: Any = flax.struct.field(pytree_node=False)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["n", "m"])
@dataclasses.dataclass
class Counted:
    x: Any
    n: Any
    m: Any = 0


@jax.tree_util.register_pytree_node_class
class Tagged:
    def __init__(self, x: Any, tag: Any) -> None:
        self.pair = x, tag

    def tree_flatten(self) -> Any:
        return self.pair[:1], self.pair[1]

    @classmethod
    def tree_unflatten(cls, tag: Any, children: Any) -> Any:
        return cls(children[0] + 0, tag)


def test_static_fields_that_differ_are_named_with_both_values() -> None:
    sounds = [{"s": Sound(np.zeros(3), rate)} for rate in (8, 8, 16)]
    check(sounds, "['s']", (0, 2), "a Sound whose static field 'rate' is 8 in element 0", "16 in")
    assert stack(sounds[:2])["s"].rate == 8
    # The value of the data is the very object that the static field has.
    check([Counted(1, 1, 5), Counted(1, 2, 5)], "", (0, 1), "'n' is 1 in element 0", "2 in elem")
    check([Tagged(1, "a"), Tagged(1, "b")], "", (0, 1), "static data is 'a'", "'b'")
    rates = [Sound(np.zeros(3), np.arange(3)) for _ in range(2)]
    check(rates, "", (0, 1), "'rate' is array([0, 1, 2])", "compare with ==")
    check([Sound(1, 2), Counted(1, 2)], "", (0, 1), "Sound(*)", "Counted(*)")
    with pytest.raises(StackError) as caught:
        stack([Sound(1, "x" * 999), Sound(1, 2)])
    assert len(str(caught.value)) < 500
