"""A thread that runs a function ahead of whoever takes its results, in order and bounded.

The thread knows a channel and the function, never the `RunAhead` that users hold: when that is
dropped, the thread is told to stop. `queue.SimpleQueue` may be put to from a finalizer, and a wait
on it can be interrupted by a signal; there is no other lock on the way of an element.

A signal may come between any two instructions of the taker, above all as a wait returns. So nothing
is handed over by a queue: results are numbered, and looked at before they are taken; what the taker
allows and takes is said in numbers that may be said twice. Queues only carry news, which may be
lost with the wait that it ends, and is looked for again by the next one.
"""

from __future__ import annotations

import atexit
import contextvars
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from grain_jax._values import forks
from grain_jax._values.errors import ClosedError

__all__ = ["RunAhead"]

T = TypeVar("T")

_ITEM, _ERROR, _END = range(3)

# Some libraries (polars) set SIGINT up so that it ends no wait by itself.
_LOOK = 0.5

# How long the interpreter's exit waits for threads that may be inside a transfer.
_EXIT_SECONDS = 2.0


class _News:
    """Wakes one waiter, now or when it comes to wait."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[None] = SimpleQueue()

    def tell(self) -> None:
        """Says that something has changed; safe in a finalizer."""
        self._queue.put(None)

    def forget(self) -> None:
        """Drops the news so far; whoever then looks sees what they were about."""
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            pass

    def wait(self) -> None:
        """Waits for news; Ctrl-C ends it, whoever has set up the signal."""
        while True:
            try:
                return self._queue.get(timeout=_LOOK)
            except Empty:
                continue


class _Channel:
    """What the thread and the taker share.

    Attributes:
      allowed: how many results may be made.
      results: number, kind and value of those that were made and not taken.
      thread: which makes them.
    """

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.thread: threading.Thread | None = None
        self._claims = itertools.count()
        self.results: deque[tuple[int, int, Any]] = deque()
        self.stopped = False
        self.for_thread, self.for_taker = _News(), _News()

    def stop(self) -> None:
        """Asks the thread to end and wakes whoever waits; safe in a finalizer."""
        self.stopped = True
        self.for_thread.tell()
        self.for_taker.tell()

    def is_first(self) -> bool:
        """Whether the calling thread is the first to ask, and so the one that does the work."""
        return next(self._claims) == 0

    def put(self, number: int, kind: int, value: Any) -> None:
        """Adds a result."""
        self.results.append((number, kind, value))
        self.for_taker.tell()


_running: dict[threading.Thread, _Channel] = {}
_running_lock = threading.Lock()


@forks.call_in_child
def _renew() -> None:
    global _running_lock
    _running_lock = threading.Lock()
    _running.clear()  # no thread came along


class RunAhead(Generic[T]):
    """Calls `produce` in a daemon thread, at most `buffer_size` results ahead of who takes them.

    The first exception ends the run: `StopIteration` is its proper end, any other is raised by the
    `peek` whose turn it is, after all results before it. A run is not restarted; make another one.

    Args:
      produce: called without arguments, by one thread.
      buffer_size: how many results may wait. With 0, each is made while `peek` waits for it.
      name: the name of the thread.
      finish: called by the thread at its end, however that comes.

    Attributes:
      buffer_size: as given; it may be changed as the run goes on.
    """

    def __init__(
        self,
        produce: Callable[[], T],
        buffer_size: int,
        *,
        name: str = "grain_jax run-ahead",
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._channel = _Channel(buffer_size)
        self.buffer_size = buffer_size
        self._finish = finish
        self._taken = 0
        self._produce = produce
        self._name = name
        # The thread sees the context variables of its maker, NumPy's error handling among them.
        self._context = contextvars.copy_context()
        self._started = False
        self._pid = os.getpid()
        self.ended = False
        weakref.finalize(self, self._channel.stop).atexit = False

    def start(self) -> None:
        """Starts the thread, unless that is done; an interrupted start may be tried again."""
        if self._started:
            return
        # A start that was interrupted may have begun a thread: the first that comes does the work.
        context = self._context.copy()
        thread = threading.Thread(
            target=context.run,
            args=(_work, self._channel, self._produce, self._finish),
            name=self._name,
            daemon=True,
        )
        with _running_lock:
            _running[thread] = self._channel
        try:
            thread.start()
        except Exception:
            with _running_lock:
                del _running[thread]
            raise
        self._started = True
        # The last to register is the first to run at exit. A library that the thread uses has been
        # imported by now, its exit handler registered, so that the thread ends before the library.
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)

    def peek(self) -> tuple[int, T]:
        """Waits for the next result; returns it with its number, which `take` takes.

        Raises:
          StopIteration: at the end, and at every call after it or after an exception.
          ClosedError: if the run was stopped, also while this call waits.
        """
        refuse_in_fork(self._pid)
        if self.ended:
            raise StopIteration
        number, kind, value = self._next()
        if kind == _ITEM:
            return number, value
        self.ended = True
        self._channel.results.clear()
        if kind == _END:
            raise StopIteration
        try:
            raise value
        finally:
            # The traceback holds this frame: without this line they would keep each other alive.
            del value

    @property
    def waiting(self) -> int:
        """How many results are there that were not taken."""
        return len(self._channel.results)

    def take(self, number: int) -> None:
        """Takes the result of that number, and all before it; once more is as good as once."""
        self._taken = max(self._taken, number + 1)
        self._drop_taken()

    def has_more(self, *, only_results: bool = False) -> bool:
        """Whether `peek` would return or raise at once; lets the thread go on.

        What is no `Exception` is not for those who only look: it is an answer to who waits.

        Args:
          only_results: whether it would return.
        """
        self._allow()
        self._drop_taken()
        if not self._channel.results:
            return False
        _, kind, value = self._channel.results[0]
        return kind == _ITEM or not (
            only_results or (kind == _ERROR and not isinstance(value, Exception))
        )

    def _allow(self) -> None:
        self._channel.allowed = self._taken + 1 + self.buffer_size
        self._channel.for_thread.tell()

    def _next(self) -> tuple[int, int, Any]:
        channel = self._channel
        self._allow()
        while not channel.stopped:
            channel.for_taker.forget()
            self._drop_taken()
            if channel.results:
                return channel.results[0]
            if not channel.stopped:
                channel.for_taker.wait()
        channel.for_taker.tell()  # there may be others who wait
        raise ClosedError("this iterator was closed while its next element was awaited")

    def _drop_taken(self) -> None:
        results = self._channel.results
        while results and results[0][0] < self._taken:
            results.popleft()

    def stop(self) -> None:
        """Asks the thread to end after the call of `produce` that it is in; does not wait."""
        self._channel.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the thread to end, and says whether it did."""
        thread = self._channel.thread
        if thread is not None and self._pid == os.getpid():
            thread.join(timeout)
            return not thread.is_alive()
        return True


