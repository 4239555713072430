"""An iterator that another one feeds from a thread, with the position of what its user received."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, Self, TypeAlias, TypeVar

from grain_jax._datasets.epochs import spent
from grain_jax._execution import roles
from grain_jax._execution.ahead import RunAhead, refuse_in_fork
from grain_jax._execution.farewell import Once, UnlessClosed, call_within
from grain_jax._execution.here import RunHere
from grain_jax._execution.ownership import (
    Owned,
    Owner,
    alone,
    refuse_owned,
    require_state,
    take_over,
)
from grain_jax._execution.producing import NOWHERE, Producer, iterate
from grain_jax._execution.relay import Relay
from grain_jax._execution.waits import Converting, Reading, Waits, summary, unmeasured
from grain_jax._values import forks
from grain_jax._values.checkpointable import StatefulCheckpointable
from grain_jax._values.closing import Closing
from grain_jax._values.errors import ClosedError
from grain_jax._values.faults import strip, user_traceback, with_traceback
from grain_jax._values.stats import Stats, StepStats

__all__ = ["PrefetchIterator", "known_length"]

T = TypeVar("T")

_Run: TypeAlias = RunAhead[tuple[T, Any]] | RunHere[tuple[T, Any]]

# `close()` returns within a second, whatever the source does: it gets this long to return by itself
# (less where it is to be closed anyway), its `close` that long, and all together so much.
_PATIENCE, _SHORT_PATIENCE, _CLOSING, _CLOSED_AFTER = 0.45, 0.1, 0.3, 0.9


class PrefetchIterator(Relay, Closing, StatefulCheckpointable, Generic[T]):
    """Iterates over `source` once, reading it and converting its elements in a thread.

    Reading starts at the first `next` or `start_prefetch`. An error of the source arrives in its
    turn, does not move the position, and the `next` after it tries again: from that position if the
    source has `set_state`, otherwise by asking the source once more. An element that `convert`
    refuses comes again in any case.

    Args:
      source: an iterator, which belongs to this object from now on, or anything iterable.
      convert: called in the thread with each element; `SKIP` as its result drops the element.
      buffer_size: how many converted elements may wait.
      close_source: whether `close` closes the source, too, and not only the iterator over it that
        was made here.
    """

    number: int | None = None
    """Which epoch this is, of the iterators that `epochs()` gives; None for others."""

    _is_one_pass = False
    """Whether a second loop over it, from its end, is refused: it would do nothing."""

    _converts = ""
    """What the conversion is called where times are told; empty where there is none."""

    def __init__(
        self,
        source: Iterable[Any],
        convert: Callable[[Any], T],
        buffer_size: int,
        *,
        close_source: bool = False,
    ) -> None:
        iterator = iterate(source)
        self._iterator = iterator
        self._answering = roles.Answering(self)
        self._upstream = take_over(iterator, self._answering)
        self._is_fresh = self._upstream.is_fresh
        self._filled = 0
        self._convert = convert
        self._buffer_size = buffer_size
        # The iterator over a collection is made here, and so is ours to close.
        self._made = iterator is not source
        self._unblocks = [Once(self._upstream.close)]
        if close_source and self._made and hasattr(source, "close"):
            self._unblocks.append(Once(source.close))
        self._closes = self._unblocks if close_source or self._made else []
        self._run: _Run[T] | None = None
        self._former: _Run[T] | None = None
        # An element that was not delivered yet, the state after it, and its number in the run.
        self._pending: tuple[T, Any, int] | None = None
        self._waits: Waits | None = None
        self._converting: Converting | None = None
        self._reading: Reading | None = None
        self._in_hand: list[tuple[Any, Any]] = []  # an element that was refused; see `Producer`
        self._rewind = self._exhausted = self._closed = False
        self._owner: Owner | None = None
        self._pid = os.getpid()
        self._renew()
        forks.renew(self)
        if self._stage_meter() is not None:
            self._start_waits()

    def _renew(self) -> None:
        self._lock = threading.RLock()  # of those who take elements, or move
        # For moments: what runs, and whether anything may. A signal handler may close in one.
        self._gate = threading.RLock()

    def __iter__(self) -> Self:
        if self._exhausted and (self._is_one_pass or self.number is not None):
            raise spent(self)
        return self

    def __next__(self) -> T:
        refuse_owned(self, self._owner)
        if (waits := self._waits) is not None:
            waits.ask(self.stats)
            self._filled += 0 if self._run is None else self._run.waiting
        try:
            return self._next()
        except BaseException as error:
            if waits is not None:
                waits.left()
            strip(error)
            with_traceback(error, user_traceback(error.__traceback__))
            raise

    def start_stats(self) -> None:
        """Begins to measure where the time goes: of the pipeline, if nothing was read yet."""
        if self._owner is not None:
            self._owner.start_stats()
            return
        with alone(self._lock):
            self._check()
            if self._run is None:
                self._measure_stages()
            self._start_waits()

    def stats(self) -> Stats:
        """Returns where the time has gone since `start_stats`, or `enable_profiling` had it begin.

        Raises:
          InvalidValueError: if nothing is measured.
        """
        if self._owner is not None:
            return self._owner.stats()
        if self._waits is None:
            raise unmeasured(self)
        elements = self._waits.elements
        return summary(
            self._waits,
            self._stage_meter(),
            self._stages_behind(),
            buffered=self._filled / elements if elements else None,
            buffer_size=self._buffer_size,
            skipped=self.skipped_count,
        )

    def _start_waits(self) -> None:
        """Counts waits from now on, and conversions from the next run on."""
        if self._waits is None:
            self._waits, self._filled = Waits(), 0
            self._converting = Converting(self._convert, self._converts or "conversion")
            self._reading = None if self._stage_meter() is not None else Reading(self._upstream)

    def _stages_behind(self) -> list[StepStats]:
        """Returns what is done besides what the meter knows, in order."""
        found: list[StepStats] = []
        if self._reading is not None:
            found.append(self._reading.said("source"))
        say = getattr(self._iterator, "_stages_behind", None)
        found += [] if say is None else say()
        if self._converting is not None and self._converts:
            found.append(self._converting.said(self._converts))
        return found

    def start_prefetch(self) -> None:
        """Starts reading ahead now rather than at the first `next`."""
        if self._owner is not None:
            self._owner.start_prefetch()
            return
        with alone(self._lock):
            self._check()
            if not self._exhausted:
                self._running()

    def get_state(self) -> Any:
        """Returns the position of the last element received, whatever has been read ahead.

        Also after `close`: a last save may come behind the `with` block.

        Raises:
          InvalidTypeError: if the source has no state.
        """
        if self._owner is not None:
            return self._owner.get_state(self._own_state)
        refuse_in_fork(self._pid)
        require_state(self._iterator, self._upstream.has_state)
        return self._own_state()

    def set_state(self, state: Any) -> None:
        """Moves to a position; the next element is read from there.

        A position that the source refuses changes nothing: the stream goes on where it was.

        Raises:
          InvalidTypeError: if the source has no state.
        """
        if self._owner is not None:
            self._owner.set_state(state)
            return
        with alone(self._lock):
            self._move_to(state)

    def close(self) -> None:
        """Ends the thread, and closes what was made for it; at once or within a second.

        What is iterated over, a loader say, is closed only if `close_source` says so; an iterator
        that was given also if it blocks the thread. May be called from any thread, and more than
        once.
        """
        if os.getpid() != self._pid:
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
            runs = [run for run in (self._run, self._former) if run is not None]
            self._run = self._former = self._pending = None
        for run in runs:
            run.stop()
        # What was made here is closed in any case, so there is no point in waiting long.
        deadline = time.monotonic() + _CLOSED_AFTER
        patience = _SHORT_PATIENCE if self._made else _PATIENCE
        ended = all(run.join(patience) for run in runs)
        if not ended:
            call_within(self._unblocks, _CLOSING)
            ended = all(run.join(max(0.0, deadline - time.monotonic())) for run in runs)
        if ended:
            for close in self._closes:
                close()

    # What a subclass may change.

    def _deliver(self, element: T) -> Any:
        """Called in the user's thread with each element before it is returned."""
        return element

    def _deliver_end(self) -> Any:
        """Called in the user's thread at the end; may return one more element to deliver."""
        return None

    def _deliver_error(self, error: BaseException) -> None:
        """Called in the user's thread with an error of the next element before it is raised."""

    def _moved(self, state: Any) -> None:
        """Called when the source has accepted a state, with the one that was handed out."""

    # The rest is how it runs.

    def _hand_over(self, owner: Owner) -> Owned:
        refuse_owned(self, self._owner)
        self._check()
        self._owner = owner
        return roles.Held(self)

    def _next(self) -> T:
        with alone(self._lock):
            self._check()
            try:
                if self._exhausted:
                    raise StopIteration
                # `close` may come from another thread between any two lines.
                pending = self._pending = self._pending or self._take()
                element, state, number = pending
                run = self._run
                if run is not None:
                    run.take(number)
                # An error here leaves the element pending, so that it is not lost.
                delivered = self._deliver(element)
                if self._waits is not None:
                    self._waits.got()
                # Handed over: no call may follow, as Ctrl-C could come after it.
                self._answering.state = state
                self._pending = None
                return delivered  # type: ignore[no-any-return]
            except Exception:
                self._check()
                raise

    def _take(self) -> tuple[T, Any, int]:
        try:
            return self._received()
        except StopIteration:
            more = self._deliver_end()
            if more is not None:
                return more, self._upstream.state(), -1
            self._exhausted = True
            raise

    def _received(self) -> tuple[T, Any, int]:
        run = self._running()
        try:
            number, (element, state) = run.peek()
            return element, state, number
        except StopIteration:
            raise
        except BaseException as error:
            # An interrupted wait leaves the run as it is; an error of the source has ended it.
            if run.ended:
                self._run = None
                self._rewind = True
                # What runs in this thread is ended by an interrupt, too.
                if not (isinstance(run, RunHere) and isinstance(error, KeyboardInterrupt)):
                    self._deliver_error(error)
            raise

    def _peek(self) -> T:
        """Returns the next element, which stays the next; an error or the end stay so, too."""
        refuse_owned(self, self._owner)
        with alone(self._lock), UnlessClosed(self._check):
            if self._exhausted and self._pending is None:
                raise StopIteration
            pending = self._pending = self._pending or self._received()
            return pending[0]

    def _running(self) -> _Run[T]:
        run = self._run
        if run is None:
            self._halt()
            position = self._answering.state = self._position()
            origin = position if self._rewind and self._upstream.has_state else NOWHERE
            if origin is not NOWHERE:
                self._in_hand = []
            produce = Producer(
                self._reading or self._upstream,
                self._converting or self._convert,
                origin,
                self._in_hand,
            )
            if draws := self._upstream.draws:
                run = RunHere(produce, self._buffer_size, draws)
            else:
                run = RunAhead(produce, self._buffer_size)
        with self._gate:
            self._check()  # what starts from here on, `close` knows
            self._run = run
            self._rewind = False
            run.start()  # also of a run whose start was interrupted
        return run

    def _halt(self) -> None:
        """Stops the thread and waits until it has let go of the source; the wait can be broken."""
        with self._gate:
            if self._run is not None:
                self._rewind = True
                self._former, self._run = self._run, None
                self._pending = None
            former = self._former
        if former is not None:
            former.stop()
            former.join()
            self._former = None

    def _move_to(self, state: Any) -> None:
        with UnlessClosed(self._check):
            require_state(self._iterator, self._upstream.has_state)
            self._halt()
            self._in_hand = []
            self._upstream.set_state(self._decode(state))
            self._moved(state)
            self._answering.state = self._upstream.state()
            self._rewind = self._exhausted = False

    def _position(self) -> Any:
        """The source's state at the last element delivered; before the first run, its own."""
        state = self._answering.state
        return self._upstream.state() if state is NOWHERE else state

    def _own_state(self) -> Any:
        return self._encode(copy.deepcopy(self._position()))

    def _check(self) -> None:
        refuse_in_fork(self._pid)
        if self._closed:
            raise ClosedError(
                f"this {type(self).__name__} was closed. Make another one; a state that was taken"
                " before can be set on it."
            )


def known_length(source: Any) -> int | None:
    """`len(source)`, or None where nobody can know it."""
    try:
        return len(source)
    except TypeError:
        return None
