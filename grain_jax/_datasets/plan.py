"""Plan: a pipeline as data, cut into segments, and the function that worker processes run.

A segment turns *units* into outputs, each unit by itself. For the first segment a unit is a
record, or the records of a batch where a batch is made of a known number of them. A later segment
exists where a batch follows a step that changes counts (a filter, a flat-map): only there must
somebody count before the work can go on. Its units are groups of outputs of the segment before.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from grain_jax._algebra import global_random, stacking, steps
from grain_jax._algebra.blocks import Block
from grain_jax._datasets.schedule import Span

__all__ = [
    "Gathered",
    "Outcome",
    "Plan",
    "Program",
    "Root",
    "Segment",
    "SparseError",
    "Upstream",
    "cut",
]


class Root(Protocol):
    """Where the elements of a stream come from."""

    @property
    def length(self) -> int | None:
        """Number of positions; None if endless or unknown."""

    @property
    def sparse(self) -> bool:
        """Whether some positions may have no element."""

    @property
    def stacks(self) -> bool:
        """Whether `read_batch` can be expected to answer."""

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

    def close(self) -> None:
        """Gives back threads and files that reading took."""


@dataclasses.dataclass(frozen=True)
class Upstream:
    """A root without positions: an iterable of the user's, whose iterators keep their own state."""

    dataset: Any


@dataclasses.dataclass(slots=True)
class Gathered:
    """The payload of a later segment: the whereabouts of one unit's elements."""

    positions: list[int]
    outputs: list[int] | None
    ordinal: int
    rngs: list[Any] | None = None


@dataclasses.dataclass(slots=True)
class Outcome:
    """What the trainer needs to know about the outputs of a task, besides the outputs.

    Attributes:
      seconds: how long the task took.
      done: units that were completed; fewer than asked for where a later one failed.
      units: for each output the unit, counted within the task; None where each gave one output.
      positions: for each output the position of its last record; empty where `units` is None.
      outputs: for each output its flat-map number; None while all are 0.
      rngs: for each output the generator that a sampler gave, with what was drawn from it; None if
        it gave none.
    """

    seconds: float
    done: int
    units: list[int] | None = None
    positions: list[int] = dataclasses.field(default_factory=list)
    outputs: list[int] | None = None
    rngs: list[Any] | None = None


class SparseError(Exception):
    """An element is absent where a batch counts on it: the stream has to be counted as it runs."""


@dataclasses.dataclass
class Segment:
    """Steps that act on one unit at a time.

    Attributes:
      steps: what is done.
      batches: size and drop_remainder of the batches, innermost first, whose records make one unit.
      counted: whether every unit gives exactly one output.
      seeded: whether user code may draw from the process-wide generators.
      number: place of the segment in the pipeline.
      local: whether it must run in the trainer's process.
    """

    steps: list[steps.Step]
    batches: list[tuple[int, bool]]
    counted: bool
    number: int = 0
    local: bool = False
    seeded: bool = False

    @property
    def unit(self) -> int:
        """Elements of the stream before that make up one unit."""
        product = 1
        for size, _ in self.batches:
            product *= size
        return product

    @property
    def needs_all(self) -> bool:
        """Whether the steps count on every element of the stream before being there."""
        by_ordinal = any(isinstance(s, steps.IndexStep) and not s.by_position for s in self.steps)
        return bool(self.batches) or by_ordinal

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

    def run(self, block: Block, allocate: stacking.Allocate | None, seed: int) -> Block:
        """Runs all steps on the elements of one unit."""
        if self.seeded and len(block):
            global_random.seed_for(
                seed,
                int(block.positions[-1]),
                block.outputs[-1] if block.outputs else 0,
                self.number,
            )
        return _run(self.steps, block, allocate)


def _run(todo: Sequence[steps.Step], block: Block, allocate: stacking.Allocate | None) -> Block:
    last = len(todo) - 1
    for place, step in enumerate(todo):
        # Only what leaves the process is worth placing where it leaves from.
        if place == last and allocate is not None and isinstance(step, steps.BatchStep):
            step = dataclasses.replace(step, allocate=allocate)
        block = step(block)
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
        counts = isinstance(step, steps.BatchStep) or (
            isinstance(step, steps.IndexStep) and not step.by_position
        )
        if place == local_from or (counts and not current.counted):
            current = Segment([], [], counted=True, number=len(segments))
            segments.append(current)
        current.local = local_from is not None and place >= local_from
        current.steps.append(step)
        if isinstance(step, steps.BatchStep):
            current.batches.append((step.size, step.drop))
        elif isinstance(step, (steps.FilterStep, steps.FlatMapStep)):
            current.counted = False
    for segment in segments:
        functions = [step.function for step in segment.steps if step.function is not None]
        segment.seeded = any(global_random.may_draw(function) for function in functions)
    return segments


@dataclasses.dataclass
class Plan:
    """A pipeline, ready to run.

    Attributes:
      root: where elements come from.
      steps: what is done with them, in order.
      local_from: number of the first step that must run in the trainer's process.
      seed: for the process-wide generators.
    """

    root: Root | Upstream
    steps: list[steps.Step]
    local_from: int | None = None
    seed: int = 0

    def segments(self, *, sparse: bool = False) -> list[Segment]:
        """Returns the segments, for a stream whose records are all there or for one with gaps."""
        sparse = sparse or (not isinstance(self.root, Upstream) and self.root.sparse)
        return cut(self.steps, sparse=sparse, local_from=self.local_from)


