"""Streams: the segments of a plan, put behind one another and side by side, and pulled."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra import held
from grain_jax._algebra.running import Skip
from grain_jax._datasets.program import Outcome
from grain_jax._execution.inline import Bundle, Executor
from grain_jax._execution.items import END, PENDING, Cursor, Feed, Held, Item, Pull, Task
from grain_jax._execution.silence import Silence
from grain_jax._values import errors

__all__ = ["Merged", "SegmentStream", "Upstreamed"]

_LONG_RUN = 1_000
"""After so many records left out in a row they are judged, though no item follows yet."""


class SegmentStream:
    """The outputs of one segment, in order; tasks run ahead up to what the executor can use.

    Args:
      executor: who does the tasks.
      kind: number of the segment in the executor's program.
      feed: where the tasks come from.
      skip: outputs of the first unit that are behind us.
      depth: tasks in flight.
      upstream: the streams that feed it, if any.

    Attributes:
      overdue: called in a long run of records that are left out, before an item judges them: with
        how many this stream has left out, the ordinal behind them, and the last. What it raises
        comes in its turn. None where nobody asks.
      silence: counts the records that give no item.
    """

    def __init__(
        self,
        executor: Executor,
        kind: int,
        feed: Feed,
        skip: int,
        depth: int,
        upstream: Sequence[Pull] = (),
    ) -> None:
        self._executor = executor
        self._kind = kind
        self._feed = feed
        self._skip = skip
        self._depth = depth
        self._upstream = upstream
        self.overdue: Callable[[int, int, Skip], None] | None = None
        self.silence = Silence()
        self._skipped = 0
        self._window: deque[tuple[Any, int]] = deque()
        self._ready: deque[Item] = deque()
        self._over = False
        self.left_over: list[Skip] = []

    def advance(self) -> None:
        """Submits tasks as far as they are known and the executor has use for them."""
        for stream in self._upstream:
            stream.advance()
        while not self._over and len(self._window) < self._depth:
            if not self._submit(block=False):
                break

    def pull(self, block: bool) -> Any:
        """Returns the next item, PENDING or END; what has raised is of no more use."""
        while True:
            if self._ready:
                return self._ready.popleft()
            self.advance()
            if not self._window:
                if self._over:
                    self.left_over += self._feed.left_over
                    self._feed.left_over = []
                    return END
                if not block:
                    return PENDING
                self._submit(block=True)
                continue
            task, ticket = self._window[0]
            if isinstance(task, _Failure):
                if not block:
                    return PENDING  # it stands behind what the one who asks ahead still has
                self._window.popleft()
                try:
                    raise task.error
                finally:
                    del task  # the traceback holds this frame
            bundle = self._executor.result(ticket, block)
            if bundle is None:
                return PENDING
            self._window.popleft()
            self._unpack(task, bundle)

    def _submit(self, block: bool) -> bool:
        try:
            task = self._feed.next(block)
        except Exception as error:
            # It stands behind what is under way, and is raised when its turn comes.
            task = _Failure(error)
        if isinstance(task, _Failure):
            self._over = True
            self._window.append((task, 0))
            return False
        if task is PENDING:
            return False
        if task is END:
            self._over = True
            return False
        self._window.append((task, self._put(task)))
        return True

    def _put(self, task: Task) -> int:
        return self._executor.submit(self._kind, task.payload, task.inputs, task.label)

    def _unpack(self, task: Any, bundle: Bundle) -> None:
        outcome: Outcome = bundle.info
        self._feed.learn(outcome)
        outcome = self._heard(task, outcome)
        held = Held(bundle)
        skip, self._skip = self._skip, 0
        if outcome.units is None:
            for unit in range(skip, outcome.done):
                position, output = task.last(unit)
                cursor = (*task.before(unit + 1), 0)
                self._ready.append(Item(held, unit, position, output, cursor, task.payload))
        else:
            self._unpack_counted(task, outcome, held, skip)
        if outcome.rngs is not None:
            for item in self._ready:
                item.rng = outcome.rngs[item.row]
        if outcome.skipped or task.skips or self.left_over:
            try:
                self._hand_on_skips(task, outcome, is_resumed=skip > 0)
            except errors.TooManyErrors as error:
                self._window.appendleft((_Failure(error), 0))
                return
        if outcome.error is not None:
            self._window.appendleft((_Failure(outcome.error), 0))
            # What was done before it may be kept for long, and its traceback may lead there.
            outcome.error = None
        elif outcome.done < task.units:
            rest = self._feed.rest(task, outcome.done)
            self._window.appendleft((rest, self._put(rest)))

    def _unpack_counted(self, task: Any, outcome: Outcome, held: Held, skip: int) -> None:
        assert outcome.units is not None
        count, previous = 0, -1
        for row, unit in enumerate(outcome.units):
            count = count + 1 if unit == previous else 1
            previous = unit
            if unit == 0 and count <= skip:
                continue
            is_last = row + 1 == len(outcome.units) or outcome.units[row + 1] != unit
            cursor = (*task.before(unit + 1), 0) if is_last else (*task.before(unit), count)
            output = outcome.outputs[row] if outcome.outputs else 0
            position = outcome.positions[row]
            self._ready.append(Item(held, row, position, output, cursor, task.payload))

    def _heard(self, task: Any, outcome: Outcome) -> Outcome:
        """Counts what gave nothing; returns what counts of the outcome, if that was too much."""
        if outcome.units is None:
            if self.silence.records:
                self.silence.end()
            return outcome
        found = self.silence.pass_over(task, outcome, (*self.left_over, *task.skips))
        if found is None:
            return outcome
        last, error = found
        return dataclasses.replace(
            outcome,
            done=last + 1,
            units=[unit for unit in outcome.units if unit <= last],
            skipped=[pair for pair in outcome.skipped if pair[0] <= last],
            error=error,
        )

    def _hand_on_skips(self, task: Any, outcome: Outcome, is_resumed: bool) -> None:
        """Gives records that were left out to the item that follows each.

        Where the first outputs of the first unit are behind us, so is what came before them.
        """
        waiting = [] if is_resumed else [*self.left_over, *task.skips]
        events = deque(outcome.skipped)
        for item in self._ready:
            unit = 0 if outcome.units is None else outcome.units[item.row]
            while events and events[0][0] < unit:
                waiting.append(events.popleft()[1])
            item.skips, waiting = tuple(waiting), []
            self._skipped += len(item.skips)
        self.left_over = waiting + [skip for _, skip in events]
        if self.overdue is not None:
            # In a stream that only fails no item would ever come.
            silent = isinstance(outcome.error, errors.NoElementsError)
            for run, (unit, last) in enumerate(events, len(waiting) + 1):
                if run % _LONG_RUN == 0 or (silent and run == len(self.left_over)):
                    self.overdue(self._skipped + run, task.before(unit + 1)[0], last)


class _Failure:
    """What a feed or a unit has raised, among the tasks of a window."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Merged:
    """Streams side by side: one item of each in turn; those that have ended are left out.

    Its cursor is the cursors of all, and whose turn it is.
    """

    def __init__(
        self, lanes: Sequence[Pull], cursors: tuple[Cursor | None, ...], turn: int
    ) -> None:
        self._lanes: list[Pull | None] = list(lanes)
        self._cursors = list(cursors)
        self._turn = turn
        self.left_over: list[Skip] = []

    def advance(self) -> None:
        """Gets work going in all of them."""
        for lane in self._lanes:
            if lane is not None:
                lane.advance()

    def pull(self, block: bool) -> Any:
        """Returns the next item, PENDING or END."""
        self.advance()
        for _ in self._lanes:
            turn, lane = self._turn, self._lanes[self._turn]
            item = END if lane is None else lane.pull(block)
            if item is PENDING:
                return PENDING
            self._turn = (turn + 1) % len(self._lanes)
            if isinstance(item, Item):
                self._cursors[turn] = item.cursor
                item.cursor = (tuple(self._cursors), self._turn)
                return item
            if lane is not None:
                self.left_over += lane.left_over
            self._lanes[turn] = None
        return END


class Upstreamed:
    """A user's own iterator as a stream; its state is the cursor."""

    def __init__(self, iterator: Any, number: int) -> None:
        self._iterator = iterator
        self._number = number
        self.left_over: list[Skip] = []

    def advance(self) -> None:
        """A user's iterator runs when it is asked."""

    def pull(self, block: bool) -> Any:
        """Returns the next item or END."""
        try:
            elements = [next(self._iterator)]
        except StopIteration:
            return END
        held.detach(elements, 0)  # the iterator may fill it with the next one
        self._number += 1
        get_state = getattr(self._iterator, "get_state", None)
        # A copy: the iterator may hand out the very object that it goes on counting in.
        cursor = (self._number, None if get_state is None else copy.deepcopy(get_state()))
        return Item(elements, 0, self._number - 1, 0, cursor)
