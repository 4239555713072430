"""Plan: a pipeline as data, cut into segments.

A segment turns *units* into outputs, each unit by itself. For the first segment a unit is a
record, or the records of a batch where a batch is made of a known number of them. A later segment
exists where a batch follows a step that changes counts (a filter, a flat-map): only there must
somebody count before the work can go on. Its units are groups of outputs of the segment before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from grain_jax._algebra import global_random, running, stacking, steps
from grain_jax._algebra.blocks import Block, Rest, one_by_one
from grain_jax._algebra.steps import Step
from grain_jax._datasets.schedule import Span

__all__ = ["Plan", "Root", "Segment", "Upstream", "cut"]


_BATCHED = 1 << 31
"""Which part of a pipeline draws for batches: above the numbers of segments, those of records."""


class Root(Protocol):
    """Where the elements of a stream come from."""

    @property
    def length(self) -> int | None:
        """Number of positions; None if endless or unknown."""

    @property
    def epoch(self) -> int:
        """After how many positions of this shard the records come again."""

    @property
    def batched(self) -> bool:
        """Whether an element is made of several records."""

    @property
    def drops(self) -> list[str]:
        """What may leave positions without an element, but for records that are None."""

    @property
    def sparse(self) -> bool:
        """Whether some positions may have no element."""

    @property
    def stacks(self) -> bool:
        """Whether `read_batch` can be expected to answer."""

    @property
    def stacks_by_user(self) -> bool:
        """Whether it would be the user's code that stacks there."""

    @property
    def is_fresh(self) -> bool:
        """Whether each element is a batch that the library has just stacked."""

    @property
    def reads_at_once(self) -> bool:
        """Whether a source answers for many records in one call."""

    @property
    def draws(self) -> str:
        """What may draw from the process-wide generators as elements are read; empty if nothing."""

    def functions(self) -> list[Callable[..., Any]]:
        """Returns the functions of the user's that read."""

    @property
    def asks(self) -> str:
        """What `prepare` asks, of the user's, and that may draw; empty if it asks nothing."""

    def prepare(self, span: Span) -> Any:
        """Returns what `read` needs for the positions of `span`; runs in the trainer, in order.

        It has a `count`, and `part(begin, end)` gives the same for some of the positions.
        """

    def read(self, payload: Any) -> Block:
        """Returns the elements; runs where the work is done."""

    def read_batch(
        self, payload: Any, allocate: stacking.Allocate | None
    ) -> tuple[Any, Block] | None:
        """Returns the elements stacked by the source itself; None if it cannot.

        With them comes a block without data, for their whereabouts.
        """

    def describe(self, position: int) -> str:
        """Says in words which record stands at a position."""

    def key(self, payload: Any, position: int) -> int | None:
        """Returns the key of the record at a position that `payload` is for, if it has one."""

    @property
    def closes(self) -> bool:
        """Whether the source says how it is closed."""

    def close_source(self) -> None:
        """Closes the source, which in a worker is a copy of the user's."""

    def close(self) -> None:
        """Gives back threads and files that reading took."""


@dataclasses.dataclass(frozen=True)
class Upstream:
    """A root without positions: an iterable of the user's, whose iterators keep their own state."""

    dataset: Any


