from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax
from tests.compat.pairs import plain, plain_list


@settings(max_examples=30)
@given(counts=st.lists(st.integers(1, 9), max_size=6), size=st.integers(1, 8), drop=st.booleans())
def test_rebatch_equals_grain(
    reference_grain: ModuleType, counts: list[int], size: int, drop: bool
) -> None:
    batches = [
        {"x": np.arange(n, dtype=np.int32) + 100 * k, "y": [np.ones((n, 2)) * k]}
        for k, n in enumerate(counts)
    ]

    def found(library: ModuleType) -> list[Any]:
        stream = library.MapDataset.source(batches).to_iter_dataset(
            library.ReadOptions(num_threads=0)
        )
        return plain_list(library.experimental.RebatchIterDataset(stream, size, drop))

    assert found(grain_jax) == found(reference_grain)


@pytest.mark.parametrize("padding", [0, 7])
def test_batch_and_pad_equals_grain(reference_grain: ModuleType, padding: int) -> None:
    values = [
        {"x": np.array([1, 2], np.int32), "y": 3.0},
        {"x": np.array([4, 5], np.int32), "y": 6.0},
    ]
    for size in (2, 5):
        ours, theirs = (
            plain(library.experimental.batch_and_pad(values, batch_size=size, pad_value=padding))
            for library in (grain_jax, reference_grain)
        )
        assert ours == theirs
