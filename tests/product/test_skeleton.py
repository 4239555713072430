"""What a process that has run dry needs for a batch of padding, through JSON and back."""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from grain_jax._product import skeleton
from grain_jax._values.errors import InvalidValueError


def there_and_back(
    batch: Any, lead: list[int | None], axes: int = 1, known: Sequence[Any] = ()
) -> Any:
    leaves = jax.tree.leaves(batch)
    sent = json.loads(json.dumps(skeleton.describe(batch, leaves, lead)))
    got = skeleton.leaves_of(sent, axes)
    assert len(got) == len(leaves)
    return skeleton.tree_of(sent, got, known)


def test_rows_go_and_the_rest_stays() -> None:
    batch = {
        "x": np.ones((4, 3), np.float32),
        "a": [np.ones((4,), ml_dtypes.bfloat16), (np.array(["a", "bc"] * 2), None)],
        "table": np.arange(6, dtype=">i2").reshape(2, 3),
        "step": 7,
        "scale": np.float32(0.5),
        "kind": "train",
    }
    # In the order of JAX's leaves: a[0], a[1][0], kind, scale, step, table, x.
    got = there_and_back(batch, [1, 1, None, None, None, None, 1])
    assert jax.tree.structure(got) == jax.tree.structure(batch)
    assert (got["x"].shape, got["x"].dtype) == ((0, 3), np.float32)
    assert (got["a"][0].shape, got["a"][0].dtype) == ((0,), ml_dtypes.bfloat16)
    assert (got["a"][1][0].shape, got["a"][1][0].dtype) == ((0,), np.dtype("<U2"))
    np.testing.assert_array_equal(got["table"], batch["table"])
    assert (got["step"], got["scale"], got["kind"]) == (7, np.float32(0.5), "train")


def test_several_axes_number_the_rows() -> None:
    got = there_and_back({"x": np.ones((2, 4, 3))}, [2], axes=2)
    assert got["x"].shape == (0, 0, 3)


def test_arrays_on_devices() -> None:
    got = there_and_back({"x": jax.numpy.ones((4, 2)), "t": jax.numpy.arange(3)}, [None, 1])
    assert got["x"].shape == (0, 2)
    np.testing.assert_array_equal(got["t"], [0, 1, 2])


def test_what_no_json_can_say_is_left_out() -> None:
    got = there_and_back({"x": np.ones(4), "o": object(), "b": b"bytes"}, [None, None, 1])
    assert (got["o"], got["b"]) == (None, None)


def test_text_and_objects_without_rows_stay() -> None:
    batch = {
        "names": np.array(["cat", "dog", "emu"]),
        "codes": np.array([b"a", b"bc"]),
        "objects": np.array([["cat", None, 3], [0.5, True, "x"]], object),
        "when": np.array(["2024-02-29"], "M8[D]"),
    }
    got = there_and_back(batch, [None] * 4)
    assert got.keys() == batch.keys()
    for name, array in batch.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tolist() == array.tolist()


@pytest.mark.parametrize(
    "dtype",
    [
        [("a", "<i4"), ("b", "<f8", (2,)), ("c", [("d", ">u2"), ("e", "U3")])],
        np.dtype([("a", "i1"), ("b", "i8")], align=True),
        "M8[ns]",
        "U5",
        *([np.dtypes.StringDType()] if hasattr(np.dtypes, "StringDType") else []),
    ],
)
def test_rows_that_stay_on_the_host_keep_their_dtype(dtype: Any) -> None:
    rows = np.zeros((4, 2), dtype)
    got = there_and_back({"x": rows}, [1])["x"]
    assert (got.shape, got.dtype) == ((0, 2), rows.dtype)


def test_other_containers_are_for_those_who_have_seen_them() -> None:
    Pair = collections.namedtuple("Pair", "left right")
    pair = {"p": Pair(np.ones(4), np.ones(4))}
    got = there_and_back(pair, [1, 1], known=[jax.tree.structure(1), jax.tree.structure(pair)])
    assert isinstance(got["p"], Pair)
    for batch, rows in [(pair, [1, 1]), ({1: np.ones(4)}, [1])]:
        with pytest.raises(InvalidValueError, match="it had no batch"):
            there_and_back(batch, rows)
        with pytest.raises(InvalidValueError, match=r"its own batches had .*\*, \*, \*"):
            there_and_back(batch, rows, known=[jax.tree.structure([1, 2, 3])])


def test_a_large_leaf_without_rows_does_not_travel() -> None:
    with pytest.raises(InvalidValueError, match="too large to be sent"):
        there_and_back({"t": np.ones((1 << 18,), np.float64)}, [None])
