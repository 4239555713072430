"""Workers whose helper is gone: they are about to end, and until then may write to their slots."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from grain_jax._execution.engine import signals
from grain_jax._execution.engine.task import Task

__all__ = ["Orphans"]

# A worker that was being started has no process id in the table yet. It ends as fast as the others:
# the kernel kills it with its parent, or, where no kernel does that, it looks twice a second.
_UNNAMED_SECONDS = 0.25 if sys.platform == "linux" else 1.5
_LOOK = 0.005


class Orphans:
    """The workers of a helper that is gone.

    Args:
      rows: their rows in the table.
      tasks: what they may be at, so that their inputs stay.
      slots: the slots that they may write to.
      pid: returns the process id in a row, 0 where there is none.
    """

    def __init__(
        self, rows: range, tasks: list[Task], slots: list[int], pid: Callable[[int], int]
    ) -> None:
        self.rows = rows
        self.tasks = tasks
        self.slots = slots
        self._pid = pid
        self._since = time.monotonic()

    def gone(self) -> bool:
        """Whether all of them have ended."""
        pids = [self._pid(row) for row in self.rows]
        if not all(pids) and time.monotonic() - self._since < _UNNAMED_SECONDS:
            return False
        return not any(pid and _runs(pid) for pid in pids)

    def end_groups(self) -> None:
        """Ends what they have started, which else is the task of their helper."""
        for row in self.rows:
            if pid := self._pid(row):
                signals.send(pid, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Waits for all of them to end; whether they have."""
        deadline = time.monotonic() + seconds
        while not self.gone():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK)
        return True


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        pass
    if os.path.exists("/proc/self/stat"):
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
