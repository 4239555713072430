"""Mix: elements of several streams in fixed proportions, spread evenly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import selections
from grain_jax._algebra.groupings.base import Grouping, Schedule
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
    wanted = 16

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns that there has been none."""
        return (0,)

    def shares(self, parents: int) -> Sequence[float]:
        """Returns the weights, of which the sum is 1."""
        return [weight / sum(self.weights) for weight in self.weights]

    def schedule(self, kept: tuple[int, ...], parents: int) -> Schedule:
        """Returns the choices behind so many elements."""
        (count,) = kept
        lengths = (ENDLESS,) * parents
        return _Mixing(selections.Mixture(self.weights, lengths), count)

    def identity(self) -> str:
        """Names it; parts with names may have other weights in a later run."""
        return super().identity() if self.names is None else "mix(by name)"

    def taken(self, kept: tuple[int, ...]) -> list[tuple[int, int]]:
        """Returns for each part how many elements there have been, which is what they weigh."""
        counts = selections.Mixture(self.weights, (ENDLESS,) * len(self.weights)).counts(kept[0])
        return list(zip(counts, counts, strict=True))


class _Mixing(Schedule):
    """Plans ahead which part is next."""

    def __init__(self, choose: selections.Mixture, count: int) -> None:
        self._choose = choose
        self._count = self._planned = count
        self._plan: list[int] = []
        self._is_over = False

    def next(self, most: int) -> tuple[Sequence[int], Sequence[tuple[int, ...]]]:
        if self._is_over:
            return (), ()
        place = self._count - self._planned
        if place + most > len(self._plan):
            self._planned, place = self._count, 0
            parts, _ = self._choose(np.arange(self._count, self._count + max(most, _PLANNED)))
            self._plan = parts.tolist()
        first = self._count + 1
        return self._plan[place : place + most], [(k,) for k in range(first, first + most)]

    def take(self, count: int) -> None:
        self._count += count

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
