"""Mix: elements of several streams in fixed proportions, spread evenly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import selections
from grain_jax._algebra.groupings.base import Group, Grouper, Grouping, Restart
from grain_jax._algebra.index_maps import ENDLESS
from grain_jax._values import errors

__all__ = ["Mix", "named"]

_PLANNED = 4096
"""Choices that are made at once."""


@dataclasses.dataclass(frozen=True)
class Mix(Grouping):
    """Elements of parts by `selections.Mixture`, until one has no more that is wanted.

    Its own number is how many elements there have been.

    Attributes:
      weights: whole numbers above 0, one for each part.
      names: of the parts; None where they have none.
    """

    weights: tuple[int, ...]
    names: tuple[str, ...] | None = None

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns that there has been none."""
        return (0,)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper behind so many elements."""
        (count,) = kept
        lengths = (ENDLESS,) * parents
        return _Mixing(selections.Mixture(self.weights, lengths), count, parents)


class _Mixing(Grouper):
    """Plans ahead which part is next, and how often one after the other."""

    def __init__(self, choose: selections.Mixture, count: int, parents: int) -> None:
        super().__init__()
        self._choose = choose
        self._made = self._planned = count
        self._taken = [0] * parents
        self._plan: list[tuple[int, int]] = []  # part, and how often; the next ones last
        self._is_over = False

    def wants(self) -> tuple[int, int] | None:
        if self._is_over:
            return None
        if not self._plan:
            parts, _ = self._choose(np.arange(self._planned, self._planned + _PLANNED))
            ends = np.append(np.flatnonzero(np.diff(parts)) + 1, _PLANNED)
            times = np.diff(ends, prepend=0)
            self._plan = list(zip(parts[ends - 1].tolist(), times.tolist(), strict=True))[::-1]
            self._planned += _PLANNED
        return self._plan[-1]

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        part, times = self._plan.pop()
        if times > count:
            self._plan.append((part, times - count))
        for _ in range(count):
            first = self._taken[parent]
            self._taken[parent] += 1
            self._made += 1
            restart = Restart(tuple(self._taken), (self._made,))
            self.groups.append(Group([(parent, first, first + 1)], None, restart))

    def end(self, parent: int) -> None:
        self._is_over = True


def named(
    datasets: Any, weights: Any
) -> tuple[tuple[str, ...] | None, Any, Sequence[float] | None]:
    """Returns the names of parts, None where they have none; the parts; their weights, in order.

    Raises:
      InvalidTypeError: if only the parts or only the weights have names, or these are no text.
      InvalidValueError: for names that are not those of the parts.
    """
    if not isinstance(datasets, Mapping):
        if isinstance(weights, Mapping):
            raise errors.InvalidTypeError(
                f"mix got weights by name, {weights!r}, and datasets without names. Give both as "
                "lists, or both by name."
            )
        return None, datasets, weights
    names = tuple(datasets)
    for name in names:
        if not isinstance(name, str):
            raise errors.InvalidTypeError(f"a dataset of mix is named {name!r}. Names are text.")
    parts = list(datasets.values())
    if weights is None:
        return names, parts, None
    if not isinstance(weights, Mapping):
        raise errors.InvalidTypeError(
            f"mix got datasets by name and weights {weights!r}. Give the weights by name, too: "
            f"{dict.fromkeys(names, 1)!r}."
        )
    unlike = sorted(map(repr, {*names} ^ {*weights}))
    if unlike:
        raise errors.InvalidValueError(
            f"mix got datasets {list(names)!r} and weights for {list(weights)!r}: {unlike[0]} is "
            "not in both. Give one weight for each dataset."
        )
    return names, parts, [weights[name] for name in names]
