"""Program: the function of a task that worker processes run, and this process in their place."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra import access, stacking
from grain_jax._algebra.blocks import Block, Sieved
from grain_jax._algebra.running import Failures, without
from grain_jax._datasets.outcomes import GapError, Gathered, Outcome, Read
from grain_jax._datasets.plan import Plan, has_positions, sent
from grain_jax._datasets.stages import Stage
from grain_jax._datasets.units import before_gap, each, of_block, of_groups, of_payload
from grain_jax._values import clock, faults, progress

__all__ = ["Program"]

_BRIEF_SECONDS = 2e-4
"""Of a read that takes less nobody asks how much of it was waiting."""


class Program:
    """What worker processes run, and the trainer's process with `worker_count=0`.

    Args:
      plan: the pipeline.
      stages: all that its branches are cut into, by their numbers.

    Attributes:
      is_measured: whether somebody asks what tasks take.
    """

    is_measured = False

    def __init__(self, plan: Plan, stages: Sequence[Stage]) -> None:
        leaves = plan.leaves()
        self._roots = [root for root in leaves if has_positions(root)]
        for root in self._roots[1:]:
            root.threads = self._roots[0].threads  # one set for all that a process reads
        self._stages = list(stages)
        self._skips = plan.skips
        self._slow: set[int] = set()  # stages that took long when they last read
        self._stays = len(self._roots) < len(leaves)

    def __getstate__(self) -> dict[str, Any]:
        if not self._stays:
            return self.__dict__
        # An iterable of the user's is read in the trainer, and need not pickle.
        stages = [dataclasses.replace(one, origin=sent(one.origin)) for one in self._stages]
        return {**self.__dict__, "_stages": stages}

    @property
    def seeded(self) -> bool:
        """Whether a run may change the state of the process-wide generators."""
        return any(stage.seeded for stage in self._stages)

    def close(self) -> None:
        """Gives back what reading took."""
        for root in self._roots:
            root.close()

    @property
    def closes(self) -> bool:
        """Whether a worker that ends has to call `finish`."""
        return any(root.closes for root in self._roots)

    def finish(self) -> None:
        """Closes what a worker has of the sources, at its end."""
        for root in self._roots:
            root.close()
            root.close_source()

    def read(self, number: int, payload: Any) -> Read | None:
        """Reads what `run` is going to need, ahead of time; None where each unit is read alone.

        That is where the source stacks, or answers for a whole batch in one call.
        """
        stage = self._stages[number]
        units = -(-payload.count // stage.unit)
        if stage.stacks_records and stage.origin.stacks:
            return None
        if stage.batches and units > 1 and stage.origin.reads_at_once:
            return None
        return self._read(stage, payload)

    def read_ahead(self, number: int, payload: Any) -> Read | None:
        """Does what `read` does, in a thread that is ahead of the tasks."""
        return self.read(number, payload)

    def run(
        self,
        number: int,
        payload: Any,
        inputs: list[Any],
        allocate: stacking.Allocate | None,
        ready: Read | BaseException | None = None,
    ) -> tuple[list[Any], Outcome]:
        """Runs stage `number` on one task.

        Args:
          number: number of the stage.
          payload: what `Root.prepare` gave, or `Gathered`.
          inputs: the elements of a later stage's units.
          allocate: memory for batches; None means fresh memory.
          ready: what `read` returned for this payload, or raised, if it was asked.

        Returns:
          The outputs, and their whereabouts.
        """
        begin = time.perf_counter()
        stage = self._stages[number]
        waited = 0.0
        # Only single records may be left out, not what is made of several.
        is_read = not isinstance(payload, Gathered)
        skips = self._skips if is_read or stage.may_skip else ()
        failures = Failures(_at_once(allocate), skips)
        if stage.watched:
            failures.sieved = []
        if isinstance(payload, Gathered):
            done, block = self._run_gathered(stage, payload, inputs, allocate, failures)
        else:
            if ready is None:
                ready = self._tried(number, payload, _at_once(allocate))
            waited = ready.waited if isinstance(ready, Read) else 0.0
            try:
                done, block = self._run_units(stage, payload, ready, allocate, failures)
            finally:
                ready = None  # it may be an exception, whose traceback leads to this frame
        seconds = time.perf_counter() - begin
        outcome = Outcome(seconds, waited, done, skipped=failures.skipped, error=failures.error)
        failures.error = None  # its traceback leads to this frame
        if block.rows is not None:
            outcome.units, outcome.outputs = block.rows, block.outputs
            outcome.positions = [int(position) for position in block.positions]
        outcome.rngs, outcome.measures = block.rngs, block.measures
        outcome.sieved = failures.sieved
        return block.data, outcome

    def before(
        self,
        number: int,
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
        stage = self._stages[number]
        unit = row if outcome.units is None else outcome.units[row]
        title = stage.steps[-1].title if stage.steps else "the source"
        located = faults.located(error, title, self._place(payload, outcome, stage, row))
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
            measures=outcome.measures and [column[:count] for column in outcome.measures],
            skipped=[pair for pair in outcome.skipped if pair[0] < unit],
            error=located,
        )

    def _place(self, payload: Any, outcome: Outcome, stage: Stage, row: int) -> str:
        """Says which record an output is made of, or the last of them."""
        if outcome.units is not None:
            position = outcome.positions[row]
        elif isinstance(payload, Gathered):
            count = row + 1 if payload.sizes is None else sum(payload.sizes[: row + 1])
            position = payload.positions[count - 1]
        else:
            span = getattr(payload, "span", payload)
            position = int(span.positions()[min((row + 1) * stage.unit, span.count) - 1])
        described: str = stage.origin.describe(position)
        return described

    def _tried(
        self, number: int, payload: Any, at_once: tuple[type[BaseException], ...]
    ) -> Read | BaseException | None:
        """Returns what `read` returns, or what it raises."""
        try:
            return self.read(number, payload)
        except GapError:
            raise
        except at_once:
            raise
        except BaseException as error:
            return error

    def _run_gathered(
        self,
        stage: Stage,
        payload: Gathered,
        inputs: list[Any],
        allocate: stacking.Allocate | None,
        failures: Failures,
    ) -> tuple[int, Block]:
        """Runs a later stage on the elements of batches, or on single elements."""
        block = Block(inputs, payload.positions, payload.outputs, payload.rngs)
        block.ordinal = payload.ordinal
        block.describe, block.sieved = stage.origin.describe, failures.sieved
        if payload.sizes is None:
            done = len(block)
            block = stage.run(block, allocate, stage.seed, failures)
        else:
            done = len(payload.sizes)
            groups = of_groups(stage, payload.sizes, payload.layouts, block)
            block = each(groups, lambda group: stage.run(group, allocate, stage.seed), failures)
        return self._settled(stage, done, block, failures)

    def _run_units(
        self,
        stage: Stage,
        payload: Any,
        ready: Read | BaseException | None,
        allocate: stacking.Allocate | None,
        failures: Failures,
    ) -> tuple[int, Block]:
        """Runs all units, so that those before a faulty one still arrive.

        Where each record is a unit they run together, step by step. Where reading them together
        failed, each is read alone, to see which one it was.

        Returns:
          How many units were done, and the outputs; their rows are units, or None for one each.

        Raises:
          BaseException: what the first unit raised.
        """
        if isinstance(ready, Read):
            _sift(stage, ready.block, payload.count, failures)
        if isinstance(ready, Read) and not stage.batches:
            done, block = ready.units, stage.run(ready.block, allocate, stage.seed, failures)
        else:
            done, block = self._run_each(stage, payload, ready, allocate, failures)
        return self._settled(stage, done, block, failures)

    @staticmethod
    def _settled(stage: Stage, done: int, block: Block, failures: Failures) -> tuple[int, Block]:
        """Returns how many units were done, and the outputs, whose rows are None for one each."""
        if failures.stop is not None:
            done = failures.stop
            if not done:
                failures.throw()
        if block.rows is not None and stage.counted and len(block) == done:
            block.rows = None
        return done, block

    def _run_each(
        self,
        stage: Stage,
        payload: Any,
        ready: Read | BaseException | None,
        allocate: stacking.Allocate | None,
        failures: Failures,
    ) -> tuple[int, Block]:
        """Runs one unit after the other."""
        if isinstance(ready, Read):
            pieces = of_block(stage, ready.block)
            return ready.units, each(
                pieces, lambda piece: stage.run(piece, allocate, stage.seed), failures
            )
        asked, together = -(-payload.count // stage.unit), ready

        def run(part: Any) -> Block | None:
            if together is not None and asked == 1:
                raise together
            return self._run_part(stage, part, allocate, failures)

        try:
            block = each(of_payload(payload, stage.unit), run, failures)
            if (
                together is not None
                and failures.stop is None
                and not isinstance(together, self._skips)
            ):
                # It did not come again, and is raised all the same: behind the units before it.
                failures.add((access.failed_row(together) or 0) // stage.unit, together)
                block = without(block, failures)
            return asked, block
        finally:
            ready = together = None  # the traceback of what was caught leads to this frame

    def _read(self, stage: Stage, payload: Any) -> Read:
        """Reads the records of all units, or of those before the first one with a gap."""
        count = payload.count
        progress.at(access.READING, None, count)
        # Asking for a thread's time can cost more than a brief read does.
        is_slow = stage.number in self._slow
        begin, busy = time.perf_counter(), time.thread_time() if is_slow else 0.0
        block = stage.origin.read(payload)
        seconds = time.perf_counter() - begin
        waited = seconds - (time.thread_time() - busy) if is_slow else 0.0
        (self._slow.discard if seconds < _BRIEF_SECONDS else self._slow.add)(stage.number)
        if (running := clock.here.clock) is not None:
            running.waited += waited
        units = -(-count // stage.unit)
        if stage.needs_all and block.rows is not None:
            units = before_gap(block.rows) // stage.unit
            if not units:
                raise GapError
            block = block.part(0, units * stage.unit)
            block.rows = None
        return Read(units, block, waited)

    def _run_part(
        self,
        stage: Stage,
        payload: Any,
        allocate: stacking.Allocate | None,
        failures: Failures,
    ) -> Block | None:
        """Reads a unit and runs it; None if its record is absent. Lets the source stack."""
        if stage.stacks_records and stage.origin.stacks:
            progress.at(access.READING, None, payload.count if self.is_measured else 0)
            place = allocate if len(stage.steps) == 1 else None
            found = stage.origin.read_batch(payload, place)
            if found is not None:
                batch, where = found
                if (running := clock.here.clock) is not None and running.weighs:
                    running.weigh(access.READING, [batch])
                return stage.run_stacked(batch, where, stage.seed)
        block = self._read(stage, payload).block
        _sift(stage, block, payload.count, failures)
        return stage.run(block, allocate, stage.seed) if len(block) else None


def _sift(stage: Stage, block: Block, count: int, failures: Failures) -> None:
    """Notes how many of the records are there, and has the filters note what they leave."""
    block.sieved = failures.sieved
    if block.sieved is not None and stage.origin.has_gaps:
        block.sieved.append(Sieved("", count, None, block.rows))


def _at_once(allocate: stacking.Allocate | None) -> tuple[type[BaseException], ...]:
    """Returns what is no error of the unit that raised it.

    No signal reaches a worker, which is where `allocate` is given: a KeyboardInterrupt there is the
    unit's own. In the trainer's process it is an answer to now, whichever unit is under way.
    """
    return (KeyboardInterrupt, SystemExit, GeneratorExit) if allocate is None else ()
