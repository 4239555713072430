"""Pieces of arrays in one array, and batches that are padded."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._algebra.pieces import as_array, batch_and_pad, filled, joined
from tests.property import trees


def test_pieces_one_behind_the_other() -> None:
    parts = [np.arange(6).reshape(3, 2), np.zeros((0, 2), np.int64), -np.ones((1, 2), np.int64)]
    assert trees.same(joined(parts, "x"), np.concatenate(parts))


def test_pieces_at_places() -> None:
    found = filled([np.array([1, 2], np.uint8), np.array([3], np.int16)], [0, 3], 6, "x", -1)
    assert found.dtype == np.int16
    assert found.tolist() == [1, 2, -1, 3, -1, -1]
    assert filled([np.array(["a", "bcd"])], [1], 4, "x").tolist() == ["", "a", "bcd", ""]
    assert filled([np.array([1.5])], [0], 2, "x", np.nan).tolist()[0] == 1.5


@pytest.mark.parametrize(
    ("value", "padding"), [(np.uint8(1), -1), (1, 0.5), (1, "a"), (1.5, None), (1, [2, 3]), (1, {})]
)
def test_paddings_that_the_dtype_does_not_hold(value: Any, padding: Any) -> None:
    part = np.array([value])
    if padding is None:
        assert filled([part], [0], 2, "x", padding).tolist() == [1.5, 0]
        return
    with pytest.raises(ValueError, match=r"x would hold .* no value of its dtype"):
        filled([part], [0], 2, "x", padding)


@pytest.mark.parametrize("value", ["text", b"bytes", [1, 2], {"x": 1}, object()])
def test_values_that_are_no_arrays(value: Any) -> None:
    with pytest.raises(TypeError, match=f"x is a (value of type )?{type(value).__name__}"):
        as_array(value, "x")


def test_batch_and_pad() -> None:
    given = [{"x": np.array([1.0, 2.0]), "y": 3}]
    expected = {"x": np.array([[1.0, 2.0], [7.0, 7.0]]), "y": np.array([3, 7])}
    assert trees.same(batch_and_pad(given, batch_size=2, pad_value=7), expected)
    assert batch_and_pad([True], batch_size=2).tolist() == [True, False]
    assert batch_and_pad([1, 2], batch_size=2, pad_value=0.5).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("given", "size", "padding", "message"),
    [
        ([1, 2, 3], 2, 0, "3 values for a batch of 2"),
        ([], 2, 0, "no elements"),
        ([1], 0, 0, "batch_size must be at least 1"),
        ([{"x": 1}], 2, 0.5, r"the leaf \['x'\] would hold 0.5"),
    ],
)
def test_batches_that_cannot_be_padded(
    given: list[Any], size: int, padding: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        batch_and_pad(given, batch_size=size, pad_value=padding)


def test_the_last_batch_of_a_stream_is_padded(no_process_left: None) -> None:
    pad = functools.partial(batch_and_pad, batch_size=3, pad_value=-1)
    stream = grain.MapDataset.range(5).to_iter_dataset().batch(3, batch_fn=pad)
    for workers in (0, 1):
        assert [batch.tolist() for batch in trees.whole(stream, workers)] == [[0, 1, 2], [3, 4, -1]]
