"""Packed records: every reader has copies, and what records have in common is stored once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grain_jax._algebra.packing import Packed

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.builds(lambda n: np.arange(n, dtype=np.int16), st.integers(0, 3000)),
)  # fmt: skip
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(st.integers(), max_size=3),
    ),
    max_leaves=6,
)


def travelled(packed: Packed) -> Packed:
    """What is unpickled where the memory of the pickle's buffers is mapped."""
    buffers: list[Any] = []
    data = pickle.dumps(packed, 5, buffer_callback=buffers.append)
    again: Packed = pickle.loads(data, buffers=[bytearray(b.raw()) for b in buffers])
    return again


def arrays_of(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return [value]
    inside = value.values() if isinstance(value, dict) else value
    return (
        [a for v in inside for a in arrays_of(v)] if isinstance(value, dict | list | tuple) else []
    )


@given(st.lists(trees, min_size=1, max_size=6), st.data())
def test_records_come_back_equal_in_any_order_and_their_arrays_read_only(
    records: list[Any], data: Any
) -> None:
    keys = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=8))
    for packed in (Packed.of(records), travelled(Packed.of(records))):
        assert len(packed) == len(records)
        got = packed.rows(np.array(keys, np.int64))
        for record, key in zip(got, keys, strict=True):
            np.testing.assert_equal(record, records[key])
            assert type(record) is type(records[key])
            assert not any(array.flags.writeable for array in arrays_of(record))


def size(records: list[Any]) -> int:
    return len(pickle.dumps(Packed.of(records), 5))


def test_an_array_that_records_share_is_stored_once() -> None:
    for count in (5_000, 500_000):  # within the memory, and beside it
        array = np.arange(count)
        once, often = size([{"x": array}]), size([{"x": array, "i": i} for i in range(50)])
        assert often < once + 20_000


def test_an_array_made_for_the_pickle_only_is_not_taken_for_another() -> None:
    class Image:
        def __init__(self, number: int) -> None:
            self.number = number

        def __reduce__(self) -> Any:
            # It is gone when the next record is pickled, which may get its address.
            return np.copy, (np.full(4096, self.number),)

    got = Packed.of([Image(i) for i in range(40)]).rows(np.arange(40))
    assert [int(array[-1]) for array in got] == list(range(40))


class Buffer(bytearray):
    """Bytes that go beside a pickle and are, where they meet their memory again, the original."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _buffer, (pickle.PickleBuffer(self),)


def _buffer(memory: Any) -> Any:
    with memoryview(memory) as view:
        return view.obj if type(view.obj) is Buffer else Buffer(memory)


def test_memory_of_other_classes_is_copied() -> None:
    original = Buffer(b"abc" * 5000)
    (got,) = Packed.of([original]).rows(np.array([0]))
    assert got == original
    assert got is not original
    got[0] = 0
    (again,) = Packed.of([original]).rows(np.array([0]))
    assert again == original == b"abc" * 5000


def test_an_error_of_a_record_is_raised_as_itself() -> None:
    class Bad:
        def __reduce__(self) -> Any:
            raise ValueError("not me")

    with pytest.raises(ValueError, match="not me"):
        Packed.of([1, Bad()])
