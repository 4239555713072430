"""A thread that runs a function ahead of whoever takes its results, in order and bounded.

The thread knows two queues and the function, never the `RunAhead` that users hold: when that is
dropped, the thread is told to stop. `queue.SimpleQueue` may be put to from a finalizer, and a wait
on it can be interrupted by a signal; there is no other lock on the way of an element.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from grain_jax._values.errors import ClosedError

__all__ = ["RunAhead"]

T = TypeVar("T")

_ITEM, _ERROR, _END, _STOPPED = range(4)

# How long the interpreter's exit waits for threads that may be inside a transfer.
_EXIT_SECONDS = 2.0


class _Channel:
    """What the thread and the taker share."""

    def __init__(self) -> None:
        self.permits: SimpleQueue[None] = SimpleQueue()
        self.results: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self.stopped = False

    def stop(self) -> None:
        """Asks the thread to end and wakes whoever waits; safe in a finalizer."""
        self.stopped = True
        self.permits.put(None)
        self.results.put((_STOPPED, None))


_running: dict[threading.Thread, _Channel] = {}
_running_lock = threading.Lock()


class RunAhead(Generic[T]):
    """Calls `produce` in a daemon thread, at most `buffer_size` results ahead of `get`.

    The first exception ends the run: `StopIteration` is its proper end, any other is raised by the
    `get` whose turn it is, after all results before it. A run is not restarted; make another one.

    Args:
      produce: called without arguments, by one thread.
      buffer_size: how many results may wait. With 0, each result is made while `get` waits for it.
      name: the name of the thread.
    """

    def __init__(
        self, produce: Callable[[], T], buffer_size: int, *, name: str = "grain_jax run-ahead"
    ) -> None:
        self._channel = _Channel()
        for _ in range(buffer_size):
            self._channel.permits.put(None)
        # The thread sees the context variables of its maker, NumPy's error handling among them.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(_work, self._channel, produce),
            name=name,
            daemon=True,
        )
        self._owes_permit = True
        self._pid = os.getpid()
        self.ended = False
        weakref.finalize(self, self._channel.stop).atexit = False

    def start(self) -> None:
        """Starts the thread; once only."""
        with _running_lock:
            _running[self._thread] = self._channel
        try:
            self._thread.start()
        except BaseException:
            with _running_lock:
                del _running[self._thread]
            raise
        # The last to register is the first to run at exit. A library that the thread uses has been
        # imported by now, its exit handler registered, so that the thread ends before the library.
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)

    def get(self) -> T:
        """Waits for the next result.

        Raises:
          StopIteration: at the end, and at every call after it or after an exception.
          ClosedError: if the run was stopped, also while this call waits.
        """
        refuse_in_fork(self._pid)
        channel = self._channel
        if self.ended:
            raise StopIteration
        # An interrupted wait has paid its permit already.
        if self._owes_permit:
            self._owes_permit = False
            channel.permits.put(None)
        kind, value = channel.results.get()
        if channel.stopped:
            channel.results.put((_STOPPED, None))
            raise ClosedError("this iterator was closed while its next element was awaited")
        self._owes_permit = True
        if kind == _ITEM:
            return value  # type: ignore[no-any-return]
        self.ended = True
        if kind == _END:
            raise StopIteration
        try:
            raise value
        finally:
            # The traceback holds this frame: without this line they would keep each other alive.
            del value

    def stop(self) -> None:
        """Asks the thread to end after the call of `produce` that it is in; does not wait."""
        self._channel.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the thread to end, and says whether it did."""
        if self._thread.ident is not None and self._pid == os.getpid():
            self._thread.join(timeout)
            return not self._thread.is_alive()
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


def _work(channel: _Channel, produce: Callable[[], Any]) -> None:
    try:
        while True:
            channel.permits.get()
            if channel.stopped:
                return
            try:
                result = produce()
            except StopIteration:
                channel.results.put((_END, None))
                return
            except BaseException as error:
                channel.results.put((_ERROR, error))
                return
            if channel.stopped:
                return
            channel.results.put((_ITEM, result))
            # Nothing that was handed over may live on in this frame while it waits.
            del result
    finally:
        with _running_lock:
            _running.pop(threading.current_thread(), None)


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
