"""The outputs of one task, as they lie in a slot."""

from __future__ import annotations

from typing import Any

from grain_jax._execution.engine import arena, faults, wire

__all__ = ["Bundle"]


class Bundle:
    """The outputs of one task, in one slot, not decoded yet.

    The slot is used again only when the bundle and every array of `load` is gone, or after `move`.
    """

    __slots__ = (
        "__weakref__",
        "_count",
        "_memory",
        "_registry",
        "crowded",
        "info",
        "loaded",
        "moved",
        "place",
        "pool",
    )

    def __init__(
        self,
        pool: str,
        place: tuple[int, int, int, int],
        memory: arena.Memory,
        registry: wire.Registry,
    ) -> None:
        self.pool = pool
        self.place = place  # slot, offset, length, bytes of the slot in use
        self._memory = memory
        self._registry = registry  # keeps it findable for `load`
        self.crowded = False  # too much memory is held by others: `load` makes a copy
        self.loaded = False  # there may be arrays on its memory
        self.moved = False  # the slot of `place` is not its own any more
        self._count, self.info = wire.decode_info(memory, place[1])
        faults.unpack_within(self.info)

    def __len__(self) -> int:
        return self._count

    def load(self) -> list[Any]:
        """Returns the outputs; their arrays are writable views on the slot, or on a copy of it."""
        self.loaded = True
        memory = self._copy() if self.crowded and not self.moved else self._memory
        with arena.gate:
            memory.is_seen = True
        return wire.decode_outputs(memory, self.place[1])

    def move(self) -> None:
        """Leaves the slot; the outputs lie in memory of this process from now on."""
        if not self.moved:
            memory = self._copy()
            # First, since an interrupt may come before the next line: the bytes are the same.
            self.moved = True
            self._memory = memory

    def copy_to(self, memory: arena.Memory) -> None:
        """Copies the part of the slot that is in use."""
        memory[:] = self._memory

    def _copy(self) -> arena.Memory:
        memory = arena.private_memory(self.place[3])
        memory[:] = self._memory
        return memory
