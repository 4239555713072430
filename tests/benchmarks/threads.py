"""Workloads in SPDL, whose workers are threads: each of them makes whole batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import spdl.pipeline

from tests.benchmarks import order, sources
from tests.benchmarks.peers import Setting
from tests.benchmarks.reference import stack
from tests.benchmarks.steps import apply
from tests.benchmarks.workloads import Workload


class Pipeline:
    """Builds a pipeline for each iteration."""

    def __init__(self, workload: Workload, threads: int) -> None:
        source = workload.source(workload.length)
        self._source = sources.Rows(source) if isinstance(source, dict) else source
        self._workload, self._threads = workload, threads
        self._rng = np.random.default_rng(0)

    def _records(self, indices: list[int]) -> list[Any]:
        rng = self._rng.spawn(1)[0]
        steps, source = self._workload.steps, self._source
        found = (apply(steps, source[index], rng) for index in indices)
        return [record for record in found if record is not None]

    def _batch(self, indices: list[int]) -> Any:
        return stack(self._records(indices))

    def __iter__(self) -> Iterator[Any]:
        filters = any(step.kind == "filter" for step in self._workload.steps)
        size = 4096 if filters else self._workload.batch
        indices = order.endless(self._workload)
        builder = spdl.pipeline.PipelineBuilder().add_source(
            iter(lambda: list(itertools.islice(indices, size)), [])
        )
        builder = builder.pipe(
            self._records if filters else self._batch,
            concurrency=self._threads,
            output_order="input",
        )
        pipeline = builder.add_sink(4).build(num_threads=self._threads)
        with pipeline.auto_stop():
            yield from self._rebatched(pipeline) if filters else pipeline

    def _rebatched(self, lists: Iterable[list[Any]]) -> Iterator[Any]:
        """Of what filters leave."""
        records = itertools.chain.from_iterable(lists)
        while batch := list(itertools.islice(records, self._workload.batch)):
            yield stack(batch)


def batches(workload: Workload, setting: Setting) -> Any:
    """An endless iterable."""
    return Pipeline(workload, setting.threads or 1)
