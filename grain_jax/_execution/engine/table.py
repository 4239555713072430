"""What each worker is doing, in shared memory, so that it can be read after the worker's death."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from grain_jax._execution.engine.arena import Arena, Memory

__all__ = ["RECEIVING", "RUNNING", "STARTING", "Table"]

STARTING, RECEIVING, RUNNING = 0, 1, 2
_STATE, _ATTEMPT, _SINCE, _PID = range(4)
_HEADER = 64  # bytes; the first eight hold the generation
_CELL = 64  # bytes; one cache line a worker


class Table:
    """Slot 0 of the arena: a generation, a cell for each worker, and who retains which slot.

    A cell is written by one worker and read by the trainer. Every field is an aligned 64-bit
    integer, so that no reader sees half of one. The row of a dead worker goes to its replacement.
    """

    def __init__(self, arena: Arena, rows: int) -> None:
        start = _HEADER + rows * _CELL
        size = start + arena.slots * rows
        memory: Memory = arena.memory(0, size)
        self._generation: npt.NDArray[np.int64] = memory[:8].view(np.int64)
        self._cells: npt.NDArray[np.int64] = memory[_HEADER:start].view(np.int64).reshape(rows, -1)
        self.retained: npt.NDArray[np.uint8] = memory[start:size].reshape(arena.slots, rows)
        self.rows = rows

    @property
    def generation(self) -> int:
        """The number of times that the trainer has forgotten all tasks."""
        return int(self._generation[0])

    @generation.setter
    def generation(self, value: int) -> None:
        self._generation[0] = value

    def enter(self, row: int, pid: int) -> None:
        """Notes that a worker is about to load the program."""
        self._cells[row] = 0
        self._cells[row, _PID] = pid
        self._cells[row, _SINCE] = time.monotonic_ns()

    def receiving(self, row: int) -> None:
        """Notes that a worker waits for a task, or has just taken one."""
        self._cells[row, _STATE] = RECEIVING

    def running(self, row: int, attempt: int) -> None:
        """Notes which attempt a worker begins."""
        cell = self._cells[row]
        cell[_ATTEMPT] = attempt
        cell[_SINCE] = time.monotonic_ns()
        cell[_STATE] = RUNNING

    def read(self, row: int) -> tuple[int, int, float, int]:
        """Returns state, attempt, seconds since it began, and process id."""
        cell: Any = self._cells[row].tolist()
        return (
            cell[_STATE],
            cell[_ATTEMPT],
            (time.monotonic_ns() - cell[_SINCE]) / 1e9,
            cell[_PID],
        )

    def clear(self, row: int) -> None:
        """Forgets a worker that is reaped."""
        self._cells[row] = 0
        self.retained[:, row] = 0