@dataclasses.dataclass
class Segment:
    """Steps that act on one unit at a time.

    Attributes:
      steps: what is done.
      batches: size and drop_remainder of the batches, innermost first, whose records make one unit.
      counted: whether every unit gives exactly one output.
      drawing: titles of the steps that may draw from the process-wide generators.
      number: place of the segment in the pipeline.
      local: whether it must run in the trainer's process.
      rest: what becomes of a batch of batches that its records do not fill: "pad" and "drop" give a
        `Rest`; with None they are stacked as they are, which fails if the inner batches differ.
    """

    steps: list[steps.Step]
    batches: list[tuple[int, bool]]
    counted: bool
    number: int = 0
    local: bool = False
    drawing: tuple[str, ...] = ()
    rest: str | None = None

    @property
    def seeded(self) -> bool:
        """Whether the process-wide generators are seeded for each unit."""
        return bool(self.drawing)

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
        batches = [step for step in self.steps if isinstance(step, steps.BatchStep)]
        return self.counted and len(batches) > 1 and all(map(_stacks, batches))

    @property
    def needs_all(self) -> bool:
        """Whether the steps count on every element of the stream before being there."""
        return bool(self.batches) or any(step.needs_ordinal for step in self.steps)

    @property
    def stacks_records(self) -> bool:
        """Whether the source may stack: one batch is a unit, and nothing works on its records."""
        first = self.steps[0] if self.steps else None
        return (
            isinstance(first, steps.BatchStep) and first.function is None and len(self.batches) == 1
        )

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
        return _run(todo, block, allocate, failures)

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
            global_random.seed_for(seed, position, output, self.number)

        if not self.batches:
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
            global_random.seed_for(seed, last, output, _BATCHED + self.number)
        return tail, block

    def _left(self, todo: list[Step], block: Block) -> Block:
        """Puts a `Rest` in place of the unit's only output."""
        count = len(block)
        batch = None
        if self.rest == "pad":
            place = len(todo) - len(self.batches)
            whole = dataclasses.replace(todo[place], size=self.unit)  # type: ignore[type-var]
            block = _run([*todo[:place], whole], block, None)
            (batch,) = block.data
        block = block.part(len(block) - 1, len(block))
        sizes = tuple(size for size, _ in reversed(self.batches))
        block.data, block.ordinal = [Rest(batch, count, sizes)], block.ordinal // self.unit
        return block


def _stacks(step: steps.Step) -> bool:
    return isinstance(step, steps.BatchStep) and step.function is None


def _run(
    todo: Sequence[steps.Step],
    block: Block,
    allocate: stacking.Allocate | None,
    failures: running.Failures | None = None,
) -> Block:
    last = len(todo) - 1
    for place, step in enumerate(todo):
        # Only what leaves the process is worth placing where it leaves from.
        if place == last and allocate is not None and isinstance(step, steps.BatchStep):
            step = dataclasses.replace(step, allocate=allocate)
        block = step(block, failures)
    return block


def cut(
    todo: Sequence[steps.Step], *, sparse: bool = False, local_from: int | None = None
) -> list[Segment]:
    """Cuts a pipeline into segments.

    Args:
      todo: the steps, in order.
      sparse: whether elements may be absent before the first step.
      local_from: number of the first step that must run in the trainer's process; None for none.
    """
    segments = [Segment([], [], counted=not sparse)]
    for place, step in enumerate(todo):
        current = segments[-1]
        counts = step.counts == "groups" or step.needs_ordinal
        if place == local_from or (counts and not current.counted):
            current = Segment([], [], counted=True, number=len(segments))
            segments.append(current)
        current.local = local_from is not None and place >= local_from
        current.steps.append(step)
        if isinstance(step, steps.BatchStep):
            current.batches.append((step.size, step.drop))
        elif step.counts != "same":
            current.counted = False
    for segment in segments:
        segment.drawing = tuple(
            step.title
            for step in segment.steps
            if step.function is not None and global_random.may_draw(step.function)
        )
    return segments


@dataclasses.dataclass
class Plan:
    """A pipeline, ready to run.

    Attributes:
      root: where elements come from.
      steps: what is done with them, in order.
      local_from: number of the first step that must run in the trainer's process.
      seed: for the process-wide generators.
      skips: exceptions that leave a record out; none means that all are raised.
    """

    root: Root | Upstream
    steps: list[steps.Step]
    local_from: int | None = None
    seed: int = 0
    skips: tuple[type[Exception], ...] = ()

    def segments(self, *, sparse: bool = False) -> list[Segment]:
        """Returns the segments, for a stream whose records are all there or for one with gaps."""
        sparse = (
            sparse or bool(self.skips) or (not isinstance(self.root, Upstream) and self.root.sparse)
        )
        return cut(self.steps, sparse=sparse, local_from=self.local_from)

    @property
    def is_fresh(self) -> bool:
        """Whether each element is what the library has just stacked, so that nobody else has it."""
        root = None if isinstance(self.root, Upstream) else self.root
        if not self.steps:
            return root is not None and root.is_fresh
        last = self.steps[-1]
        if not isinstance(last, steps.BatchStep) or last.function is not None:
            return False
        return len(self.steps) > 1 or root is None or not root.stacks_by_user

    def batch_sizes(self) -> tuple[int, ...] | None:
        """Returns the sizes of the batches that an element is made of, innermost first."""
        sizes: list[int] = []
        for step in self.steps:
            if step.counts == "any":
                sizes = []
            elif isinstance(step, steps.BatchStep):
                sizes.append(step.size)
        return tuple(sizes) or None