def refuse_in_fork(pid: int) -> None:
    """Raises if this process is a forked copy of process `pid`: threads do not survive a fork.

    Raises:
      ClosedError: if it is.
    """
    if os.getpid() != pid:
        raise ClosedError(
            f"this iterator belongs to process {pid} and is used in process {os.getpid()}, a forked"
            " copy without the thread that reads ahead. Make the iterator in the process that uses"
            " it."
        )


def _work(channel: _Channel, produce: Callable[[], Any], finish: Callable[[], None] | None) -> None:
    try:
        if not channel.is_first():
            return
        channel.thread = threading.current_thread()
        for number in itertools.count():
            _await_permission(channel, number)
            if channel.stopped:
                return
            try:
                result = produce()
            except StopIteration:
                channel.put(number, _END, None)
                return
            except BaseException as error:
                channel.put(number, _ERROR, error)
                return
            if channel.stopped:
                return
            channel.put(number, _ITEM, result)
            # Nothing that was handed over may live on in this frame while it waits.
            del result
    finally:
        if finish is not None and channel.thread is threading.current_thread():
            finish()
        with _running_lock:
            _running.pop(threading.current_thread(), None)
        # The traceback of an error leads to this frame, and nobody may come to take the error.
        del channel, produce, finish


def _await_permission(channel: _Channel, number: int) -> None:
    while not channel.stopped:
        channel.for_thread.forget()
        if channel.stopped or number < channel.allowed:
            return
        channel.for_thread.wait()


def _stop_all() -> None:
    """Ends the threads before the interpreter does: one inside a transfer would abort it."""
    with _running_lock:
        threads = dict(_running)
    for channel in threads.values():
        channel.stop()
    deadline = time.monotonic() + _EXIT_SECONDS
    for thread in threads:
        # In a forked copy these threads do not run, and `is_alive` says so.
        if thread.is_alive():
            thread.join(max(0.0, deadline - time.monotonic()))
