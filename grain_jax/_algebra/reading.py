"""Reading blocks of records: in the calling thread, by `__getitems__`, or in threads of its own.

The records never depend on how they are read; only the time does. What is read in memory, or
several records in one call, needs no threads. For the rest, unless the user gives a number, a few
records are timed now and then: threads are worth their while where a record mostly waits. They
start by themselves only where several may certainly be inside the source at once (`concurrency`).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._algebra import concurrency
from grain_jax._algebra.access import READING, Keys, Source, mark_failure
from grain_jax._algebra.threads import Job, Threads
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


class Reader:
    """Reads blocks of records from one source.

    Its threads start when they are first needed, in every process anew, and end with `close()`.

    Args:
        source: what to read.
        options: `num_threads` threads read, or as many as pay where that is None. Sources in
            memory are read in the calling thread, and those with `__getitems__` in one call.
        threads: of several readers, which are closed together; None for threads of its own.
    """

    def __init__(
        self, source: Source, options: ReadOptions, threads: Threads | None = None
    ) -> None:
        self._source = source
        self._options = options
        self._pool = threads or Threads()
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._has_begun = False
        self._process = os.getpid()
        serial = self._source.in_memory or self._source.get_many is not None
        wanted = self._options.num_threads
        self._threads = 0 if serial or wanted is None else wanted
        self._tuner = _Tuner() if wanted is None and not serial else None
        self._shared: bool | None = None

    def __getstate__(self) -> tuple[Source, ReadOptions, Threads]:
        return self._source, self._options, self._pool

    def __setstate__(self, state: tuple[Source, ReadOptions, Threads]) -> None:
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

    @property
    def is_threaded(self) -> bool:
        """Whether there are any threads."""
        return self._pool.size > 0

    def close(self) -> None:
        """Ends the threads; a `read` that waits for them raises. Safe to call twice."""
        self._closed = True
        self._pool.close()

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
        before = self._pool.size
        start = time.perf_counter()
        records = self._read_in_threads(keys, tuner.threads, records)
        if self._pool.size == before:  # starting them costs more than they save at first
            tuner.check(rest, time.perf_counter() - start)
        return records

    def _may_share(self) -> bool:
        """Whether threads may start by themselves; looked at once, when they would first help."""
        if self._shared is None:
            self._shared = concurrency.may_share(self._source.given)
        return self._shared

    def _read_in_threads(self, keys: list[int], threads: int, records: list[Any]) -> list[Any]:
        """Appends the records that are missing and returns all."""
        if not self._has_begun:
            # What a source makes at its first use is made once, and not by several threads.
            records = self._source.read_each(keys[: len(records) + 1], records)
            self._has_begun = True
        done = len(records)
        if done == len(keys):
            return records
        job = Job(self._source.get, keys[done:])
        self._pool.run(job, min(threads, len(keys) - done))
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
