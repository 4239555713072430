"""A plan as one iterator runs it: a copy, cut into stages for streams with gaps and without."""

from __future__ import annotations

from grain_jax._datasets import iterators
from grain_jax._datasets.measured import Measured
from grain_jax._datasets.plan import Branch, Plan, Upstream, has_positions
from grain_jax._datasets.program import Program
from grain_jax._execution import sieves, snapshots, workers
from grain_jax._execution.meter import Meter
from grain_jax._values import clock, dataset_options

__all__ = ["Cuts"]


class Cuts:
    """Both ways to cut a plan, and what is known of it before it runs.

    Args:
      plan: what to run.
      setup: worker processes and buffers.

    Attributes:
      leaves: the roots of the copy, from left to right.
      dense: how it is cut as long as no record is absent.
      loose: how it is cut otherwise.
      stages: those of both, by their numbers.
      program: what workers run.
      meter: sums up what tasks take; None where nobody asks.
    """

    def __init__(self, plan: Plan, setup: iterators.Setup) -> None:
        self._plan = plan
        self._setup = setup
        # What the user changes from now on is for the next iteration.
        frozen = snapshots.of_plan(plan)
        self.leaves = frozen.leaves()
        # Samplers are asked in this process, and are no copies.
        self.dense = frozen.branch().beside(plan)
        self.loose = frozen.branch(gaps=True).beside(plan)
        branches = [branch for tree in (self.dense, self.loose) for branch in tree.walk()]
        self.stages = [stage for branch in branches for stage in branch.stages]
        for number, stage in enumerate(self.stages):
            stage.number = number
            stage.watched = stage.may_drop and sieves.watches(plan.options)
        tracking = plan.options.execution_tracking_mode
        measures = (
            setup.options.enable_profiling
            or tracking is dataset_options.ExecutionTrackingMode.STAGE_TIMING
        )
        self._frozen = frozen
        self.meter: Meter | None = None
        self.program = Program(frozen, self.stages)
        if measures:
            self.measure()

    def measure(self) -> None:
        """Has tasks say what they take, those of executors that are made from now on."""
        if self.meter is None:
            self.meter = Meter((self.dense, self.loose), self.is_away)
            self.program = program = Measured(self._frozen, self.stages)
            program.annotate = clock.annotator()

    def of(self, has_gaps: bool) -> Branch:
        """Returns how the plan is cut for streams with gaps, or without."""
        return self.loose if has_gaps else self.dense

    @property
    def has_work(self) -> bool:
        """Whether there is any that workers can do: iterables of the user's are read here."""
        return any(
            not stage.local and not (stage.is_idle and isinstance(stage.origin, Upstream))
            for branch in self.dense.walk()
            for stage in (*([] if branch.first is None else [branch.first]), *branch.behind)
        )

    @property
    def is_away(self) -> bool:
        """Whether worker processes do the work, but for what has to be done here."""
        asked = self._setup.options.num_workers > 0 and workers.supported()
        return asked and self.has_work

    @property
    def is_fresh(self) -> bool:
        """Whether nobody has a hold on the memory of an element before it is delivered.

        What comes from workers lies in a slot of its own; here it may have passed through code of
        the user's, which may have kept it.
        """
        if self._plan.is_fresh:
            return True
        last = self.dense.stages[-1]
        # As it is, an element of the user's own iterable may come by.
        passes = last.is_idle and not all(map(has_positions, self.leaves))
        return self.is_away and self._plan.local_from is None and not passes

    def draws(self) -> str:
        """Returns what may draw from the process-wide generators here; empty if nothing may."""
        away = self.is_away
        found = [
            title
            for stage in self.stages
            if stage.seeded and (stage.local or not away)
            for title in stage.drawing
        ]
        for asked, root in zip(self._plan.leaves(), self.leaves, strict=True):
            if has_positions(asked) and has_positions(root):
                found.append(asked.asks or ("" if away else root.draws))
        return next(filter(None, found), "")
