"""Stages: the steps of a pipeline, cut where somebody has to count before the work goes on.

A stage turns *units* into outputs, each unit by itself. For the first stage a unit is a
record, or the records of a batch where a batch is made of a known number of them. A later stage
exists where a batch follows a step that changes counts (a filter, a flat-map), and where elements
of other streams are grouped. Its units are groups of outputs of the stage before.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra import global_random, running, stacking, steps
from grain_jax._algebra.blocks import Block, Rest, one_by_one
from grain_jax._algebra.groupings.base import Grouping
from grain_jax._algebra.groupings.batch import Batch
from grain_jax._algebra.measures import MeasureStep
from grain_jax._algebra.steps import Step
from grain_jax._values import clock

__all__ = ["HERE", "Stage", "cut"]

_BATCHED = 1 << 31
"""Which part of a pipeline draws for batches: above the numbers of stages, those of records."""

HERE = -1
"""In place of the number of the first step that must run in the trainer's process: all must."""


@dataclasses.dataclass
class Stage:
    """Steps that act on one unit at a time.

    Attributes:
      steps: what is done.
      batches: size and drop_remainder of the batches, innermost first, whose records make one unit.
      counted: whether every unit gives exactly one output.
      drawing: titles of the steps that may draw from the process-wide generators.
      depth: how many stages an element has come through before.
      number: of the stage in the program that workers run.
      local: whether it must run in the trainer's process.
      may_skip: whether its elements are single records, which an error policy may leave out.
      group: what decides on groups of elements of other streams, where units are such groups.
      origin: where the elements of the whole pipeline come from.
      seed: for the process-wide generators.
      measures: what groupings behind it have to know of its outputs.
      watched: whether somebody asks how many elements its filters leave.
      rest: what becomes of a batch of batches that its records do not fill: "pad" and "drop" give a
        `Rest`; with None they are stacked as they are, which fails if the inner batches differ.
    """

    steps: list[steps.Step]
    batches: list[tuple[int, bool]]
    counted: bool
    depth: int = 0
    number: int = 0
    local: bool = False
    drawing: tuple[str, ...] = ()
    may_skip: bool = False
    group: Grouping | None = None
    origin: Any = None
    seed: int = 0
    measures: tuple[MeasureStep, ...] = ()
    watched: bool = False
    rest: str | None = None

    @property
    def may_drop(self) -> bool:
        """Whether it has a filter, or reads records that may be absent."""
        has_gaps = self.group is None and getattr(self.origin, "has_gaps", False)
        return has_gaps or any(step.counts == "fewer" for step in self.steps)

    @property
    def seeded(self) -> bool:
        """Whether the process-wide generators are seeded for each unit."""
        return bool(self.drawing)

    @property
    def is_idle(self) -> bool:
        """Whether it leaves its elements as they are."""
        return not self.steps and not self.measures

    @property
    def grouping(self) -> Grouping | None:
        """What decides which elements of the stream before make one unit; None: each is one."""
        if self.group is None and self.batches:
            return Batch(tuple(self.batches))
        return self.group

    @property
    def is_one_batch(self) -> bool:
        """Whether it makes a batch of the elements before it, whose numbers nobody asks for."""
        if self.group is not None or len(self.batches) != 1:
            return False
        before = itertools.takewhile(lambda step: step.counts != "groups", self.steps)
        return not any(step.needs_ordinal for step in before)

    @property
    def unit(self) -> int:
        """Elements of the stream before that make up one unit."""
        product = 1
        for size, _ in self.batches:
            product *= size
        return product

    @property
    def nest(self) -> tuple[int, ...] | None:
        """Sizes, outermost first, if the last steps stack records, and batches of them, and so on.

        None where another step is between them or behind.
        """
        count = len(self.batches)
        if not count or not all(map(_stacks, self.steps[-count:])):
            return None
        return tuple(size for size, _ in reversed(self.batches))

    @property
    def may_leave_rest(self) -> bool:
        """Whether the last element may be a batch of batches that its records do not fill."""
        batches = [step for step in self.steps if step.batching is not None]
        return self.counted and len(batches) > 1 and all(map(_stacks, batches))

    @property
    def needs_all(self) -> bool:
        """Whether the steps count on every element of the stream before being there."""
        return bool(self.batches) or any(step.needs_ordinal for step in self.steps)

    @property
    def stacks_records(self) -> bool:
        """Whether the source may stack: one batch is a unit, and nothing works on its records."""
        return len(self.batches) == 1 and _stacks(self.steps[0])

    def run_stacked(self, batch: Any, where: Block, seed: int) -> Block:
        """Runs all steps but the first on a unit that the source has stacked.

        Args:
          batch: the stacked records.
          where: a block for their whereabouts; its data do not matter.
          seed: for the process-wide generators.
        """
        last = len(where.positions) - 1
        block = where.part(last, last + 1)
        block.data, block.ordinal = [batch], where.ordinal // self.unit
        return dataclasses.replace(self, steps=self.steps[1:]).run(block, None, seed)

    def run(
        self,
        block: Block,
        allocate: stacking.Allocate | None,
        seed: int,
        failures: running.Failures | None = None,
    ) -> Block:
        """Runs all steps on the elements of one unit, or of several that are one element each.

        Args:
          block: the elements.
          allocate: memory for batches; None means fresh memory.
          seed: for the process-wide generators.
          failures: takes what elements raise, where each is a unit; None raises it.
        """
        todo = self.steps
        if self.seeded and len(block):
            todo, block = self._run_drawing(block, seed, failures)
        if self.rest is not None and len(block) < self.unit:
            return self._left(todo, block)
        block = _run(todo, block, allocate, failures)
        for measure in self.measures:
            block = measure(block, failures)
        return block

    def _run_drawing(
        self, block: Block, seed: int, failures: running.Failures | None
    ) -> tuple[list[Step], Block]:
        """Seeds the process-wide generators, for each record by itself where that comes first.

        So what a record draws before it is batched depends on its position alone, and not on the
        size of the batch, nor on who shares it.

        Returns:
          The steps that are left to do, and what they act on.
        """

        def start(position: int, output: int) -> None:
            global_random.seed_for(seed, position, output, self.depth)

        if self.grouping is None:
            return [], one_by_one(
                block,
                lambda one: _run(self.steps, one, None, failures),
                start,
                lambda: failures is not None and failures.stop is not None,
            )
        place = next((i for i, s in enumerate(self.steps) if s.counts == "groups"), 0)
        head, tail = self.steps[:place], self.steps[place:]
        if not any(step.title in self.drawing for step in head):
            head, tail = [], self.steps
        last, output = int(block.positions[-1]), block.outputs[-1] if block.outputs else 0
        if head:
            block = one_by_one(block, lambda one: _run(head, one, None), start)
        if any(step.title in self.drawing for step in tail):
            global_random.seed_for(seed, last, output, _BATCHED + self.depth)
        return tail, block

    def _left(self, todo: list[Step], block: Block) -> Block:
        """Puts a `Rest` in place of the unit's only output."""
        count = len(block)
        batch = None
        if self.rest == "pad":
            place = len(todo) - len(self.batches)
            whole = steps.BatchStep(self.unit, False, None, todo[place].title)
            block = _run([*todo[:place], whole], block, None)
            (batch,) = block.data
        block = block.part(len(block) - 1, len(block))
        sizes = tuple(size for size, _ in reversed(self.batches))
        block.data, block.ordinal = [Rest(batch, count, sizes)], block.ordinal // self.unit
        return block


