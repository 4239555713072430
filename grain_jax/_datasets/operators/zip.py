"""Tuples of the elements of several datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra.groupings.base import MANY, Group, Grouper, Grouping, Restart
from grain_jax._datasets import merges
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._datasets.map_dataset import MapDataset
from grain_jax._values import errors

__all__ = ["ZipIterDataset", "ZipMapDataset"]


@dataclasses.dataclass(frozen=True)
class Zip(Grouping):
    """One element of each parent. Its own number is how many tuples there have been.

    Attributes:
      strict: whether parents of different lengths are an error.
    """

    strict: bool
    wanted = 16

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns that there has been none."""
        return (0,)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper behind so many tuples."""
        (made,) = kept
        return _Zipping(self.strict, made, parents)

    def spec(self, parents: Sequence[Any]) -> Any:
        """Returns those of all."""
        return tuple(parents)


class _Zipping(Grouper):
    def __init__(self, strict: bool, made: int, parents: int) -> None:
        super().__init__()
        self._strict = strict
        self._before = made
        self._made = 0
        self._given = [0] * parents
        self._ended = [False] * parents

    def wants(self) -> tuple[int, int] | None:
        made = self._made
        over = [number for number, ended in enumerate(self._ended) if ended]
        short = [number for number in over if self._given[number] == made]
        if not short:
            # One that has fewest, so that what it raises comes behind all tuples before.
            parent = self._given.index(made)
            return parent, max(self._given) - made or MANY
        if not self._strict:
            return None
        if max(self._given) > made:
            raise self._unlike(short[-1], self._given.index(max(self._given)))
        waiting = [number for number, ended in enumerate(self._ended) if not ended]
        return (waiting[0], 1) if waiting else None

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        self._given[parent] += count
        for first in range(self._made, min(self._given)):
            members = [(number, first, first + 1) for number in range(len(self._given))]
            restart = Restart((first + 1,) * len(self._given), (self._before + first + 1,))
            self.groups.append(Group(members, None, restart))
        self._made = min(self._given)

    def end(self, parent: int) -> None:
        self._ended[parent] = True

    def _unlike(self, ended: int, given: int) -> errors.InvalidValueError:
        count = self._before + self._made
        return errors.InvalidValueError(
            f"zip takes streams of equal lengths: dataset {ended} ended after {count} elements, "
            f"and dataset {given} has {count + 1} at least. Write strict=False to end with the "
            "shortest one."
        )


class ZipIterDataset(IterDataset[tuple[Any, ...]]):
    """Tuples of one element of each stream.

    A stream of another length than the others is an error behind the last tuple.

    Args:
      parents: the streams.
      strict: False ends with the shortest one instead.

    Example:
      >>> import grain_jax as grain
      >>> one = grain.MapDataset.range(6).to_iter_dataset().filter(lambda x: x % 2)
      >>> other = grain.MapDataset.range(10, 13).to_iter_dataset()
      >>> list(ZipIterDataset([one, other]))
      [(1, 10), (3, 11), (5, 12)]
    """

    def __init__(self, parents: Sequence[IterDataset[Any]], *, strict: bool = True) -> None:
        super().__init__(parents)
        if not isinstance(strict, bool):
            raise errors.InvalidTypeError(f"strict must be True or False, got {strict!r}.")
        text = "zip" if strict else "zip(strict=False)"
        self._make_of(parents, Zip(strict), text, make=_tuple)


class ZipMapDataset(MapDataset[tuple[Any, ...]]):
    """Tuples of the elements at the same index of datasets of equal length: `MapDataset.zip`.

    Args:
      parents: the datasets.

    Example:
      >>> import grain_jax as grain
      >>> ds = ZipMapDataset([grain.MapDataset.range(3), grain.MapDataset.range(10, 13)])
      >>> ds[1]
      (1, 11)
    """

    def __init__(self, parents: Sequence[MapDataset[Any]]) -> None:
        merges.checked(MapDataset, "zip", parents)
        super().__init__(parents)
        self._be(MapDataset.zip(parents))


def _tuple(elements: list[Any], layout: Any) -> tuple[Any, ...]:
    return tuple(elements)
