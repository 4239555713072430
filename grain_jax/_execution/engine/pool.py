"""The trainer's side of the engine: hand out tasks, collect bundles, survive deaths."""

from __future__ import annotations

import atexit
import itertools
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..._values.errors import ClosedError, InvalidValueError, WorkerError
from . import arena as arenas
from . import channel, faults, launch, parcel, slots, table, wire
from .arena import Allocate, Memory

__all__ = ["Bundle", "Pool", "Program"]

_INLINE = 4096  # bytes; a longer task is written to its slot
_LOOK = 0.5  # seconds; the longest wait before looking whether the helper still lives
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_numbers = itertools.count()


class Program(Protocol):
    """What workers run: picklable by cloudpickle, loaded once, then called for every task."""

    def run(
        self, kind: int, payload: Any, inputs: list[Any], allocate: Allocate
    ) -> tuple[list[Any], Any]:
        """Returns the outputs of one task, any picklable trees, and a small picklable `info`."""
        ...


class Bundle:
    """The outputs of one task, in one slot, not decoded yet.

    The slot is used again only when the bundle and every array of `load` is gone.
    """

    __slots__ = ("_copy", "_count", "_memory", "_registry", "info", "place", "pool")

    def __init__(
        self, pool: str, place: tuple[int, int, int, int], memory: Memory, registry: Any, copy: bool
    ) -> None:
        self.pool = pool
        self.place = place  # slot, offset, length, bytes in use
        self._memory = memory
        self._registry = registry
        self._copy = copy
        self._count, self.info = wire.decode_info(memory, place[1], place[2])

    def __len__(self) -> int:
        return self._count

    def load(self) -> list[Any]:
        """Returns the outputs; their arrays are writable views on the slot, or on a copy of it."""
        memory = self._memory
        if self._copy:
            memory = arenas.private_memory(self.place[3])
            memory[:] = self._memory
        return wire.decode_outputs(memory, self.place[1], self.place[2])


class _Task:
    __slots__ = ("body", "deaths", "inputs", "label", "ticket")

    def __init__(self, ticket: int, body: bytes, inputs: list[Bundle], label: str) -> None:
        self.ticket = ticket
        self.body = body
        self.inputs = inputs  # kept until every attempt has reported
        self.label = label
        self.deaths = 0


