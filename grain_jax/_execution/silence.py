"""Silence: records that are read and give no element, counted until somebody has to be told."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from grain_jax._algebra.running import Skip
from grain_jax._datasets.outcomes import Outcome
from grain_jax._datasets.plan import Plan, Upstream, has_positions
from grain_jax._datasets.stages import Stage
from grain_jax._execution.runs import Task, read
from grain_jax._values import errors

__all__ = ["Silence", "of"]

_LONG = 5_000
"""After so many records without an element the log says so."""

_FEW = 100
"""So few batches dropped in a row say nothing, however many epochs are in them."""

_logger = logging.getLogger("grain_jax")


class Silence:
    """Counts what a stage has been given since it last gave an element.

    Two whole epochs in a row without one are an error, if the stream goes on: those to come have
    the same records. The end of a stream is no error, so that one or two empty epochs just end. So
    does a short stream of more epochs: where there is an end, it takes a long run, too.

    Args:
      epoch: records after which they come again; None if that is unknown, or nobody's business.
      least: units that have to be dropped in a row, at least, for an error.
      drops: says what may drop elements there.
      noun: what the stage is given.
      ends: whether the stream is known to end.
      by_units: whether elements are counted that the stage is given, and not the records behind
        them, which may come again.
    """

    def __init__(
        self,
        epoch: int | None = None,
        least: int = 0,
        drops: Callable[[], str] = lambda: "",
        noun: str = "records",
        ends: bool = False,
        by_units: bool = False,
    ) -> None:
        self._epoch = epoch
        self._least = least
        self._drops = drops
        self._noun = noun
        self._by_units = by_units
        self._long = _LONG
        # After more records than these there is an error.
        self._most = math.inf if epoch is None else max(2 * epoch, _LONG if ends else 0)
        self._bound = min(_LONG, self._most)
        self._told = False
        self.records = self._units = 0

    def end(self) -> None:
        """There was an element."""
        self.records = self._units = 0
        if self._told:
            # Where gaps are long by nature, only longer ones are worth a line.
            self._told, self._long = False, 2 * self._long

    def add(self, records: int, units: int = 1, cause: Skip | None = None) -> None:
        """Counts so many more that gave nothing, and logs that there are many.

        Args:
          records: how many.
          units: how many units they were.
          cause: the first of them that an error policy left out.
        """
        self.records += records
        self._units += units
        if self.records > self._long and not self._told:
            self._told = True
            _logger.warning(
                "%d %s in a row gave no element, and reading goes on.%s\nIf you do not expect "
                "that, look at some of what comes before the step that drops it.",
                self._long,
                self._noun,
                self._why(cause),
            )

    def _reach(self, task: Task, unit: int) -> int:
        return unit if self._by_units else read(task.before(unit))

    def pass_over(
        self, task: Task, outcome: Outcome, waiting: Sequence[Skip]
    ) -> tuple[int, errors.NoElementsError] | None:
        """Counts the units of a task that gave nothing.

        Args:
          task: which one.
          outcome: with the units of its outputs.
          waiting: records that an error policy left out before it, since the last element.

        Returns:
          The unit after which there is an error, and the error; None without one.
        """
        units, done = outcome.units or (), outcome.done
        if units and done == 1:
            self.end()
            return None
        begin, end = self._reach(task, 0), self._reach(task, done)
        if self.records + end - begin <= self._bound:
            if units:
                self.end()
                if (after := units[-1] + 1) < done:
                    self.add(end - self._reach(task, after), done - after)
            else:
                self.add(end - begin, done)
            return None
        # Some gap may be too long: each is looked at.
        first = 0
        for unit in (*units, done):
            if unit > first:
                skipped = (skip for row, skip in outcome.skipped if first <= row < unit)
                cause = next(iter(waiting) if waiting and not first else skipped, None)
                crossed = self._crossed(task, first, unit)
                if crossed is not None:
                    return crossed, self._error(cause)
                self.add(self._reach(task, unit) - begin, unit - first, cause)
            if first <= unit < done:
                self.end()
                first, begin = unit + 1, self._reach(task, unit + 1)
        return None

    def _crossed(self, task: Task, first: int, stop: int) -> int | None:
        """Returns the unit from `first` to `stop - 1` that is too many."""
        done = self.records - self._reach(task, first)
        for unit in range(first, stop):
            if (
                done + self._reach(task, unit + 1) > self._most
                and self._units + unit + 1 - first > self._least
            ):
                return unit
        return None

    def _error(self, cause: Skip | None) -> errors.NoElementsError:
        return errors.NoElementsError(
            f"two whole epochs in a row, of {self._epoch} {self._noun} each, gave no element."
            f"{self._why(cause)}\nThis stream would only go on reading. Mend the condition or the "
            "records. Where nothing may be left, read them once (num_epochs=1, or no repeat()): "
            "then the stream ends."
        )

    def _why(self, cause: Skip | None) -> str:
        text = f" What drops them: {drops}." if (drops := self._drops()) else ""
        if cause is not None:
            text += f" The first that on_error left out has {cause.kind}: {cause.text}"
        return text


def of(plan: Plan, stages: Sequence[Stage]) -> Silence:
    """Returns what counts for the last of some stages, from the first one on."""
    root, own = plan.root, stages[-1].steps
    titles = [step.title for step in own if step.counts in ("fewer", "any")]
    if not has_positions(root):
        is_own = isinstance(root, Upstream)
        noun = "elements of your IterDataset" if is_own else "elements"
        return Silence(None, 0, lambda: " and ".join(titles), noun, by_units=not is_own)

    def drops() -> str:
        found = [*root.drops, *titles] if len(stages) == 1 else titles
        # A policy that leaves records out is named with the last of these.
        return " and ".join(found) or ("" if plan.skips else "the source, which has None there")

    batched = root.batched or any(stage.batches for stage in stages)
    return Silence(root.epoch, _FEW if batched else 0, drops, ends=root.length is not None)
