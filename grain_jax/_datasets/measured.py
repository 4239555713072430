"""A program that says of each task what it took, step by step."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra import stacking
from grain_jax._datasets.outcomes import Outcome, Read
from grain_jax._datasets.plan import Plan
from grain_jax._datasets.program import Program
from grain_jax._datasets.stages import Stage
from grain_jax._values import clock

__all__ = ["Measured"]

_WEIGHED = 16
"""Of so many tasks of a stage one looks at how large the elements are."""


class Measured(Program):
    """What is run where somebody asks for the time of steps; see `Program`.

    Attributes:
      annotate: shows steps in a trace of JAX's profiler; None for no trace.
    """

    is_measured = True

    def __init__(self, plan: Plan, stages: Sequence[Stage]) -> None:
        super().__init__(plan, stages)
        self._runs: dict[int, int] = {}
        self._clock = clock.Clock()  # of the thread that runs tasks
        self.annotate: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_clock": clock.Clock(), "annotate": None}

    def read_ahead(self, number: int, payload: Any) -> Read | None:
        """Reads for a task, with a clock of its own."""
        clock.here.clock = running = clock.Clock()
        try:
            found = self.read(number, payload)
        finally:
            clock.here.clock = None
        return found and dataclasses.replace(found, steps=running.stop())

    def run(
        self,
        number: int,
        payload: Any,
        inputs: list[Any],
        allocate: stacking.Allocate | None,
        ready: Read | BaseException | None = None,
    ) -> tuple[list[Any], Outcome]:
        """Runs stage `number` on one task, with a clock."""
        # Nothing is called here that need not be: in the trainer's process it costs the loop.
        begin = time.monotonic()
        self._runs[number] = runs = self._runs.get(number, 0) + 1
        running = self._clock
        steps: dict[str, clock.Cost] = {}
        running.weighs = runs % _WEIGHED == 1
        running.costs, running.cost, running.waited = steps, [0, 0.0, 0, 0, 0], 0.0
        running.annotate = self.annotate
        running.begin = time.perf_counter()
        outer, clock.here.clock = clock.here.clock, running
        try:
            outputs, outcome = super().run(number, payload, inputs, allocate, ready)
            running.cost[1] += time.perf_counter() - running.begin
            waited = running.waited
            if isinstance(ready, Read) and ready.steps is not None:
                steps, waited = {**ready.steps, **steps}, ready.waited
        finally:
            clock.here.clock = outer
            if running.annotation is not None:
                running.annotation.__exit__(None, None, None)
                running.annotation = None
            ready = None  # it may be an exception, whose traceback leads to this frame
        seconds = time.monotonic() - begin
        outcome.costs = number, os.getpid(), begin, seconds, waited, steps
        return outputs, outcome
