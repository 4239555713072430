"""The pool gives the generators that random steps get."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import grain_jax


def draw(x: Any, rng: np.random.Generator) -> float:
    return rng.random()


@pytest.mark.parametrize("seed", [0, 3, 2**64 + 5])
def test_generators_are_those_of_random_maps(seed: int) -> None:
    pool = grain_jax.experimental.RngPool(seed)
    numbers = grain_jax.MapDataset.range(4)
    once = numbers.random_map(draw, seed=seed)
    twice = once.random_map(draw, seed=seed)
    for index in range(8):  # of the second epoch, too
        rng = pool.acquire_rng(index)
        assert rng.random() == once[index]
        pool.release_rng(rng)
        assert pool.acquire_rng(index, op_seed=1).random() == twice[index]


def test_each_index_has_its_own_again_and_again(reference_grain: ModuleType) -> None:
    for library in (grain_jax, reference_grain):
        pool = library.experimental.RngPool(seed=7)
        first = [pool.acquire_rng(index).random() for index in range(5)]
        assert [pool.acquire_rng(index).random() for index in range(5)] == first
        others = [pool.acquire_rng(index, op_seed=2).random() for index in range(5)]
        assert len({*first, *others}) == 10


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="seed must be at least 0"):
        grain_jax.experimental.RngPool(-1)
    with pytest.raises(ValueError, match="index must be at least 0"):
        grain_jax.experimental.RngPool(1).acquire_rng(-1)
