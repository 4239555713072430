"""What workers run, and tasks, as the trainer writes them down for workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from grain_jax._execution.engine import wire
from grain_jax._execution.engine.arena import ALIGNMENT, Allocate, Arena
from grain_jax._execution.engine.bundle import Bundle

__all__ = ["Program", "Task"]

_INLINE = 4096  # bytes; a longer body is written to the slot


class Program(Protocol):
    """What workers run: picklable by cloudpickle, loaded once, then called for every task.

    It may have a method `before(stage, payload, outputs, info, row, error)`, which returns what is
    left of outputs and info if output number `row` cannot be sent, or raises the error. If it has
    a true attribute `closes`, workers call its `finish()` as they end, unless they are killed.
    """

    def run(
        self, stage: int, payload: Any, inputs: list[Any], allocate: Allocate
    ) -> tuple[list[Any], Any]:
        """Returns the outputs of one task, any picklable trees, and a small picklable `info`."""
        ...


class Task:
    """One task; its inputs stay until every attempt at it has reported.

    Inputs in slots are named by their place. Those that have left their slots travel with the task:
    each attempt finds a copy of them at the start of its own slot.
    """

    __slots__ = ("_packed", "_payload", "_stage", "deaths", "inputs", "label", "ticket")

    def __init__(
        self,
        ticket: int,
        stage: int,
        payload: Any,
        inputs: Sequence[tuple[Bundle, Sequence[int]]],
        label: str,
        registry: wire.Registry,
    ) -> None:
        self.ticket = ticket
        self.inputs = inputs
        self.label = label
        self.deaths = 0
        self._stage = stage
        self._payload = payload
        self._packed = self._pack(registry)

    def _pack(self, registry: wire.Registry) -> tuple[bytes, list[tuple[int, Bundle]], int]:
        """Returns the body, the inputs that travel with it and where each begins, and their end."""
        places: list[wire.Place] = []
        chosen: list[tuple[int, list[int]]] = []
        numbers: dict[int, int] = {}  # of the places, by bundle: each is named, or travels, once
        moved: list[tuple[int, Bundle]] = []
        end = 0
        for bundle, rows in self.inputs:
            number = numbers.setdefault(id(bundle), len(places))
            if number == len(places):
                slot, offset, _, extent = bundle.place
                base = 0
                if bundle.moved:
                    slot, base = wire.OWN, -(-end // ALIGNMENT) * ALIGNMENT
                    end = base + extent
                    moved.append((base, bundle))
                places.append((slot, base, extent, offset))
            chosen.append((number, [int(row) for row in rows]))
        return wire.dumps((self._stage, self._payload, places, chosen), registry), moved, end

    def write(self, arena: Arena, slot: int, registry: wire.Registry) -> tuple[int, int, bytes]:
        """Writes to the slot of an attempt what does not fit into a message.

        Returns:
          How many bytes of the slot are used; how many of these, the last ones, are the body; and
          the body if it is to go into the message.

        Raises:
          OSError: the disk is full.
        """
        # Some may have left their slots since they were named; none goes back.
        if len({id(bundle) for bundle, _ in self.inputs if bundle.moved}) != len(self._packed[1]):
            self._packed = self._pack(registry)
        body, moved, end = self._packed
        length = len(body) if len(body) > _INLINE else 0
        if end + length == 0:
            return 0, 0, body
        room = arena.room(slot, end + length)
        for base, bundle in moved:
            bundle.copy_to(room.part(base, bundle.place[3]))
        if length:
            room.data[end:] = body
        return end + length, length, b"" if length else body
