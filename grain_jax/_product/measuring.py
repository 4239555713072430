"""Measuring: options for worker processes and reading, by what elements of a dataset take."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._datasets.map_dataset import MapDataset
from grain_jax._values import errors, options, trees

__all__ = ["PerformanceConfig", "pick_performance_config"]

_MIB = 1 << 20


@dataclasses.dataclass(slots=True)
class PerformanceConfig:
    """Options for a pipeline, as `pick_performance_config` returns them.

    Attributes:
      multiprocessing_options: for `mp_prefetch`.
      read_options: for `to_iter_dataset`.

    Example:
      >>> PerformanceConfig().read_options is None
      True
    """

    multiprocessing_options: options.MultiprocessingOptions | None = None
    read_options: options.ReadOptions | None = None


def pick_performance_config(
    ds: IterDataset[Any],
    *,
    ram_budget_mb: int | None,
    max_workers: int | None,
    max_buffer_size: int | None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """Returns options for as many workers as have room for an element each; 0 for none.

    The largest of some elements, which are made here for it, is taken for the size of all.

    Args:
      ds: the pipeline.
      ram_budget_mb: MiB that elements which are ready may take; None for any number.
      max_workers: worker processes at most; None for the usable cores, at most 16.
      max_buffer_size: elements to read ahead, at most; None decides automatically.
      samples_to_check: how many elements are looked at.

    Example:
      >>> import grain_jax as grain
      >>> import numpy as np
      >>> ds = grain.MapDataset.range(9).to_iter_dataset().map(lambda x: np.zeros(1 << 20))
      >>> found = pick_performance_config(
      ...     ds, ram_budget_mb=30, max_workers=8, max_buffer_size=100)
      >>> found.multiprocessing_options.num_workers
      3
    """
    if not isinstance(ds, (IterDataset, MapDataset)):
        raise errors.InvalidTypeError(
            f"pick_performance_config takes an IterDataset, got {type(ds).__name__}."
        )
    workers = options.check_worker_count("max_workers", max_workers)
    count = options.check_count("samples_to_check", samples_to_check, minimum=1)
    buffer = max_buffer_size
    if buffer is not None:
        buffer = options.check_count("max_buffer_size", buffer, minimum=0)
    if ram_budget_mb is not None:
        budget = options.check_count("ram_budget_mb", ram_budget_mb, minimum=0) * _MIB
        size = _largest(ds, count)
        if size:
            workers = min(workers, budget // size)
    return PerformanceConfig(
        options.MultiprocessingOptions(num_workers=workers),
        options.ReadOptions(prefetch_buffer_size=buffer),
    )


def _largest(ds: Any, count: int) -> int:
    """Returns the bytes of the largest of some elements."""
    iterator = iter(ds)
    try:
        return max(map(_bytes, itertools.islice(iterator, count)), default=0)
    finally:
        iterator.close()


def _bytes(element: Any) -> int:
    return sum(
        len(leaf) if isinstance(leaf, (str, bytes)) else np.asarray(leaf).nbytes
        for leaf in trees.flatten(element)[0]
    )
