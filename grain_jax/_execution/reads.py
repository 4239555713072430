"""Reads: a thread that reads the records of tasks to come, in the order they were submitted."""

from __future__ import annotations

import contextvars
import queue
import threading
from typing import Any

from grain_jax._datasets.outcomes import GapError, Read
from grain_jax._datasets.program import Program
from grain_jax._values import forks

__all__ = ["Reads"]

_CLOSE_WAIT = 0.5
"""Seconds that `close` waits for a read that is under way; a blocked one is left behind."""


class _Job:
    """One task's reading."""

    def __init__(self, stage: int, payload: Any) -> None:
        self.stage = stage
        self.payload = payload
        self.done = threading.Event()
        self.read: Read | BaseException | None = None
        self.dropped = False
        self.context = contextvars.copy_context()  # of who runs the stream


class Reads:
    """Reads ahead in one thread; the reader below it may use more.

    What reading has raised is handed on to `Program.run`.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._renew()
        forks.renew(self)

    def _renew(self) -> None:
        # A forked child has no such thread; what it was to read is read when it is asked for.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open: dict[int, _Job] = {}
        self._thread: threading.Thread | None = None

    def start(self, ticket: int, stage: int, payload: Any) -> None:
        """Reads for a ticket as soon as those before it are read."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve, args=(self._program, self._jobs), name="grain_jax reads", daemon=True
            )
            self._thread.start()
        job = self._open[ticket] = _Job(stage, payload)
        self._jobs.put(job)

    def take(self, ticket: int) -> Read | BaseException | None:
        """Waits for what was read for a ticket, or what reading raised; None where nothing was."""
        job = self._open.pop(ticket, None)
        if job is None:
            return None
        # In steps, so that signals are handled on every platform.
        while not job.done.wait(1.0):
            if self._thread is None or not self._thread.is_alive():
                return None
        return job.read

    def forget(self, ticket: int) -> None:
        """Forgets what was read for a ticket."""
        job = self._open.pop(ticket, None)
        if job is not None:
            job.dropped = True

    def drop(self) -> None:
        """Forgets what was not taken yet."""
        jobs, self._open = self._open, {}
        for job in jobs.values():
            job.dropped = True

    def close(self) -> None:
        """Ends the thread."""
        self.drop()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(_CLOSE_WAIT)


def _serve(program: Program, jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        if not job.dropped:
            try:
                job.read = job.context.run(program.read_ahead, job.stage, job.payload)
            except GapError:
                job.read = None  # that is for the thread that runs the stream
            except BaseException as error:  # no signal comes here, so it is the source's
                job.read = error
        job.done.set()
