"""The order of records: that of Grain's sampler with seed 0, which all peers are given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.benchmarks.files import CACHE, Table
from tests.benchmarks.workloads import Workload

CHECKED = 1 << 17
"""So many records of an order are taken from Grain, to compare streams with."""


def endless(workload: Workload, first: int = 0, step: int = 1) -> Iterator[int]:
    """Every `step`-th index; epochs after the one that begins have the order of this one."""
    if workload.source is Table:
        yield from _of_files(workload.length, first, step)
        return
    known = indices(workload)
    rest = np.setdiff1d(np.arange(workload.length), known, assume_unique=True)
    if workload.shuffle:
        np.random.default_rng(0).shuffle(rest)
    every = np.concatenate([known, rest])
    blocks = (
        np.take(every, range(at, at + 4096 * step, step), mode="wrap").tolist()
        for at in itertools.count(first, 4096 * step)
    )
    yield from itertools.chain.from_iterable(blocks)


def indices(workload: Workload) -> np.ndarray:
    """The first indices of the stream, at most one epoch of them."""
    count = min(workload.length, CHECKED)
    if not workload.shuffle:
        return np.arange(count)
    path = CACHE / f"order-{workload.length}.npy"
    if not path.exists():
        found = np.fromiter(_shuffled(workload.length), np.int64, count)
        if count < CHECKED:
            return found
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(path, found)
    known: np.ndarray = np.load(path)
    return known


def _of_files(length: int, first: int, step: int) -> Iterator[int]:
    """A row of each of two files in turn; of two workers each has a file."""
    parts = np.array_split(np.arange(length), 2)
    every = np.stack(parts, axis=1).ravel() if step == 1 else parts[first]
    yield from itertools.cycle(every.tolist())


def _shuffled(length: int) -> Iterator[int]:
    """Asks Grain, or where it is not installed, grain_jax."""
    sampler: Any
    options: dict[str, Any] = {"num_records": length, "shuffle": True, "seed": 0}
    try:
        import grain

        sampler = grain.samplers.IndexSampler(**options)
    except ImportError:
        import grain_jax

        sampler = grain_jax.samplers.IndexSampler(**options)
    return (sampler[position].record_key for position in itertools.count())
