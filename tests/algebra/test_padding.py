"""Padding to a length, with a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.property import trees


def element(*tokens: int) -> dict[str, Any]:
    return {"x": np.array(tokens, np.int32), "id": len(tokens)}


ELEMENTS = [element(5, 6), element(), element(1, 2, 3)]


@pytest.mark.parametrize("make", ["map", "stream"])
def test_each_sequence_has_the_length_and_a_mask(make: str) -> None:
    ds: Any = grain.MapDataset.source(ELEMENTS)
    ds = ds if make == "map" else ds.to_iter_dataset()
    assert trees.same(
        list(ds.pad({"x": 3})),
        [
            {
                "x": np.array([5, 6, 0], np.int32),
                "id": 2,
                "x_mask": np.array([True, True, False]),
            },
            {"x": np.zeros(3, np.int32), "id": 0, "x_mask": np.zeros(3, bool)},
            {"x": np.array([1, 2, 3], np.int32), "id": 3, "x_mask": np.ones(3, bool)},
        ],
    )
    batch = next(iter(ds.pad({"x": 4}, padding=-1, mask=False).batch(3)))
    assert batch["x"].tolist() == [[5, 6, -1, -1], [-1, -1, -1, -1], [1, 2, 3, -1]]
    assert sorted(batch) == ["id", "x"]
    assert len(ELEMENTS[0]["x"]) == 2  # the source's own record stays as it is


def test_longer_sequences_are_cut_if_asked() -> None:
    ds = grain.MapDataset.source(ELEMENTS).pad({"x": 2}, truncate=True)
    assert [(e["x"].tolist(), e["x_mask"].tolist()) for e in ds] == [
        ([5, 6], [True, True]),
        ([0, 0], [False, False]),
        ([1, 2], [True, True]),
    ]


def test_several_features_of_several_axes() -> None:
    records = [{"a": np.ones((2, 3)), "b": np.array([True]), "c": "text"}]
    ds = grain.MapDataset.source(records).pad({"a": 3, "b": 2}, padding={"a": 0.5, "b": False})
    assert trees.same(
        ds[0],
        {
            "a": np.array([[1.0] * 3, [1.0] * 3, [0.5] * 3]),
            "b": np.array([True, False]),
            "c": "text",
            "a_mask": np.array([True, True, False]),
            "b_mask": np.array([True, False]),
        },
    )


def test_with_workers_and_in_batches(no_process_left: None) -> None:
    records = [element(*range(place % 4)) for place in range(20)]
    stream = trees.of(records).filter(lambda e: e["id"] != 1).pad({"x": 3}).batch(4)
    found = trees.check(stream, workers=[0, 2])
    kept = [record for record in records if record["id"] != 1]
    rows = [[*range(record["id"]), 0, 0, 0][:3] for record in kept]
    assert np.concatenate([batch["x"] for batch in found]).tolist() == rows
    masks = [[place < record["id"] for place in range(3)] for record in kept]
    assert np.concatenate([batch["x_mask"] for batch in found]).tolist() == masks


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (({"x": 0},), ValueError, "the length of 'x' must be at least 1, got 0"),
        (({},), TypeError, "pad takes a dict that gives each feature its length"),
        ((3,), TypeError, "pad takes a dict that gives each feature its length, got 3"),
        (({"x": 1.5},), TypeError, "the length of 'x' must be a whole number"),
    ],
)
def test_lengths_that_cannot_be_are_refused_at_the_call(
    arguments: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        grain.MapDataset.source(ELEMENTS).pad(*arguments)


@pytest.mark.parametrize(
    ("padding", "message"),
    [({"y": 1}, r"pads \['x'\], and padding has values for \['y'\]"), ([1, 2], "must be one val")],
)
def test_paddings_that_cannot_be_are_refused_at_the_call(padding: Any, message: str) -> None:
    with pytest.raises(grain.errors.InvalidValueError, match=message):
        grain.MapDataset.source(ELEMENTS).pad({"x": 3}, padding=padding)


@pytest.mark.parametrize(
    ("record", "lengths", "message"),
    [
        (element(1, 2, 3), {"x": 2}, r"feature 'x' has length 3, and pad makes it 2\. Cut it"),
        (element(1), {"y": 2}, r"has the features \['x', 'id'\], and not 'y'"),
        (element(1), {"id": 2}, "the feature 'id' is a number, and pad pads sequences"),
        ({"x": np.arange(2), "x_mask": 1}, {"x": 2}, "'x_mask', which pad would make"),
        (np.arange(2), {"x": 2}, "pad takes dicts of features, and this element is a value of typ"),
    ],
)
def test_elements_that_cannot_be_padded_are_named(record: Any, lengths: Any, message: str) -> None:
    stream = trees.of([element(1, 2), record]).pad({"x": 2} | lengths)
    with pytest.raises(grain.errors.GrainError, match=message) as raised:
        list(stream)
    place = 0 if "y" in lengths or "id" in lengths else 1
    assert f"step 1: map(Padding), at position {place}" in "".join(raised.value.__notes__)


def test_a_padding_that_the_dtype_does_not_hold_is_refused() -> None:
    stream = trees.of([element(1)]).pad({"x": 2}, padding=0.5)
    with pytest.raises(grain.errors.GrainError, match=r"0\.5, which is no value of its dtype"):
        list(stream)
