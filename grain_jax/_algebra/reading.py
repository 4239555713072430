"""Reading blocks of records: in the calling thread, by `__getitems__`, or in threads of its own.

The records never depend on how they are read; only the time does. What is read in memory, or
several records in one call, needs no threads. For the rest, unless the user gives a number, a few
records are timed now and then: threads are worth their while where a record mostly waits. They
start by themselves only where several may certainly be inside the source at once (`concurrency`).
"""

from __future__ import annotations

import atexit
import collections
import contextvars
import os
import queue
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra import concurrency
from grain_jax._algebra.access import READING, Keys, Source, mark_failure
from grain_jax._values import progress
from grain_jax._values.errors import ClosedError
from grain_jax._values.options import ReadOptions

__all__ = ["Reader"]

_MAX_THREADS = 64

# What a thread costs for each record, in seconds: handing over, waking up, switching.
_HANDOVER = 20e-6

# A record that takes less than this is read faster than it is handed to a thread.
_WORTH_A_THREAD = 2 * _HANDOVER

# The part of a record's time that has to be waiting for threads to pay.
_WAITING = 0.3

# How often the choice is looked at again, and how many records (or how long) are timed for it.
_PROBE_EVERY = 1.0
_PROBE_RECORDS = 9
_PROBE_MIN_RECORDS = 2
_PROBE_TIME = 500e-6

# How long `close()` waits for threads, which a blocked source may hold; and the interpreter's exit.
_CLOSE_WAIT = 0.5
_EXIT_WAIT = 2.0


