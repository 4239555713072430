"""Turns: one element of each stream, in turn; those that have ended are left out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from grain_jax._algebra.groupings.base import Grouping, Schedule
from grain_jax._values.errors import StateError

__all__ = ["Turns"]


@dataclasses.dataclass(frozen=True)
class Turns(Grouping):
    """Round robin. Its own number says whose turn it is."""

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns the first parent."""
        return (0,)

    def schedule(self, kept: tuple[int, ...], parents: int) -> Schedule:
        """Returns the turns from a parent on."""
        (turn,) = kept
        return _Taking(turn, parents)

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns whose turn it is, as a state says."""
        if kept[0] >= parents:
            raise StateError(f"the state says that it is the turn of lane {kept[0]} of {parents}")
        return kept


class _Taking(Schedule):
    def __init__(self, turn: int, parents: int) -> None:
        self._left = [number % parents for number in range(turn, turn + parents)]

    def next(self, most: int) -> tuple[Sequence[int], Sequence[tuple[int, ...]]]:
        turns = list(itertools.islice(itertools.cycle(self._left), most + 1))
        return turns[:-1], [(turn,) for turn in turns[1:]]

    def take(self, count: int) -> None:
        passed = count % len(self._left)
        self._left = self._left[passed:] + self._left[:passed]

    def end(self, parent: int) -> None:
        self._left.remove(parent)
