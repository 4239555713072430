"""The libraries that are compared, and the settings in which each of them takes part."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterable
from typing import Any

from tests.benchmarks.workloads import Workload

DISTRIBUTIONS = {
    "grain_jax": "grain-jax",
    "grain": "grain",
    "torch": "torch",
    "stateful": "torchdata",
    "spdl": "spdl",
    "floor": "numpy",
}

TITLES = {
    "grain_jax": "grain_jax",
    "grain": "Grain",
    "torch": "torch DataLoader",
    "stateful": "torchdata StatefulDataLoader",
    "spdl": "SPDL",
    "floor": "plain Python",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A library with its number of workers and of threads; None leaves a number to the library."""

    peer: str
    workers: int | None = 0
    threads: int | None = None

    def __str__(self) -> str:
        parts = [self.peer, "auto" if self.workers is None else f"{self.workers}w"]
        if self.threads is not None:
            parts.append(f"{self.threads}t")
        return "-".join(parts)

    @property
    def title(self) -> str:
        """As tables call it."""
        words = [TITLES[self.peer]]
        if self.peer not in ("spdl", "floor"):
            words.append("automatic" if self.workers is None else f"{self.workers} workers")
        if self.threads is not None:
            words.append(f"{self.threads} threads")
        return ", ".join(words)

    @classmethod
    def parse(cls, text: str) -> Setting:
        """The setting that `str` wrote as this text."""
        peer, workers, *threads = text.split("-")
        count = None if workers == "auto" else int(workers[:-1])
        return cls(peer, count, int(threads[0][:-1]) if threads else None)


def missing() -> list[str]:
    """The peers that are not installed."""
    found = []
    for peer, distribution in DISTRIBUTIONS.items():
        try:
            importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found.append(peer)
    return found


def versions() -> dict[str, str]:
    """The version of each installed peer."""
    names = {p: d for p, d in DISTRIBUTIONS.items() if p not in missing()}
    return {peer: importlib.metadata.version(name) for peer, name in names.items()}


def settings(workload: Workload, *, best: bool = False) -> list[Setting]:
    """The settings in which a workload is measured; `best`: one of each peer, two of our own."""
    if workload.driver == "memory":
        return [Setting("grain_jax", 8)]
    ours = [Setting("grain_jax", 2), Setting("grain_jax", 0)]
    found = ours if best else [*ours, Setting("grain_jax", None)]
    if workload.grain is not None:
        every = [(workers, threads) for workers in (0, 1, 2) for threads in (0, 16)]
        chosen = [workload.grain] if best else every
        found += [Setting("grain", workers, threads) for workers, threads in chosen]
        if best and workload.driver == "stream" and workload.grain[0] == 0:
            found.append(Setting("grain", 2, 0))  # whose first batch is compared, too
    if workload.torch is not None:
        counts = {workload.torch} if best else {0, 1, 2}
        found += [Setting("torch", workers) for workers in sorted(counts)]
        found += [Setting("stateful", workers) for workers in sorted(counts)]
    if workload.threads is not None:
        counts = {workload.threads} if best else {2, 4, 16}
        found += [Setting("spdl", 0, threads) for threads in sorted(counts)]
    if workload.floor:
        counts = {8, 16, 32, 64} if workload.name == "latency" else {0}
        found += [Setting("floor", 0, threads or None) for threads in sorted(counts)]
    absent = missing()
    return [setting for setting in found if setting.peer not in absent]


def batches(workload: Workload, setting: Setting) -> Iterable[Any]:
    """The workload as an endless iterable of batches of this peer's."""
    if setting.peer in ("grain_jax", "grain"):
        from tests.benchmarks import grains

        return grains.batches(workload, setting)
    if setting.peer in ("torch", "stateful"):
        from tests.benchmarks import torches

        return torches.batches(workload, setting)
    if setting.peer == "spdl":
        from tests.benchmarks import threads

        return threads.batches(workload, setting)
    from tests.benchmarks import floor

    return floor.batches(workload, setting)
