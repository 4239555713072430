"""Every kind of source gives its records by key, and those of containers are safe from edits."""

from __future__ import annotations

import array
import collections
import dataclasses
import pickle
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grain_jax._algebra.sources import (
    RandomAccessDataSource,
    RangeDataSource,
    adapt,
    check_not_empty,
)
from grain_jax._algebra.stacking import is_owned, stack
from grain_jax._values.errors import InvalidTypeError, InvalidValueError, OutOfRangeError

KEYS = [3, 0, 3, 1]


def keys(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


class Fresh:
    """Makes its records afresh and remembers what it was asked."""

    def __init__(self, n: int = 5) -> None:
        self.n = n
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return np.full(2, index)


class Many(Fresh):
    def __getitems__(self, indices: Any) -> Any:
        self.asked.append(indices)
        return tuple(np.full(2, i) for i in indices)


class Batched(Fresh):
    def __getbatch__(self, indices: Any) -> Any:
        self.asked.append(indices)
        return {"x": np.asarray(indices) * 10}


# --- the range ---------------------------------------------------------------------------------


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5))
def test_a_range_source_is_a_range(start: int, stop: int, step: int) -> None:
    if step == 0 or (stop - start) * step < 0:
        with pytest.raises(InvalidValueError, match="step"):
            RangeDataSource(start, stop, step)
        return
    source, expected = RangeDataSource(start, stop, step), list(range(start, stop, step))
    assert [source[i] for i in range(len(source))] == expected
    assert source.__getitems__(range(len(source))) == expected
    positions = np.arange(len(expected))
    for given_ in (source, range(start, stop, step)):
        adapted = adapt(given_)
        records = adapted.read(positions)
        assert records == expected
        assert {type(r) for r in records} <= {int}
        batch = adapted.read_batch(positions)
        assert batch.tolist() == expected
        assert batch.dtype == np.int64


def test_a_range_source_equals_grains() -> None:
    grain = pytest.importorskip("grain")
    ours, theirs = RangeDataSource(2, 20, 3), grain.sources.RangeDataSource(2, 20, 3)
    assert repr(ours) == repr(theirs)
    assert [ours[i] for i in range(len(ours))] == [theirs[i] for i in range(len(theirs))]
    for index in (-1, 6):
        with pytest.raises(IndexError) as caught:
            theirs[index]
        with pytest.raises(OutOfRangeError, match=str(caught.value)):
            ours[index]


def test_a_range_beyond_64_bits_keeps_its_values() -> None:
    values = range(2**63 - 1, 2**63 + 3)
    assert adapt(values).read(keys(*KEYS)) == [values[k] for k in KEYS]


# --- what is a source --------------------------------------------------------------------------


def test_the_protocol_is_about_length_and_index() -> None:
    assert isinstance(Fresh(), RandomAccessDataSource)
    assert isinstance([], RandomAccessDataSource)
    assert not isinstance(iter([]), RandomAccessDataSource)


@pytest.mark.parametrize("source", [None, 3, iter([1]), {1, 2}, object(), (i for i in range(3))])
def test_what_is_no_source_is_refused_by_type(source: Any) -> None:
    with pytest.raises(InvalidTypeError, match=f"{type(source).__name__} is no data source"):
        adapt(source)


def test_text_and_arrays_without_axes_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="ArrayRecordDataSource"):
        adapt("/data/file.array_record")
    with pytest.raises(InvalidTypeError, match="without axes"):
        adapt(np.array(3))


def test_an_empty_source_is_refused_when_asked() -> None:
    for source in ([], np.zeros((0, 3)), range(0), Fresh(0), {"x": np.zeros(0)}):
        with pytest.raises(InvalidValueError, match="is empty"):
            check_not_empty(adapt(source))
    check_not_empty(adapt([1]))