def _stacks(step: steps.Step) -> bool:
    return step.batching is not None and step.batching.stacks


def _run(
    todo: Sequence[steps.Step],
    block: Block,
    allocate: stacking.Allocate | None,
    failures: running.Failures | None = None,
) -> Block:
    last = len(todo) - 1
    for place, step in enumerate(todo):
        # Only what leaves the process is worth placing where it leaves from.
        if place == last and allocate is not None:
            step = step.placed(allocate)
        block = step(block, failures)
        if (now := clock.here.clock) is not None and now.weighs:
            now.weigh(step.title, block.data)
    return block


def cut(
    todo: Sequence[steps.Step],
    *,
    gaps: bool = False,
    local_from: int | None = None,
    group: tuple[Grouping, steps.Step] | None = None,
    depth: int = 0,
    single: bool = True,
) -> list[Stage]:
    """Cuts a pipeline into stages.

    Args:
      todo: the steps, in order.
      gaps: whether elements may be absent before the first step.
      local_from: number of the first step that must run in the trainer's process; None for none.
      group: what makes the elements out of those of other streams, before the first step.
      depth: that of the first stage.
      single: whether elements before the first step are single records.
    """
    stages = [Stage([], [], counted=not gaps, depth=depth, local=local_from == HERE)]
    if group is not None:
        stages[0].group, stages[0].steps = group[0], [group[1]]
    for place, step in enumerate(todo):
        current = stages[-1]
        counts = step.counts == "groups" or step.needs_ordinal
        if place == local_from or (counts and (not current.counted or current.group is not None)):
            current = Stage([], [], counted=True, depth=depth + len(stages))
            stages.append(current)
        current.local = local_from is not None and place >= local_from
        current.steps.append(step)
        if step.batching is not None:
            current.batches.append((step.batching.size, step.batching.drop))
        elif step.counts != "same":
            current.counted = False
    for stage in stages:
        stage.may_skip = single and stage.grouping is None
        single = stage.may_skip
        stage.drawing = tuple(
            step.title
            for step in stage.steps
            if step.function is not None and global_random.may_draw(step.function)
        )
    return stages