class Pool:
    """Worker processes that run one program.

    Args:
        program: see `Program`.
        workers: how many processes, at least 1.
        buffer: results that each worker may be ahead by.
        slot_budget_bytes: shared memory for results; beyond it, `Bundle.load` copies. None: an eighth
            of the machine's memory, at most 2 GiB.
        mode: how workers start: "fork_loaded" (the program is loaded once), "fork_first" (each
            worker loads it), "fresh" (new interpreters), or "auto": "fork_loaded" on Linux, "fresh"
            elsewhere. A program that starts threads when loaded turns the first into the second.
        max_worker_restarts: how often a task is tried again after the death of its worker.
        stall_timeout: seconds without any answer after which `result` raises; None waits.
        init: called once in every worker as `init(number, workers)`.

    Raises:
        InvalidTypeError: the program does not pickle.
    """

    def __init__(
        self,
        program: Program,
        *,
        workers: int,
        buffer: int = 1,
        slot_budget_bytes: int | None = None,
        mode: str = "auto",
        max_worker_restarts: int = 3,
        stall_timeout: float | None = None,
        init: Callable[[int, int], None] | None = None,
    ) -> None:
        if workers < 1:
            raise InvalidValueError(f"a pool needs at least 1 worker, not {workers}")
        if mode == "auto":
            mode = os.environ.get("GRAIN_JAX_ENGINE_MODE", "") or launch.default_mode()
        self.mode = mode
        self.capacity = workers * (1 + max(buffer, 1))
        self._workers = workers
        self._restarts = max_worker_restarts
        self._stall_timeout = stall_timeout
        self._owner = os.getpid()
        self._condition = threading.Condition(threading.RLock())
        self._closed = False
        self._broken: BaseException | None = None
        self._open(
            program,
            init,
            slots.default_budget() if slot_budget_bytes is None else slot_budget_bytes,
        )
        self._reset_account()
        _pools.add(self)

    def _reset_account(self) -> None:
        self._tickets = itertools.count()
        self._attempts = itertools.count(1)
        self._tasks: dict[int, _Task] = {}  # not answered yet
        self._ready: dict[int, Bundle | BaseException] = {}
        self._flying: dict[int, tuple[_Task, int]] = {}  # attempt -> its task and slot
        self._waiting: deque[_Task] = deque()  # could not be sent yet
        self._limbo: set[int] = set()  # attempts that a worker may have taken to its grave
        self._latest: dict[int, int] = {}  # row -> last attempt that its worker reported
        self._lost_starts = 0
        self._helper_deaths = 0
        self._is_ready = False
        self._polling = False
        self._last_report = time.monotonic()

    def _open(self, program: Program, init: Any, budget: int) -> None:
        self._arena = arenas.Arena.create()
        self._token = f"{self._owner}-{next(_numbers)}"
        rows = 2 * self._workers  # the second half for the time after a helper's death
        try:
            self._table = table.Table(self._arena, rows)
            self._slots = slots.Slots(self._arena, self._table, budget)
            settings = launch.settings(self._arena, self._workers, rows)
            self._parcel, _, self._registry = parcel.pack((program, init), settings, self._token)
        except BaseException:
            self._arena.close()
            raise
        self._sockets: list[Any] = []
        self._first_row = 0
        try:
            self._connect()
        except BaseException:
            os.close(self._parcel)
            self._arena.close()
            raise

    def _connect(self) -> None:
        for end in self._sockets:
            end.close()
        self._tasks_in, tasks_out = channel.pair()
        self._results, results_in = channel.pair()
        # Kept open here too: a helper that cannot fork safely is followed by another one.
        self._sockets = [self._tasks_in, tasks_out, self._results, results_in]
        self._tasks_in.setblocking(False)
        self._results.setblocking(False)
        self._start_helper()

    def _start_helper(self) -> None:
        _, tasks_out, _, results_in = self._sockets
        passed = [tasks_out.fileno(), results_in.fileno(), self._arena.descriptor, self._parcel]
        self._helper = launch.Helper(self.mode, self._first_row, passed)
        self._is_ready = False

    # What the owner calls.

    def submit(
        self,
        kind: int,
        payload: Any,
        inputs: Sequence[tuple[Bundle, Sequence[int]]] = (),
        label: str = "",
    ) -> int:
        """Hands a task out and returns its ticket, without waiting.

        Args:
            kind: passed to `Program.run`.
            payload: passed to `Program.run`; small.
            inputs: rows of bundles, which `Program.run` gets as one list, in this order.
            label: what error texts call the task, "positions 32..47" for example.
        """
        with self._condition:
            self._check()
            for bundle, _ in inputs:
                if bundle.pool != self._token:
                    raise InvalidValueError("a bundle can be the input of its own pool only")
            places = [(*bundle.place, [int(row) for row in rows]) for bundle, rows in inputs]
            body = wire.dumps((kind, payload, places), self._registry)
            task = _Task(next(self._tickets), body, [bundle for bundle, _ in inputs], label)
            self._tasks[task.ticket] = task
            self._waiting.append(task)
            self._flush()
            return task.ticket

    def result(self, ticket: int, block: bool = True) -> Bundle | None:
        """Returns the bundle of a ticket, once; None only if `block` is false and it is not there.

        Raises:
            Exception: what the program raised in the worker.
            WorkerError: workers died or do not answer.
            ClosedError: the pool is closed.
        """
        began = time.monotonic()
        while True:
            with self._condition:
                self._check()
                if ticket not in self._ready and not self._polling:
                    self._pump()
                answer = self._ready.pop(ticket, None)
                if isinstance(answer, Bundle):
                    return answer
                if answer is not None:
                    raise answer
                if self._broken is not None:
                    raise self._broken
                if ticket not in self._tasks:
                    raise InvalidValueError(f"ticket {ticket} is collected, cancelled or unknown")
                if not block:
                    return None
                self._check_stall(began)
            self._wait()

    def cancel(self) -> None:
        """Forgets all tasks; their slots come back when their attempts have reported."""
        with self._condition:
            self._check()
            self._table.generation += 1
            self._tasks.clear()
            self._ready.clear()
            self._waiting.clear()

    def close(self) -> None:
        """Ends the workers, within seconds whatever they do; arrays already handed out stay valid."""
        if os.getpid() != self._owner:
            return
        with self._condition:
            if self._closed:
                return
            self._closed = True
            try:
                self._results.shutdown(2)  # wakes a thread that polls
            except OSError:
                pass  # not connected any more
            self._helper.stop(self._is_ready)
            self._condition.wait_for(lambda: not self._polling, timeout=2)
            for end in self._sockets:
                end.close()
            os.close(self._parcel)
            self._tasks.clear()
            self._ready.clear()
            self._flying.clear()
            self._waiting.clear()
            self._arena.close()
        _pools.discard(self)

    def __del__(self) -> None:
        if getattr(self, "_helper", None) is not None:
            self.close()

    # Waiting.

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise ClosedError(
                f"these worker processes belong to process {self._owner}, and this is a fork of it "
                f"({os.getpid()}): make a loader of its own here"
            )
        if self._closed:
            raise ClosedError("the worker processes are closed")

    def _wait(self) -> None:
        # One thread polls and takes what arrives; others wait for it.
        mine = False
        try:
            with self._condition:
                if self._closed:
                    return
                if self._polling:
                    self._condition.wait(_LOOK)
                    return
                self._polling = mine = True
                poll = select.poll()
                poll.register(self._results, select.POLLIN)
                poll.register(self._helper.control, select.POLLIN)
            quiet = not poll.poll(_LOOK * 1000)
            with self._condition:
                if not self._closed:
                    if quiet and self._helper.gone():
                        self._lose_helper()
                    self._pump()
        finally:
            if mine:
                with self._condition:
                    self._polling = False
                    self._condition.notify_all()

    def _check_stall(self, began: float) -> None:
        if self._stall_timeout is None:
            return
        quiet = time.monotonic() - max(began, self._last_report)
        if quiet < self._stall_timeout:
            return
        busy = []
        for row in range(self._first_row, self._first_row + self._workers):
            state, attempt, seconds, pid = self._table.read(row)
            if state == table.RUNNING and attempt in self._flying:
                label = self._flying[attempt][0].label or "a task"
                busy.append(
                    f"worker {row - self._first_row} (pid {pid}): {label} for {seconds:.1f} s"
                )
            elif state == table.STARTING:
                busy.append(f"worker {row - self._first_row}: loading the pipeline")
        raise WorkerError(
            f"no worker has answered for {quiet:.1f} s (stall_timeout={self._stall_timeout}). "
            f"Running: {'; '.join(busy) or 'nothing'}. Raise stall_timeout if such steps are normal."
        )

    # Sending.

    def _flush(self) -> None:
        while self._waiting:
            task = self._waiting[0]
            if self._tasks.get(task.ticket) is task and not self._send(task):
                return
            self._waiting.popleft()

    def _send(self, task: _Task) -> bool:
        slot = self._slots.acquire()
        if slot is None:
            return False
        attempt = next(self._attempts)
        long = len(task.body) > _INLINE
        if long:
            try:
                self._arena.write(slot, task.body)
            except BaseException:
                self._slots.release(slot)
                raise
        head = wire.TASK.pack(self._table.generation, attempt, slot, len(task.body) if long else 0)
        try:
            self._tasks_in.send(head if long else head + task.body)
        except (BlockingIOError, ConnectionError):
            self._slots.release(slot)
            return False
        self._flying[attempt] = (task, slot)
        return True

    # Receiving.

    def _pump(self) -> None:
        if not self._drain():  # only then is there time to hear of deaths
            self._listen()
        if self._waiting:
            self._flush()

    def _listen(self) -> None:
        while (message := self._helper.read()) is not None:
            if not message:
                self._lose_helper()
                return
            self._hear(message)

    def _drain(self) -> bool:
        any_came = False
        while message := channel.receive(self._results):
            any_came = True
            self._last_report = time.monotonic()
            self._take(message)
        return any_came

    def _take(self, message: bytes) -> None:
        attempt, row, status, offset, length, end = wire.REPORT.unpack_from(message)
        error = message[wire.REPORT.size :]
        worker = f"worker {row % self._workers}"
        if status == wire.LOST_START:
            self._broken = faults.unpack_exception(
                error, f"{worker}, which was loading the pipeline"
            )
            return
        self._latest[row] = max(attempt, self._latest.get(row, 0))
        if self._limbo:
            self._settle_limbo()
        if attempt not in self._flying:
            return
        task, slot = self._flying.pop(attempt)
        self._limbo.discard(attempt)
        self._slots.grown(slot, end)
        if status & wire.RETAINED:
            self._slots.suspects.update((slot, *(bundle.place[0] for bundle in task.inputs)))
        status &= ~wire.RETAINED
        if self._tasks.get(task.ticket) is not task or status == wire.SKIPPED:
            self._slots.release(slot)
            return
        del self._tasks[task.ticket]
        if status == wire.FAILED:
            self._slots.release(slot)
            self._ready[task.ticket] = faults.unpack_exception(error, worker)
            return
        memory = self._arena.memory(slot, end)
        self._slots.lend(slot, memory)
        crowded = not self._slots.trim() or self._slots.available() < self.capacity
        place = (slot, offset, length, end)
        try:
            bundle = Bundle(self._token, place, memory, self._registry, crowded)
        except Exception as unreadable:  # for the one who asks for this ticket
            self._ready[task.ticket] = unreadable
        else:
            self._ready[task.ticket] = bundle

    # Deaths.

    def _hear(self, message: tuple[Any, ...]) -> None:
        what = message[0]
        if what == "ready":
            self._is_ready = True
            self._last_report = time.monotonic()
        elif what == "unsafe":
            unsafe = self._helper
            self.mode = "fork_first"
            self._start_helper()
            unsafe.stop(False)  # after the start, so that the zygote stays
        elif what == "failed":
            self._broken = faults.unpack_exception(
                message[1], "the process that loads the pipeline"
            )
        elif what == "died":
            self._bury(*message[1:])

    def _bury(self, number: int, pid: int, exit_code: int) -> None:
        self._drain()  # what it has sent counts
        row = self._first_row + number
        state, attempt, _, _ = self._table.read(row)
        self._table.clear(row)
        self._latest[row] = 0
        worker = f"worker {number} (pid {pid})"
        if state == table.STARTING:
            self._lost_starts += 1
            if self._lost_starts > self._restarts + self._workers:
                self._broken = WorkerError(
                    f"workers die while they load the pipeline; {worker} with {faults.death(exit_code)}"
                )
                return
        elif state == table.RUNNING and attempt in self._flying:
            self._lose(attempt, worker, exit_code)
        elif state == table.RECEIVING:
            self._send_again_what_may_be_lost()
        self._helper.start_worker(number)
        self._last_report = time.monotonic()

    def _lose(self, attempt: int, worker: str, exit_code: int) -> None:
        task, slot = self._flying.pop(attempt)
        self._limbo.discard(attempt)
        self._slots.release(slot)  # its worker is reaped: nobody writes there any more
        if self._tasks.get(task.ticket) is not task:
            return
        task.deaths += 1
        if task.deaths > self._restarts:
            del self._tasks[task.ticket]
            times = "once" if task.deaths == 1 else f"{task.deaths} times"
            self._ready[task.ticket] = WorkerError(
                f"a worker process died {times} at {task.label or 'the same task'}; the last was "
                f"{worker}, with {faults.death(exit_code)}"
            )
            return
        self._waiting.appendleft(task)

    def _send_again_what_may_be_lost(self) -> None:
        # It died between taking a task and saying so, or while it had none. What no other worker is
        # at may be lost: a second attempt in another slot does no harm.
        held = set()
        for row in range(self._table.rows):
            state, attempt, _, _ = self._table.read(row)
            if state == table.RUNNING:
                held.add(attempt)
        for attempt, (task, _) in sorted(self._flying.items(), reverse=True):
            if attempt not in held and attempt not in self._limbo:
                self._limbo.add(attempt)
                if self._tasks.get(task.ticket) is task:
                    self._waiting.appendleft(task)

    def _settle_limbo(self) -> None:
        # Tasks are taken in the order sent. When every worker has reported a later attempt, none will
        # report this one any more.
        rows = range(self._first_row, self._first_row + self._workers)
        passed = min(self._latest.get(row, 0) for row in rows)
        for attempt in [attempt for attempt in self._limbo if attempt < passed]:
            self._limbo.discard(attempt)
            _, slot = self._flying.pop(attempt)
            self._slots.release(slot)

    def _lose_helper(self) -> None:
        # Its workers die with it, but nobody tells when: their slots are not used again.
        self._drain()
        if self._broken is not None:
            return
        self._helper_deaths += 1
        if self._helper_deaths > 1:
            self._broken = WorkerError(
                "the process that starts the workers has died twice; out of memory?"
            )
            return
        self._helper.stop(False)
        for task, slot in self._flying.values():
            self._slots.retire(slot)
            if self._tasks.get(task.ticket) is task and task not in self._waiting:
                self._waiting.append(task)
        self._flying.clear()
        self._limbo.clear()
        self._waiting = deque(sorted(self._waiting, key=lambda task: task.ticket))
        for row in range(self._workers):
            self._table.clear(row)
        self._first_row = self._workers
        self._connect()
        self._flush()

    def _forget(self) -> None:
        # In a forked child: close its copies of the sockets, so that their ends are seen.
        for end in self._sockets:
            end.close()
        self._helper.forget()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _forget_all() -> None:
    for pool in list(_pools):
        pool._forget()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
