"""Iterators that a pipeline runs: their position, their owner, their end."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from grain_jax._datasets import epochs
from grain_jax._datasets.stages import Stage
from grain_jax._execution import fingerprint, mixtures, ownership, states, waits
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.meter import Meter
from grain_jax._execution.pipeline import Pipeline
from grain_jax._values import checkpointable, closing, faults, forks, notices
from grain_jax._values.stats import Stats, StepStats

__all__ = ["Positioned"]

T = TypeVar("T")
State = TypeVar("State")


class Positioned(
    closing.Closing, checkpointable.StatefulCheckpointable, Iterator[T], Generic[T, State]
):
    """An iterator whose position can be saved and set, and that another iterator can own.

    While it is owned, its `next` raises, and its position is that of what the owner delivered.
    Subclasses define `_next`, `_state` and `_go_to`, and set `_mark`, the fingerprint.
    """

    _mark: dict[str, Any]

    number: int | None = None
    """Which epoch this is, of the iterators that `epochs()` gives; None for others."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._owner: ownership.Owner | None = None
        # Several threads may take elements; each element goes to one of them.
        self._lock = threading.RLock()
        self._torn = self._spent = False
        self._waits = None if pipeline.cuts.meter is None else waits.Waits()
        forks.renew(self)
        weakref.finalize(self, pipeline.close)

    def __iter__(self) -> Self:
        if self._spent and self.number is not None:
            raise epochs.spent(self)
        return self

    def __next__(self) -> T:
        ownership.refuse_owned(self, self._owner)
        waiting = self._waits
        if waiting is not None:
            waiting.ask(self.stats)
        try:
            with ownership.alone(self._lock):
                if self._torn:
                    self._torn = False
                    self._go_to(self._state())
                element = self._next()
                if waiting is not None:
                    waiting.got()
                return element
        except BaseException as error:
            self._spent = isinstance(error, StopIteration)
            if waiting is not None:
                waiting.left()
            faults.strip(error)
            raise

    def _renew(self) -> None:
        # In a child: another thread of the parent may have been inside `next`, half way.
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock, self._torn = threading.RLock(), True

    def get_state(self) -> State:
        """Returns the position after the last element you received: JSON, of constant size."""
        if self._owner is not None:
            state: State = self._owner.get_state(self._state)
            return state
        return self._state()

    def set_state(self, state: State) -> None:
        """Goes to a position that `get_state` returned.

        Where a stream counts its elements as they come (docs/multihost.md), a run on another number
        of processes goes on from what it returned on all of them: `{"processes": [...]}`.

        Raises:
          StateError: for what is no state, or one of another pipeline; it shows the difference.
        """
        with notices.telling("as its position was set"):
            if self._owner is not None:
                self._owner.set_state(state)
            else:
                self._go_to(state)
                self._spent = False

    def start_stats(self) -> None:
        """Begins to measure where the time goes; workers that are at work already are replaced.

        What it costs is about ten Python calls for each element.
        """
        if self._owner is not None:
            self._owner.start_stats()
            return
        with self._lock:
            self._measure_stages()
            self._waits = self._waits or waits.Waits()

    def stats(self) -> Stats:
        """Returns where the time has gone since `start_stats`, or `enable_profiling` had it begin.

        Raises:
          InvalidValueError: if nothing is measured.
        """
        if self._owner is not None:
            return self._owner.stats()
        if self._waits is None:
            raise waits.unmeasured(self)
        meter = self._stage_meter()
        ahead = None if meter is None or not meter.asked else meter.filled / meter.asked
        size = self._pipeline.capacity
        return waits.summary(
            self._waits,
            meter,
            self._stages_behind(),
            buffered=ahead if size else None,
            buffer_size=size or None,
            skipped=self.skipped_count,
        )

    def _measure_stages(self) -> None:
        """Has the pipeline measured, for who reads this one ahead."""
        self._pipeline.measure()

    def _stage_meter(self) -> Meter | None:
        """Returns what sums up the pipeline's costs; None where nothing is measured."""
        return self._pipeline.cuts.meter

    def _stages_behind(self) -> list[StepStats]:
        """Returns what is done behind the pipeline."""
        return []

    @property
    def skipped(self) -> tuple[str, ...]:
        """What the latest records that an `ErrorPolicy` left out failed with, 100 at most."""
        account = self._pipeline.account
        return () if account is None else tuple(f"{s.kind}: {s.text}" for s in account.latest)

    @property
    def skipped_count(self) -> int:
        """How many records an `ErrorPolicy` has left out so far; the state goes on from there."""
        return self._pipeline.skipped_count

    @property
    def mixture_counts(self) -> dict[str, dict[str, int]]:
        """How many elements of each part of a mixture of streams are done with, and their weight.

        By name, or number, of the parts: `{"web": {"elements": 12, "weight": 340}, ...}`; a part of
        a part stands behind it, as "web/news". Elements that wait for others, as in a row that is
        being packed, do not count yet. Where weights or parts changed as a state was restored, it
        is those since then.
        """
        state: Any = self.get_state()
        value = json.loads(state) if isinstance(state, bytes) else state
        if value["elastic"]:
            return {}
        layout, position = states.decode(
            value, self._pipeline, self._mark, lanes=None, strict=False
        )
        form = self._pipeline.form(position, layout)
        return mixtures.counts(form, form.start if position.cursor is None else position.cursor)

    def start_prefetch(self) -> None:
        """Starts workers, if there are any, ahead of the first `next`."""
        if self._owner is not None:
            self._owner.start_prefetch()
        else:
            self._pipeline.advance()

    def close(self) -> None:
        """Ends workers and threads; idempotent, from any thread."""
        self._pipeline.close()

    def _next(self) -> T:
        raise NotImplementedError

    def _state(self) -> State:
        raise NotImplementedError

    def _go_to(self, state: State) -> None:
        raise NotImplementedError

    def _batch_rows(self) -> tuple[tuple[int, ...], int | None] | None:
        """Returns rows of a full batch and of the last one here; see `Layout.batch_rows`."""
        return self._pipeline.batch_rows()

    def _keep_rest(self, rule: str) -> None:
        """Says what becomes of an incomplete batch of batches; see `Pipeline.keep_rest`."""
        self._pipeline.keep_rest(rule)

    def _batch_sizes(self) -> tuple[int, ...] | None:
        """Returns the sizes of the batches in an element, innermost first; None without any."""
        return self._pipeline.plan.batch_sizes()

    def _outlook(self) -> tuple[bool, int] | None:
        """Returns what is known of the last element and of those to come; see `Layout.outlook`."""
        return self._pipeline.outlook()

    def _tally(self) -> int | None:
        """How many records an error policy had left out at the last element; None without one."""
        return None if self._pipeline.account is None else self._pipeline.position.skipped

    def _declared(self) -> fingerprint.Declared | None:
        """Returns what the pipeline says of its stream."""
        pipeline = self._pipeline
        return fingerprint.declared(self._mark, pipeline.plan, pipeline.layout)

    def _standing(self, state: State) -> dict[str, int]:
        """Returns how far a state is, in numbers that all shards of an order have alike.

        That is the position of an elastic stream, and of others the number of batches, where each
        is one that nothing can leave out.
        """
        value: Any = json.loads(state) if isinstance(state, bytes) else state
        layout, position = states.decode(
            value, self._pipeline, self._mark, lanes=None, strict=False
        )
        if value["elastic"] and layout.shards > 1:
            return {"records": position.base}
        batches = _batches(layout, position, self._pipeline.stages_of(position))
        return {} if batches is None else {"batches": batches}

    def _draws(self) -> str:
        """Returns what may draw in this process; see `Owned.draws`."""
        return self._pipeline.cuts.draws()

    def _is_fresh(self) -> bool:
        """Whether nobody but who calls `_next` has a hold on the memory of what it returns."""
        return self._pipeline.cuts.is_fresh

    def _hand_over(self, owner: ownership.Owner) -> ownership.Owned:
        ownership.refuse_owned(self, self._owner)
        self._owner = owner
        return _Held(self)


def _batches(layout: Layout, position: Position, stages: Sequence[Stage]) -> int | None:
    """Returns how many batches are behind a position; None where batches are not counted."""
    *before, last = stages
    if layout.lanes > 1 or last.nest is None:
        return None
    place = None if position.cursor is None else position.cursor[0]
    if before or isinstance(place, tuple):
        return 0 if place is None else max(place[1])
    lane = layout.lane(0, position.base, last)
    records: int = 0 if place is None else place - lane.before
    return -(-(position.base - layout.start) // (lane.unit * layout.shards)) - (
        -records // lane.unit
    )


class _Held:
    """The iterator in the hands of whoever reads it ahead."""

    has_state = True

    def __init__(self, iterator: Positioned[Any, Any]) -> None:
        self.draws = iterator._draws()
        self.is_fresh = iterator._is_fresh()
        self.next = iterator._next
        self.state = iterator._state
        self.set_state = iterator._go_to
        self.close = iterator.close
