"""With lanes, a dataset has the order that Grain's `mp_prefetch` gives with as many workers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import grain_jax
from tests.compat.pairs import plain_list


def odd(x: Any) -> bool:
    return bool(x % 2)


def numbered(index: int, x: Any) -> Any:
    return index, x


def pipeline(library: ModuleType, which: str) -> Any:
    numbers = library.MapDataset.range(11)
    return {
        "batch in the lanes": lambda: numbers.to_iter_dataset().batch(2),
        "batch before": lambda: numbers.batch(2).to_iter_dataset(),
        "filter": lambda: numbers.to_iter_dataset().filter(odd).batch(2),
        "index": lambda: numbers.repeat(2).to_iter_dataset().map_with_index(numbered),
    }[which]()


@pytest.mark.parametrize(
    ("which", "lanes"),
    [("batch in the lanes", 3), ("batch before", 2), ("filter", 3), ("index", 2)],
)
def test_equal_grains_order(reference_grain: ModuleType, which: str, lanes: int) -> None:
    ours = pipeline(grain_jax, which).mp_prefetch(
        grain_jax.MultiprocessingOptions(num_workers=0, lanes=lanes)
    )
    theirs = pipeline(reference_grain, which).mp_prefetch(
        reference_grain.MultiprocessingOptions(num_workers=lanes)
    )
    assert plain_list(ours) == plain_list(theirs)
