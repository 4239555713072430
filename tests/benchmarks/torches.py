"""Workloads in PyTorch's DataLoader, and in torchdata's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.utils.data
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.benchmarks import order, sources
from tests.benchmarks.peers import Setting
from tests.benchmarks.steps import apply
from tests.benchmarks.workloads import Workload


class Records(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A source and steps, by index."""

    def __init__(self, workload: Workload) -> None:
        source = workload.source(workload.length)
        self._source = sources.Rows(source) if isinstance(source, dict) else source
        self._steps = workload.steps
        self._rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        if self._rng is None:
            self._rng = np.random.default_rng(torch.initial_seed())
        record = apply(self._steps, self._source[index], self._rng)
        mirrored = isinstance(record, np.ndarray) and min(record.strides, default=0) < 0
        return record.copy() if mirrored else record  # which a tensor cannot be a view of


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Records in order, without those that a filter drops; each worker has every so many-th."""

    def __init__(self, workload: Workload) -> None:
        self._records, self._workload = Records(workload), workload

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in order.endless(self._workload, first, step):
            if (record := self._records[index]) is not None:
                yield record


class Order(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """The order of the stream, without end."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __iter__(self) -> Iterator[int]:
        return order.endless(self._workload)


def batches(workload: Workload, setting: Setting) -> Any:
    """An endless DataLoader."""
    kind = torch.utils.data.DataLoader if setting.peer == "torch" else StatefulDataLoader
    options = {"batch_size": workload.batch, "num_workers": setting.workers}
    if any(step.kind == "filter" for step in workload.steps):
        return kind(Stream(workload), **options)
    return kind(Records(workload), sampler=Order(workload), **options)
