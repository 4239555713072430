"""As many workers as have room for an element each, and none without room for one."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import grain_jax


def large(x: int) -> Any:
    return {"a": np.zeros((1024, 1024)), "b": x}  # 8 MiB and some bytes


def picked(library: ModuleType, batch: int, budget: int, workers: int) -> int:
    ds = library.MapDataset.range(12).to_iter_dataset(library.ReadOptions(num_threads=0)).map(large)
    config = library.experimental.pick_performance_config(
        ds.batch(batch), ram_budget_mb=budget, max_workers=workers, max_buffer_size=50
    )
    assert config.read_options.prefetch_buffer_size == 50
    assert config.multiprocessing_options.per_worker_buffer_size == 1
    return int(config.multiprocessing_options.num_workers)


@pytest.mark.parametrize(
    ("batch", "budget", "workers", "expected"),
    [(1, 1000, 6, 6), (1, 10, 6, 1), (2, 50, 6, 3), (1, 1, 4, 0), (1, 33, 9, 4)],
)
def test_as_many_as_in_grain(
    reference_grain: ModuleType, batch: int, budget: int, workers: int, expected: int
) -> None:
    assert picked(grain_jax, batch, budget, workers) == expected
    assert picked(reference_grain, batch, budget, workers) == expected


def test_what_is_not_limited() -> None:
    pick = grain_jax.experimental.pick_performance_config
    ds = grain_jax.MapDataset.range(5).to_iter_dataset()
    found = pick(ds, ram_budget_mb=None, max_workers=3, max_buffer_size=None)
    assert found == grain_jax.experimental.PerformanceConfig(
        grain_jax.MultiprocessingOptions(num_workers=3), grain_jax.ReadOptions()
    )
    empty = grain_jax.MapDataset.range(0).to_iter_dataset()
    found = pick(empty, ram_budget_mb=1, max_workers=2, max_buffer_size=1)
    assert found.multiprocessing_options is not None
    assert found.multiprocessing_options.num_workers == 2
    # The options are as they are needed.
    assert list(ds.mp_prefetch(found.multiprocessing_options)) == list(range(5))


def test_bad_input() -> None:
    pick: Any = grain_jax.experimental.pick_performance_config
    limits = {"ram_budget_mb": 1, "max_workers": 1, "max_buffer_size": 1}
    with pytest.raises(TypeError, match="takes an IterDataset, got list"):
        pick([1], **limits)
    ds = grain_jax.MapDataset.range(5).to_iter_dataset()
    for name in limits:
        with pytest.raises(ValueError, match=f"{name} must be at least 0"):
            pick(ds, **{**limits, name: -1})
