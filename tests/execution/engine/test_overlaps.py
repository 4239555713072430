"""Memory of which one object is sent, and memory of which each array has its own."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from grain_jax._execution.engine import parcel


def sent(program: Any) -> tuple[Any, int]:
    """Returns what a worker loads, and how many bytes were sent."""
    descriptor, _, _ = parcel.pack(program, None, {}, "overlaps")
    content = parcel.Parcel(descriptor, "overlaps")
    content.load_init()
    loaded, _ = content.load_program()
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    return loaded, size


TOKENS = np.arange(1 << 20, dtype=np.int64)


def test_memory_of_several_arrays_is_sent_once() -> None:
    (inputs, targets), size = sent((TOKENS[:-1], TOKENS[1:]))
    assert (inputs[1:] == targets[:-1]).all()
    assert (inputs[0], targets[-1]) == (0, (1 << 20) - 1)
    inputs[5] = -1
    assert targets[4] == -1
    assert size < 1.1 * TOKENS.nbytes


@pytest.mark.parametrize("dtype", ["f8", "<M8[s]", ">i8"])
def test_columns_of_one_matrix_are_sent_by_themselves(dtype: str) -> None:
    matrix = np.arange(1 << 20).astype(dtype).reshape(-1, 1024)
    (first, second), size = sent((matrix[:, 0], matrix[:, 1]))
    assert first.dtype == second.dtype == matrix.dtype
    assert (first == matrix[:, 0]).all()
    assert (second == matrix[:, 1]).all()
    assert size < matrix.nbytes / 10


def test_arrays_that_nobody_can_write_to_are_sent_by_themselves() -> None:
    data = np.arange(4).tobytes()
    first, second = np.frombuffer(data, np.int64), np.frombuffer(data, np.int64)[1:]
    (one, other, given), _ = sent((first, second, data))
    assert one.base is not other.base
    assert given == data
    assert (one.tolist(), other.tolist()) == ([0, 1, 2, 3], [1, 2, 3])


def test_part_of_a_bytearray_that_stays_behind_is_all_that_is_sent() -> None:
    data = bytearray(range(64)) * (1 << 16)
    loaded, size = sent(np.frombuffer(data, np.uint8)[:64])
    assert loaded.tolist() == list(range(64))
    assert size < 1 << 16


def test_a_memoryview_stays_one() -> None:
    numbers = np.arange(6, dtype=np.int16).reshape(2, 3)
    loaded, _ = sent([memoryview(numbers), memoryview(b"ab")])
    assert [type(one) for one in loaded] == [memoryview, memoryview]
    assert loaded[0].tolist() == numbers.tolist()
    assert (loaded[0].readonly, loaded[1].readonly) == (False, True)
    assert loaded[1] == b"ab"


class Rows:
    """Gives a new view of its memory each time that it is pickled."""

    def __init__(self) -> None:
        self.memory = np.zeros(4)

    def __getstate__(self) -> Any:
        return {"memory": self.memory, "view": self.memory[1:3]}


def test_views_that_are_made_as_something_is_pickled() -> None:
    rows: Any
    rows, _ = sent(Rows())
    rows.memory[2] = 5
    assert rows.view.tolist() == [0, 5]


def test_strides_are_kept_where_memory_is_shared() -> None:
    matrix = np.arange(12.0).reshape(3, 4)
    loaded, _ = sent([matrix, matrix.T, matrix[::-1, ::-2], np.broadcast_to(matrix[0], (5, 4))])
    expected = [matrix, matrix.T, matrix[::-1, ::-2], np.broadcast_to(matrix[0], (5, 4))]
    for one, other in zip(loaded, expected, strict=True):
        assert one.strides == other.strides
        assert one.tolist() == other.tolist()
        assert one.flags.writeable == other.flags.writeable