def test_a_description_never_shows_data() -> None:
    for source in ([7777] * 3, np.full(3, 7777), {"x": np.full(3, 7777)}, Fresh(3)):
        adapted = adapt(source)
        assert adapted.description == f"{type(source).__name__} of length 3"
        assert "7777" not in repr(adapted)


# --- reading -----------------------------------------------------------------------------------


class Row(NamedTuple):
    x: Any


@dataclasses.dataclass(frozen=True)
class Item:
    x: Any
    y: int = 0


CONTAINERS: list[Any] = [
    list(range(5)),
    tuple("abcde"),
    [1, 2.5, None, "x", b"y"],
    collections.deque([1, 2, 3, 4, 5]),
    collections.UserList("abcde"),
    {i: i * 10 for i in range(5)},
    np.arange(5),
    np.arange(5.0).astype(">f4"),
    np.arange(20).reshape(5, 2, 2),
    np.array(["a", "b", "c", "d", "e"]),
    np.array([1, "a", None, [1], 2.5], object),
    np.array([(i, i / 2) for i in range(5)], "i4,f8"),
    np.arange(5).astype("M8[s]"),
    np.arange(10).reshape(5, 2).view(np.recarray),
    array.array("d", range(5)),
]


@pytest.mark.parametrize("source", CONTAINERS, ids=lambda s: f"{type(s).__name__}")
def test_a_container_gives_what_indexing_gives(source: Any) -> None:
    adapted = adapt(source)
    assert len(adapted) == adapted.length == 5
    expected = [source[k] for k in KEYS]
    records = adapted.read(keys(*KEYS))
    assert repr(records) == repr(expected)
    assert list(map(type, records)) == list(map(type, expected))
    assert repr([adapted.get(k) for k in KEYS]) == repr(expected)
    assert adapted.read(keys()) == []
    again = pickle.loads(pickle.dumps(adapted))
    assert repr(again.read(keys(*KEYS))) == repr(expected)


def test_a_dict_of_arrays_gives_dicts() -> None:
    source = {"b": np.arange(10).reshape(5, 2), "a": np.arange(5), "t": np.array(list("vwxyz"))}
    adapted = adapt(source)
    records = adapted.read(keys(*KEYS))
    assert [list(r) for r in records] == [["b", "a", "t"]] * 4
    for record, key in zip(records, KEYS, strict=True):
        assert record["a"] == key
        assert record["b"].tolist() == source["b"][key].tolist()
        assert record["t"] == "vwxyz"[key]
    assert adapted.get(2)["a"] == 2


def test_a_tree_of_arrays_gives_trees() -> None:
    source = {"x": [np.arange(5), (jnp.arange(5) * 2, None)], "y": Row(np.arange(5))}
    assert adapt(source).read(keys(2)) == [{"x": [2, (4, None)], "y": Row(2)}]


def test_dicts_in_a_tree_of_arrays_keep_the_order_of_their_keys() -> None:
    x = np.arange(5)
    source = {"z": x, "a": {"q": (x, {"d": x, "c": x}), "b": x}}
    nested = collections.defaultdict(list, source)
    for arrays in (source, nested):
        (record,) = adapt(arrays).read(keys(2))
        batch = adapt(arrays).read_batch(keys(2, 3))
        for tree in (record, batch):
            assert list(tree) == ["z", "a"]
            assert list(tree["a"]) == ["q", "b"]
            assert list(tree["a"]["q"][1]) == ["d", "c"]
        assert type(record) is type(batch) is type(arrays)


def test_masked_arrays_are_refused_as_a_source_and_in_one() -> None:
    masked = np.ma.MaskedArray(np.arange(10).reshape(5, 2), mask=np.eye(5, 2))
    with pytest.raises(InvalidTypeError, match=r"data source is a masked array.*its mask would"):
        adapt(masked)
    with pytest.raises(
        InvalidTypeError, match=r"leaf \['x'\] of the data source is a masked array"
    ):
        adapt({"x": masked, "y": np.arange(5)})


