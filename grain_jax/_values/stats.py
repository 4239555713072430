"""Stats: where the time of a pipeline goes, as numbers and as a table."""

from __future__ import annotations

import dataclasses

__all__ = ["Stats", "StepStats", "WorkerStats"]


@dataclasses.dataclass(frozen=True)
class StepStats:
    """What one part of a pipeline took so far, in all processes together.

    Attributes:
      name: "source", "step 2: map(decode)", "transfer"; in a mixture behind the name or number of
        its part: "web: source".
      where: "workers", "trainer" (inside `next()`), or "thread" (of the trainer, beside the loop).
      calls: how many blocks of elements it was given.
      seconds: how long it was at work, waits for files and the like included.
      share: of the seconds of all steps, 0 to 1.
      records: how many elements went in; of a source, how many came out.
      bytes: about how many came out, as some of its blocks say; None where none has said.

    Example:
      >>> StepStats("source", "workers", 2, 0.5, 1.0, 64).records
      64
    """

    name: str
    where: str
    calls: int
    seconds: float
    share: float
    records: int
    bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class WorkerStats:
    """What one process, or thread of the trainer, has done.

    Attributes:
      name: "worker 1", in the order in which they came, or "trainer".
      tasks: how many it has done.
      seconds: how long it was at work.

    Example:
      >>> WorkerStats("worker 1", 10, 0.25).seconds / 10
      0.025
    """

    name: str
    tasks: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Stats:
    """What an iterator has measured since it began to; `str` gives a table.

    Seconds of steps are those of all workers together, so that they can be more than have gone by.

    Attributes:
      seconds: that have gone by since the first element was asked for.
      elements: how many were delivered.
      waited: seconds in which the training loop waited for elements.
      computed: seconds in which it did something else, from one element to asking for the next.
      steps: the parts of the pipeline, in order.
      workers: the processes that did it.
      read_waits: seconds in which reading only waited: for files, a network, a sleep.
      ready: of the elements, the share that was there when it was asked for, 0 to 1.
      buffered: how many elements, or tasks of workers, were there when asked, on average; None
        where nothing runs ahead.
      buffer_size: how many it may have.
      skipped: records that an `ErrorPolicy` has left out.

    Example:
      >>> import grain_jax as grain
      >>> loader = grain.load([1, 2, 3, 4], num_epochs=1, batch_size=2)
      >>> iterator = iter(loader)
      >>> iterator.start_stats()
      >>> stats = [batch.sum() for batch in iterator] and iterator.stats()
      >>> stats.elements, [step.name for step in stats.steps], stats.steps[0].records
      (2, ['source', 'step 1: batch(2)'], 4)
    """

    seconds: float
    elements: int
    waited: float
    computed: float
    steps: tuple[StepStats, ...]
    workers: tuple[WorkerStats, ...] = ()
    read_waits: float = 0.0
    ready: float = 0.0
    buffered: float | None = None
    buffer_size: int | None = None
    skipped: int = 0

    @property
    def wait_share(self) -> float:
        """The share of its time in which the training loop waited for data, 0 to 1."""
        whole = self.waited + self.computed
        return self.waited / whole if whole else 0.0

    @property
    def rate(self) -> float:
        """Elements a second."""
        return self.elements / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return "\n".join([self._line(), *_table(self.steps), *self._rest()])

    def _line(self) -> str:
        return (
            f"{self.elements} elements in {self.seconds:.1f} s ({self.rate:.4g}/s); the loop waited"
            f" for data {self.wait_share:.0%} of its time ({self.waited:.2f} s), and "
            f"{self.ready:.0%} of the elements were there when asked for"
        )

    def _rest(self) -> list[str]:
        found = [
            f"{worker.name}: {worker.tasks} tasks, {worker.seconds:.2f} s"
            f" ({min(1.0, worker.seconds / self.seconds if self.seconds else 0.0):.0%} busy)"
            for worker in self.workers
        ]
        if self.buffered is not None:
            found.append(f"ahead of the loop: {self.buffered:.1f} of {self.buffer_size} elements")
        if self.skipped:
            found.append(f"records left out: {self.skipped}")
        return found


def _table(steps: tuple[StepStats, ...]) -> list[str]:
    """Returns the steps as aligned lines."""
    head = ("step", "where", "calls", "seconds", "share", "records", "MB")
    rows = [
        (
            step.name,
            step.where,
            str(step.calls),
            f"{step.seconds:.3f}",
            f"{step.share:.1%}",
            str(step.records),
            "-" if step.bytes is None else f"{step.bytes / 1e6:.1f}",
        )
        for step in steps
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
