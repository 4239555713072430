"""Turns: one element of each stream, in turn; those that have ended are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra.groupings.base import Group, Grouper, Grouping, Restart
from grain_jax._values.errors import StateError

__all__ = ["Turns"]


@dataclasses.dataclass(frozen=True)
class Turns(Grouping):
    """Round robin. Its own number says whose turn it is."""

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns the first parent."""
        return (0,)

    def begin(self, kept: tuple[int, ...], parents: int) -> _Taking:
        """Returns a grouper that begins with a parent."""
        (turn,) = kept
        return _Taking(turn, parents)

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns whose turn it is, as a state says."""
        if kept[0] >= parents:
            raise StateError(f"the state says that it is the turn of lane {kept[0]} of {parents}")
        return kept


class _Taking(Grouper):
    def __init__(self, turn: int, parents: int) -> None:
        super().__init__()
        self._turn = turn
        self._count = [0] * parents
        self._ended = [False] * parents

    def wants(self) -> tuple[int, int] | None:
        return None if all(self._ended) else (self._turn, 1)

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        first = self._count[parent]
        self._count[parent] += count
        self._pass()
        restart = Restart(tuple(self._count), (self._turn,))
        self.groups.append(Group([(parent, first, first + count)], None, restart))

    def end(self, parent: int) -> None:
        self._ended[parent] = True
        self._pass()

    def _pass(self) -> None:
        parents = len(self._ended)
        for turn in range(self._turn + 1, self._turn + 1 + parents):
            if not self._ended[turn % parents]:
                self._turn = turn % parents
                return
