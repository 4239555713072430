"""The iterator over a plan: builds the streams, pulls them, and knows where it stands."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra.running import Skip
from grain_jax._datasets import iterators
from grain_jax._datasets.plan import Plan, Segment, Upstream
from grain_jax._datasets.program import Program, SparseError
from grain_jax._execution import generators, inline, silence, skips, snapshots, workers
from grain_jax._execution.feeds import Groups, Head
from grain_jax._execution.items import END, Cursor, Feed, Item, Pull
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.streams import Merged, SegmentStream, Upstreamed
from grain_jax._values import errors, faults, forks, options

__all__ = ["Pipeline"]


class Pipeline:
    """Runs a plan from any position. Not thread-safe, but for `close`.

    Args:
      plan: what to run.
      setup: worker processes and buffers.
      layout: shards and lanes.
    """

    def __init__(self, plan: Plan, setup: iterators.Setup, layout: Layout) -> None:
        policy = setup.options.on_error
        self.account = skips.Account(policy) if isinstance(policy, options.ErrorPolicy) else None
        self.layout = layout
        self.plan = plan
        self._setup = setup
        # What the user changes from now on is for the next iteration.
        frozen = snapshots.of_plan(plan)
        self._root = frozen.root
        self._dense = frozen.segments()
        self._loose = frozen.segments(sparse=True)
        self._program = Program(frozen, [*self._dense, *self._loose])
        self._executors: tuple[inline.Executor, inline.Executor] | None = None
        self._stream: Pull | None = None
        self._renew()
        forks.renew(self)
        self._closed = self._ended = False
        self._left_over = 0
        self.position = layout.first()

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def cursor_size(self, position: Position) -> int:
        """Returns how many entries the cursor of a lane has there."""
        lanes = sum(not segment.local for segment in self.segments_of(position))
        # A user's iterator has two, too.
        return 2 * (lanes + isinstance(self.plan.root, Upstream))

    @property
    def skipped_count(self) -> int:
        """How many records were left out, at the end those after the last element, too."""
        return self.position.skipped + self._left_over

    @property
    def segments(self) -> list[Segment]:
        """The segments that run now."""
        return self.segments_of(self.position)

    def segments_of(self, position: Position) -> list[Segment]:
        """Returns the segments that run from a position on."""
        return self._loose if position.sparse else self._dense

    @property
    def is_elastic(self) -> bool:
        """Whether a position is one number for all shards."""
        return self.would_be_elastic(self.layout) and not self.position.sparse

    def would_be_elastic(self, layout: Layout) -> bool:
        """Whether a position is one number for all shards, before any surprise."""
        return not isinstance(self.plan.root, Upstream) and layout.is_elastic(self._dense)

    def draws(self) -> str:
        """Returns what may draw from the process-wide generators here; empty if nothing may."""
        root, away = self._root, self._is_away
        titles = [
            title
            for segment in [*self._dense, *self._loose]
            if segment.seeded and (segment.local or not away)
            for title in segment.drawing
        ]
        if titles or isinstance(root, Upstream):
            return next(iter(titles), "")
        assert not isinstance(self.plan.root, Upstream)
        return self.plan.root.asks or ("" if away else root.draws)

    @property
    def is_fresh(self) -> bool:
        """Whether nobody has a hold on the memory of an element before it is delivered.

        What comes from workers lies in a slot of its own; here it may have passed through code of
        the user's, which may have kept it.
        """
        return self.plan.is_fresh or (self._is_away and self.plan.local_from is None)

    @property
    def _is_away(self) -> bool:
        """Whether worker processes do the work, but for what has to be done here."""
        asked = self._setup.options.num_workers > 0 and workers.supported()
        return asked and not isinstance(self.plan.root, Upstream)

    def batch_rows(self) -> tuple[tuple[int, ...], int | None] | None:
        """Returns rows of a full batch and of the last one here; see `Layout.batch_rows`."""
        return self.layout.batch_rows(self.plan, self.position.base)

    def keep_rest(self, rule: str) -> None:
        """Says what becomes of a last batch of batches that its records do not fill.

        Args:
          rule: as `prefetch_to_device` takes it for a remainder.

        Raises:
          InvalidValueError: if it is known that there is one that cannot be stacked.
        """
        segment = self.segments[-1]
        if not segment.may_leave_rest:
            return
        if rule == "drop" or (rule == "pad" and segment.nest is not None):
            for kind in (self._dense[-1], self._loose[-1]):
                kind.rest = rule
            self._forget()
            self._end()
            return
        rest = self.layout.rest(self.segments, self.position.base)
        if rest and segment.nest is None:
            sizes = " and ".join(f"Batch({size})" for size, _ in segment.batches)
            raise errors.InvalidValueError(
                f"the last element of {sizes} has {rest} records of {segment.unit}, so that its "
                "last inner batch is short and does not stack with the others. Write the Batch "
                "steps one behind the other, drop_remainder=True in each of them, or "
                "remainder='drop'."
            )

    def outlook(self) -> tuple[bool, int] | None:
        """Returns what is known of the last element and of those to come; see `Layout.outlook`."""
        if isinstance(self.plan.root, Upstream) or self.position.sparse:
            return None
        return self.layout.outlook(self.position, self.segments)

    def go_to(self, position: Position, layout: Layout | None = None) -> None:
        """Moves to a position, of a stream dealt out as `layout` says; forgets what is under way.

        Raises:
          ClosedError: after `close`.
        """
        self.check_open()
        self._forget()
        self._left_over = 0
        self.layout = layout or self.layout
        self.position = position
        if self.account is not None:
            self.account.shards = self.layout.joined

    def next(self) -> Any:
        """Returns the next element, or raises StopIteration; an error leaves the position alone."""
        item = self.next_item()
        if item is END:
            raise StopIteration
        return item.element

    def next_item(self) -> Item | Any:
        """Returns the next item, or END; an error leaves the position alone."""
        self.check_open()
        if self._ended:
            return END
        try:
            return self._pull()
        except SparseError:
            self._forget()
            self.position = self._loosened()
        except BaseException:
            self.check_open()  # another thread may have closed it meanwhile
            self._forget()
            raise
        return self.next_item()

    def advance(self) -> None:
        """Gets work going."""
        self.check_open()
        try:
            if not self._ended:
                self._build().advance()
        except BaseException:
            self.check_open()  # another thread may have closed it meanwhile
            raise

    def close(self) -> None:
        """Ends workers and threads; idempotent, from any thread."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        """Ends workers and threads, until they are needed again."""
        with self._lock:
            executors, self._executors = self._executors, None
        for executor in executors or ():
            executor.close()

    def check_open(self) -> None:
        """Raises after `close`."""
        if self._closed:
            raise errors.ClosedError(
                "this iterator is closed. Make a new one with iter(...); a state taken before "
                "close() restores there."
            ) from None

    def _pull(self) -> Item | Any:
        stream = self._build()
        item = stream.pull(True)
        if item is END:
            if self.account is not None and stream.left_over:
                # They are behind the last element: a state stands before them.
                skipped = self.account.add(stream.left_over, self.position.skipped, self._seen())
                self._left_over, stream.left_over = skipped - self.position.skipped, []
            if self.is_elastic:
                self.position = self.layout.ended(self.segments, self.position)
            # The iterator may be kept for long, and is only used again where it is set back.
            self._ended, self._stream = True, None
            self._end()
            return END
        try:
            _ = item.element  # decoded here: if that fails, the position has not moved
        except Exception as error:
            faults.add_note(
                error,
                f"unpickling what a worker sent, of position {item.position} or some after it. "
                "Return plain data, or objects that unpickle as they are pickled.",
            )
            raise
        cursors, turn, *tail = item.cursor
        position = self.position
        skipped = position.skipped
        if self.account is not None and item.skips:
            skipped = self.account.add(item.skips, skipped, self._seen(cursors))
        self.position = Position(
            position.base, cursors, turn, tuple(tail), position.sparse, skipped
        )
        return item

    def _seen(self, cursors: tuple[Cursor | None, ...] | None = None) -> int:
        """Returns how many records this shard has behind it."""
        return sum(cursor[0] for cursor in cursors or self.position.cursors if cursor is not None)

    def _loosened(self) -> Position:
        """Returns the position in the segments for streams with gaps; so far there were none.

        There the first segment is cut in two, before the step that counts.
        """
        position, unit = self.position, self._dense[0].unit
        cursors = []
        for index, cursor in enumerate(position.cursors):
            if cursor is None:
                cursor = (self.layout.lane(index, position.base, None).before, 0)
            cursors.append((cursor[0], 0, cursor[0] // unit, *cursor[1:]))
        return dataclasses.replace(position, sparse=True, cursors=tuple(cursors))

    def _forget(self) -> None:
        self._stream, self._ended = None, False
        if any(executor.is_broken for executor in self._executors or ()):
            self._end()  # what could not be loaded is loaded anew
        for executor in self._executors or ():
            executor.cancel()

    def _build(self) -> Pull:
        """Makes the executors once, and the stream wherever the position says."""
        if self._executors is None:
            ignored = self._setup.options.ignore_globals
            generators.check(self._root, self._dense, self._is_away, ignored)
            here: inline.Executor = inline.Inline(self._program, self._ahead())
            away = workers.executor(self._program, self._setup) if self._is_remote() else here
            with self._lock:
                self._executors = here, away
            if self._closed:
                self.close()
                self.check_open()
        if self._stream is None:
            self._stream = self._whole()
        return self._stream

    def _ahead(self) -> int:
        """Returns for how many units records are read ahead in this process, if the user asks."""
        reading = getattr(self._root, "read_options", options.ReadOptions())
        if self._setup.options.num_workers or not reading.num_threads:
            return 0
        if reading.prefetch_buffer_size is None:
            return 2
        return -(-reading.prefetch_buffer_size // self.segments[0].unit)

    def _is_remote(self) -> bool:
        if self._setup.options.num_workers == 0:
            return False
        if isinstance(self.plan.root, Upstream):
            warnings.warn(
                f"{type(self.plan.root.dataset).__name__} is an IterDataset of its own, which "
                "workers cannot share: it runs in this process. Begin with a MapDataset and "
                "to_iter_dataset() to use workers.",
                stacklevel=4,
            )
            return False
        return True

    def _whole(self) -> Pull:
        """Puts the lanes side by side, and the segments that run here behind them."""
        position = self.position
        segments = [segment for segment in self.segments if not segment.local]
        if self.layout.joined > 1:
            return self._joined(*segments)
        lanes = [self._lane(index, segments) for index in range(self.layout.lanes)]
        stream: Pull = Merged(lanes, position.cursors, position.next_lane)
        start: Cursor = (position.cursors, position.next_lane)
        own = self.segments[len(segments) :]
        tail = position.tail or (0, 0) * len(own)
        for place, segment in enumerate(own):
            start += tail[2 * place : 2 * place + 2]
            stream = self._behind(stream, segment, start)
        return stream

    def _joined(self, *segments: Segment) -> Pull:
        """Puts the joined shards side by side, and behind all of them the segment that batches."""
        *each, last = segments
        starts = [self._start(index) for index in range(self.layout.joined)]
        shards = [self._lane(index, each) for index in range(self.layout.joined)]
        executor = self._executor(last)
        pairs = [(shard, start[:-1]) for shard, start in zip(shards, starts, strict=True)]
        groups = Groups(pairs, last, self._is_here(executor), self.position.batches)
        return self._segment(executor, last, groups, 0, shards, beside=1)

    def _start(self, index: int) -> Cursor:
        """Returns the cursor of a lane or joined shard; at the start one that says so."""
        position = self.position
        cursor = position.cursors[index]
        if cursor is not None:
            return cursor
        lane = self.layout.lane(index, position.base, None)
        return (lane.before, *(0,) * (self.cursor_size(position) - 1))

    def _lane(self, index: int, segments: list[Segment]) -> Pull:
        """Puts the segments of a lane behind one another, from its cursor on."""
        root = self.plan.root
        if isinstance(root, Upstream):
            cursor = self.position.cursors[index]
            stream: Pull = _upstream(root, cursor)
            # A user's iterator has two entries in the cursor, and so has each segment.
            given = cursor or (0, None, *(0,) * (2 * len(segments)))
            later = segments
        else:
            first, *later = segments
            lane = self.layout.lane(index, self.position.base, first)
            given = self._start(index)
            executor = self._executor(first)
            # Of single records a batch wants many, and no task of one is worth its while.
            wanted = self.segments[1].unit if len(self.segments) > 1 else 1
            eager = not self._is_here(executor)
            head = Head(root, lane, given[0], eager, wanted // self.layout.joined)
            stream = head_stream = self._segment(executor, first, head, given[1])
            head_stream.overdue = self._overdue(given[0])
        for place, segment in enumerate(later, 1):
            stream = self._behind(stream, segment, given[: 2 + 2 * place])
        return stream

    def _behind(self, stream: Pull, segment: Segment, start: Cursor) -> SegmentStream:
        """Puts a later segment behind a stream; `start` ends with its own two numbers."""
        executor = self._executor(segment)
        made = self.position.batches if segment is self.segments[-1] else 0
        groups = Groups([(stream, start[:-1])], segment, self._is_here(executor), made)
        return self._segment(executor, segment, groups, start[-1], [stream])

    def _segment(
        self,
        executor: inline.Executor,
        segment: Segment,
        feed: Feed,
        skip: int,
        below: Sequence[Pull] = (),
        beside: int | None = None,
    ) -> SegmentStream:
        """Returns the stream of a segment; `beside` is how many of its kind share the executor."""
        kind = segment.number + (len(self._dense) if self.position.sparse else 0)
        if beside is None:
            beside = 1 if segment.local else self.layout.streams
        depth = max(1, executor.capacity // beside)
        stream = SegmentStream(executor, kind, feed, skip, depth, below)
        stream.silence = silence.of(self.plan, self.segments[: segment.number + 1])
        return stream

    def _overdue(self, begin: int) -> Callable[[int, int, Skip], None] | None:
        """Judges what a lane leaves out, from an ordinal of it on; other lanes are as they were."""
        account = self.account
        if account is None:
            return None
        before, seen = self.position.skipped, self._seen() - begin
        return lambda count, ordinal, last: account.check(before + count, seen + ordinal, last)

    def _is_here(self, executor: inline.Executor) -> bool:
        assert self._executors is not None
        return executor is self._executors[0]

    def _executor(self, segment: Segment) -> inline.Executor:
        assert self._executors is not None
        here, away = self._executors
        return here if segment.local else away


def _upstream(root: Upstream, cursor: tuple[Any, ...] | None) -> Upstreamed:
    iterator = iter(root.dataset)
    if cursor is None:
        return Upstreamed(iterator, 0)
    iterator.set_state(cursor[1])
    return Upstreamed(iterator, cursor[0])
