"""Examples of TensorFlow are read from their bytes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grain_jax._algebra.files.examples import MalformedError, ParseExample
from tests.datasets.record_files import example

INTS = [0, 1, 127, 128, -1, 2**63 - 1, -(2**63), 300]


@pytest.mark.parametrize("packed", [True, False])
def test_all_features(packed: bool) -> None:
    data = example({"n": INTS, "f": [0.5, -1.25], "text": [b"a", b"", b"\xff"]}, packed)
    found = ParseExample()(data)
    assert list(found) == ["n", "f", "text"]
    assert found["n"].dtype == np.int64
    assert found["n"].tolist() == INTS
    assert found["f"].dtype == np.float32
    assert found["f"].tolist() == [0.5, -1.25]
    assert found["text"].dtype == object
    assert found["text"].tolist() == [b"a", b"", b"\xff"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_integers(values: list[int]) -> None:
    data = example({"n": [*values, 5]})  # an empty list says no kind
    assert ParseExample({"n": np.int64})(data)["n"].tolist() == [*values, 5]


def test_declared_features() -> None:
    data = example({"image": [b"JPG"], "box": [1.0, 2.0, 3.0, 4.0], "label": [7], "ids": [1, 2]})
    parse = ParseExample(
        {
            "image": ((), bytes),
            "box": jax.ShapeDtypeStruct((2, 2), np.float32),
            "label": ((), np.int32),
            "ids": np.int16,
            "weight": ((), np.float32, 1.5),
            "words": ((2,), bytes, b"?"),
        }
    )
    found = parse(data)
    assert found["image"] == b"JPG"
    assert found["box"].tolist() == [[1, 2], [3, 4]]
    assert found["label"] == 7
    assert type(found["label"]) is np.int32
    assert found["ids"].dtype == np.int16
    assert found["ids"].tolist() == [1, 2]
    assert found["weight"] == 1.5
    assert type(found["weight"]) is np.float32
    assert found["words"].tolist() == [b"?", b"?"]


@pytest.mark.parametrize(
    ("declared", "data", "says"),
    [
        ({"x": ((), np.int64)}, example({"y": [1]}), "no feature 'x'; write \\(shape, dtype, def"),
        ({"x": np.float32}, example({"x": [1]}), "'x' has values of kind int64, and float32 was"),
        ({"x": ((3,), np.int64)}, example({"x": [1]}), "has 1 values, and the shape \\(3,\\) was"),
        ({"x": np.int8}, example({"x": [1, 300]}), "has the value 300, which int8 does not hold"),
        ({"x": np.uint64}, example({"x": [-1]}), "has the value -1, which uint64 does not hold"),
        (None, b"\x0a\x05ab", "no tf.train.Example: a field is longer than what it is part of"),
        (None, b"hello", "no tf.train.Example: "),
        (None, example({"x": [1]})[:-1] + b"\xff", "no tf.train.Example: "),
    ],
)
def test_what_is_no_such_example(declared: Any, data: bytes, says: str) -> None:
    with pytest.raises(MalformedError, match=says):
        ParseExample(declared)(data)


@pytest.mark.parametrize("declared", [{"x": "no dtype"}, {"x": (1, 2, 3, 4)}, ["x"]])
def test_declarations_that_are_none(declared: Any) -> None:
    with pytest.raises(TypeError, match="'x'"):
        ParseExample(declared)
