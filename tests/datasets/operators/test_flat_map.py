"""Flat-maps as classes."""

from __future__ import annotations

from typing import Any

import pytest

import grain_jax as grain
from grain_jax import experimental
from tests.property import trees


class Copies(grain.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: int) -> list[int]:
        return [element] * (element % 3)


def test_a_stream() -> None:
    made = experimental.FlatMapIterDataset(trees.of(range(8)), Copies())
    assert trees.check(made, workers=[0]) == [1, 2, 2, 4, 5, 5, 7]
    assert repr(made).endswith("flat_map(Copies)")


def test_random_access() -> None:
    numbers = grain.MapDataset.range(6)
    made = experimental.FlatMapMapDataset(numbers, Copies())
    assert len(made) == 12
    assert [made[index] for index in range(6)] == [None, None, 1, None, 2, 2]
    assert list(made.map(lambda x: 10 * x)) == [10, 20, 20, 40, 50, 50]
    assert list(made.parents) == [numbers]


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        (experimental.FlatMapIterDataset, grain.MapDataset.range(3)),
        (experimental.FlatMapIterDataset, [1, 2]),
        (experimental.FlatMapMapDataset, trees.of(range(3))),
    ],
)
def test_the_other_kind_of_dataset_is_refused(kind: Any, parent: Any) -> None:
    with pytest.raises(grain.errors.InvalidTypeError, match=kind.__name__):
        kind(parent, Copies())