def test_trees_that_are_no_source_are_refused_by_leaf() -> None:
    with pytest.raises(InvalidValueError, match=r"\['a'\] has 3 rows and \['b'\] has 4"):
        adapt({"a": np.zeros(3), "b": np.zeros((4, 3))})
    with pytest.raises(InvalidTypeError, match=r"\['a'\]\[0\] is int"):
        adapt({"a": [1, 2]})
    with pytest.raises(InvalidTypeError, match=r"\['a'\] is ndarray without axes"):
        adapt({"a": np.array(1)})
    with pytest.raises(InvalidValueError, match="empty dict"):
        adapt({})


def test_a_source_is_asked_with_python_integers() -> None:
    one, many = Fresh(), Many()
    assert np.array_equal(adapt(one).read(keys(*KEYS)), [[k, k] for k in KEYS])
    assert one.asked == KEYS
    assert {type(k) for k in one.asked} == {int}
    assert np.array_equal(adapt(many).read(keys(*KEYS)), [[k, k] for k in KEYS])
    assert many.asked == [KEYS]
    assert type(many.asked[0]) is list
    assert {type(k) for k in many.asked[0]} == {int}


def test_getitems_is_called_once_for_a_block() -> None:
    source = Many(1000)
    adapted = adapt(source)
    for start in range(0, 1000, 50):
        adapted.read(np.arange(start, start + 50))
    assert len(source.asked) == 20


def test_a_missing_record_stays_none() -> None:
    assert adapt([None, 1]).read(keys(0, 1, 0)) == [None, 1, None]


@pytest.mark.parametrize("source", [[1, 2], np.arange(2), range(2), {"x": np.arange(2)}, Fresh(2)])
@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_key_outside_is_refused_by_name(source: Any, wrong: int) -> None:
    adapted = adapt(source)
    with pytest.raises(OutOfRangeError, match=rf"key {wrong} is outside.*keys are 0 to 1"):
        adapted.read(keys(0, wrong))
    if adapted.has_batches:
        with pytest.raises(IndexError, match=f"key {wrong}"):
            adapted.read_batch(keys(wrong))


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        ([1], InvalidValueError, "asked for 2 records and returned 1"),
        ({"x": [1, 2]}, InvalidTypeError, "returned dict"),
        (iter([1, 2]), InvalidTypeError, "returned list_iterator"),
    ],
)
def test_a_wrong_answer_of_getitems_is_refused(result: Any, error: type, text: str) -> None:
    class Wrong(Fresh):
        def __getitems__(self, indices: Any) -> Any:
            return result

    with pytest.raises(error, match=text):
        adapt(Wrong()).read(keys(0, 1))


# --- batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        np.arange(5),
        np.arange(5.0).astype(">f4"),
        np.arange(40).reshape(5, 4, 2),
        np.arange(40).reshape(8, 5).T,
        np.arange(40).reshape(5, 4, 2)[:, ::-1],
        np.array(["a", "b", "c", "d", "e"]),
        np.array([["a", "bc"]] * 5),
        np.array([(i, i / 2) for i in range(5)], ">i4,f8"),
        np.arange(5).astype("M8[s]"),
        range(3, 30, 2),
        {"x": np.arange(5), "y": np.arange(10.0).reshape(5, 2), "t": np.array(list("abcde"))},
        {"x": [np.arange(5), (np.arange(5), None)]},
    ],
    ids=str,
)
def test_a_batch_is_the_stack_of_its_records(source: Any) -> None:
    adapted = adapt(source)
    assert adapted.has_batches
    batch, expected = adapted.read_batch(keys(*KEYS)), stack(adapted.read(keys(*KEYS)))
    assert repr(batch) == repr(expected)
    leaves = [batch] if isinstance(batch, np.ndarray) else []
    for leaf in leaves:
        assert leaf.dtype == expected.dtype
        assert leaf.flags.writeable
        assert leaf.dtype.hasobject or is_owned(leaf)


