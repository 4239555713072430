"""The trainer's side of the engine: worker processes that run one program, in any number."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from grain_jax._execution.engine import (
    channel,
    draft,
    faults,
    launch,
    ledger,
    log,
    orphans,
    parcel,
    slots,
    table,
)
from grain_jax._execution.engine.arena import Arena, gate
from grain_jax._execution.engine.bundle import Bundle
from grain_jax._execution.engine.task import Program
from grain_jax._values.errors import ClosedError, InvalidValueError, WorkerError

__all__ = ["Bundle", "Pool", "Program"]

_LOOK = 0.5  # seconds; the longest wait before looking whether the helper still lives
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_numbers = itertools.count()
_unsafe: set[tuple[str, ...]] = set()  # modules after whose import no worker can be forked


class Pool:
    """Worker processes that run one program. Any thread may call any method.

    Args:
        program: see `Program`.
        workers: how many processes, at least 1.
        buffer: results that each worker may be ahead by.
        memory_limit: bytes of this process for results that have left their slots. None: an eighth
            of the machine's memory.
        slot_budget_bytes: shared memory for results; beyond it, `Bundle.load` copies. None: an
            eighth of the machine's memory, at most 2 GiB.
        mode: how workers start: "fork_imported" (modules are imported once, before the fork),
            "fork_first" (each worker imports them), "fresh" (new interpreters), or "auto":
            "fork_imported" on Linux, "fresh" elsewhere. An `init`, and modules that start threads
            or leave files open, turn the first into the second. Each worker loads the program.
        max_worker_restarts: how often a task is tried again after the death of its worker.
        stall_timeout: seconds without any answer after which `result` raises; None waits.
        init: called as `init(number, workers)` once in every worker, before it loads the program.
        ignored: modules and variables of modules that may differ between this process and workers.

    Raises:
        InvalidTypeError: the program does not pickle.
    """

    _closed = True  # until there is something to close

    def __init__(
        self,
        program: Program,
        *,
        workers: int,
        buffer: int = 1,
        slot_budget_bytes: int | None = None,
        memory_limit: int | None = None,
        mode: str = "auto",
        max_worker_restarts: int = 3,
        stall_timeout: float | None = None,
        init: Callable[[int, int], None] | None = None,
        ignored: Sequence[str] = (),
    ) -> None:
        if not launch.supported():
            raise WorkerError("this system has no worker processes: use worker_count=0")
        if workers < 1:
            raise InvalidValueError(f"a pool needs at least 1 worker, not {workers}")
        self.mode = launch.default_mode() if mode == "auto" else mode
        self._workers = workers
        self._stall_timeout = stall_timeout
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)  # somebody has polled
        self._poller = 0.0  # until when somebody polls, in monotonic seconds
        self._torn = False
        self._ready = False
        self._sockets: list[socket.socket] = []
        self._records: deque[logging.LogRecord] = deque()  # for the handlers of this process
        self._listened = 0.0
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as early:
            if self.mode != "fresh":
                # The zygote starts while this process pickles.
                early.callback(launch.keep_alive().close)
            self._arena = Arena.create()
            undo.callback(self._arena.close)
            # The other half is for results that are kept, and for those that wait for others.
            self.capacity = min(workers * (1 + max(buffer, 1)), self._arena.slots // 2)
            self._log = log.Reader()
            undo.callback(self._log.close)
            rows = 2 * workers  # the second half for the time after a helper's death
            cells = self._cells = table.Table(self._arena, rows)
            budget = slots.default_budget() if slot_budget_bytes is None else slot_budget_bytes
            self._parcel, registry, self._modules = parcel.pack(
                program,
                init,
                launch.settings(
                    self._arena, workers, rows, stall_timeout, getattr(program, "closes", False)
                ),
                f"{self._owner}-{next(_numbers)}",
                ignored,
            )
            undo.callback(os.close, self._parcel)
            if self.mode == "fork_imported" and (init is not None or self._modules in _unsafe):
                self.mode = "fork_first"
            self._slots = slots.Slots(self._arena, cells, budget)
            self._ledger = ledger.Ledger(
                self._arena,
                cells,
                self._slots,
                registry,
                workers,
                max_worker_restarts,
                self.capacity,
                memory_limit,
            )
            self._connect(first_row=0)
            undo.pop_all()
        self._closed = False
        _pools.add(self)

    def _connect(self, first_row: int) -> None:
        self._close_sockets()
        try:
            # All are kept open here: a helper that cannot fork safely is followed by another one.
            for _ in range(2):
                self._sockets += channel.pair()
            tasks, _, results, _ = self._sockets
            tasks.setblocking(False)
            results.setblocking(False)
            self._ledger.connect(tasks, results, first_row)
            self._first_row = first_row
            self._start_helper()
        except BaseException:
            self._close_sockets()
            raise

    def _close_sockets(self) -> None:
        for end in self._sockets:
            end.close()
        self._sockets = []

    def _start_helper(self) -> None:
        _, tasks, _, results = self._sockets
        passed = [tasks.fileno(), results.fileno(), self._arena.descriptor, self._parcel]
        passed.append(self._log.descriptor)
        self._helper = launch.Helper(self.mode, self._first_row, passed)
        self._ready = False

    def submit(
        self,
        stage: int,
        payload: Any,
        inputs: Sequence[tuple[Bundle, Sequence[int]]] = (),
        label: str = "",
    ) -> int:
        """Hands a task out and returns its ticket, without waiting.

        Args:
            stage: passed to `Program.run`.
            payload: passed to `Program.run`; small.
            inputs: rows of bundles, which `Program.run` gets as one list, in this order.
            label: what error texts call the task, "positions 32..47" for example.
        """
        self._check_process()
        with self._lock:
            self._check_open()
            self._mend()
            return self._ledger.add(stage, payload, inputs, label)

    def put(self, elements: Sequence[Any]) -> Bundle:
        """Returns elements of this process as an input for tasks; nothing of them is kept.

        Raises:
            UnsendableError: naming the first that does not pickle.
        """
        return draft.bundle_of(elements, self._ledger.registry)

    def result(self, ticket: int, block: bool = True) -> Bundle | None:
        """Returns the bundle of a ticket, once; None only without `block`: if there is none yet.

        Raises:
            Exception: what the program raised in the worker.
            WorkerError: workers died or do not answer.
            ClosedError: the pool is closed.
        """
        self._check_process()
        began = time.monotonic()
        while True:
            try:
                with self._lock:
                    self._check_open()
                    if not self._is_polled and not self._ledger.answered(ticket):
                        self._pump()
                    bundle = self._ledger.collect(ticket, block)
                    if bundle is not None or not block:
                        return bundle
                    self._check_stall(began)
            finally:
                if self._records:
                    self._hand_out()
            self._wait()

    def drop(self, ticket: int) -> None:
        """Gives a ticket up: its slot comes back when its attempts have reported."""
        self._check_process()
        with self._lock:
            self._ledger.drop(ticket)

    @property
    def finished(self) -> int:
        """How many tasks are done whose results nobody has asked for yet."""
        return self._ledger.finished

    @property
    def is_broken(self) -> bool:
        """Whether no task will ever be answered; the reason is what `result` raises."""
        return self._ledger.broken is not None

    def cancel(self) -> None:
        """Forgets all tasks; their slots come back when their attempts have reported."""
        self._check_process()
        with self._lock:
            self._check_open()
            self._ledger.forget()

    def close(self) -> None:
        """Ends the workers, in seconds whatever they do; arrays handed out stay valid."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):
                self._ledger.results.shutdown(socket.SHUT_RDWR)  # wakes a thread that polls
            while not self._ready and (message := self._helper.read()):
                self._ready = message[0] == "ready"
            self._helper.stop(self._ready)
            if not self._ready:
                rows = range(self._cells.rows)
                orphans.Orphans(rows, [], [], lambda row: self._cells.read(row)[3]).end_groups()
            self._condition.wait_for(lambda: not self._is_polled, timeout=2)
            self._close_sockets()
            os.close(self._parcel)
            self._ledger.forget()
            self._records += self._log.take()
            self._log.close()
            left_out = self._cells.left_out
            self._slots.seclude(copy=False)  # nobody writes there any more, but forks may
            self._arena.close()
        _pools.discard(self)
        self._hand_out()
        if left_out:
            logging.getLogger("grain_jax").warning(
                "%d log records of workers were left out: more than %d MiB of them waited for this "
                "process to ask for results",
                left_out,
                log.LIMIT >> 20,
            )

    def __del__(self) -> None:
        if not self._closed:
            self.close()

    def _check_process(self) -> None:
        # Before any lock: another thread may have held it at the fork.
        if os.getpid() != self._owner:
            raise ClosedError(
                f"these worker processes belong to process {self._owner}, and this is a fork of "
                f"it ({os.getpid()}): make a loader of its own here"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the worker processes are closed")

    def _check_stall(self, began: float) -> None:
        if self._stall_timeout is None:
            return
        quiet = time.monotonic() - max(began, self._ledger.last_report)
        if quiet >= self._stall_timeout:
            raise WorkerError(
                f"no worker has answered for {quiet:.1f} s (stall_timeout={self._stall_timeout}). "
                f"Running: {self._ledger.activity()}. Raise stall_timeout if a step may take that "
                "long."
            )

    @property
    def _is_polled(self) -> bool:
        # The poller itself clears this; were it interrupted as it does so, time does.
        return self._poller > time.monotonic()

    def _wait(self) -> None:
        # One thread polls and takes what arrives; others wait for it.
        mine = False
        try:
            with self._lock:
                if self._closed:
                    return
                if self._is_polled:
                    self._condition.wait(_LOOK)
                    return
                mine = True
                self._poller = time.monotonic() + 2 * _LOOK
                poll = select.poll()
                poll.register(self._ledger.results, select.POLLIN)
                poll.register(self._helper.control, select.POLLIN)
            quiet = not poll.poll(self._patience() * 1000)
            with self._lock:
                if not self._closed:
                    if quiet and self._helper.gone():
                        self._lose_helper()
                    self._pump()
        finally:
            if mine:
                with self._lock:
                    self._poller = 0.0
                    self._condition.notify_all()

    def _patience(self) -> float:
        return _LOOK if self._stall_timeout is None else min(_LOOK, self._stall_timeout)

    def _mend(self) -> None:
        # An interrupt has come between reading a message and acting on it, or while processes were
        # replaced. Nobody knows what is lost: begin again, with other workers.
        if self._torn:
            self._replace_helper(dead=False)

    def _pump(self) -> None:
        self._mend()
        self._torn = True
        if not self._ledger.drain():  # only then is there time to hear of deaths
            while (message := self._helper.read()) is not None:
                if not message:
                    self._lose_helper()
                    break
                self._hear(message)
        self._ledger.flush()
        self._torn = False
        now = time.monotonic()
        if self._ledger.logged or now - self._listened > _LOOK:
            self._ledger.logged, self._listened = False, now
            self._records += self._log.take()

    def _hand_out(self) -> None:
        # Without the lock: handlers are the user's.
        with contextlib.suppress(IndexError):  # another thread has had the last one
            while True:
                log.hand_out(self._records.popleft())

    def _hear(self, message: tuple[Any, ...]) -> None:
        what, *rest = message
        if what == "ready":
            self._ready = True
            self._ledger.last_report = time.monotonic()
        elif what == "unsafe":
            unsafe = self._helper
            _unsafe.add(self._modules)
            self.mode = "fork_first"
            self._start_helper()
            unsafe.stop(ready=False)  # after the start, so that the zygote stays
        elif what == "failed":
            self._ledger.broken = faults.unpack_exception(
                rest[0], "the process that loads the pipeline"
            )
        elif what == "died" and self._ledger.lose_worker(*rest):
            self._helper.start_worker(rest[0])

    def _lose_helper(self) -> None:
        if self._closed or self._ledger.broken is not None:
            return
        if failure := self._helper.failure():
            self._ledger.broken = WorkerError(failure)
        else:
            self._replace_helper(dead=True)

    def _replace_helper(self, dead: bool) -> None:
        # Its workers end with it, but nobody says when: others get other rows and slots.
        self._torn = True
        again = self._ledger.abandon(dead, self._helper.end())
        self._helper.stop(ready=False)
        if again and (row := self._ledger.free_row()) is not None:
            self._connect(row)
        self._torn = False

    def _forget(self) -> None:
        # In a forked child: close its copies of the sockets, so that their ends are seen.
        self._close_sockets()
        self._helper.forget()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _before_fork() -> None:
    # The child will read and write the batches that this process holds now, and their slots be used
    # again. The kernel copies its own pages between the two, but no shared ones.
    gate.acquire()
    for pool in list(_pools):
        if pool._owner == os.getpid():
            pool._slots.seclude(copy=True)


def _after_fork_in_child() -> None:
    gate.release()  # held by this very thread
    for pool in list(_pools):
        pool._forget()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=gate.release, after_in_child=_after_fork_in_child
    )