class Program:
    """What worker processes run, and the trainer's process with `worker_count=0`."""

    def __init__(self, plan: Plan, segments: Sequence[Segment]) -> None:
        self._root = plan.root
        self._segments = list(segments)
        self._seed = plan.seed

    @property
    def seeded(self) -> bool:
        """Whether a run may change the state of the process-wide generators."""
        return any(segment.seeded for segment in self._segments)

    def close(self) -> None:
        """Gives back what reading took."""
        if not isinstance(self._root, Upstream):
            self._root.close()

    def run(
        self, kind: int, payload: Any, inputs: list[Any], allocate: stacking.Allocate | None
    ) -> tuple[list[Any], Outcome]:
        """Runs segment `kind` on one task.

        Args:
          kind: number of the segment.
          payload: what `Root.prepare` gave, or `Gathered`.
          inputs: the elements of a later segment's unit.
          allocate: memory for batches; None means fresh memory.

        Returns:
          The outputs, and their whereabouts.
        """
        begin = time.perf_counter()
        segment = self._segments[kind]
        if isinstance(payload, Gathered):
            block = Block(inputs, payload.positions, payload.outputs, payload.rngs)
            block.ordinal = payload.ordinal
            block.describe = None if isinstance(self._root, Upstream) else self._root.describe
            done, results = 1, [(0, segment.run(block, allocate, self._seed))]
        else:
            done, results = self._run_units(segment, payload, allocate)
        outcome = Outcome(time.perf_counter() - begin, done)
        if not (segment.counted and len(results) == done):
            _add_whereabouts(outcome, results)
        if any(block.rngs is not None for _, block in results):
            outcome.rngs = [r for _, block in results for r in block.rngs or [None] * len(block)]
        return [element for _, block in results for element in block.data], outcome

    def _run_units(
        self, segment: Segment, payload: Any, allocate: stacking.Allocate | None
    ) -> tuple[int, list[tuple[int, Block]]]:
        """Runs one unit after the other, so that those before a faulty one still arrive.

        Returns:
          How many units were done, and pairs of unit and outputs.
        """
        asked = -(-payload.count // segment.unit)
        run: Callable[[Segment, Any, stacking.Allocate | None], Block]
        if segment.stacks_records and self._stacks:
            parts: Iterable[tuple[int, Any]] = enumerate(_parts(payload, segment.unit))
            run = self._run_stacked
        else:
            asked, block = self._read(segment, payload, asked)
            parts, run = _pieces(segment, block), self._run_piece
        results: list[tuple[int, Block]] = []
        for unit, part in parts:
            try:
                results.append((unit, run(segment, part, allocate)))
            except Exception:
                if not unit:
                    raise
                return unit, results
        return asked, results

    def _read(self, segment: Segment, payload: Any, units: int) -> tuple[int, Block]:
        """Reads the records of as many units as can be read, up to `units` and at least one."""
        assert not isinstance(self._root, Upstream)
        while True:
            try:
                block = self._root.read(payload)
            except Exception:
                if units == 1:
                    raise
                units //= 2
                payload = payload.part(0, units * segment.unit)
            else:
                if not segment.needs_all or block.rows is None:
                    return units, block
                units = _gap(block.rows) // segment.unit
                if not units:
                    raise SparseError
                whole = block.part(0, units * segment.unit)
                whole.rows = None
                return units, whole

    def _run_piece(
        self, segment: Segment, block: Block, allocate: stacking.Allocate | None
    ) -> Block:
        return segment.run(block, allocate, self._seed)

    @property
    def _stacks(self) -> bool:
        return not isinstance(self._root, Upstream) and self._root.stacks

    def _run_stacked(
        self, segment: Segment, payload: Any, allocate: stacking.Allocate | None
    ) -> Block:
        """Lets the source stack the records of a unit."""
        assert not isinstance(self._root, Upstream)
        found = self._root.read_batch(payload, allocate if len(segment.steps) == 1 else None)
        if found is not None:
            return segment.run_stacked(*found, self._seed)
        _, block = self._read(segment, payload, 1)
        return segment.run(block, allocate, self._seed)


def _gap(rows: Sequence[int]) -> int:
    """Returns the first number that is missing among 0, 1, 2 and so on."""
    return next((place for place, row in enumerate(rows) if place != row), len(rows))


def _parts(payload: Any, size: int) -> Iterator[Any]:
    """Yields the payload unit by unit."""
    for begin in range(0, payload.count, size):
        yield payload.part(begin, min(begin + size, payload.count))


def _pieces(segment: Segment, block: Block) -> Iterator[tuple[int, Block]]:
    """Yields units and their blocks; a unit whose record is absent is left out."""
    size, rows, first = segment.unit, block.rows, block.ordinal
    for place in range(0, len(block), size):
        piece = block.part(place, place + size)
        unit = place // size if rows is None else rows[place]
        piece.rows, piece.ordinal = None, first + unit * size
        yield unit, piece


def _add_whereabouts(outcome: Outcome, results: Sequence[tuple[int, Block]]) -> None:
    outcome.units = [unit for unit, block in results for _ in range(len(block))]
    outcome.positions = [int(p) for _, block in results for p in block.positions]
    if any(block.outputs is not None for _, block in results):
        outcome.outputs = [o for _, block in results for o in block.outputs or [0] * len(block)]
