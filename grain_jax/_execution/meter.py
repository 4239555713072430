"""Meter: what tasks took, summed up by part of the pipeline, by step, and by process.

What a step takes is counted where it runs and travels with the outcome of its task.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from grain_jax._algebra import access
from grain_jax._datasets import lineage
from grain_jax._datasets.plan import Branch, Grouped, Plan
from grain_jax._datasets.roots import NodeRoot
from grain_jax._execution import inline
from grain_jax._values.clock import Cost, Costs
from grain_jax._values.stats import StepStats, WorkerStats

__all__ = ["Meter", "Metered", "named", "shared", "titles"]

_SPANS = 4096
"""How many of the latest tasks are remembered with when they ran."""

_PENDING = 64
"""So many tasks are summed up together, which takes the trainer fewer calls."""


class Meter:
    """Sums up what the tasks of one iterator took.

    Args:
      branches: the pipeline, as it is cut in each of several ways.
      is_away: whether worker processes do the work.

    Attributes:
      waited: seconds in which reading only waited.
      spans: of the latest tasks: process, begin and end in seconds of `time.monotonic`.
      filled: tasks that were done and waited, summed over the times that somebody asked.
      asked: how often that was.
      pending: what tasks took that is not summed up yet.
    """

    def __init__(self, branches: Sequence[Branch], is_away: bool) -> None:
        self._names: dict[int, str] = {}
        self._costs: dict[tuple[str, str], Cost] = {}
        self._processes: dict[tuple[str, str], int] = {}
        self._workers: dict[int, list[Any]] = {}
        self._is_away = is_away
        self.pending: deque[Costs] = deque()
        self.waited = 0.0
        self.spans: deque[tuple[int, float, float]] = deque(maxlen=_SPANS)
        self.filled = self.asked = 0
        for tree in branches:
            for name, branch in named(tree):
                self._names |= {stage.number: name for stage in branch.stages}
                for title in titles(branch.plan):
                    self._costs.setdefault((name, title), [0, 0.0, 0, 0, 0])

    def _add(self, costs: Costs) -> None:
        stage, process, begin, seconds, waited, steps = costs
        name = self._names[stage]
        self.waited += waited
        worker = self._workers.get(process)
        if worker is None:
            worker = self._workers[process] = [0, 0.0]
        worker[0] += 1
        worker[1] += seconds
        self.spans.append((process, begin, begin + seconds))
        for title, cost in steps.items():
            key = name, title
            total = self._costs.get(key)
            if total is None:
                total = self._costs[key] = [0, 0.0, 0, 0, 0]
            for place, value in enumerate(cost):
                total[place] += value
            self._processes[key] = process

    def cost_of(self, stage: int, title: str) -> Cost:
        """Returns where what is done outside of tasks is to be counted."""
        key = self._names[stage], title
        self._processes[key] = os.getpid()
        return self._costs.setdefault(key, [0, 0.0, 0, 0, 0])

    def settle(self) -> None:
        """Adds what tasks took that nobody has added yet."""
        with contextlib.suppress(IndexError):  # another thread has had the last one
            while True:
                self._add(self.pending.popleft())

    def steps(self) -> list[StepStats]:
        """Returns the parts of the pipeline, in order; their shares are filled in later."""
        self.settle()
        own, default = os.getpid(), "workers" if self._is_away else "trainer"
        found = []
        for (name, title), cost in list(self._costs.items()):
            process = self._processes.get((name, title))
            where = default if process is None else "trainer" if process == own else "workers"
            calls, seconds, records, size, weighed = cost
            size = int(size * records / weighed) if weighed else None
            title = "source" if title == access.READING else title
            title = f"{name}: {title}" if name else title
            found.append(StepStats(title, where, calls, seconds, 0.0, records, size))
        return found

    def workers(self) -> list[WorkerStats]:
        """Returns the processes that have done tasks."""
        own, number, found = os.getpid(), 0, []
        for process, (tasks, seconds) in list(self._workers.items()):
            number += process != own
            name = "trainer" if process == own else f"worker {number}"
            found.append(WorkerStats(name, tasks, seconds))
        return found


class Metered:
    """An executor whose results are told to a meter."""

    def __init__(self, executor: inline.Executor, meter: Meter) -> None:
        self._executor = executor
        self._result = executor.result
        self._meter = meter
        self.capacity = executor.capacity
        self.put, self.submit = executor.put, executor.submit
        self.drop, self.cancel, self.close = executor.drop, executor.cancel, executor.close

    @property
    def is_broken(self) -> bool:
        """Whether no task will ever be answered."""
        return self._executor.is_broken

    @property
    def finished(self) -> int:
        """How many tasks are done whose results nobody has asked for yet."""
        return self._executor.finished

    def result(self, ticket: int, block: bool = True) -> inline.Bundle | None:
        """Returns the outputs, and adds what they took."""
        meter = self._meter
        if block:
            meter.filled += self._executor.finished
            meter.asked += 1
        bundle = self._result(ticket, block)
        if bundle is not None and (costs := bundle.info.costs) is not None:
            meter.pending.append(costs)
            if len(meter.pending) >= _PENDING:
                meter.settle()
        return bundle


def named(branch: Branch, name: str = "") -> Iterator[tuple[str, Branch]]:
    """Yields a branch and those it is made of, before it, each with the name of its part."""
    root, several = branch.plan.root, len(branch.parents) > 1
    names = getattr(root.grouping, "names", None) if isinstance(root, Grouped) else None
    for number, parent in enumerate(branch.parents):
        part = (str(number) if names is None else names[number]) if several else ""
        yield from named(parent, "/".join(filter(None, (name, part))))
    yield name, branch


def titles(plan: Plan) -> list[str]:
    """Returns what is done in a plan, but for those that it is made of."""
    root = plan.root
    if isinstance(root, Grouped):
        found = [] if root.step is None else [root.step.title]
    else:
        found = [access.READING]
        if isinstance(root, NodeRoot):
            found += [step.title for step in lineage.steps(root.node)]
    return list(dict.fromkeys([*found, *(step.title for step in plan.steps)]))


def shared(steps: Sequence[StepStats]) -> tuple[StepStats, ...]:
    """Returns steps with their shares of the seconds of all."""
    whole = sum(step.seconds for step in steps)
    return tuple(
        StepStats(
            step.name,
            step.where,
            step.calls,
            step.seconds,
            step.seconds / whole if whole else 0.0,
            step.records,
            step.bytes,
        )
        for step in steps
    )
