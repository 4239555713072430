"""Batch: so many elements, an equal share of each parent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra.groupings.base import MANY, Group, Grouper, Grouping, Restart
from grain_jax._values.errors import StateError

__all__ = ["Batch", "kept"]


def kept(rest: int, batches: tuple[tuple[int, bool], ...], most: int | None = None) -> int:
    """Returns how many records of an incomplete unit are left where batches drop their remainder.

    A batch of batches is complete when it has enough of them, be the last of them short.

    Args:
      rest: records of the unit that are there.
      batches: size and drop_remainder, innermost first.
      most: what to return where nothing is dropped; None for `rest`.
    """
    most = rest if most is None else most
    inner = 1
    for size, drop in batches:
        if drop:
            most = min(most, -(-rest // inner) // size * size * inner)
            rest = min(rest, most)
        inner *= size
    return most


@dataclasses.dataclass(frozen=True)
class Batch(Grouping):
    """Consecutive elements of a stream; of several streams, an equal share of each, one by one.

    A stream that has ended gives none any more. Its own numbers are how many batches there have
    been, and for each parent how many it has been part of: that is all of them until it ends.

    Attributes:
      batches: size and drop_remainder of the batches that are made in one another, innermost first.
    """

    batches: tuple[tuple[int, bool], ...]

    @property
    def size(self) -> int:
        """Elements of a full group."""
        return math.prod(size for size, _ in self.batches)

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns 0 batches, altogether and for each parent."""
        return (0,) * (1 + parents)

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns the numbers of a state; of a stream by itself there is only one."""
        return kept if joined or parents > 1 else kept[1:] * 2

    def begin(self, kept: tuple[int, ...], parents: int) -> _Batching:
        """Returns a grouper behind so many batches, altogether and of each parent."""
        batches = self.batches
        if parents > 1:
            ((size, drop),) = batches
            batches = ((size // parents, drop),)
        return _Batching(batches, max(kept), list(kept[1:]))


class _Batching(Grouper):
    """Fills the share of one parent after the other."""

    def __init__(self, batches: tuple[tuple[int, bool], ...], made: int, kept: list[int]) -> None:
        super().__init__()
        self._batches = batches
        self._size = math.prod(size for size, _ in batches)
        self._kept = kept
        self._made = made
        self._begin = [0] * len(kept)
        self._count = [0] * len(kept)
        self._ended = [False] * len(kept)
        self._dropped = [0] * len(kept)

    def wants(self) -> tuple[int, int] | None:
        for parent, begin in enumerate(self._begin):
            if self._count[parent] < begin + self._size and not self._ended[parent]:
                return parent, MANY  # what is more than one batch needs is for the next ones
        return None

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        self._count[parent] += count
        while self.wants() is None and self._fill():
            pass

    def end(self, parent: int) -> None:
        self._ended[parent] = True
        rest = (self._count[parent] - self._begin[parent]) % self._size
        self._dropped[parent] = rest - kept(rest, self._batches)
        self._count[parent] -= self._dropped[parent]
        while self.wants() is None and self._fill():
            pass

    def dropped(self, parent: int) -> int:
        return self._dropped[parent]

    def _fill(self) -> bool:
        """Makes one group; whether there are elements for it."""
        members = []
        for parent, begin in enumerate(self._begin):
            end = min(begin + self._size, self._count[parent])
            if end > begin:
                self._check(parent)
                members.append((parent, begin, end))
        if not members:
            return False
        self._made += 1
        for parent, _, end in members:
            self._kept[parent], self._begin[parent] = self._made, end
        restart = Restart(tuple(self._begin), (self._made, *self._kept))
        self.groups.append(Group(members, None, restart, self._made - 1))
        return True

    def _check(self, parent: int) -> None:
        if self._kept[parent] != self._made:
            raise StateError(
                "one of the shards that are joined has given a share to "
                f"{self._kept[parent]} batches, and another one to {self._made}: their states were"
                " taken at different steps, or the batch size is smaller than it was, so that what"
                " drop_remainder dropped of a shard that has ended comes back. Restore the states"
                " of one step, with the batch size of then, on all processes."
            )
