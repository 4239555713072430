"""Tasks: the outputs of one stage of a plan, in order, made by an executor that works ahead."""

from __future__ import annotations

import dataclasses
import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra.running import Skip
from grain_jax._datasets.outcomes import Outcome
from grain_jax._execution.inline import Bundle, Executor
from grain_jax._execution.runs import END, PENDING, Feed, Held, Places, Run, Stream, Task, read
from grain_jax._execution.sieves import Sieves
from grain_jax._execution.silence import Silence
from grain_jax._values import errors
from grain_jax._values.faults import call_detached

__all__ = ["Tasks"]

_LONG_RUN = 1_000
"""After so many records left out in a row they are judged, though no output follows yet."""


class Tasks:
    """The outputs of one stage; tasks run ahead up to what the executor can use.

    Args:
      executor: who does the tasks.
      stage: number of the stage in the executor's program.
      feed: where the tasks come from.
      skip: outputs of the first unit that were delivered before.
      depth: tasks in flight.
      parents: the streams that feed it, if any.

    Attributes:
      overdue: called in a long run of records that are left out, before an output judges them: with
        how many this stream has left out, the records before the next, and the last. What it raises
        comes in its turn. None where nobody asks.
      silence: counts the records that give no output.
      sieves: counts what filters drop; None where nobody asks.
    """

    def __init__(
        self,
        executor: Executor,
        stage: int,
        feed: Feed,
        skip: int,
        depth: int,
        parents: Sequence[Stream] = (),
    ) -> None:
        self._executor = executor
        self._stage = stage
        self._feed = feed
        self._skip = skip
        self._depth = depth
        self._parents = parents
        self.overdue: Callable[[int, int, Skip], None] | None = None
        self.silence = Silence()
        self.sieves: Sieves | None = None
        self._skipped = 0
        self._window: deque[tuple[Any, int]] = deque()
        self._ready: Run | None = None
        self._over = False
        self.left_over: list[Skip] = []

    @property
    def is_ready(self) -> bool:
        """Whether an output is here."""
        return self._ready is not None

    def advance(self) -> None:
        """Submits tasks as far as they are known and the executor has use for them."""
        for stream in self._parents:
            stream.advance()
        while not self._over and len(self._window) < self._depth:
            if not self._submit(block=False):
                break

    def pull(self, most: int, block: bool) -> Any:
        """Returns a run, PENDING or END; what has raised is of no more use."""
        while True:
            ready = self._ready
            if ready is not None:
                if len(ready) <= most:
                    self._ready = None
                    return ready
                return ready.split(most)
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
            bundle, frames = call_detached(self._executor.result, ticket, block)
            if bundle is None:
                return PENDING
            self._window.popleft()
            self._unpack(task, bundle, frames)

    def close(self) -> None:
        """Gives up the tasks that nobody will pull, and those of the streams that feed it."""
        self._over = True
        while self._window:
            task, ticket = self._window.popleft()
            if not isinstance(task, _Failure):
                self._executor.drop(ticket)
        for stream in self._parents:
            stream.close()

    def _submit(self, block: bool) -> bool:
        task, frames = call_detached(_asked, self._feed, block)
        if isinstance(task, _Failure):
            task.frames = frames
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
        return self._executor.submit(self._stage, task.payload, task.inputs, task.label)

    def _unpack(self, task: Any, bundle: Bundle, frames: object) -> None:
        outcome: Outcome = bundle.info
        self._feed.learn(outcome)
        outcome = self._sieved(self._heard(task, outcome))
        places = Places(task, outcome)
        skip, self._skip = self._skip, 0
        begin, end = skip, outcome.done
        if outcome.units is not None:
            begin = min(skip, sum(unit == 0 for unit in outcome.units)) if skip else 0
            end = len(outcome.units)
        if begin < end:
            self._ready = Run(Held(bundle), places, begin, end)
        if outcome.skipped or task.skips or self.left_over:
            try:
                self._hand_on_skips(task, outcome, places, begin, end)
            except errors.TooManyErrors as error:
                outcome.error = error
        if outcome.error is not None:
            self._window.appendleft((_Failure(outcome.error, frames), 0))
            # What was done before it may be kept for long, and its traceback may lead there.
            outcome.error = None
        elif outcome.done < task.units:
            rest = self._feed.rest(task, outcome.done)
            self._window.appendleft((rest, self._put(rest)))
        task.release()  # its outputs may be kept for long

    def _sieved(self, outcome: Outcome) -> Outcome:
        """Counts what filters drop; returns what counts of the outcome, if that was too much."""
        if self.sieves is None or not outcome.sieved:
            return outcome
        found = self.sieves.add(outcome.sieved, outcome.done)
        return outcome if found is None else _cut(outcome, *found)

    def _heard(self, task: Task, outcome: Outcome) -> Outcome:
        """Counts what gave nothing; returns what counts of the outcome, if that was too much."""
        if outcome.units is None:
            if self.silence.records:
                self.silence.end()
            return outcome
        waiting = [*self.left_over, *(skip for _, skip in task.skips)]
        found = self.silence.pass_over(task, outcome, waiting)
        if found is None:
            return outcome
        last, error = found
        return _cut(outcome, last + 1, error)

    def _hand_on_skips(
        self, task: Task, outcome: Outcome, places: Places, begin: int, end: int
    ) -> None:
        """Gives records that were left out to the output that follows each.

        Where the first outputs of the first unit were delivered, so was what came before them.
        """
        waiting = self.left_over if not begin else []
        events = deque(sorted((*task.skips, *outcome.skipped), key=operator.itemgetter(0)))
        while begin and events and events[0][0] == 0:
            events.popleft()
        for row in range(begin, end):
            unit = row if outcome.units is None else outcome.units[row]
            while events and events[0][0] <= unit:
                waiting.append(events.popleft()[1])
            if waiting:
                places.skips[row], waiting = tuple(waiting), []
                self._skipped += len(places.skips[row])
        self.left_over = waiting + [skip for _, skip in events]
        if self.overdue is not None:
            # In a stream that only fails no output would ever come.
            silent = isinstance(outcome.error, errors.NoElementsError)
            for run, (unit, last) in enumerate(events, len(waiting) + 1):
                if run % _LONG_RUN == 0 or (silent and run == len(self.left_over)):
                    self.overdue(self._skipped + run, read(task.before(unit + 1)), last)


def _cut(outcome: Outcome, done: int, error: Exception) -> Outcome:
    """Returns an outcome with an error in place of the units from `done` on."""
    return dataclasses.replace(
        outcome,
        done=done,
        units=outcome.units and [unit for unit in outcome.units if unit < done],
        skipped=[pair for pair in outcome.skipped if pair[0] < done],
        error=error,
    )


def _asked(feed: Feed, block: bool) -> Any:
    try:
        return feed.next(block)
    except Exception as error:
        # It stands behind what is under way, and is raised when its turn comes.
        return _Failure(error)


class _Failure:
    """What a feed or a unit has raised, among the tasks of a window; see `call_detached`."""

    def __init__(self, error: BaseException, frames: object = None) -> None:
        self.error = error
        self.frames = frames
