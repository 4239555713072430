"""One worker process: take a task, run it, say where its outputs are."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from grain_jax._execution.engine import (
    channel,
    drift,
    faults,
    log,
    parcel,
    signals,
    surroundings,
    title,
    wire,
)
from grain_jax._execution.engine.arena import Arena, Memory, Slot, private_memory
from grain_jax._execution.engine.table import Table
from grain_jax._values import arrivals, progress
from grain_jax._values import faults as values_faults

__all__ = ["work"]

_INLINE = channel.LIMIT - wire.REPORT.size


class _EndedError(BaseException):
    """The loading ends here: the pool is closed."""


class _Worker:
    def __init__(
        self, row: int, arena: Arena, table: Table, tasks: Any, results: Any, lines: log.Writer
    ) -> None:
        self.row = row
        self.arena = arena
        self.table = table
        self.tasks: socket.socket = tasks
        self.results: socket.socket = results
        self.lines = lines
        self.program: Any = None
        self.registry: wire.Registry | None = None
        self._idle = self._loading = self._ending = False
        self.watch: drift.Watch | None = None  # where there is more to compare
        self._kept: dict[int, list[weakref.ref[Any]]] = {}
        self._inputs: dict[int, Memory] = {}  # of the task at hand, by slot
        self._slot: Slot | None = None
        self._is_copy = False  # a fork that a step has made
        os.register_at_fork(after_in_child=self._become_copy)

    def loop(self) -> None:
        """Runs tasks until the trainer closes the socket or the helper ends this process."""
        progress.listen(functools.partial(self.table.note_step, self.row))
        while True:
            self.table.receiving(self.row)
            self._idle = True
            if self._ending:
                self.leave()
            message = channel.receive(self.tasks)
            self._idle = False
            if not message:
                self.leave()
            generation, attempt, index, used, length = wire.TASK.unpack_from(message)
            self.table.running(self.row, attempt)
            if generation != self.table.generation:
                self.report(attempt, wire.SKIPPED, 0, 0, 0)
                continue
            body: Any = memoryview(message)[wire.TASK.size :]
            inputs: dict[int, Memory] = {}
            if used:
                # A copy, since the outputs go to the same place.
                inputs[wire.OWN] = private_memory(used)
                inputs[wire.OWN][:] = self.arena.memory(index, used)
            if length:
                body = inputs[wire.OWN].data[used - length :]
            self.attempt(attempt, Slot(self.arena, index, 0), body, inputs)
            del body

    def end(self, *_: object) -> None:
        """Ends this process: at once, or as soon as a task under way is done.

        What a signal from the helper calls. Where the program is being loaded, that ends by an
        exception, wherever it is, since it may take longer than there is time to close.
        """
        self._ending = True
        if self._idle:
            self.leave()
        if self._loading:
            self._loading = False
            raise _EndedError

    def load(self, descriptor: int, number: int, settings: dict[str, Any]) -> None:
        """Loads the program from a parcel, or reports why that fails."""
        if settings["closes"]:
            arrivals.watch()
            self._loading = True
            signal.signal(channel.END, self.end)
        try:
            _load(self, parcel.Parcel(descriptor, settings["token"]), number, settings)
            self._loading = False
        except BaseException as error:
            self._loading = False
            if self._ending:
                self.leave()
            data = faults.pack_exception(error, self.registry)
            if len(data) > _INLINE:
                data = faults.shorten(data, _INLINE)
            self.report(0, wire.LOST_START, 0, 0, 0, data)
            self._idle = True
            if self._ending:
                self.leave()
            while True:
                signal.pause()  # the trainer has the reason and ends this pool
        if self._ending:  # and code of the user's has gone on
            self.leave()
        arrivals.forget()
        if settings["closes"]:
            signal.signal(channel.END, self.end)  # a module may have set it

    def leave(self) -> NoReturn:
        """Closes what the program has to close, and ends this process."""
        try:
            if self.program is None:
                arrivals.close()
            elif getattr(self.program, "closes", False):
                self.program.finish()
        except BaseException:
            traceback.print_exc()
        os._exit(0)

    def attempt(self, attempt: int, slot: Slot, body: Any, inputs: dict[int, Memory]) -> None:
        """Runs one task and reports, whatever its code raises."""
        error = b""
        self._slot = slot
        offset = length = 0
        status = wire.DONE
        self._inputs = inputs
        try:
            try:
                offset, length = self.run(slot, body, inputs)
            finally:
                progress.forget()
        except BaseException as caught:  # a user's SystemExit too is an answer, not the end
            if self._is_copy:
                _end_copy(caught)
            error = faults.pack_exception(caught, self.registry)
            faults.forget_frames(caught)
            if len(error) > _INLINE:
                offset, length, error = _write_error(slot, error)
            status = wire.FAILED
        if self._is_copy:
            _end_copy(None)
        self._slot = None
        end = slot.end
        inputs.pop(wire.OWN, None)
        kept = {slot.index: [weakref.ref(memory) for memory in slot.release()]}
        for index in list(inputs):
            kept[index] = [weakref.ref(inputs.pop(index))]
        if self._note_kept(kept):
            status |= wire.RETAINED
        self.report(attempt, status, offset, length, end, error)

    def _become_copy(self) -> None:
        # What the worker writes is read by the trainer. A fork of it that returns from the step
        # has no task: it must not write to the same place.
        self._is_copy = True
        if self._slot is not None:
            self._slot.shut()

    def run(self, slot: Slot, body: Any, inputs: dict[int, Memory]) -> tuple[int, int]:
        """Runs the program on one task and writes its outputs to the slot."""
        stage, payload, places, chosen = pickle.loads(body)
        rows = self._decoded(places, chosen, inputs)
        outputs, info = self.program.run(stage, payload, rows, slot.allocate)
        if self.watch is not None and not self.watch.look():
            self.watch = None
        try:
            return self._encode(outputs, info, slot)
        except wire.UnsendableError as unsendable:
            row, error = unsendable.row, unsendable.error
        before = getattr(self.program, "before", None)
        if before is None:
            raise error
        outputs, info = before(stage, payload, outputs, info, row, error)
        return self._encode(outputs, info, slot)

    def _decoded(
        self,
        places: list[wire.Place],
        chosen: list[tuple[int, list[int]]],
        inputs: dict[int, Memory],
    ) -> list[Any]:
        """Returns the inputs of a task: rows of results, by the numbers of their places."""
        rows: list[Any] = []
        decoded: dict[int, tuple[list[Any], set[int]]] = {}
        for number, wanted in chosen:
            outputs, given = decoded.get(number, ((), {*wanted}))
            if not given.isdisjoint(wanted):  # what is there twice is two objects
                index, base, extent, offset = places[number]
                memory = inputs.get(index)
                if memory is None or memory.size < base + extent:
                    # Another attempt, and tasks with other rows of the slot, must not see what the
                    # program writes to its inputs.
                    memory = inputs[index] = self.arena.private_copy(index, base + extent)
                outputs = wire.decode_outputs(memory.part(base, extent) if base else memory, offset)
                decoded[number] = outputs, (given := set())
            given.update(wanted)
            rows.extend([outputs[row] for row in wanted])
        return rows

    def _encode(self, outputs: Any, info: Any, slot: Slot) -> tuple[int, int]:
        faults.pack_within(info, self.registry, f"worker {self.row}")
        return wire.encode(outputs, info, slot, self.registry)

    def before_fork(self) -> None:
        """Copies inputs that code has a hold on: a child may outlive the use of their slots."""
        held: list[tuple[int, Any]] = [*self._inputs.items()]
        for index, references in self._kept.items():
            held += [(index, reference()) for reference in references]
        for index, memory in held:
            if memory is not None and index != wire.OWN and memory.base.is_private:
                self.arena.seclude(index, memory, copy=True)

    def _note_kept(self, kept: dict[int, list[weakref.ref[Any]]]) -> bool:
        # Code that keeps an array from one task to the next must find it unchanged: the trainer
        # does not reuse such a slot before the mark is gone.
        marks = self.table.retained
        any_kept = False
        for index, references in kept.items():
            alive = [memory for memory in (ref() for ref in references) if memory is not None]
            if not alive:
                continue
            any_kept = True
            watched = self._kept[index] = [r for r in self._kept.get(index, ()) if r() is not None]
            marks[index, self.row] = 1
            for memory in alive:
                watched.append(weakref.ref(memory, self._unmark(index)))
            del memory, alive
            self._clear_mark(index)
        return any_kept

    def _unmark(self, index: int) -> Callable[[Any], None]:
        return lambda _: self._clear_mark(index)

    def _clear_mark(self, index: int) -> None:
        if self._is_copy:
            return  # the worker itself may still have it
        if all(reference() is None for reference in self._kept[index]):
            self.table.retained[index, self.row] = 0

    def report(
        self, attempt: int, status: int, offset: int, length: int, end: int, error: bytes = b""
    ) -> None:
        """Sends one message to the trainer."""
        if self.lines.written:
            self.lines.written = False
            status |= wire.LOGGED
        head = wire.REPORT.pack(attempt, self.row, status, offset, length, end)
        try:
            self.results.send(head + error)
        except OSError:
            self.leave()  # nobody listens any more


def _end_copy(error: BaseException | None) -> NoReturn:
    """Ends a fork of a worker that has left the step that made it, as Python ends a process."""
    code = getattr(error, "code", None)
    if error is None or (isinstance(error, SystemExit) and code is None):
        os._exit(0)
    if isinstance(error, SystemExit):
        if isinstance(code, int):
            os._exit(code)
        print(code, file=sys.stderr)
    else:
        traceback.print_exception(error)
    os._exit(1)


def _watch(cells: Table, row: int, pause: float, thread: int) -> None:
    """Notes, of a step that takes long, at which record it is, and in which line of the user's."""
    before = 0
    while True:
        time.sleep(pause)
        now = progress.count()
        if now == before:
            try:
                text = progress.told()
                stack = traceback.extract_stack(sys._current_frames()[thread])
                # Below this module is what has started the process.
                begin = next(i for i, frame in enumerate(stack) if frame.filename == __file__)
                place = values_faults.place(traceback.StackSummary.from_list(stack[begin:]))
                if text and now == progress.count():
                    cells.note_place(row, f"{text} ({place})" if place else text)
            except Exception:  # the other thread goes on while this one looks at what it has
                continue
        before = now


