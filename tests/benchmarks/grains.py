"""Workloads in the interface that grain_jax and Grain share."""

from __future__ import annotations

import importlib
from typing import Any

from tests.benchmarks import sources
from tests.benchmarks.files import Table
from tests.benchmarks.peers import Setting
from tests.benchmarks.steps import Step
from tests.benchmarks.workloads import BINS, ROW, Workload

_BASES = {"map": "Map", "random": "RandomMap", "filter": "Filter"}
_METHODS = {"map": "map", "random": "random_map", "filter": "filter"}


def library(peer: str) -> Any:
    """The module, ready for worker processes."""
    if peer == "grain":
        from absl import flags

        flags.FLAGS.mark_as_parsed()  # its workers want this
    return importlib.import_module(peer)


def batches(workload: Workload, setting: Setting) -> Any:
    """An endless loader or dataset."""
    grain = library(setting.peer)
    source = workload.source(workload.length)
    of_datasets = isinstance(source, (Table, sources.Mixture))
    if of_datasets or workload.grouping != "none":
        return _dataset(grain, workload, setting, source)
    return loader(grain, workload, setting, source)


def loader(grain: Any, workload: Workload, setting: Setting, source: Any) -> Any:
    """A `DataLoader`."""
    if grain.__name__ == "grain" and isinstance(source, dict):
        source = sources.Rows(source)
    return grain.load(
        source,
        shuffle=workload.shuffle,
        seed=0,
        transformations=[_transform(grain, step) for step in workload.steps],
        batch_size=workload.batch,
        worker_count=setting.workers,
        read_options=_reading(grain, setting),
    )


def _transform(grain: Any, step: Step) -> Any:
    """An object as a user writes it: the function is its method, without a call in between."""
    base = getattr(grain.transforms, _BASES[step.kind])
    members = {_METHODS[step.kind]: staticmethod(step.function)}
    return type(step.function.__name__, (base,), members)()


def _reading(grain: Any, setting: Setting) -> Any:
    if setting.threads is None:
        return None
    ahead = 500 if setting.threads else 0
    return grain.ReadOptions(num_threads=setting.threads, prefetch_buffer_size=ahead)


def _dataset(grain: Any, workload: Workload, setting: Setting, source: Any) -> Any:
    reading = _reading(grain, setting)
    if isinstance(source, Table):
        stream = grain.experimental.ParquetIterDataset(source.paths)
        stream = grain.experimental.RepeatIterDataset(stream)
    elif isinstance(source, sources.Mixture):
        parts = [grain.MapDataset.source(part).repeat() for part in source.parts]
        share = source.share
        stream = grain.MapDataset.mix(parts, [1 - share, share]).to_iter_dataset(reading)
    else:
        stream = grain.MapDataset.source(source).repeat().to_iter_dataset(reading)
    for step in workload.steps:
        stream = stream.map(_transform(grain, step))
    if workload.grouping == "first-fit":
        stream = grain.experimental.FirstFitPackIterDataset(
            stream, length_struct={"tokens": ROW}, num_packing_bins=BINS, shuffle_bins=False
        )
    elif workload.grouping == "split":
        stream = grain.experimental.ConcatThenSplitIterDataset(
            stream, length_struct={"tokens": ROW}
        )
    stream = stream.batch(workload.batch)
    if setting.workers == 0:
        return stream
    if setting.workers is None:
        return stream.mp_prefetch()
    return stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=setting.workers))
