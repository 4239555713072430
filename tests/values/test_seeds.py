from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grain_jax._values.permutation import permute
from grain_jax._values.seeds import derive_seed, word


def unchanged(x: Any) -> Any:
    return x


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1, 2**32, 2**40 + 7, 2**64 + 5, 2**100])
@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_gives_the_order_of_grain(reference_grain: ModuleType, seed: int, depth: int) -> None:
    dataset = reference_grain.MapDataset.range(300).map(unchanged).seed(seed)
    for _ in range(depth - 1):
        dataset = dataset.map(unchanged)
    expected = list(dataset.shuffle())
    assert permute(np.arange(300), 300, derive_seed(seed, depth)).tolist() == expected


def test_steps_and_seeds_have_seeds_of_their_own() -> None:
    found = {derive_seed(seed, depth) for seed in range(20) for depth in range(1, 20)}
    assert len(found) == 20 * 19
    assert all(0 <= seed < 2**32 for seed in found)


def test_seeds_of_any_size_as_words() -> None:
    seeds = [0, 5, 2**32, 2**32 + 5, 2**64 - 1]
    assert [word(seed) for seed in seeds] == seeds
    large = [2**64, 2**64 + 5, 2**65 + 5, 2**128 + 5, 2**200]
    found = [word(seed) for seed in large]
    assert len({*found, *seeds}) == len(large) + len(seeds)
    assert all(0 <= one < 2**64 for one in found)