def _write_error(slot: Slot, error: bytes) -> tuple[int, int, bytes]:
    try:
        offset = slot.take(len(error))
        slot.bytes_at(offset, len(error))[:] = np.frombuffer(error, np.uint8)
    except OSError:  # a full disk, maybe the very error
        return 0, 0, faults.shorten(error, _INLINE)
    return offset, len(error), b""


def _flush_lines() -> None:
    # A worker ends by a signal, which would lose what it has printed but not written.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)


def _initialise(init: Any, number: int, workers: int) -> None:
    try:
        init(number, workers)
    except BaseException as error:
        values_faults.add_note(error, f"worker_init_fn({number}, {workers}) raised this.")
        raise


def _load(worker: _Worker, content: parcel.Parcel, number: int, settings: dict[str, Any]) -> None:
    """Loads the program, and compares what its code reads with what the trainer's does."""
    init = surroundings.load(content.load_init)
    if init is not None:
        _initialise(init, number, settings["workers"])
        worker.lines.initialised()
    observed = pickle.loads(settings["observed"])
    watch = None if observed is None else drift.Watch(observed)
    try:
        worker.program, worker.registry = surroundings.load(content.load_program)
    finally:
        # Where a file has changed, loading may have failed for that reason.
        if watch is not None and watch.look():
            worker.watch = watch


