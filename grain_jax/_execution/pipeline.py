"""The iterator over a plan: builds the streams, pulls them, and knows where it stands."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from typing import Any

from grain_jax._datasets import iterators
from grain_jax._datasets.plan import Plan, Program, SparseError, Upstream
from grain_jax._execution import inline, lending, snapshots, workers
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.streams import (
    END,
    Groups,
    Head,
    Item,
    Pull,
    SegmentStream,
    Upstreamed,
)
from grain_jax._values import errors, faults

__all__ = ["Pipeline"]

_UNITS_AT_ONCE = 16


class Pipeline:
    """Runs a plan from any position. Not thread-safe, but for `close`.

    Args:
      plan: what to run.
      setup: worker processes and buffers.
      layout: shards and lanes.
    """

    def __init__(self, plan: Plan, setup: iterators.Setup, layout: Layout) -> None:
        self.layout = layout
        self.plan = plan
        self._setup = setup
        self._dense = plan.segments()
        self._loose = plan.segments(sparse=True)
        self._executors: tuple[inline.Executor, inline.Executor] | None = None
        self._lanes: list[Pull | None] = []
        self._lock = threading.Lock()
        self._closed = False
        self.first = 0  # where the stream begins: above 0 for a later epoch
        self.position = self.start()

    @property
    def start_segments(self) -> list[Any]:
        """The segments before any surprise."""
        return self._dense

    def start(self) -> Position:
        """Returns the position before the first element."""
        return Position(base=self.first, cursors=(None,) * self.layout.lanes)

    @property
    def segments(self) -> list[Any]:
        """The segments that run now."""
        return self._loose if self.position.sparse else self._dense

    def go_to(self, position: Position) -> None:
        """Moves to a position; what was under way is forgotten."""
        self._forget()
        self.position = position

    def next(self) -> Any:
        """Returns the next element, or raises StopIteration; an error leaves the position alone."""
        item = self.next_item()
        if item is END:
            raise StopIteration
        return item.element

    def next_item(self) -> Item | Any:
        """Returns the next item, or END; an error leaves the position alone."""
        self._check_open()
        try:
            return self._pull()
        except SparseError:
            self._forget()
            self.position = dataclasses.replace(
                self.position,
                sparse=True,
                cursors=tuple(None if c is None else (c[0], 0) for c in self.position.cursors),
            )
            return self.next_item()
        except BaseException as error:
            self._forget()
            raise error.with_traceback(
                faults.user_traceback(error.__traceback__)
            ) from error.__cause__

    def advance(self) -> None:
        """Gets work going."""
        self._check_open()
        self._build()
        for lane in self._lanes:
            if lane is not None:
                lane.advance()

    def close(self) -> None:
        """Ends workers and threads; idempotent, from any thread."""
        with self._lock:
            self._closed = True
            executors, self._executors = self._executors, None
        for executor in executors or ():
            executor.close()

    def _check_open(self) -> None:
        if self._closed:
            raise errors.ClosedError(
                "this iterator is closed. Make a new one with iter(...); a state taken before "
                "close() restores there."
            )

    def _pull(self) -> Item | Any:
        self._build()
        lanes = self._lanes
        for lane in lanes:
            if lane is not None:
                lane.advance()
        turn = self.position.next_lane
        for _ in range(len(lanes)):
            lane = lanes[turn]
            item = END if lane is None else lane.pull(True)
            if item is END:
                lanes[turn] = None
                turn = (turn + 1) % len(lanes)
                continue
            assert isinstance(item, Item)
            self._deliver(turn, item)
            return item
        self.position = self.layout.end(self.segments, self.position)
        return END

    def _deliver(self, turn: int, item: Item) -> None:
        cursors = list(self.position.cursors)
        cursors[turn] = item.cursor
        self.position = dataclasses.replace(
            self.position,
            cursors=tuple(cursors),
            next_lane=(turn + 1) % self.layout.lanes,
        )

    def _forget(self) -> None:
        self._lanes = []
        for executor in self._executors or ():
            executor.cancel()

    def _build(self) -> None:
        """Makes the executors once, and the streams wherever the position says."""
        if self._executors is None:
            program = Program(self.plan, [*self._dense, *self._loose])
            here = inline.Inline(snapshots.snapshot(program))
            away = workers.executor(program, self._setup) if self._is_remote() else here
            with self._lock:
                self._executors = here, away
            if self._closed:
                self.close()
                self._check_open()
        if not self._lanes:
            self._lanes = [self._lane(index) for index in range(self.layout.lanes)]

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

    def _lane(self, index: int) -> Pull:
        """Puts the segments behind one another, from the lane's cursor on."""
        assert self._executors is not None
        here, away = self._executors
        segments = self.segments
        first_kind = len(self._dense) if self.position.sparse else 0
        cursor = self.position.cursors[index]
        root = self.plan.root
        below: Pull | None = None
        if isinstance(root, Upstream):
            below = _upstream(root, cursor)
            depth_of_root = 2
        else:
            depth_of_root = 0
        for place, segment in enumerate(segments):
            executor = here if segment.local else away
            depth = max(1, executor.capacity // self.layout.lanes)
            if below is None:
                assert not isinstance(root, Upstream)
                lane = self.layout.lane(index, self.position.base, segment)
                ordinal = lane.before if cursor is None else cursor[0]
                skip = 0 if cursor is None else cursor[1]
                most = 1 if executor is here else _UNITS_AT_ONCE
                below = SegmentStream(
                    executor, first_kind + place, Head(root, lane, ordinal, most), skip, depth, None
                )
                continue
            # Each segment before has two numbers in the cursor, a user's iterator as well.
            end = depth_of_root + 2 * (place + 1)
            given = cursor or ()
            start = given[:end] + self._zeros(end)[len(given) :]
            feed = Groups(below, segment, start[:-1], executor is here)
            below = SegmentStream(executor, first_kind + place, feed, start[-1], depth, below)
        assert below is not None
        return below

    def _zeros(self, end: int) -> tuple[Any, ...]:
        """Returns the first `end` numbers of the cursor before the first element."""
        start = (0, None) if isinstance(self.plan.root, Upstream) else (0, 0)
        return start + (0,) * (end - 2)


def _upstream(root: Upstream, cursor: tuple[Any, ...] | None) -> Upstreamed:
    iterator = iter(root.dataset)
    if cursor is None:
        return Upstreamed(iterator, 0)
    if cursor[1] is None:
        lending.require_state(iterator, False)
    iterator.set_state(cursor[1])
    return Upstreamed(iterator, cursor[0])
