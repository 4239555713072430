"""Building: the streams of a pipeline, behind one another and side by side, from a cursor on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra.groupings.base import Grouping
from grain_jax._algebra.groupings.batch import Batch
from grain_jax._algebra.groupings.turns import Turns
from grain_jax._algebra.running import Skip
from grain_jax._datasets.plan import Plan, Segment, Upstream
from grain_jax._execution import inline, silence
from grain_jax._execution.gathering import Passed
from grain_jax._execution.grouped import Each, Groups
from grain_jax._execution.layout import Layout
from grain_jax._execution.leaves import Own, Records
from grain_jax._execution.runs import Cursor, Feed, Stream
from grain_jax._execution.stages import Stage

__all__ = ["Builder", "start"]

_MOST_TOGETHER = 64
"""Elements of a task of a later stage that acts on each by itself."""


def start(plan: Plan, layout: Layout, segments: Sequence[Segment], base: int) -> Cursor:
    """Returns the cursor before the first element.

    Args:
      plan: the pipeline.
      layout: shards and lanes.
      segments: those that run.
      base: position from which shards are counted.
    """
    away = [segment for segment in segments if not segment.local]
    each = away[:-1] if layout.joined > 1 else away
    lanes = [_lane(plan, layout, each, base, index) for index in range(layout.streams)]
    cursor = lanes[0]
    if layout.joined > 1:
        cursor = _over(lanes, _batch(away[-1]))
    elif layout.lanes > 1:
        cursor = _over(lanes, Turns())
    for segment in segments[len(away) :]:
        cursor = _behind(cursor, segment)
    return cursor


def _lane(plan: Plan, layout: Layout, segments: Sequence[Segment], base: int, index: int) -> Cursor:
    cursor: Cursor = (0, None)
    if not isinstance(plan.root, Upstream):
        cursor, segments = (layout.lane(index, base, None).before, 0), segments[1:]
    for segment in segments:
        cursor = _behind(cursor, segment)
    return cursor


def _behind(cursor: Cursor, segment: Segment) -> Cursor:
    """Returns the start of a later stage."""
    return _over([cursor], _batch(segment)) if segment.batches else (((cursor,), (0,), 0), 0)


def _batch(segment: Segment) -> Batch:
    return Batch(tuple(segment.batches))


def _over(cursors: Sequence[Cursor], grouping: Grouping) -> Cursor:
    return (tuple(cursors), grouping.first(len(cursors)), 0), 0


class Builder:
    """Builds the streams of a pipeline.

    Args:
      plan: the pipeline.
      layout: shards and lanes.
      segments: those that run.
      kinds: the number of the first one in the executors' program.
      base: position from which shards are counted.
      here: does tasks in this process.
      away: does those of stages that need not run here.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        segments: Sequence[Segment],
        kinds: int,
        base: int,
        here: inline.Executor,
        away: inline.Executor,
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._segments = list(segments)
        self._kinds = kinds
        self._base = base
        self._here = here
        self._away = away
        self.overdue: Callable[[int], Callable[[int, int, Skip], None] | None] = lambda begin: None

    def whole(self, cursor: Cursor) -> Stream:
        """Puts the lanes side by side, and the segments that run here behind them."""
        away = [segment for segment in self._segments if not segment.local]
        local = self._segments[len(away) :]
        return self._after_lanes(away, local, cursor)

    def _after_lanes(self, away: list[Segment], local: Sequence[Segment], cursor: Cursor) -> Stream:
        layout = self._layout
        if local:
            *before, last = local
            parent = self._after_lanes(away, before, cursor[0][0][0])
            return self._stage([parent], last, cursor)
        if layout.joined > 1:
            *each, last = away
            return self._stage(self._lanes(each, cursor), last, cursor, beside=1)
        if layout.lanes > 1:
            return Passed(self._lanes(away, cursor), Turns(), cursor[0])
        return self._lane(0, away, cursor)

    def _lanes(self, segments: list[Segment], cursor: Cursor) -> list[Stream]:
        return [self._lane(index, segments, one) for index, one in enumerate(cursor[0][0])]

    def _lane(self, index: int, segments: list[Segment], cursor: Cursor) -> Stream:
        """Puts the segments of a lane behind one another."""
        root = self._plan.root
        if isinstance(root, Upstream):
            if not segments:
                return _own(root, cursor)
        elif len(segments) == 1:
            return self._leaf(index, segments[0], cursor)
        *before, last = segments
        return self._stage([self._lane(index, before, cursor[0][0][0])], last, cursor)

    def _leaf(self, index: int, segment: Segment, cursor: Cursor) -> Stream:
        root, ordinal = self._plan.root, cursor[0]
        assert not isinstance(root, Upstream)
        lane = self._layout.lane(index, self._base, segment)
        # Of single records a batch wants many, and no task of one is worth its while.
        wanted = self._segments[1].unit if len(self._segments) > 1 else 1
        eager = self._executor(segment) is not self._here
        feed = Records(root, lane, ordinal, eager, wanted // self._layout.joined)
        stage = self._made(segment, feed, cursor[1], [])
        stage.overdue = self.overdue(ordinal)
        return stage

    def _stage(
        self, parents: list[Stream], segment: Segment, cursor: Cursor, beside: int | None = None
    ) -> Stage:
        """Puts a later segment behind streams; `beside`: how many of its kind share workers."""
        place, since = cursor
        local = self._executor(segment) is self._here
        feed: Feed
        if segment.batches:
            feed = Groups(parents, _batch(segment), place, segment.unit, local)
        else:
            feed = Each(parents[0], place, 1 if local else _MOST_TOGETHER, local)
        return self._made(segment, feed, since, parents, beside)

    def _made(
        self,
        segment: Segment,
        feed: Feed,
        since: int,
        parents: list[Stream],
        beside: int | None = None,
    ) -> Stage:
        executor = self._executor(segment)
        if beside is None:
            beside = 1 if segment.local else self._layout.streams
        depth = max(1, executor.capacity // beside)
        stage = Stage(executor, self._kinds + segment.number, feed, since, depth, parents)
        stage.silence = silence.of(self._plan, self._segments[: segment.number + 1])
        return stage

    def _executor(self, segment: Segment) -> inline.Executor:
        return self._here if segment.local else self._away


def _own(root: Upstream, cursor: Cursor) -> Own:
    number, state = cursor
    iterator: Any = iter(root.dataset)
    if number or state is not None:
        iterator.set_state(state)
    return Own(iterator, number)
