"""Cache: all elements of one stream as they are, remembered for when they come again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grain_jax._algebra.groupings.base import Grouping, Schedule

__all__ = ["Cache"]


@dataclasses.dataclass(frozen=True)
class Cache(Grouping):
    """Passes all elements on. What it stands for is where they are remembered."""

    def schedule(self, kept: tuple[int, ...], parents: int) -> Schedule:
        """Returns the only parent, again and again."""
        return _Passing()


class _Passing(Schedule):
    def __init__(self) -> None:
        self._is_over = False

    def next(self, most: int) -> tuple[Sequence[int], Sequence[tuple[int, ...]]]:
        return ((), ()) if self._is_over else ([0] * most, [()] * most)

    def take(self, count: int) -> None:
        """It makes no difference how many there were."""

    def end(self, parent: int) -> None:
        self._is_over = True
