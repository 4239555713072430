"""Program: the function of a task that worker processes run, and this process in their place."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grain_jax._algebra import access, stacking
from grain_jax._algebra.blocks import Block
from grain_jax._datasets.plan import Plan, Segment, Upstream
from grain_jax._values import faults, progress

__all__ = ["Gathered", "Outcome", "Program", "Read", "Skip", "SparseError"]


_LONGEST = 1_000
"""Characters of an exception's text that are kept of a record that is left out."""


@dataclasses.dataclass(slots=True)
class Gathered:
    """The payload of a later segment: the whereabouts of one unit's elements."""

    positions: list[int]
    outputs: list[int] | None
    ordinal: int
    rngs: list[Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Skip:
    """A record that an error policy left out.

    Attributes:
      kind: name of the exception's class.
      text: what it said, with the notes on step, position, key, and the user's line.
    """

    kind: str
    text: str


@dataclasses.dataclass(slots=True)
class Outcome:
    """What the trainer needs to know about the outputs of a task, besides the outputs.

    Attributes:
      seconds: how long the task took.
      waited: how much of it went by in reading without work for this thread.
      done: units that were completed; fewer than asked for where a later one failed.
      units: for each output the unit, counted within the task; None where each gave one output.
      positions: for each output the position of its last record; empty where `units` is None.
      outputs: for each output its flat-map number; None while all are 0.
      skipped: records that were left out, with the unit they were, in order.
      error: what the unit after those that are done has raised.
      rngs: for each output the generator that a sampler gave, with what was drawn from it; None if
        it gave none.
    """

    seconds: float
    waited: float
    done: int
    units: list[int] | None = None
    positions: list[int] = dataclasses.field(default_factory=list)
    outputs: list[int] | None = None
    rngs: list[Any] | None = None
    skipped: list[tuple[int, Skip]] = dataclasses.field(default_factory=list)
    error: Any = None


class SparseError(Exception):
    """An element is absent where a batch counts on it: the stream has to be counted as it runs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """The records of some units, and how long reading them only waited, in seconds."""

    units: int
    block: Block
    waited: float


class Program:
    """What worker processes run, and the trainer's process with `worker_count=0`."""

    def __init__(self, plan: Plan, segments: Sequence[Segment]) -> None:
        self._root = plan.root
        self._segments = list(segments)
        self._seed = plan.seed
        self._skips = plan.skips

    @property
    def seeded(self) -> bool:
        """Whether a run may change the state of the process-wide generators."""
        return any(segment.seeded for segment in self._segments)

    def close(self) -> None:
        """Gives back what reading took."""
        if not isinstance(self._root, Upstream):
            self._root.close()

    @property
    def closes(self) -> bool:
        """Whether a worker that ends has to call `finish`."""
        return not isinstance(self._root, Upstream) and self._root.closes

    def finish(self) -> None:
        """Closes what a worker has of the source, at its end."""
        if not isinstance(self._root, Upstream):
            self._root.close()
            self._root.close_source()

    def read(self, kind: int, payload: Any) -> Read | None:
        """Reads what `run` is going to need, ahead of time; None where each unit is read alone.

        That is where the source stacks, or answers for a whole batch in one call.
        """
        segment = self._segments[kind]
        units = -(-payload.count // segment.unit)
        assert not isinstance(self._root, Upstream)
        if segment.stacks_records and self._root.stacks:
            return None
        if segment.batches and units > 1 and self._root.reads_at_once:
            return None
        return self._read(segment, payload)

    def run(
        self,
        kind: int,
        payload: Any,
        inputs: list[Any],
        allocate: stacking.Allocate | None,
        ready: Read | BaseException | None = None,
    ) -> tuple[list[Any], Outcome]:
        """Runs segment `kind` on one task.

        Args:
          kind: number of the segment.
          payload: what `Root.prepare` gave, or `Gathered`.
          inputs: the elements of a later segment's unit.
          allocate: memory for batches; None means fresh memory.
          ready: what `read` returned for this payload, or raised, if it was asked.

        Returns:
          The outputs, and their whereabouts.
        """
        begin = time.perf_counter()
        segment = self._segments[kind]
        skipped: list[tuple[int, Skip]] = []
        if isinstance(payload, Gathered):
            block = Block(inputs, payload.positions, payload.outputs, payload.rngs)
            block.ordinal = payload.ordinal
            block.describe = None if isinstance(self._root, Upstream) else self._root.describe
            waited, done, results = 0.0, 1, [(0, segment.run(block, allocate, self._seed))]
            error = None
        else:
            if ready is None:
                ready = self._tried(kind, payload, _caught(allocate))
            waited = ready.waited if isinstance(ready, Read) else 0.0
            try:
                done, results, error = self._run_units(segment, payload, ready, allocate, skipped)
            finally:
                ready = None  # it may be an exception, whose traceback leads to this frame
        seconds = time.perf_counter() - begin
        outcome = Outcome(seconds, waited, done, skipped=skipped, error=error)
        del error  # its traceback leads to this frame
        if not (segment.counted and len(results) == done):
            _add_whereabouts(outcome, results)
        if any(block.rngs is not None for _, block in results):
            outcome.rngs = [r for _, block in results for r in block.rngs or [None] * len(block)]
        return [element for _, block in results for element in block.data], outcome

    def before(
        self,
        kind: int,
        payload: Any,
        outputs: list[Any],
        outcome: Outcome,
        row: int,
        error: Exception,
    ) -> tuple[list[Any], Outcome]:
        """Returns the outputs of the units before the one of output `row`, which cannot be sent.

        Raises:
          Exception: `error`, if it is the first unit.
        """
        segment = self._segments[kind]
        unit = row if outcome.units is None else outcome.units[row]
        title = segment.steps[-1].title if segment.steps else "the source"
        located = faults.located(error, title, self._place(payload, outcome, segment, row))
        if not unit:
            raise located
        count = outcome.units.index(unit) if outcome.units is not None else row
        return outputs[:count], dataclasses.replace(
            outcome,
            done=unit,
            units=None if outcome.units is None else outcome.units[:count],
            positions=outcome.positions[:count],
            outputs=None if outcome.outputs is None else outcome.outputs[:count],
            rngs=None if outcome.rngs is None else outcome.rngs[:count],
            skipped=[pair for pair in outcome.skipped if pair[0] < unit],
            error=located,
        )

    def _place(self, payload: Any, outcome: Outcome, segment: Segment, row: int) -> str:
        """Says which record an output is made of, or the last of them."""
        if outcome.units is not None:
            position = outcome.positions[row]
        elif isinstance(payload, Gathered):
            position = payload.positions[-1]
        else:
            span = getattr(payload, "span", payload)
            position = int(span.positions()[min((row + 1) * segment.unit, span.count) - 1])
        return (
            f"position {position}"
            if isinstance(self._root, Upstream)
            else (self._root.describe(position))
        )

    def _tried(
        self, kind: int, payload: Any, caught: type[BaseException]
    ) -> Read | BaseException | None:
        """Returns what `read` returns, or what it raises."""
        try:
            return self.read(kind, payload)
        except SparseError:
            raise
        except caught as error:
            return error

    def _run_units(
        self,
        segment: Segment,
        payload: Any,
        ready: Read | BaseException | None,
        allocate: stacking.Allocate | None,
        skipped: list[tuple[int, Skip]],
    ) -> tuple[int, list[tuple[int, Block]], BaseException | None]:
        """Runs one unit after the other, so that those before a faulty one still arrive.

        Where reading them together failed, each is read alone, to see which one it was. Units that
        are left out are added to `skipped`.

        Returns:
          How many units were done, pairs of unit and outputs, and what the next unit raised.
        """
        run: Callable[[Segment, Any, stacking.Allocate | None], Block | None]
        if isinstance(ready, Read):
            asked = ready.units
            parts, run = _pieces(segment, ready.block), self._run_piece
        else:
            asked = -(-payload.count // segment.unit)
            parts, run = _parts(payload, segment.unit), self._run_part
        together = ready if isinstance(ready, BaseException) else None
        caught = _caught(allocate)
        results: list[tuple[int, Block]] = []
        try:
            for unit, part in parts:
                try:
                    if together is not None and asked == 1:
                        raise together
                    result = run(segment, part, allocate)
                    if result is not None:
                        results.append((unit, result))
                except self._skips as error:
                    skipped.append(
                        (unit, Skip(type(error).__name__, faults.described(error, _LONGEST)))
                    )
                except caught as error:
                    if not unit:
                        raise
                    return unit, results, error
            if together is not None and not isinstance(together, self._skips):
                raise together  # it did not come again, and is raised all the same
            return asked, results, None
        finally:
            ready = together = None  # the traceback of what was caught leads to this frame

    def _read(self, segment: Segment, payload: Any) -> Read:
        """Reads the records of all units, or of those before the first one with a gap."""
        assert not isinstance(self._root, Upstream)
        progress.at(access.READING)
        begin, busy = time.perf_counter(), time.thread_time()
        block = self._root.read(payload)
        waited = time.perf_counter() - begin - (time.thread_time() - busy)
        units = -(-payload.count // segment.unit)
        if segment.needs_all and block.rows is not None:
            units = _gap(block.rows) // segment.unit
            if not units:
                raise SparseError
            block = block.part(0, units * segment.unit)
            block.rows = None
        return Read(units, block, waited)

    def _run_piece(
        self, segment: Segment, block: Block, allocate: stacking.Allocate | None
    ) -> Block:
        return segment.run(block, allocate, self._seed)

    def _run_part(
        self, segment: Segment, payload: Any, allocate: stacking.Allocate | None
    ) -> Block | None:
        """Reads a unit and runs it; None if its record is absent. Lets the source stack."""
        assert not isinstance(self._root, Upstream)
        if segment.stacks_records and self._root.stacks:
            progress.at(access.READING)
            found = self._root.read_batch(payload, allocate if len(segment.steps) == 1 else None)
            if found is not None:
                return segment.run_stacked(*found, self._seed)
        block = self._read(segment, payload).block
        return segment.run(block, allocate, self._seed) if len(block) else None


def _caught(allocate: stacking.Allocate | None) -> type[BaseException]:
    """Returns what counts as an error of the unit that raised it.

    No signal reaches a worker, which is where `allocate` is given: a KeyboardInterrupt there is the
    unit's own. In the trainer's process it is an answer to now, whichever unit is under way.
    """
    return Exception if allocate is None else BaseException


def _gap(rows: Sequence[int]) -> int:
    """Returns the first number that is missing among 0, 1, 2 and so on."""
    return next((place for place, row in enumerate(rows) if place != row), len(rows))


def _parts(payload: Any, size: int) -> Iterator[tuple[int, Any]]:
    """Yields units and their payloads."""
    for unit, begin in enumerate(range(0, payload.count, size)):
        yield unit, payload.part(begin, min(begin + size, payload.count))


def _pieces(segment: Segment, block: Block) -> Iterator[tuple[int, Block]]:
    """Yields units and their blocks; a unit whose record is absent is left out."""
    size, rows, first = segment.unit, block.rows, block.ordinal
    for place in range(0, len(block), size):
        piece = block.move(place, place + size)
        unit = place // size if rows is None else rows[place]
        piece.rows, piece.ordinal = None, first + unit * size
        yield unit, piece


def _add_whereabouts(outcome: Outcome, results: Sequence[tuple[int, Block]]) -> None:
    outcome.units = [unit for unit, block in results for _ in range(len(block))]
    outcome.positions = [int(p) for _, block in results for p in block.positions]
    if any(block.outputs is not None for _, block in results):
        outcome.outputs = [o for _, block in results for o in block.outputs or [0] * len(block)]
