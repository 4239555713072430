"""Inspecting: a short measured run of a pipeline, what holds it up, and what would help."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax

from grain_jax._datasets.map_dataset import MapDataset
from grain_jax._execution.prefetch_iterator import PrefetchIterator
from grain_jax._product import remedies
from grain_jax._product.device import prefetch_to_device
from grain_jax._values.stats import Stats

__all__ = ["Inspection", "inspect"]

_KEEPS_UP = 0.1
"""Who waits for less than this share of its time is not held up by its data."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What a measured run has found.

    Attributes:
      stats: of the run, but for its first element, which starts workers and compiles.
      bottleneck: "source", the title of a step, "transfer" or "training".
      share: of the loop's time for "training", of the loader's work for others, 0 to 1.
      rate: elements a second, as it is.
      suggestion: what to change.
      would_be: elements a second with that, about.
      first: seconds to the first element.
      training: seconds of the training step for each element; None without one.
      explanation: the pipeline as a tree.
      spans: when the loop waited, and when each process worked, by name, in seconds from the start.
    """

    stats: Stats
    bottleneck: str
    share: float
    rate: float
    suggestion: str
    would_be: float
    first: float
    training: float | None
    explanation: str
    spans: dict[str, list[tuple[float, float]]]

    def __str__(self) -> str:
        whole = "the loop's time" if self.bottleneck == "training" else "the loader's work"
        parts = [self.explanation, str(self.stats), f"first element: {self.first:.2f} s"]
        if self.training is not None:
            parts.append(f"training step: {1e3 * self.training:.1f} ms")
        parts += [
            f"bottleneck: {self.bottleneck} ({self.share:.0%} of {whole})",
            f"suggestion: {self.suggestion}: about {self.would_be:.4g} elements/s in place of "
            f"{self.rate:.4g}",
        ]
        return "\n\n".join(part for part in parts[:2] if part) + "\n" + "\n".join(parts[2:])

    def as_json(self) -> dict[str, Any]:
        """Returns it as JSON values, without the spans."""
        found = dataclasses.asdict(self)
        del found["spans"]
        found["stats"] |= {"wait_share": self.stats.wait_share, "rate": self.stats.rate}
        return found


def inspect(
    pipeline: Any, seconds: float = 5.0, step: Callable[[Any], Any] | None = None
) -> Inspection:
    """Runs a pipeline for some seconds, and says what holds it up.

    Args:
      pipeline: a loader, a dataset, or anything that can be iterated over.
      seconds: how long, behind the first element; a stream that ends is done sooner.
      step: a training step, called with each batch behind the device stage; None reads only.
    """
    explain = getattr(pipeline, "explain", None)
    explanation = "" if explain is None else str(explain())
    iterator = _measured(pipeline, step)
    with iterator:
        run = _run(iterator, seconds, step)
        inner = getattr(iterator, "_iterator", iterator)
        meter = iterator._stage_meter()
        overlaps = not getattr(getattr(iterator, "_upstream", None), "draws", "")
        about = remedies.About.of(getattr(inner, "_pipeline", None))
        spans = _spans(iterator, meter, run.began)
    stats = run.stats
    bottleneck, share = _judged(run, about, overlaps)
    suggestion, would_be = remedies.best(stats, bottleneck, run.training, about)
    return Inspection(
        stats,
        _shown(bottleneck),
        share,
        stats.rate,
        suggestion,
        would_be,
        run.first,
        run.training,
        explanation,
        spans,
    )


def _measured(pipeline: Any, step: Any) -> Any:
    if isinstance(pipeline, MapDataset):
        pipeline = pipeline.to_iter_dataset()
    iterator: Any = iter(pipeline)
    if step is not None:
        iterator = prefetch_to_device(iterator)
    elif not hasattr(iterator, "_stage_meter"):
        iterator = PrefetchIterator(iterator, lambda element: element, 0)
    iterator.start_stats()
    return iterator


@dataclasses.dataclass
class _Run:
    """What a run has shown.

    Attributes:
      stats: behind the first element.
      first: seconds to that.
      training: seconds of the step for each element.
      arriving: seconds in which the loop waited for batches to be on the devices.
      began: when it did, in seconds of `time.monotonic`.
    """

    stats: Stats
    first: float
    training: float | None
    arriving: float
    began: float


def _run(iterator: Any, seconds: float, step: Any) -> _Run:
    began = time.monotonic()
    taught, arriving, count = 0.0, 0.0, 0
    before: Stats | None = None
    first = 0.0
    for number in itertools.count():
        element = next(iterator, iterator)
        if element is iterator:
            break
        came = time.monotonic()
        if step is not None:
            wait: Any = jax.block_until_ready
            wait(element)
            there = time.monotonic()
            wait(step(element))
            if number:
                arriving += there - came
                taught += time.monotonic() - there
                count += 1
        del element
        if not number:
            first, before = came - began, iterator.stats()
            deadline = time.monotonic() + seconds
        elif time.monotonic() >= deadline:
            break
    stats = iterator.stats()
    if before is not None and stats.elements > before.elements:
        stats = _since(stats, before)
    training = None if step is None else taught / max(1, count)
    return _Run(stats, first, training, arriving, began)


def _since(stats: Stats, before: Stats) -> Stats:
    """Returns what was measured since."""
    known = {step.name: step for step in before.steps}
    steps = []
    for step in stats.steps:
        if (old := known.get(step.name)) is not None:
            size = None if step.bytes is None else step.bytes - (old.bytes or 0)
            step = dataclasses.replace(
                step,
                calls=step.calls - old.calls,
                seconds=step.seconds - old.seconds,
                records=step.records - old.records,
                bytes=size,
            )
        steps.append(step)
    if not any(step.seconds for step in steps):
        return stats  # all was done ahead of the first element
    whole = sum(step.seconds for step in steps)
    steps = [dataclasses.replace(step, share=step.seconds / whole) for step in steps]
    tasks = {worker.name: worker for worker in before.workers}
    workers = [
        dataclasses.replace(
            one,
            tasks=one.tasks - tasks[one.name].tasks,
            seconds=one.seconds - tasks[one.name].seconds,
        )
        if one.name in tasks
        else one
        for one in stats.workers
    ]
    return dataclasses.replace(
        stats,
        seconds=stats.seconds - before.seconds,
        elements=stats.elements - before.elements,
        waited=stats.waited - before.waited,
        computed=stats.computed - before.computed,
        read_waits=max(0.0, stats.read_waits - before.read_waits),
        steps=tuple(steps),
        workers=tuple(workers),
    )


def _judged(run: _Run, about: remedies.About, overlaps: bool) -> tuple[str, float]:
    """Returns what holds the loop up, and its share."""
    stats = run.stats
    parts = {step.name: remedies.busy(step, about) for step in stats.steps}
    if "transfer" in parts:
        parts["transfer"] += run.arriving
    whole = sum(parts.values()) or 1.0
    slowest = max(parts, key=lambda name: parts[name], default="source")
    if run.training is None:
        return slowest, parts.get(slowest, 0.0) / whole
    taught = run.training * stats.elements
    loop = stats.waited + stats.computed or 1.0
    keeps_up = (stats.waited + run.arriving) / loop < _KEEPS_UP
    if keeps_up or (not overlaps and taught > parts[slowest]):
        return "training", min(1.0, taught / loop)
    return slowest, parts[slowest] / whole


def _shown(name: str) -> str:
    """Returns the name of a step with its part of a mixture behind it."""
    for begin in ("step ", "source"):
        part, found, rest = name.partition(f": {begin}")
        if found and not part.startswith("step "):
            return f"{begin}{rest} (in {part})"
    return name


def _spans(iterator: Any, meter: Any, began: float) -> dict[str, list[tuple[float, float]]]:
    """Returns when the loop waited and who worked when."""
    found = {"loop waits": list(iterator._waits.spans)}
    converting = getattr(iterator, "_converting", None)
    if converting is not None and iterator._converts:
        found["transfer"] = list(converting.spans)
    processes: dict[int, str] = {}
    if meter is not None:
        meter.settle()
        for process, begin, end in list(meter.spans):
            name = processes.setdefault(process, f"process {len(processes) + 1}")
            found.setdefault(name, []).append((begin, end))
    return {
        name: [(begin - began, end - began) for begin, end in spans]
        for name, spans in found.items()
    }
