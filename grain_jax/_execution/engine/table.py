"""What each worker is doing, in shared memory, so that it can be read after the worker's death."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from grain_jax._execution.engine.arena import Arena, reserve

__all__ = ["RECEIVING", "RUNNING", "STARTING", "Table"]

STARTING, RECEIVING, RUNNING = 0, 1, 2
_STATE, _ATTEMPT, _SINCE, _PID, _LEFT_OUT = range(5)
_CELL = 8  # integers; one cache line a worker. The first cell holds the generation
_STEP = 320  # bytes of text for what a worker is at


class Table:
    """Slot 0 of the arena: a generation, a cell and a text per worker, and who retains which slot.

    A cell is written by one worker and read by the trainer. Every field is an aligned 64-bit
    integer, so that no reader sees half of one. The row of a dead worker goes to its replacement.
    """

    def __init__(self, arena: Arena, rows: int) -> None:
        cells = (1 + rows) * _CELL * 8
        start = cells + rows * _STEP
        size = start + arena.slots * rows
        if arena.on_disk:
            reserve(arena.descriptor, 0, size)
        memory = arena.memory(0, size)
        self._cells = memory.data[:cells].cast("q")  # ten times as fast as an array, one at a time
        self.retained: npt.NDArray[np.uint8] = memory[start:].reshape(arena.slots, rows)
        self._steps = memory.data[cells:start]
        self._texts: dict[str, bytes] = {}
        self.rows = rows

    @property
    def generation(self) -> int:
        """The number of times that the trainer has forgotten all tasks."""
        return self._cells[0]

    @generation.setter
    def generation(self, value: int) -> None:
        self._cells[0] = value

    def enter(self, row: int, pid: int) -> None:
        """Notes that a worker is about to load the program."""
        self._set(row, (STARTING, 0, time.monotonic_ns(), pid))

    def receiving(self, row: int) -> None:
        """Notes that a worker waits for a task, or has just taken one."""
        self._cells[_CELL * (1 + row) + _STATE] = RECEIVING

    def running(self, row: int, attempt: int) -> None:
        """Notes which attempt a worker begins."""
        cell = _CELL * (1 + row)
        self._cells[cell + _ATTEMPT] = attempt
        self._cells[cell + _SINCE] = time.monotonic_ns()
        self._cells[cell + _STATE] = RUNNING

    def note_step(self, row: int, what: str) -> None:
        """Notes what a worker is at, within its attempt."""
        text = self._texts.get(what)
        if text is None:
            text = self._texts[what] = _as_text(what)
        self._steps[row * _STEP : (row + 1) * _STEP] = text

    def note_place(self, row: int, what: str) -> None:
        """Notes the same in more detail; what is noted like this is not worth keeping."""
        self._steps[row * _STEP : (row + 1) * _STEP] = _as_text(what)

    def step(self, row: int) -> str:
        """Returns what a worker is at, within its attempt; empty if nobody says."""
        text = bytes(self._steps[row * _STEP : (row + 1) * _STEP])
        return text.rstrip(b"\0").decode(errors="replace")

    def leave_out(self, row: int) -> None:
        """Counts a log record that a worker could not send."""
        self._cells[_CELL * (1 + row) + _LEFT_OUT] += 1

    @property
    def left_out(self) -> int:
        """How many log records all workers so far could not send."""
        return sum(self._cells[_CELL * (1 + row) + _LEFT_OUT] for row in range(self.rows))

    def read(self, row: int) -> tuple[int, int, float, int]:
        """Returns state, attempt, seconds since it began, and process id."""
        cell = _CELL * (1 + row)
        state, attempt, since, pid = self._cells[cell : cell + 4]
        return state, attempt, (time.monotonic_ns() - since) / 1e9, pid

    def clear(self, row: int) -> None:
        """Forgets a worker that is reaped."""
        self._set(row, (STARTING, 0, 0, 0))
        self.note_step(row, "")
        self.retained[:, row] = 0

    def _set(self, row: int, values: tuple[int, int, int, int]) -> None:
        for number, value in enumerate(values):
            self._cells[_CELL * (1 + row) + number] = value


def _as_text(what: str) -> bytes:
    return what.encode(errors="replace")[:_STEP].ljust(_STEP, b"\0")
