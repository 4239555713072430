"""Building: the streams of a pipeline, behind one another and side by side, from a cursor on."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence

from grain_jax._algebra import access
from grain_jax._algebra.groupings.base import Grouping
from grain_jax._algebra.groupings.cache import Cache
from grain_jax._algebra.groupings.turns import Turns
from grain_jax._algebra.running import Skip
from grain_jax._datasets.plan import Branch, Grouped, Upstream
from grain_jax._datasets.stages import Stage
from grain_jax._execution import forms, inline, silence
from grain_jax._execution.caching import Caches
from grain_jax._execution.gathering import Passed
from grain_jax._execution.grouped import Each, Groups
from grain_jax._execution.iterables import Own, Plain
from grain_jax._execution.layout import Layout
from grain_jax._execution.leaves import Records
from grain_jax._execution.merging import Merged
from grain_jax._execution.meter import Meter
from grain_jax._execution.parents import Parents, Part, Place
from grain_jax._execution.runs import Cursor, Feed, Stream
from grain_jax._execution.sieves import Sieves
from grain_jax._execution.tasks import Tasks
from grain_jax._values.dataset_options import DatasetOptions

__all__ = ["Builder"]

_LEAST = 4
"""Elements of a part that are read together, of parts that give few."""

_MOST_TOGETHER = 64
"""Elements of a task of a later stage that acts on each by itself."""


class Builder:
    """Builds the streams of a pipeline.

    Args:
      branch: the pipeline, or one that it is made of.
      layout: shards and lanes.
      base: position from which shards are counted.
      here: does tasks in this process.
      away: does those of stages that need not run here.
      share: which part of the executors' work is for this pipeline.
      wanted: about how many elements whoever groups them wants at once.
      feeds: whether elements go to workers behind this pipeline.

    Attributes:
      gatherings: the streams that hold elements until others come, with what they are called.
      owns: the streams of iterables of the user's, which have to be closed.
      is_ahead: whether a thread may read these ahead of workers.
      caches: what the iterator remembers.
      meter: sums up what reading takes; None where nobody asks.
      overdue: see `Tasks`, of a stream that begins at an ordinal.
    """

    def __init__(
        self,
        branch: Branch,
        layout: Layout,
        base: int,
        here: inline.Executor,
        away: inline.Executor,
        share: float = 1.0,
        wanted: int = 1,
        feeds: bool = False,
    ) -> None:
        self._branch = branch
        self._feeds = feeds or (
            away is not here and any(not one.local and not one.is_idle for one in branch.stages)
        )
        self.owns: list[Own] = []
        self.is_ahead = True
        self.caches = Caches()
        self._layout = layout
        self._base = base
        self._here = here
        self._away = away
        self._share = share / layout.streams
        self._wanted = wanted
        # Streams refer to the builder, which begins some of them anew.
        self.gatherings: weakref.WeakKeyDictionary[Parents, str] = weakref.WeakKeyDictionary()
        self.overdue: Callable[[int], Callable[[int, int, Skip], None] | None] = lambda begin: None
        self.options = DatasetOptions()
        self.meter: Meter | None = None

    def whole(self, cursor: Cursor) -> Stream:
        """Puts the lanes or joined shards side by side, and the other stages behind them."""
        layout = self._layout
        each, behind = forms.split(self._branch, layout)
        if layout.joined > 1:
            shared, *behind = behind
            return self._behind(
                lambda at: self._later(self._lanes(each, at), shared, at, share=1.0), behind, cursor
            )
        if layout.lanes > 1:
            return self._behind(
                lambda at: self._passed(self._lanes(each, at), Turns(), at[0]), behind, cursor
            )
        return self._behind(lambda at: self._lane(0, each, at), behind, cursor)

    def _behind(
        self, begin: Callable[[Cursor], Stream], stages: Sequence[Stage], cursor: Cursor
    ) -> Stream:
        """Puts stages behind the stream that `begin` makes."""
        if not stages:
            return begin(cursor)
        *before, last = stages
        return self._later([self._behind(begin, before, cursor[0][0][0])], last, cursor)

    def _lanes(self, stages: list[Stage], cursor: Cursor) -> list[Stream]:
        return [self._lane(index, stages, one) for index, one in enumerate(cursor[0][0])]

    def _lane(self, index: int, stages: list[Stage], cursor: Cursor) -> Stream:
        """Puts the stages of a lane behind its root."""
        return self._behind(lambda at: self._root(index, at), stages, cursor)

    def _root(self, index: int, cursor: Cursor) -> Stream:
        root, first = self._branch.plan.root, self._branch.first
        if isinstance(root, Upstream):
            put = self._away.put if self._feeds else None
            self.owns.append(Own(root, cursor, put, self.is_ahead))
            if self.meter is not None:
                number = self._branch.stages[0].number
                self.owns[-1].measure(self.meter.cost_of(number, access.READING))
            return self.owns[-1]
        if isinstance(root, Grouped):
            layout = self._layout.of_stream(index)
            grouping = root.grouping.of_shard(layout.shards)
            parts = [self._part(number, layout, one) for number, one in enumerate(cursor[0][0])]

            def again(number: int) -> Stream:
                """Returns a stream that the root is made of, from its start."""
                start = forms.of_part(self._branch.parents[number], layout).start
                return self._part(number, layout, start)

            def passed() -> Stream:
                """Returns a stream of elements as they are."""
                stream = self._passed(parts, grouping, cursor[0], again)
                self.gatherings[stream] = root.title
                return stream

            if first is None:
                begins = isinstance(grouping, Cache) and cursor == self._start(layout)
                if not begins:
                    return passed()
                put = self._away.put if self._feeds else None
                return self.caches.stream((id(self._branch), layout), passed, put)
            return self._later(parts, first, cursor, again=again, grouping=grouping)
        assert first is not None
        lane = self._layout.lane(index, self._base, first)
        # Of single records a batch wants many, and no task of one is worth its while.
        wanted = self._branch.behind[0].unit if self._branch.behind else self._wanted
        eager = self._executor(first) is not self._here
        feed = Records(root, lane, cursor[0], eager, wanted // self._layout.joined)
        tasks = self._made(first, feed, cursor[1], [])
        tasks.overdue = self.overdue(cursor[0])
        return tasks

    def _start(self, layout: Layout) -> Cursor:
        """Returns the cursor of the root at its start, where that is made of one other stream."""
        (parent,) = self._branch.parents
        return ((forms.of_part(parent, layout).start,), (), 0), 0

    def _part(self, number: int, layout: Layout, cursor: Cursor) -> Stream:
        """Returns a stream that the root is made of, dealt out as `layout` says."""
        branch = self._branch.parents[number]
        layout = forms.layout_of_part(branch, layout)
        root, several = self._branch.plan.root, len(self._branch.parents)
        assert isinstance(root, Grouped)
        share, wanted = root.grouping.shares(several)[number], root.grouping.wanted
        # All parts together read about as much at once as two would.
        wanted = max(min(wanted, _LEAST), round(wanted * min(1.0, 2 * share)))
        share *= self._share
        builder = Builder(branch, layout, 0, self._here, self._away, share, wanted, self._feeds)
        builder.overdue, builder.gatherings = self.overdue, self.gatherings
        builder.options, builder.meter = self.options, self.meter
        builder.owns, builder.is_ahead, builder.caches = self.owns, self.is_ahead, self.caches
        stream: Stream = builder.whole(cursor)
        return stream if several == 1 else Part(stream, number, several)

    def _later(
        self,
        parents: list[Stream],
        stage: Stage,
        cursor: Cursor,
        share: float | None = None,
        again: Callable[[int], Stream] | None = None,
        grouping: Grouping | None = None,
    ) -> Stream:
        """Puts a later stage behind streams.

        Args:
          parents: the streams.
          stage: what is done with their elements.
          cursor: where to begin.
          share: which part of the executor's work is for it; None for that of the pipeline.
          again: returns one of the streams at its start.
          grouping: decides which elements go together; None for what the stage says.
        """
        if stage.is_idle and isinstance(parents[0], Own):
            return Plain(parents[0])
        place, since = cursor
        local = self._executor(stage) is self._here
        grouping = grouping or stage.grouping
        feed: Feed
        if grouping is not None:
            feed = Groups(parents, grouping, place, stage.unit, local, again)
            title = next(step.title for step in stage.steps if step.counts == "groups")
            self.gatherings[feed] = title
        else:
            most, adapts = 1 if local else _MOST_TOGETHER, isinstance(parents[0], Own)
            feed = Each(parents[0], place, most, local, adapts)
        return self._made(stage, feed, since, parents, share)

    def _made(
        self,
        stage: Stage,
        feed: Feed,
        since: int,
        parents: list[Stream],
        share: float | None = None,
    ) -> Tasks:
        executor = self._executor(stage)
        if share is None:
            share = 1.0 if stage.local else self._share
            # What several streams are made into has workers beside those that make them.
            if parents and len(self._branch.plan.leaves()) > 1:
                share /= 2
        depth = max(1, round(executor.capacity * share))
        tasks = Tasks(executor, stage.number, feed, since, depth, parents)
        tasks.silence = silence.of(self._branch.plan, self._until(stage))
        if stage.watched:
            root = self._branch.plan.root
            tasks.sieves = Sieves(self.options, lambda: " and ".join(getattr(root, "drops", ())))
        return tasks

    def _passed(
        self,
        parts: list[Stream],
        grouping: Grouping,
        place: Place,
        again: Callable[[int], Stream] | None = None,
    ) -> Merged | Passed:
        """Returns a stream of elements as they are."""
        schedule = grouping.schedule(place[1], len(parts))
        if schedule is None:
            return Passed(parts, grouping, place, again)
        return Merged(parts, schedule, place, again, self._away.capacity)

    def _until(self, stage: Stage) -> list[Stage]:
        """Returns the stages up to one."""
        before = itertools.takewhile(lambda one: one is not stage, self._branch.stages)
        return [*before, stage]

    def _executor(self, stage: Stage) -> inline.Executor:
        return self._here if stage.local else self._away
