"""Which slots are free, and how many bytes they hold."""

from __future__ import annotations

import collections
import os
import weakref
from typing import Any

from grain_jax._execution.engine.arena import Arena, Memory
from grain_jax._execution.engine.table import Table

__all__ = ["Slots", "default_budget", "memory_of_machine"]


class _HandedOut(weakref.ref["Memory"]):
    """Remembers which slot a piece of memory belongs to."""

    __slots__ = ("slot",)
    slot: int


class Slots:
    """The trainer's account of the arena. Not safe for threads, but for what finalizers do."""

    def __init__(self, arena: Arena, table: Table, budget: int) -> None:
        self.arena = arena
        self.budget = budget
        self.suspects: set[int] = set()  # a worker has kept memory of these
        self._table = table
        self._free: list[int] = []
        self._fresh = 1  # slot 0 is the table
        self._bytes: dict[int, int] = {}
        self._resident = 0
        self._held: dict[int, _HandedOut] = {}
        self._parked: list[int] = []
        self._unused: list[Memory] = []  # stays, so that its slots are not used again
        # Finalizers run anywhere, also inside an allocation of another thread: this one appends to
        # a deque and does nothing else.
        self._returned: collections.deque[_HandedOut] = collections.deque()

    def acquire(self) -> int | None:
        """Returns a free slot, the one used last if there is one; None when there is none."""
        self.collect()
        if self._free:
            return self._free.pop()
        if self._fresh < self.arena.slots:
            self._fresh += 1
            return self._fresh - 1
        return None

    @property
    def fresh_left(self) -> int:
        """How many slots have never been used."""
        return self.arena.slots - self._fresh

    def available(self) -> int:
        """Returns how many slots can be acquired now."""
        self.collect()
        return len(self._free) + self.arena.slots - self._fresh

    def grown(self, slot: int, size: int) -> None:
        """Notes that a task has used so much of its slot."""
        before = self._bytes.get(slot, 0)
        if size > before:
            self._bytes[slot] = size
            self._resident += size - before

    def hand_out(self, slot: int, memory: Memory) -> None:
        """Notes that the slot is free again when `memory` is gone."""
        reference = _HandedOut(memory, self._returned.append)
        reference.slot = slot
        self._held[slot] = reference

    def seclude(self, copy: bool) -> None:
        """Makes the memory of results that somebody has seen this process's own.

        Args:
            copy: whether the slots will be used again while a forked child still has such memory.
        """
        for slot, reference in list(self._held.items()):
            memory = reference()
            if memory is None or not memory.is_seen:
                continue
            try:
                self.arena.seclude(slot, memory, copy)
            except OSError:  # no memory left
                self._unused.append(memory)

    def release(self, slot: int) -> None:
        """Notes that nobody uses a slot."""
        if slot in self.suspects:
            if self._table.retained[slot].any():
                self._parked.append(slot)
                return
            self.suspects.discard(slot)
        self._free.append(slot)

    def collect(self) -> None:
        """Takes back slots whose memory is gone."""
        while self._returned:
            reference = self._returned.popleft()
            if self._held.get(reference.slot) is reference:
                del self._held[reference.slot]
                self.release(reference.slot)
        if self._parked and not self._free:
            marked = self._table.retained[self._parked].sum(axis=1).tolist()
            parked = list(zip(self._parked, marked, strict=True))
            self._parked = [slot for slot, mark in parked if mark]
            self._free = [slot for slot, mark in parked if not mark]
            self.suspects.difference_update(self._free)

    @property
    def handed_out(self) -> int:
        """How many slots hold results that somebody may look at."""
        self.collect()
        return len(self._held)

    @property
    def over_budget(self) -> bool:
        """Whether slots hold more memory than they should."""
        return self._resident > self.budget

    def trim(self, keep: int) -> None:
        """Gives memory of free slots back, all but `keep` of them, before the budget is spent."""
        most = self.budget // 2
        if self._resident <= most:
            return
        self.collect()
        for slot in self._free[: max(len(self._free) - max(keep, 0), 0)]:  # the coldest first
            size = self._bytes.get(slot, 0)
            if size and self.arena.discard(slot, size):
                self._resident -= self._bytes.pop(slot)
                if self._resident <= most:
                    return


def default_budget() -> int:
    """Returns the bytes that slots may hold when nobody says: an eighth of memory, up to 2 GiB."""
    return max(64 << 20, min(2 << 30, memory_of_machine() // 8))


def memory_of_machine() -> int:
    """Returns the bytes of memory that the machine has, or that this process may use of it."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        total = 8 << 30
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text: Any = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
