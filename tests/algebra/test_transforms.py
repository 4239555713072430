"""Transformations: abstract classes with one method, and Batch, which is data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from grain_jax import errors, transforms

ABSTRACT = {
    "Map": "map",
    "RandomMap": "random_map",
    "TfRandomMap": "np_random_map",
    "MapWithIndex": "map_with_index",
    "Filter": "filter",
    "FlatMap": "flat_map",
}


@pytest.mark.parametrize(("name", "method"), ABSTRACT.items())
def test_each_has_one_abstract_method(name: str, method: str) -> None:
    kind = getattr(transforms, name)
    with pytest.raises(TypeError, match=method):
        kind()
    assert kind.__abstractmethods__ == {method}


def test_batch_is_data() -> None:
    batch = transforms.Batch(4)
    assert (batch.batch_size, batch.drop_remainder, batch.batch_fn) == (4, False, None)
    assert batch == transforms.Batch(batch_size=4)
    assert repr(batch) == "Batch(batch_size=4, drop_remainder=False, batch_fn=None)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.batch_size = 5  # type: ignore[misc]


def test_batch_size_becomes_an_int() -> None:
    assert type(transforms.Batch(np.int64(4)).batch_size) is int


@pytest.mark.parametrize("size", [0, -1, 1.0, "2", None, True])
def test_bad_batch_sizes(size: Any) -> None:
    with pytest.raises(errors.GrainError, match="batch_size"):
        transforms.Batch(size)


def test_bad_batch_fn() -> None:
    with pytest.raises(TypeError, match="batch_fn must be callable or None, got 3"):
        transforms.Batch(2, batch_fn=3)  # type: ignore[arg-type]
