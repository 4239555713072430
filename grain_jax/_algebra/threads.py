"""Threads that read: blocks of keys are done by several of them."""

from __future__ import annotations

import atexit
import collections
import contextvars
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from grain_jax._values.errors import ClosedError

__all__ = ["Job", "Threads"]

# How long `close()` waits for threads, which a blocked source may hold; and the interpreter's exit.
_CLOSE_WAIT = 0.5
_EXIT_WAIT = 2.0


class Job:
    """One block: threads take its keys in order, so that the first to fail is known."""

    def __init__(self, get: Callable[[int], Any], keys: list[int]) -> None:
        self.records: list[Any] = [None] * len(keys)
        self.failures: list[tuple[int, BaseException]] = []
        self.abandoned = False
        self.done = threading.Event()
        self._get = get
        self._todo = collections.deque(enumerate(keys))
        self._lock = threading.Lock()
        self._working = 0
        # The threads see the context variables of who asks, NumPy's error handling among them.
        self.context = contextvars.copy_context()

    def start(self, threads: int) -> None:
        """Says how many threads will work on it."""
        self._working = threads
        if not threads:
            self.done.set()

    def work(self) -> None:
        """Takes keys until there are none."""
        get, records, todo = self._get, self.records, self._todo
        while True:
            try:
                row, key = todo.popleft()
            except IndexError:
                break
            try:
                records[row] = get(key)
            except BaseException as error:  # it is raised in the thread that asked
                self.failures.append((row, error))
                todo.clear()
        with self._lock:
            self._working -= 1
            last = self._working == 0
        if last:
            self.done.set()

    def abandon(self) -> None:
        """Lets the waiting thread go, whatever the others are at."""
        self._todo.clear()
        self.abandoned = True
        self.done.set()


class Threads:
    """Threads that readers share which are closed together: as many as the one that needs most.

    They start when they are first needed, in every process anew, and after `close` as well.
    """

    def __init__(self) -> None:
        self._renew()

    def __reduce__(self) -> Any:
        return Threads, ()

    def _renew(self) -> None:
        self._pool: _Pool | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def size(self) -> int:
        """How many threads there are."""
        pool = self._pool
        return 0 if pool is None or self._process != os.getpid() else pool.size

    def run(self, job: Job, threads: int) -> None:
        """Does the job with so many threads and waits for it.

        Raises:
          ClosedError: if they are closed meanwhile.
        """
        if self._process != os.getpid():
            self._renew()
        with self._lock:
            pool = self._pool = self._pool or _Pool()
        pool.run(job, threads)

    def close(self) -> None:
        """Ends the threads; a `run` that waits for them raises."""
        if self._process != os.getpid():
            return
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(_CLOSE_WAIT)


class _Pool:
    """Threads that work on jobs; they know the queue only, so a forgotten pool ends them."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: set[Job] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._finalizer = weakref.finalize(self, _stop, self._jobs, self._threads)
        self._finalizer.atexit = False
        with _pools_lock:
            _pools.add(self)

    @property
    def size(self) -> int:
        """How many threads there are."""
        return len(self._threads)

    def run(self, job: Job, threads: int) -> None:
        """Does the job with so many threads and waits for it."""
        with self._lock:
            if self._closed:
                raise ClosedError("a reader was closed while it was reading.")
            while len(self._threads) < threads:
                self._start_thread()
            self._running.add(job)
            job.start(threads)
        try:
            for _ in range(threads):
                self._jobs.put(job)
            job.done.wait()
        except BaseException:
            job.abandon()  # Ctrl-C, say
            raise
        finally:
            with self._lock:
                self._running.discard(job)
        if job.abandoned:
            raise ClosedError("a reader was closed while it was reading.")

    def _start_thread(self) -> None:
        number = len(self._threads)
        # Daemons, since a source that blocks for ever must not keep the interpreter from ending.
        thread = threading.Thread(
            target=_serve, args=(self._jobs,), name=f"grain_jax read {number}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def close(self, wait: float) -> None:
        """Ends the threads, waiting so long for those inside the source."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for job in running:
            job.abandon()
        self._finalizer()
        end = time.monotonic() + wait
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))


def _serve(jobs: queue.SimpleQueue[Job | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job.context.copy().run(job.work)
        del job  # its records are not this thread's to keep


def _stop(jobs: queue.SimpleQueue[Job | None], threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)


_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()
_pools_lock = threading.Lock()


@atexit.register
def _close_pools() -> None:
    """A thread that comes back from C++ code while the interpreter goes would abort the process."""
    with _pools_lock:
        pools = list(_pools)
    end = time.monotonic() + _EXIT_WAIT
    for pool in pools:
        pool.close(max(0.0, end - time.monotonic()))


def _forget_pools() -> None:
    """The threads of a fork's parent are not here to be waited for."""
    global _pools, _pools_lock
    _pools, _pools_lock = weakref.WeakSet(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
