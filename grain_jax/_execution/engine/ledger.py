"""The account of tasks: which are asked for, under way, answered; what a death has lost.

It talks to workers through two sockets and the table, and knows nothing of processes. Its owner
keeps threads apart.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from grain_jax._execution.engine import channel, faults, table, wire
from grain_jax._execution.engine.arena import Arena
from grain_jax._execution.engine.bundle import Bundle
from grain_jax._execution.engine.orphans import Orphans
from grain_jax._execution.engine.pending import Pending
from grain_jax._execution.engine.slots import Slots
from grain_jax._execution.engine.task import Task
from grain_jax._values.errors import InvalidValueError, WorkerError

__all__ = ["Ledger"]

_WITH_HELPER = "the last together with the process that starts the workers"


class Ledger:
    """Tasks, and the attempts at them. A slot belongs to an attempt until that has reported."""

    def __init__(
        self,
        arena: Arena,
        cells: table.Table,
        slots: Slots,
        registry: wire.Registry,
        workers: int,
        restarts: int,
        capacity: int,
        memory_limit: int | None = None,
    ) -> None:
        self.broken: BaseException | None = None  # why no task can be answered any more
        self.last_report = time.monotonic()
        self.logged = False  # whether a worker has said so since the owner has looked
        self.tasks: socket.socket
        self.results: socket.socket
        self._arena = arena
        self._table = cells
        self._slots = slots
        self.registry = registry
        self._workers = workers
        self._restarts = restarts
        self._capacity = capacity
        self._first_row = 0
        self._tickets = itertools.count()
        self._attempts = itertools.count(1)
        self._open: dict[int, Task] = {}  # not answered yet
        self._answers: dict[int, Bundle | BaseException] = {}
        self._flying: dict[int, tuple[Task, int]] = {}  # attempt -> its task and slot
        self._waiting: deque[Task] = deque()  # could not be sent yet
        self._pending = Pending(memory_limit)
        self._doubtful: set[int] = set()  # attempts that a worker may have taken and not told of
        self._latest: dict[int, int] = {}  # row -> last attempt that its worker reported
        self._lost_starts: dict[int, int] = {}  # row -> deaths in a row, all while loading
        self._lost_helpers = 0  # since any worker has reported
        self._orphans: list[Orphans] = []

    def connect(self, tasks: socket.socket, results: socket.socket, first_row: int) -> None:
        """Names the sockets to the workers, and the first of their rows in the table."""
        self.tasks = tasks
        self.results = results
        self._first_row = first_row

    # What the owner asks for.

    def add(
        self, stage: int, payload: Any, inputs: Sequence[tuple[Bundle, Sequence[int]]], label: str
    ) -> int:
        """Hands a task out, now or when there is room, and returns its ticket."""
        if any(bundle.pool != self.registry.token for bundle, _ in inputs):
            raise InvalidValueError("a bundle can be the input of its own pool only")
        task = Task(next(self._tickets), stage, payload, inputs, label, self.registry)
        self._open[task.ticket] = task
        self._waiting.append(task)
        self.flush()
        return task.ticket

    @property
    def finished(self) -> int:
        """How many answers are here that nobody has collected."""
        return len(self._answers)

    def answered(self, ticket: int) -> bool:
        """Whether the answer of a ticket is here."""
        return ticket in self._answers

    def collect(self, ticket: int, block: bool) -> Bundle | None:
        """Returns the answer of a ticket, once, or raises it; None while there is none.

        What a worker raised is only raised for one who would wait: others ask ahead of its turn,
        and among BaseExceptions nobody could tell it from a signal's that has to get out at once.
        """
        answer = self._answers.get(ticket)
        if isinstance(answer, BaseException) and not block:
            return None
        self._answers.pop(ticket, None)
        if isinstance(answer, Bundle):
            answer.crowded = self._is_crowded()
            self._pending.add(answer)
            return answer
        if answer is not None:
            try:
                raise answer
            finally:
                del answer  # its traceback holds this frame
        if self.broken is not None:
            raise self.broken
        if ticket not in self._open:
            raise InvalidValueError(f"ticket {ticket} is collected, cancelled or unknown")
        return None

    def drop(self, ticket: int) -> None:
        """Forgets one task."""
        self._open.pop(ticket, None)
        self._answers.pop(ticket, None)

    def forget(self) -> None:
        """Forgets all tasks; their slots come back when their attempts have reported."""
        self._table.generation += 1
        self._doubtful.update(self._flying)  # an exception may have torn us from a report
        self._open.clear()
        self._answers.clear()
        self._waiting.clear()

    # Sending.

    def flush(self) -> None:
        """Sends what waits, as far as there is room."""
        while self._waiting:
            task = self._waiting[0]
            if self._is_open(task) and not self._send(task):
                return
            self._waiting.popleft()

    def _is_open(self, task: Task) -> bool:
        return self._open.get(task.ticket) is task

    def _send(self, task: Task) -> bool:
        slot = self._free_slot()
        if slot is None:
            return False
        attempt = next(self._attempts)
        # First, since an interrupt may come between sending and the next line.
        self._flying[attempt] = (task, slot)
        try:
            used, length, body = task.write(self._arena, slot, self.registry)
            if used:
                self._slots.grown(slot, used)
            head = wire.TASK.pack(self._table.generation, attempt, slot, used, length)
            self.tasks.send(head + body)
        except OSError as error:
            del self._flying[attempt]
            self._slots.release(slot)
            if isinstance(error, (BlockingIOError, ConnectionError)):
                return False
            raise
        return True

    def _free_slot(self) -> int | None:
        running = list(self._running())  # read twice
        if self._is_crowded():
            self._pending.move(running)
        slot = self._slots.acquire()
        if slot is None:
            self._pending.move(running, self._answers.values())
            slot = self._slots.acquire()
        return slot

    def _running(self) -> Iterator[Task]:
        # Workers read the inputs of these, and those of a helper that is gone may still do.
        yield from (task for task, _ in self._flying.values())
        yield from (task for one in self._orphans for task in one.tasks)

    # Receiving.

    def drain(self) -> bool:
        """Takes all reports that have arrived; whether there were any."""
        any_came = False
        while message := channel.receive(self.results):
            any_came = True
            self._take(message)
        if any_came:
            self.last_report = time.monotonic()
        if self._orphans:
            self._orphans = [one for one in self._orphans if not self._inherit(one)]
        return any_came

    def _take(self, message: bytes) -> None:
        attempt, row, status, offset, length, end = wire.REPORT.unpack_from(message)
        error = message[wire.REPORT.size :]
        worker = f"worker {row % self._workers}"
        if status & wire.LOGGED:
            self.logged = True
            status &= ~wire.LOGGED
        if status == wire.LOST_START:
            self.broken = faults.unpack_exception(error, f"{worker}, as it loaded the pipeline")
            return
        self._lost_starts.pop(row, None)
        if status == wire.STARTED:
            return
        self._lost_helpers = 0
        self._latest[row] = attempt
        if self._doubtful:
            self._settle_doubtful()
        flight = self._flying.pop(attempt, None)
        if flight is None:
            return  # of a helper that is gone
        task, slot = flight
        self._doubtful.discard(attempt)
        self._slots.grown(slot, end)
        if status & wire.RETAINED:
            self._slots.suspects.update((slot, *(bundle.place[0] for bundle, _ in task.inputs)))
            status &= ~wire.RETAINED
        if not self._is_open(task) or status == wire.SKIPPED:
            self._slots.release(slot)
            return
        if status == wire.FAILED:
            if length:  # too long for a message
                error = self._arena.memory(slot, end)[offset : offset + length].tobytes()
            self._slots.release(slot)
            self._answer(task, faults.unpack_exception(error, worker))
        else:
            self._answer(task, self._bundle((slot, offset, length, end)))

    def _answer(self, task: Task, answer: Bundle | BaseException) -> None:
        self._answers[task.ticket] = answer
        del self._open[task.ticket]

    def _bundle(self, place: tuple[int, int, int, int]) -> Bundle | BaseException:
        slot, _, _, end = place
        memory = self._arena.memory(slot, end)
        self._slots.hand_out(slot, memory)
        self._slots.trim(keep=self._capacity - len(self._flying))
        try:
            return Bundle(self.registry.token, place, memory, self.registry)
        except Exception as unreadable:  # for the one who asks for this ticket
            return unreadable

    def _is_crowded(self) -> bool:
        # Whoever holds results must leave slots for all tasks that may be under way.
        if self._slots.fresh_left < self._capacity and self._slots.available() < self._capacity:
            return True
        if not self._slots.over_budget:
            return False
        # What is under way and a few results in use never count, however large they are.
        waiting = sum(isinstance(a, Bundle) and not a.moved for a in self._answers.values())
        return self._slots.handed_out - waiting > self._capacity

    # Deaths.

    def lose_worker(self, number: int, pid: int, exit_code: int) -> bool:
        """Takes note of a dead and reaped worker; whether another one makes sense."""
        self.drain()  # what it has sent counts
        row = self._first_row + number
        state, attempt, _, _ = self._table.read(row)
        self._table.clear(row)
        self._latest[row] = 0
        self.last_report = time.monotonic()
        worker = f"worker {number} (pid {pid})"
        if state == table.STARTING:
            self._lost_starts[row] = self._lost_starts.get(row, 0) + 1
            if self._lost_starts[row] > self._restarts:
                self.broken = WorkerError(
                    f"workers die as they load the pipeline; the last was {worker}, with "
                    f"{faults.death(exit_code)}"
                )
                return False
        elif state == table.RUNNING and attempt in self._flying:
            self._lose(attempt, worker, exit_code)
        elif state == table.RECEIVING:
            self._repeat_what_may_be_lost()
        return True

    def _lose(self, attempt: int, worker: str, exit_code: int) -> None:
        task, slot = self._flying.pop(attempt)
        self._doubtful.discard(attempt)
        self._slots.release(slot)  # its worker is reaped: nobody writes there any more
        if self._is_open(task) and self._may_try_again(
            task, f"the last was {worker}, with {faults.death(exit_code)}"
        ):
            self._waiting.appendleft(task)

    def _may_try_again(self, task: Task, how: str) -> bool:
        task.deaths += 1
        if task.deaths <= self._restarts:
            return True
        self._answer(
            task,
            WorkerError(
                f"a worker process died {_times(task.deaths)} at "
                f"{task.label or 'the same task'}; {how}"
            ),
        )
        return False

    def _repeat_what_may_be_lost(self) -> None:
        # It died between taking a task and saying so, or while it had none. What no other worker is
        # at may be lost: a second attempt in another slot does no harm.
        cells = [self._table.read(row) for row in range(self._table.rows)]
        held = {attempt for state, attempt, _, _ in cells if state == table.RUNNING}
        for attempt, (task, _) in sorted(self._flying.items(), reverse=True):
            if attempt not in held and attempt not in self._doubtful:
                self._doubtful.add(attempt)
                if self._is_open(task):
                    self._waiting.appendleft(task)

    def _settle_doubtful(self) -> None:
        # Tasks are taken in the order sent. When every worker has reported a later attempt, none
        # will report this one any more.
        rows = range(self._first_row, self._first_row + self._workers)
        passed = min(self._latest.get(row, 0) for row in rows)
        for attempt in [attempt for attempt in self._doubtful if attempt < passed]:
            self._doubtful.discard(attempt)
            self._slots.release(self._flying.pop(attempt)[1])

    def abandon(self, dead: bool, how: str = "") -> bool:
        """Takes note that all workers end unseen; whether others make sense.

        Args:
          dead: whether their helper has died by itself.
          how: how it did, where that is known.
        """
        self.drain()
        rows = range(self._first_row, self._first_row + self._workers)
        cells = [self._table.read(row) for row in rows]
        running = {attempt for state, attempt, _, _ in cells if state == table.RUNNING}
        self._lost_helpers += dead
        again = {task.ticket: task for task in self._waiting}
        for attempt, (task, _) in self._flying.items():
            if not self._is_open(task):
                continue
            if not dead or attempt not in running or self._may_try_again(task, _WITH_HELPER):
                again[task.ticket] = task
            else:
                self._lost_helpers = 0  # now it is known who is to blame
        # They may still write where they are at work.
        tasks, slots = [[*part] for part in zip(*self._flying.values(), strict=True)] or ([], [])
        self._orphans.append(Orphans(rows, tasks, slots, lambda row: self._table.read(row)[3]))
        self._flying.clear()
        self._doubtful.clear()
        self._latest.clear()
        self._waiting = deque(again[ticket] for ticket in sorted(again))
        if self._lost_helpers > self._restarts:
            self.broken = WorkerError(
                f"the process that starts the workers has died {_times(self._lost_helpers)} "
                f"without a result in between; {how or 'out of memory?'}"
            )
        return self.broken is None

    def free_row(self) -> int | None:
        """Returns the first row for other workers, once those before them are gone."""
        first = self._workers - self._first_row
        for one in [one for one in self._orphans if one.rows.start == first]:
            if not one.wait(2.0):
                self.broken = WorkerError(
                    "worker processes go on though the process that started them has died"
                )
                return None
            self._inherit(one)
            self._orphans.remove(one)
        return first

    def _inherit(self, orphans: Orphans) -> bool:
        # Nobody writes to their slots and rows any more.
        if not orphans.gone():
            return False
        orphans.end_groups()
        for row in orphans.rows:
            self._table.clear(row)
        while orphans.slots:
            self._slots.release(orphans.slots.pop())
        return True

    def activity(self) -> str:
        """Returns what each worker is doing, in words."""
        busy = []
        for number in range(self._workers):
            state, attempt, seconds, pid = self._table.read(self._first_row + number)
            if state == table.RUNNING and attempt in self._flying:
                label = self._flying[attempt][0].label or "a task"
                step = self._table.step(self._first_row + number)
                doing = step if ", at " in step else f"{step}, at {label}" if step else label
                busy.append(f"worker {number} (pid {pid}), {seconds:.1f} s into its task: {doing}")
            elif state == table.STARTING:
                busy.append(f"worker {number}: loading the pipeline")
        return "; ".join(busy) or "nothing"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
