"""Feeds: where the tasks of a segment come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra.running import Skip
from grain_jax._datasets.plan import Root, Segment
from grain_jax._datasets.program import Gathered, Outcome
from grain_jax._datasets.schedule import Lane, Span, kept
from grain_jax._execution.inline import Outputs
from grain_jax._execution.items import END, PENDING, Cursor, Item, Pull
from grain_jax._values.errors import StateError

__all__ = ["Groups", "Head"]

_MOST_UNITS = 16

# Single records that are batched later may be as many as a batch needs, up to this number.
_MOST_RECORDS = 256

# Where most records are left out a task may have more of them, for about as many outputs.
_MOST_SIFTED = 4096

# A task that takes longer than this does not gain by being larger,
_QUICK_SECONDS = 2e-3

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
    skips: tuple[Skip, ...] = ()

    def before(self, unit: int) -> Cursor:
        return (self.span.ordinal + min(unit * self.unit, self.span.count),)

    def last(self, unit: int) -> tuple[int, int]:
        place = min((unit + 1) * self.unit, self.span.count) - 1
        return self.span.first + self.span.stride * place, 0


class Head:
    """Tasks for the first segment: stretches of a lane's records.

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
        self._most = max(_MOST_UNITS if is_eager else 1, min(wanted, _MOST_RECORDS))
        self._units = 1
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
        waits = outcome.waited > outcome.seconds / 2
        limit = _PATIENCE_SECONDS if waits else _QUICK_SECONDS
        most = self._most
        if waits:
            most = min(_MOST_AT_ONCE // self._lane.unit, max(_MOST_UNITS, most))
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


@dataclasses.dataclass(slots=True)
class _Group:
    """One unit of a later segment: outputs of the segment before."""

    payload: Gathered
    inputs: Sequence[tuple[Any, Sequence[int]]]
    cursors: tuple[Cursor, Cursor]
    units: int
    label: str
    skips: tuple[Skip, ...] = ()

    def before(self, unit: int) -> Cursor:
        return self.cursors[unit]

    def last(self, unit: int) -> tuple[int, int]:
        outputs = self.payload.outputs
        return self.payload.positions[-1], outputs[-1] if outputs else 0


class _Share:
    """What one stream gives to the groups of a segment.

    Args:
      upstream: the stream.
      size: how many of its items belong to one group.
      batches: of which they are a unit, or an equal part of one; see `schedule.kept`.
      cursor: where the stream stands, and how many groups it has been part of.
    """

    def __init__(
        self, upstream: Pull, size: int, batches: list[tuple[int, bool]], cursor: Cursor
    ) -> None:
        self._upstream = upstream
        self._size = size
        self._batches = batches
        self._before, self.made = cursor[:-1], cursor[-1]
        self._items: list[Item] = []
        self._over = False
        self.left_over: list[Skip] = []

    @property
    def cursor(self) -> Cursor:
        """Where the stream stands after the groups it has been part of, and how many these are."""
        return (*self._before, self.made)

    def gather(self, block: bool) -> bool:
        """Whether the items of the next group are there, or all that are left for it."""
        while not self._over and len(self._items) < self._size:
            item = self._upstream.pull(block)
            if item is PENDING:
                return False
            if item is END:
                self._over = True
                keep = kept(len(self._items), self._batches)
                dropped = [skip for item in self._items[keep:] for skip in item.skips]
                self.left_over = dropped + self._upstream.left_over
                del self._items[keep:]
            else:
                self._items.append(item)
        return True

    def take(self, made: int) -> list[Item]:
        """Returns the gathered items, for the group after `made` others.

        Raises:
          StateError: if it was not part of all of these, though it has not ended.
        """
        items, self._items = self._items, []
        if items:
            if self.made != made:
                raise StateError(
                    f"one of the shards that are joined has given a share to {self.made} batches,"
                    f" and another one to {made}: their states were taken at different steps, or"
                    " the batch size is smaller than it was, so that what drop_remainder dropped of"
                    " a shard that has ended comes back. Restore the states of one step, with the"
                    " batch size of then, on all processes."
                )
            self._before, self.made = items[-1].cursor, made + 1
        return items


class Groups:
    """Tasks for a later segment: as many items of the stream before as make a unit.

    Several streams give an equal share each, one behind the other; one that has ended gives none.

    Args:
      streams: each with its cursor, which ends with the number of groups that it was part of.
      segment: whose units these are.
      local: whether the segment runs in this process.
      made: how many groups a stream that has not ended was part of, at least.
    """

    def __init__(
        self, streams: Sequence[tuple[Pull, Cursor]], segment: Segment, local: bool, made: int = 0
    ) -> None:
        batches, size = segment.batches, segment.unit // len(streams)
        if len(streams) > 1:
            ((_, drop),) = batches
            batches = [(size, drop)]
        self._shares = [_Share(stream, size, batches, cursor) for stream, cursor in streams]
        self._size = segment.unit
        self._local = local
        self._made: int = max(made, *(share.made for share in self._shares))
        self.left_over: list[Skip] = []

    def next(self, block: bool) -> Any:
        """Returns the next group once it is complete, PENDING, or END."""
        if not all(share.gather(block) for share in self._shares):
            return PENDING
        before = self._cursor()
        items = [item for share in self._shares for item in share.take(self._made)]
        if not items:
            self.left_over = [skip for share in self._shares for skip in share.left_over]
            return END
        return self._group(items, before)

    def rest(self, task: _Group, done: int) -> _Group:
        """A group is one unit, so nothing is ever left."""
        raise AssertionError("a group is done or it failed")

    def learn(self, outcome: Outcome) -> None:
        """A group's size is given."""

    def _cursor(self) -> Cursor:
        """The cursor of the only stream, or one entry with those of all."""
        cursors = tuple(share.cursor for share in self._shares)
        # A finished unit has no outputs behind it that are not behind the cursor.
        return cursors[0] if len(cursors) == 1 else (tuple((*one, 0) for one in cursors),)

    def _group(self, items: list[Item], before: Cursor) -> _Group:
        outputs = [item.output for item in items]
        payload = Gathered(
            [item.position for item in items],
            outputs if any(outputs) else None,
            self._made * self._size,
            [item.rng for item in items] if any(item.rng is not None for item in items) else None,
        )
        self._made += 1
        inputs: list[tuple[Any, Sequence[int]]] = []
        rows: list[int] = []
        for item in items:
            source = item.held if self._local else item.held.bundle
            if not inputs or inputs[-1][0] is not source:
                rows = []
                inputs.append((source, rows))
            rows.append(item.row)
        if self._local:
            elements = [item.element for item in items]
            inputs = [(Outputs(elements), range(len(elements)))]
        label = f"the group with positions {payload.positions[0]} to {payload.positions[-1]}"
        skips = tuple(skip for item in items for skip in item.skips)
        return _Group(payload, inputs, (before, self._cursor()), 1, label, skips)