def test_a_batch_goes_into_the_memory_given() -> None:
    memory = np.empty((4, 3))
    source = np.arange(15.0).reshape(5, 3)
    assert adapt(source).read_batch(keys(*KEYS), lambda shape, dtype: memory) is memory
    assert np.array_equal(memory, source[KEYS])


def test_a_source_of_objects_or_lists_has_no_batches() -> None:
    for source in ([1, 2], np.array([1, "a"], object), np.array([[None, 1]], object), Fresh()):
        assert not adapt(source).has_batches
        assert adapt(source).read_batch(keys(0)) is None


def test_getbatch_is_asked_with_an_array() -> None:
    source = Batched()
    assert adapt(source).read_batch(keys(*KEYS))["x"].tolist() == [30, 0, 30, 10]
    assert source.asked[0].dtype == np.int64


@pytest.mark.parametrize("result", [{"x": np.zeros(3)}, {"x": 1.0}, np.zeros(())])
def test_a_wrong_answer_of_getbatch_is_refused(result: Any) -> None:
    class Wrong(Fresh):
        def __getbatch__(self, indices: Any) -> Any:
            return result

    with pytest.raises(InvalidValueError, match="asked for 2 records and returned"):
        adapt(Wrong()).read_batch(keys(0, 1))


# --- what the user may edit --------------------------------------------------------------------


def test_arrays_in_a_container_are_read_only() -> None:
    def record() -> Any:
        return {
            "array": np.zeros(2),
            "nested": [(np.zeros(2), {"deep": np.zeros(2)})],
            "ordered": collections.OrderedDict(x=np.zeros(2)),
            "default": collections.defaultdict(int, x=np.zeros(2)),
            "row": Row(np.zeros(2)),
            "item": Item(np.zeros(2)),
        }

    original = record()
    for source in ([original], (original,), np.array([original, None], object)[:1]):
        got = adapt(source).read(keys(0))[0]
        for values in (
            got["array"],
            got["nested"][0][0],
            got["nested"][0][1]["deep"],
            got["ordered"]["x"],
            got["default"]["x"],
            got["row"].x,
            got["item"].x,
        ):
            with pytest.raises(ValueError, match="read-only"):
                values += 1
        assert {k: type(v) for k, v in got.items()} == {k: type(v) for k, v in original.items()}
        got["new"] = 1
        got["nested"].append(2)
        got["ordered"]["y"] = 3
        assert repr(original) == repr(record())
        original["array"] += 0  # what the source holds stays the user's


@pytest.mark.parametrize(
    "source",
    [
        np.zeros((2, 3)),
        np.zeros(2, "i4,f8"),
        [np.zeros(3), np.zeros(3)],
        {"x": np.zeros((2, 3))},
        np.zeros((2, 3)).view(np.recarray),
    ],
)
def test_rows_are_read_only(source: Any) -> None:
    record = adapt(source).read(keys(1))[0]
    record = record["x"] if isinstance(source, dict) else record
    with pytest.raises(ValueError, match=r"read-only|writeable"):
        record[0] = 1


def test_records_made_afresh_stay_writable() -> None:
    class Computed(list[int]):
        def __getitem__(self, index: Any) -> Any:
            return np.full(2, index)

    for source in (Fresh(), Many(), Computed([1, 2, 3])):
        record = adapt(source).read(keys(1))[0]
        record += 1
        assert record.tolist() == [2, 2]


def test_a_mapping_of_names_is_refused_with_what_to_write(tmp_path: Any) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 2)), y=np.arange(4))
    with np.load(tmp_path / "data.npz") as archive:
        with pytest.raises(InvalidTypeError, match=r"by names \('x', 'y'\).*dict\(source\)"):
            adapt(archive)
        assert adapt(dict(archive)).length == 4