def work(
    number: int,
    row: int,
    settings: dict[str, Any],
    tasks: socket.socket,
    results: socket.socket,
    arena_descriptor: int,
    parcel_descriptor: int,
    log_descriptor: int,
) -> None:
    """Is a worker, from its start to its end.

    Args:
        number: 0 to the number of workers - 1.
        row: its row in the table.
        settings: those of the parcel.
        tasks: where all workers of the pool take tasks.
        results: where all of them report.
        arena_descriptor: the arena's file.
        parcel_descriptor: the parcel.
        log_descriptor: where log records go.
    """
    signals.lead_group()
    arena = Arena(arena_descriptor, settings["stride"], settings["slots"], settings["on_disk"])
    table = Table(arena, settings["rows"])
    table.enter(row, os.getpid())
    _flush_lines()
    name = f"grain_jax worker {number + 1} of {settings['workers']}"
    title.write(name)
    lines = log.writer(log_descriptor, settings, name, functools.partial(table.leave_out, row))
    lines.install()
    worker = _Worker(row, arena, table, tasks, results, lines)
    os.register_at_fork(before=worker.before_fork)
    if settings["stall_timeout"] is not None:
        watched = (table, row, settings["stall_timeout"] / 4, threading.get_ident())
        threading.Thread(target=_watch, args=watched, name="grain_jax watch", daemon=True).start()
    worker.load(parcel_descriptor, number, settings)
    lines.loaded()
    worker.report(0, wire.STARTED, 0, 0, 0)  # the time until now is not that of a step
    worker.loop()
