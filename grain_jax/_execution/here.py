"""Running ahead without a thread: what comes next is made while the caller waits for this one.

The process-wide generators belong to the training loop, too. What may draw from them, and is seeded
for it, cannot run beside the loop without disturbing its numbers and being disturbed by it.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from grain_jax._execution.ahead import refuse_in_fork
from grain_jax._execution.engine.faults import forget_frames
from grain_jax._values import faults
from grain_jax._values.errors import ClosedError

__all__ = ["RunHere"]

T = TypeVar("T")

_ITEM, _ERROR, _END = range(3)

_logger = logging.getLogger("grain_jax")
_told: set[str] = set()


class RunHere(Generic[T]):
    """Calls `produce` in the thread that asks, in the manner of `RunAhead`.

    As many results as are wanted ahead are made by and by, one more with each `peek` than it needs,
    so that what `produce` has started, such as transfers, goes on beside what the caller does.

    Args:
      produce: called without arguments.
      buffer_size: how many results may wait.
      reason: what may draw, for the log.
    """

    def __init__(self, produce: Callable[[], T], buffer_size: int, reason: str) -> None:
        self._produce = produce
        self._buffer_size = buffer_size
        self._reason = reason
        self._results: deque[tuple[int, int, Any]] = deque()
        self._made = self._taken = 0
        self._over = self._stopped = False
        self._busy = threading.Lock()
        self._pid = os.getpid()
        self.ended = False

    def start(self) -> None:
        """Says, once in a process for each reason, that nothing runs ahead of the first `peek`."""
        if self._reason not in _told:
            _told.add(self._reason)
            _logger.info(
                "%s may draw from `random` or `np.random`, which belong to your training loop, too:"
                " host work runs inside next(). With worker processes it runs beside the loop.",
                self._reason,
            )

    def peek(self) -> tuple[int, T]:
        """Makes what is missing; returns the next result with its number, which `take` takes.

        Raises:
          StopIteration: at the end, and at every call after it or after an exception.
          ClosedError: if the run was stopped.
        """
        refuse_in_fork(self._pid)
        if self.ended:
            raise StopIteration
        self._fill()
        if not self._results:
            raise ClosedError("this iterator was closed while its next element was awaited")
        number, kind, value = self._results[0]
        if kind == _ITEM:
            return number, value
        self.ended = True
        self._results.clear()
        if kind == _END:
            raise StopIteration
        try:
            raise value
        finally:
            # The traceback holds this frame: without this line they would keep each other alive.
            del value

    def _fill(self) -> None:
        with self._busy:
            wanted = 1 + min(self._buffer_size, self._taken)
            try:
                while len(self._results) < wanted and not self._over and not self._stopped:
                    self._make()
            except BaseException:
                # An answer to now, such as Ctrl-C: nobody knows how far the source has come.
                self.ended = True
                self._results.clear()
                raise

    def _make(self) -> None:
        kind, value = _END, cast(Any, None)
        try:
            kind, value = _ITEM, self._produce()
        except StopIteration:
            pass
        except Exception as error:
            if self._results:
                # It waits for its turn. Its frames, and those that they were called from, refer to
                # the iterator that keeps it: their text has to do.
                text = traceback.format_tb(faults.user_traceback(error.__traceback__))
                faults.add_note(error, f"raised ahead of its turn:\n{''.join(text)}".rstrip())
                forget_frames(error)
            kind, value = _ERROR, error
        self._over = kind != _ITEM
        self._results.append((self._made, kind, value))
        self._made += 1
        del value  # the traceback of an error may lead to this frame

    @property
    def waiting(self) -> int:
        """How many results are there that were not taken."""
        return len(self._results)

    def take(self, number: int) -> None:
        """Takes the result of that number, and all before it; once more is as good as once."""
        self._taken = max(self._taken, number + 1)
        while self._results and self._results[0][0] < self._taken:
            self._results.popleft()

    def stop(self) -> None:
        """Makes nothing more; what is being made is finished."""
        self._stopped = True

    def join(self, timeout: float | None = None) -> bool:
        """Waits for another thread that is making something, and says whether it has ended."""
        if self._busy.acquire(timeout=-1 if timeout is None else timeout):
            self._results.clear()
            self._busy.release()
            return True
        return False
