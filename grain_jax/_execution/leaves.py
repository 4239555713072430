"""Leaves: streams that begin, of records by their positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra.running import Skip
from grain_jax._datasets.outcomes import Outcome
from grain_jax._datasets.plan import Root
from grain_jax._datasets.schedule import Lane, Span
from grain_jax._execution.runs import END, Whereabouts
from grain_jax._values.options import ReadOptions

__all__ = ["MOST_UNITS", "QUICK_SECONDS", "Records"]

MOST_UNITS = 16

# Single records that are batched later may be as many as a batch needs, in this process up to so
# many at once. Workers take that many batches' worth at once, where these are quick.
_MOST_RECORDS = 256

# Where most records are left out a task may have more of them, for about as many outputs.
_MOST_SIFTED = 4096

# A task that takes longer than this does not gain by being larger,
QUICK_SECONDS = 2e-3

# unless it mostly waits, for fewer records than a reader has threads.
_PATIENCE_SECONDS = 25e-3
_MOST_AT_ONCE = 64


@dataclasses.dataclass(slots=True)
class _Stretch:
    """Neighbouring units of records."""

    payload: Any
    span: Span
    unit: int
    units: int
    label: str
    inputs: Sequence[tuple[Any, Sequence[int]]] = ()
    skips: tuple[tuple[int, Skip], ...] = ()

    def before(self, unit: int) -> int:
        return self.span.ordinal + min(unit * self.unit, self.span.count)

    def whereabouts(self, begin: int, end: int) -> Whereabouts:
        span, unit = self.span, self.unit
        last = span.first + span.stride * (span.count - 1)
        first = span.first + span.stride * (unit - 1)
        step = span.stride * unit
        found = range(first + step * begin, first + step * end, step)
        if found and found[-1] > last:  # the last unit has fewer records
            return [*found[:-1], last], None, None
        return found, None, None

    def release(self) -> None:
        """There are none."""


class Records:
    """Tasks for the stage that reads: stretches of a lane's records.

    A task takes as many units as keep it short but worth its while.

    Args:
      root: what is read.
      lane: which positions.
      ordinal: where to begin.
      is_eager: whether handing a task over costs something.
      wanted: how many units are wanted at once.
    """

    def __init__(
        self, root: Root, lane: Lane, ordinal: int, is_eager: bool, wanted: int = 1
    ) -> None:
        self._root = root
        self._lane = lane
        self._ordinal = ordinal
        self._most = max(1, min(wanted, _MOST_RECORDS))
        if is_eager:
            self._most = MOST_UNITS if wanted == 1 else min(self._most * MOST_UNITS, _MOST_SIFTED)
        self._units = 1
        reading = getattr(root, "read_options", ReadOptions())
        self._reads_together = root.reads_at_once or reading.num_threads != 0
        self.left_over: list[Skip] = []

    def next(self, block: bool) -> Any:
        """Returns the next stretch, or END."""
        span = self._lane.span(self._ordinal, self._units)
        if span is None:
            return END
        payload = self._root.prepare(span)
        if payload is None:
            return END
        span = span.part(0, payload.count)
        self._ordinal += span.count
        return self._task(payload, span)

    def rest(self, task: _Stretch, done: int) -> _Stretch:
        """Returns the stretch after the first `done` units."""
        begin, end = done * self._lane.unit, task.span.count
        return self._task(task.payload.part(begin, end), task.span.part(begin, end))

    def learn(self, outcome: Outcome) -> None:
        """Doubles the stretches while they are quick, or gain by waiting for several records."""
        # Where records are read one after the other, it was another process that went on instead.
        waits = self._reads_together and outcome.waited > outcome.seconds / 2
        limit = _PATIENCE_SECONDS if waits else QUICK_SECONDS
        most = self._most
        if waits:
            most = min(_MOST_AT_ONCE // self._lane.unit, max(MOST_UNITS, most))
        elif outcome.units is not None:
            sifted = most * outcome.done // max(1, len(outcome.units))
            most = max(most, min(sifted, _MOST_SIFTED))
        if outcome.seconds < limit and self._units < most:
            self._units *= 2
        elif outcome.seconds > 4 * limit and self._units > 1:
            self._units //= 2

    def _task(self, payload: Any, span: Span) -> _Stretch:
        units = -(-span.count // self._lane.unit)
        last = span.first + span.stride * (span.count - 1)
        label = (
            f"position {last}"
            if span.count == 1
            else f"positions {span.first} to {last}"
            + (f" in steps of {span.stride}" if span.stride > 1 else "")
        )
        return _Stretch(payload, span, self._lane.unit, units, label)
