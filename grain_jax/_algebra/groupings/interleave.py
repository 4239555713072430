"""Interleave: elements of a few of many streams in turn; where one ends, another one begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grain_jax._algebra.groupings.base import Grouping, Schedule
from grain_jax._values.errors import StateError

__all__ = ["Interleave"]

_NOBODY = 0
"""Stands in a place where no stream is open; stream k is k + 1."""


@dataclasses.dataclass(frozen=True)
class Interleave(Grouping):
    """One element of each open stream in turn.

    The places of a cycle take streams in order as their turn comes. One that finds its stream at
    its end passes, and takes another stream in its next turn.

    Its own numbers are whose turn it is, which stream is opened next, and what is open in each
    place.

    Attributes:
      cycle: places.
    """

    cycle: int

    def shares(self, parents: int) -> Sequence[float]:
        """Returns equal ones, as of those that are open and the one that is opened next."""
        return [1 / min(self.cycle + 1, parents)] * parents

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns that nothing is open."""
        return (0, 0) + (_NOBODY,) * min(self.cycle, parents)

    def schedule(self, kept: tuple[int, ...], parents: int) -> Schedule:
        """Returns the turns from there on."""
        return _Taking(kept, parents)

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns its own numbers, as a state says."""
        turn, following, *places = kept
        opened = [place for place in places if place != _NOBODY]
        if (
            turn >= len(places)
            or following > parents
            or any(place > following for place in opened)
            or len(set(opened)) < len(opened)
        ):
            raise StateError(
                f"the state says {list(kept)} of an interleave of {parents} datasets in "
                f"{len(places)} places, which no run can have come to"
            )
        return kept


class _Taking(Schedule):
    """Plans as if no stream had an end."""

    def __init__(self, kept: tuple[int, ...], parents: int) -> None:
        self._parents = parents
        self._kept = kept
        self._numbers: list[int] = []
        self._behind: list[tuple[int, ...]] = []

    def next(self, most: int) -> tuple[Sequence[int], Sequence[tuple[int, ...]]]:
        while len(self._numbers) < most:
            kept = self._behind[-1] if self._behind else self._kept
            found = self._turn(kept)
            if found is None:
                break
            turn, following, places = found
            self._numbers.append(places[turn] - 1)
            self._behind.append(((turn + 1) % len(places), following, *places))
        return self._numbers[:most], self._behind[:most]

    def _turn(self, kept: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]] | None:
        """Returns the place whose turn it is, with a stream; None if there are no more."""
        turn, following, *places = kept
        for _ in places:
            if places[turn] == _NOBODY and following < self._parents:
                following += 1
                places[turn] = following
            if places[turn] != _NOBODY:
                return turn, following, tuple(places)
            turn = (turn + 1) % len(places)
        return None

    def take(self, count: int) -> None:
        if count:
            self._kept = self._behind[count - 1]
            del self._numbers[:count], self._behind[:count]

    def end(self, parent: int) -> None:
        found = self._turn(self._kept)
        assert found is not None
        turn, following, places = found
        closed = [_NOBODY if place == parent + 1 else place for place in places]
        self._kept = ((turn + 1) % len(places), following, *closed)
        self._numbers, self._behind = [], []

    def ahead(self) -> Sequence[int]:
        """Returns the streams that are open, and the one that is opened next."""
        _, following, *places = self._kept
        found = [place - 1 for place in places if place != _NOBODY]
        return [*found, following] if following < self._parents else found