class Reader:
    """Reads blocks of records from one source.

    Its threads start when they are first needed, in every process anew, and end with `close()`.

    Args:
        source: what to read.
        options: `num_threads` threads read, or as many as pay where that is None. Sources in
            memory are read in the calling thread, and those with `__getitems__` in one call.
    """

    def __init__(self, source: Source, options: ReadOptions) -> None:
        self._source = source
        self._options = options
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pool: _Pool | None = None
        self._process = os.getpid()
        serial = self._source.in_memory or self._source.get_many is not None
        wanted = self._options.num_threads
        self._threads = 0 if serial or wanted is None else wanted
        self._tuner = _Tuner() if wanted is None and not serial else None
        self._shared: bool | None = None

    def __getstate__(self) -> tuple[Source, ReadOptions]:
        return self._source, self._options

    def __setstate__(self, state: tuple[Source, ReadOptions]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def read(self, keys: Keys) -> list[Any]:
        """The records of these keys, in their order, duplicates kept.

        Raises:
            OutOfRangeError: if a key is outside the source.
            Exception: what the source raised for the first of the keys that failed, as itself, with
                a note that names the key; `access.failed_row` gives its row.
        """
        if self._closed:
            raise ClosedError("a reader was used after close().")
        if self._process != os.getpid():
            self._reset()
        if self._tuner is None and self._threads == 0:
            return self._source.read(keys)
        self._source.check(keys)
        wanted: list[int] = keys.tolist()
        if not wanted:
            return []
        if self._tuner is None:
            return self._read_in_threads(wanted, self._threads, [])
        return self._read_tuned(wanted, self._tuner)

    def close(self) -> None:
        """Ends the threads; a `read` that waits for them raises. Safe to call twice."""
        self._closed = True
        if self._pool is not None and self._process == os.getpid():
            self._pool.close(_CLOSE_WAIT)
        self._pool = None

    def _read_tuned(self, keys: list[int], tuner: _Tuner) -> list[Any]:
        records: list[Any] = []
        if tuner.due():
            progress.at(READING, lambda: f"key {keys[min(len(records), len(keys) - 1)]}")
            try:
                tuner.probe(self._source.get, keys, records)
            except BaseException as error:
                mark_failure(error, self._source, len(records), keys)
                raise
        rest = len(keys) - len(records)
        if tuner.threads < 2 or rest < 2:
            return self._source.read_each(keys, records)
        if not self._may_share():
            self._tuner = None
            return self._source.read_each(keys, records)
        before = self._thread_count
        start = time.perf_counter()
        records = self._read_in_threads(keys, tuner.threads, records)
        if self._thread_count == before:  # starting them costs more than they save at first
            tuner.check(rest, time.perf_counter() - start)
        return records

    def _may_share(self) -> bool:
        """Whether threads may start by themselves; looked at once, when they would first help."""
        if self._shared is None:
            self._shared = concurrency.may_share(self._source.given)
        return self._shared

    @property
    def _thread_count(self) -> int:
        return 0 if self._pool is None else self._pool.size

    def _read_in_threads(self, keys: list[int], threads: int, records: list[Any]) -> list[Any]:
        """Appends the records that are missing and returns all."""
        pool = self._pool
        if pool is None:
            # What a source makes at its first use is made once, and not by several threads.
            records = self._source.read_each(keys[: len(records) + 1], records)
            pool = self._pool = _Pool()
        done = len(records)
        if done == len(keys):
            return records
        job = _Job(self._source.get, keys[done:])
        pool.run(job, min(threads, len(keys) - done))
        if job.failures:
            row, error = min(job.failures, key=lambda failure: failure[0])
            mark_failure(error, self._source, row + done, keys)
            raise error
        records += job.records  # the very list, which `progress` may refer to
        # A thread may still hold this one; who counts references to records must not see it.
        job.records.clear()
        return records


class _Tuner:
    """Decides on the number of threads from what some records cost.

    Attributes:
        threads: how many to use now; 0 for none.
    """

    def __init__(self) -> None:
        self.threads = 0
        self._next = 0.0
        self._pause = _PROBE_EVERY
        self._first = True
        self._serial = 0.0

    def due(self) -> bool:
        """Whether it is time to look at the choice again."""
        return time.monotonic() >= self._next

    def probe(self, get: Callable[[int], Any], keys: Sequence[int], records: list[Any]) -> None:
        """Reads the first of these keys in this thread, timed, and decides."""
        count = 0
        times: list[float] = []
        begin = previous = time.perf_counter()
        busy = time.thread_time()
        for key in keys:
            records.append(get(key))
            count += 1
            now = time.perf_counter()
            if self._first:
                # The first record pays for imports and for opening files.
                self._first = False
                count, begin, busy = 0, now, time.thread_time()
            else:
                times.append(now - previous)
            previous = now
            if count == _PROBE_RECORDS or (
                count >= _PROBE_MIN_RECORDS and now - begin > _PROBE_TIME
            ):
                break
        if count < min(_PROBE_MIN_RECORDS, len(keys)):
            return  # too few to tell; the next block continues
        busy = (time.thread_time() - busy) / count
        self._next = time.monotonic() + self._pause
        # The median: a record during which this process had to stand aside says nothing.
        self._serial = statistics.median(times)
        self.threads = _threads_for(self._serial, busy)

    def check(self, count: int, seconds: float) -> None:
        """Goes back to no threads, and for longer each time, if they did not help."""
        if count < 4:
            return
        if seconds / count > 0.8 * self._serial:
            self.threads = 0
            self._pause = min(2 * self._pause, 60.0)
            self._next = time.monotonic() + self._pause
        else:
            self._pause = _PROBE_EVERY


def _threads_for(seconds: float, busy: float) -> int:
    """As many as can wait while one is busy, for records that take so long in one thread."""
    if seconds < _WORTH_A_THREAD or seconds - busy < _WAITING * seconds:
        return 0
    threads = 2
    while threads < _MAX_THREADS and threads * (busy + _HANDOVER) < seconds:
        threads *= 2
    return threads


class _Job:
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


class _Pool:
    """Threads that work on jobs; they know the queue only, so a forgotten pool ends them."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: set[_Job] = set()
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

    def run(self, job: _Job, threads: int) -> None:
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


def _serve(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job.context.copy().run(job.work)
        del job  # its records are not this thread's to keep


def _stop(jobs: queue.SimpleQueue[_Job | None], threads: list[threading.Thread]) -> None:
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
