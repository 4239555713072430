"""Tuples of the elements of several datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from grain_jax._algebra.groupings.base import Group, Grouper, Grouping, Restart
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
        self._parents = parents
        self._made = 0
        self._next = 0  # the parent whose turn it is
        self._given: int | None = None  # the last parent that gave an element of this tuple
        self._ended: int | None = None  # the last one that did not

    def wants(self) -> tuple[int, int] | None:
        if self._ended is None:
            return self._next, 1
        if not self._strict:
            return None
        if self._given is not None:
            raise self._unlike(self._ended, self._given)
        return (self._next, 1) if self._next else None

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        self._given = parent
        self._pass()
        if self._next or self._ended is not None:
            return
        first, self._made, self._given = self._made, self._made + 1, None
        members = [(number, first, first + 1) for number in range(self._parents)]
        delivered = (self._made,) * self._parents
        self.groups.append(Group(members, None, Restart(delivered, (self._before + self._made,))))

    def end(self, parent: int) -> None:
        self._ended = parent
        self._pass()

    def _pass(self) -> None:
        self._next = (self._next + 1) % self._parents

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
    """

    def __init__(self, parents: Sequence[MapDataset[Any]]) -> None:
        merges.checked(MapDataset, "zip", parents)
        super().__init__(parents)
        self._be(MapDataset.zip(parents))


def _tuple(elements: list[Any], layout: Any) -> tuple[Any, ...]:
    return tuple(elements)
