"""One measurement in a process of its own: a workload, through one library, with one setting.

Prints a line of JSON: seconds to the first batch, and records per second after that. The library
(`grain` or `grain_jax`) is in the environment, so that worker processes find it there too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from typing import Any

import numpy as np

LIBRARY = "GRAIN_BENCHMARK_LIBRARY"

grain = importlib.import_module(os.environ.get(LIBRARY, "grain_jax"))


class Increment(grain.transforms.Map):  # type: ignore[misc, name-defined]
    def map(self, element: int) -> int:
        return element + 1


class CropAndFlip(grain.transforms.RandomMap):  # type: ignore[misc, name-defined]
    """A random 224x224 window of the image, mirrored half of the time."""

    def random_map(self, element: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        top, left = rng.integers(0, 256 - 224, size=2)
        crop = element[top : top + 224, left : left + 224]
        return crop[:, ::-1] if rng.random() < 0.5 else crop


class OneIn(grain.transforms.Filter):  # type: ignore[misc, name-defined]
    """Keeps one number of so many."""

    def __init__(self, many: int) -> None:
        self.many = many

    def filter(self, element: int) -> bool:
        return element % self.many == 0


class Arrays:
    """`count` different arrays, made where they are first read, so that nobody pickles them."""

    def __init__(self, count: int, shape: tuple[int, ...], dtype: str, length: int) -> None:
        self._count, self._shape, self._dtype, self._length = count, shape, dtype, length
        self._arrays: list[np.ndarray] = []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        if not self._arrays:
            self._arrays = [np.full(self._shape, i, self._dtype) for i in range(self._count)]
        return self._arrays[index % self._count]

    def __repr__(self) -> str:
        return f"Arrays({self._count}, {self._shape}, {self._dtype})"


def loader(workload: str, workers: int, threads: int | None) -> Any:
    """An endless loader; `threads=None` leaves reading to the library."""
    source, operations, batch_size = {
        "integers": (grain.sources.RangeDataSource(0, 1_000_000, 1), [Increment()], 256),
        "filter": (grain.sources.RangeDataSource(0, 1_000_000, 1), [OneIn(2)], 256),
        "sieve": (grain.sources.RangeDataSource(0, 1_000_000, 1), [OneIn(256)], 45),
        "sieve, large batches": (
            grain.sources.RangeDataSource(0, 1_000_000, 1),
            [OneIn(256)],
            4_500,
        ),
        "images": (Arrays(64, (256, 256, 3), "uint8", 50_000), [CropAndFlip()], 64),
        "large records": (Arrays(16, (4 * 2**20,), "float32", 10_000), [], 4),
    }[workload]
    reading = None
    if threads is not None:
        reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=500 if threads else 0)
    return grain.load(
        source,
        shuffle=True,
        seed=0,
        transformations=operations,
        batch_size=batch_size,
        worker_count=workers,
        read_options=reading,
    )


def measure(batches: Any, seconds: float) -> dict[str, float]:
    """Takes batches for `seconds`, after as many for a third of that which do not count."""
    begin = time.perf_counter()
    iterator = iter(batches)
    rows = len(next(iterator))
    first = time.perf_counter()
    while time.perf_counter() < first + seconds / 3:
        next(iterator)
    taken, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + seconds or taken == 0:
        next(iterator)
        taken += rows
    return {"first_batch": first - begin, "records_per_second": taken / (now - start)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("workers", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    if grain.__name__ == "grain":
        from absl import flags

        flags.FLAGS.mark_as_parsed()  # Grain's workers want this
    print(json.dumps(measure(loader(args.workload, args.workers, args.threads), args.seconds)))
    # Both libraries stop their workers at exit; how long that takes is not measured.
