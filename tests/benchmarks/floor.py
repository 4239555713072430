"""Workloads in plain Python and NumPy: one process, a loop, nothing ahead."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.benchmarks import order, sources
from tests.benchmarks.peers import Setting
from tests.benchmarks.reference import groups, records, stack
from tests.benchmarks.workloads import ROW, Workload


class Floor:
    """A loop for each iteration."""

    def __init__(self, workload: Workload, threads: int | None) -> None:
        self._workload, self._threads = workload, threads
        self._source = workload.source(workload.length)

    def __iter__(self) -> Iterator[Any]:
        workload, source = self._workload, self._source
        if isinstance(source, dict):
            return _gathered(workload, source)
        if isinstance(source, sources.Large):
            return _copied(workload, source)
        if self._threads:
            return _threaded(workload, source, self._threads)
        if workload.grouping != "none":
            return _packed(workload, source)
        rng = np.random.default_rng(0)
        return map(stack, _lists(records(workload, source, rng=rng), workload.batch))


def _lists(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    return iter(lambda: list(itertools.islice(items, size)), [])


def _gathered(workload: Workload, arrays: dict[str, np.ndarray]) -> Iterator[Any]:
    for chosen in _lists(order.endless(workload), workload.batch):
        yield {name: array[chosen] for name, array in arrays.items()}


def _copied(workload: Workload, source: Any) -> Iterator[Any]:
    """The memcpy: into one piece of memory, again and again, which no loader could hand out."""
    batch = np.empty((workload.batch, *source[0].shape), source[0].dtype)
    for chosen in _lists(order.endless(workload), workload.batch):
        for row, index in zip(batch, chosen, strict=True):
            np.copyto(row, source[index])
        yield batch


def _threaded(workload: Workload, source: Any, threads: int) -> Iterator[Any]:
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        indices, waiting = order.endless(workload), []
        while True:
            while len(waiting) < 2 * max(threads, workload.batch):
                waiting.append(pool.submit(source.__getitem__, next(indices)))
            done, waiting = waiting[: workload.batch], waiting[workload.batch :]
            yield stack([future.result() for future in done])


def _packed(workload: Workload, source: Any) -> Iterator[Any]:
    return map(stack, _lists(groups(workload, records(workload, source), ROW), workload.batch))


def batches(workload: Workload, setting: Setting) -> Any:
    """An endless iterable."""
    return Floor(workload, setting.threads)
