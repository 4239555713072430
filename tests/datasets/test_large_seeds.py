"""Seeds of datasets may be any number from 0: each gives draws of its own."""

from __future__ import annotations

import json
import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import grain_jax
from tests.compat.pairs import plain_list

LARGE = [2**32, 2**32 + 5, 2**63 + 5, 2**64 + 5, 2**96 + 5]


def noisy(ds: Any) -> Any:
    return ds.random_map(lambda x, rng: (x, rng.integers(2**62)))


def process_wide(x: int) -> tuple[int, float, float]:
    return x, random.random(), np.random.random()


@pytest.mark.parametrize("seed", LARGE)
def test_orders_are_those_of_grain(reference_grain: ModuleType, seed: int) -> None:
    ours, theirs = (
        plain_list(
            library.MapDataset.range(50).seed(seed).shuffle().map(lambda x: x).shuffle().repeat(2)
        )
        for library in (grain_jax, reference_grain)
    )
    assert ours == theirs


def test_each_seed_draws_otherwise() -> None:
    seeds = [5, *LARGE]
    source = grain_jax.MapDataset.range(4)
    streams = {
        "random access": [list(noisy(source.seed(seed))) for seed in seeds],
        "a stream": [list(noisy(source.to_iter_dataset().seed(seed))) for seed in seeds],
        "a step": [
            list(source.random_map(lambda x, rng: (x, rng.integers(2**62)), seed=seed))
            for seed in seeds
        ],
        "process-wide": [list(source.seed(seed).map(process_wide)) for seed in seeds],
        "process-wide streams": [
            list(source.to_iter_dataset().seed(seed).map(process_wide)) for seed in seeds
        ],
    }
    for what, found in streams.items():
        assert len({element for elements in found for element in elements}) == 24, what


@pytest.mark.parametrize("seed", [2**40, 2**64 + 5])
@pytest.mark.usefixtures("no_process_left")
def test_workers_and_restored_states(seed: int) -> None:
    ds = noisy(grain_jax.MapDataset.range(30).seed(seed).shuffle().repeat(2)).map(process_wide)
    stream = ds.to_iter_dataset().filter(lambda x: x[0][0] % 3 > 0).batch(4, batch_fn=list)
    expected = list(stream)
    remote = stream.mp_prefetch(grain_jax.MultiprocessingOptions(num_workers=2))
    with iter(remote) as iterator:
        assert [next(iterator) for _ in range(3)] == expected[:3]
        state = json.loads(json.dumps(iterator.get_state()))
        assert list(iterator) == expected[3:]
    with iter(stream) as iterator:
        iterator.set_state(state)
        assert list(iterator) == expected[3:]


def test_what_permutes_takes_32_bits_as_in_grain(reference_grain: ModuleType) -> None:
    for library in (grain_jax, reference_grain):
        ds = library.MapDataset.range(3)
        with pytest.raises(ValueError, match=r"(?i)seed .*32"):
            list(ds.shuffle(seed=2**32))
        with pytest.raises(ValueError, match=r"(?i)non-negative|at least 0"):
            list(ds.random_map(lambda x, rng: x, seed=-1))
