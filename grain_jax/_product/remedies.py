"""Remedies: what would help a pipeline most, and what it would bring."""

from __future__ import annotations

import dataclasses
from typing import Any

from grain_jax._datasets.roots import NodeRoot
from grain_jax._values import options
from grain_jax._values.stats import Stats, StepStats

__all__ = ["About", "best", "busy"]

_THREADS = 16


@dataclasses.dataclass(frozen=True)
class About:
    """What is known of a pipeline that is measured.

    Attributes:
      workers: worker processes; 0 for none.
      may_thread: whether threads could read, and none do.
      reads_at_once: whether the source answers for many records in one call.
      cores: how many workers this machine has use for.
    """

    workers: int = 0
    may_thread: bool = False
    reads_at_once: bool = True
    cores: int = 1

    @classmethod
    def of(cls, pipeline: Any) -> About:
        """Returns it for what an iterator runs; None for an iterable of the user's."""
        cores = options.check_worker_count("worker_count", None)
        if pipeline is None:
            return cls(cores=cores)
        roots = [root for root in pipeline.cuts.leaves if isinstance(root, NodeRoot)]
        workers = pipeline._setup.options.num_workers if pipeline.cuts.is_away else 0
        return cls(
            workers,
            any(root.read_options.num_threads is None and not root.is_threaded for root in roots),
            all(root.reads_at_once for root in roots) or not roots,
            cores,
        )


def busy(step: StepStats, about: About) -> float:
    """Returns the seconds in which a step holds up what comes behind it."""
    return step.seconds / max(1, about.workers) if step.where == "workers" else step.seconds


def best(stats: Stats, bottleneck: str, training: float | None, about: About) -> tuple[str, float]:
    """Returns what to change, and about how many elements a second that would give."""
    count = max(1, stats.elements)
    spent = sum(busy(step, about) for step in stats.steps) / count
    slow = next((step for step in stats.steps if step.name == bottleneck), None)
    if bottleneck == "training" or slow is None:
        return (
            "the data keeps up; make the training step faster, without any wait it runs at its own "
            "speed",
            1 / training if training else stats.rate,
        )
    taken = busy(slow, about) / count
    limit = float("inf") if not training else 1 / training

    def rate(seconds: float) -> float:
        """Elements a second where the loader takes so long for each."""
        return min(limit, max(stats.rate, 1 / max(seconds, 1e-9)))

    if bottleneck == "transfer":
        text = "send half the bytes (integers or float16, converted by device_map on the device)"
        return text, rate(spent - taken / 2)
    is_source = bottleneck.endswith("source")
    if is_source and about.may_thread and stats.read_waits > slow.seconds / 2:
        text = f"read in threads, read_options=ReadOptions(num_threads={_THREADS})"
        return text, rate(spent - taken + taken / _THREADS)
    if slow.where == "trainer" and about.workers:
        text = "it runs in this process: write it as a transformation or source of random access"
        return text, rate(spent - taken + taken / about.workers)
    if about.workers < about.cores:
        workers = about.cores
        return f"more workers, worker_count={workers}", rate(
            spent * max(1, about.workers) / workers
        )
    if is_source and not about.reads_at_once:
        text = "give the source __getitems__(list), which reads a batch in one call"
        return f"{text}; if that took half as long", rate(spent - taken / 2)
    text = "do it once for a batch, behind batch(), with arrays; if it took half as long"
    return text, rate(spent - taken / 2)
