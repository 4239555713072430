"""Selections: which part of a merged dataset has the element at an index, and at which of its own.

All are vectorised over int64 arrays. An index beyond the length stands later, as in index maps.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from grain_jax._algebra.index_maps import ENDLESS, Indices
from grain_jax._values import errors

__all__ = [
    "Concatenation",
    "Exhaustion",
    "Given",
    "Mixture",
    "Selection",
    "Stop",
    "check_stop",
    "mixture",
    "whole_weights",
]

_LARGEST_SUM = 3_000_000_000
"""Products of two numbers below this fit into 64 bits."""


Stop = Literal["first", "all", "repeat"]
STOPS = ("first", "all", "repeat")
"""When a mixture ends."""


class Selection(Protocol):
    """A function from indices to parts and the indices in these."""

    @property
    def length(self) -> int:
        """How many elements there are."""

    def __call__(self, indices: Indices) -> tuple[Indices, Indices]: ...


@dataclasses.dataclass(frozen=True)
class Concatenation:
    """All elements of one part after the other; later epochs are later ones of every part."""

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if ENDLESS in self.lengths[:-1]:
            raise errors.InvalidValueError(
                f"dataset {self.lengths.index(ENDLESS)} of concatenate has no end, and nothing "
                "comes after it. Write the repeat() behind concatenate."
            )

    @property
    def length(self) -> int:
        """How many all parts have."""
        return min(sum(self.lengths), ENDLESS)

    def __call__(self, indices: Indices) -> tuple[Indices, Indices]:
        epochs, within = np.divmod(indices, self.length)
        starts: Indices = np.cumsum(np.array([0, *self.lengths[:-1]], np.int64))
        parts = np.searchsorted(starts, within, side="right") - 1
        lengths = np.asarray(self.lengths, np.int64)
        inner = within - starts[parts] + epochs * lengths[parts]
        return parts, np.asarray(inner, np.int64)


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Elements of all parts in fixed proportions, spread evenly: as close to the weights as can be.

    The choice is periodic in the sum of the weights. Each part goes on where it was, beyond the
    length of the mixture, too. The rule is Grain's: element k is of the first part, in order, whose
    rounded share grows from k to k + 1, of what the parts before it leave.

    Attributes:
      weights: whole numbers above 0.
      lengths: of the parts.
    """

    weights: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def length(self) -> int:
        """How many there are before the first part comes to its end."""
        if min(self.lengths) == ENDLESS:
            return ENDLESS
        total = sum(self.weights)
        pairs = zip(self.lengths, self.weights, strict=True)
        return int(min(length / (weight / total) for length, weight in pairs if length != ENDLESS))

    def __call__(self, indices: Indices) -> tuple[Indices, Indices]:
        rest = sum(self.weights)
        periods, before = np.divmod(indices, rest)
        after = before + 1
        parts = np.full(len(indices), len(self.weights) - 1, np.int64)
        inner = np.zeros(len(indices), np.int64)
        undecided = np.ones(len(indices), bool)
        for part, weight in enumerate(self.weights):
            left, left_after = before * (rest - weight) // rest, after * (rest - weight) // rest
            chosen = undecided & (before - left != after - left_after)
            parts[chosen] = part
            inner[chosen] = (after - left_after - 1 + periods * weight)[chosen]
            undecided &= ~chosen
            before, after, rest = left, left_after, rest - weight
            if not rest or not undecided.any():
                break
        return parts, inner

    def counts(self, number: int) -> list[int]:
        """Returns how many of the first `number` elements each part has."""
        rest = sum(self.weights)
        periods, before = divmod(number, rest)
        found = []
        for weight in self.weights:
            left = before * (rest - weight) // rest
            found.append(periods * weight + before - left)
            before, rest = left, rest - weight
        return found


@dataclasses.dataclass(frozen=True)
class Exhaustion:
    """A mixture that goes on, of the parts that are left, until all elements of all have come.

    Where a part has no more for its turn, the others go on as if they began together there.

    Attributes:
      weights: whole numbers above 0.
      lengths: of the parts, which have an end.
    """

    weights: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if ENDLESS in self.lengths:
            raise errors.InvalidValueError(
                f"dataset {self.lengths.index(ENDLESS)} of mix has no end, so that a mixture with "
                'stop="all" has none. Write stop="first", or leave its repeat() out.'
            )

    @property
    def length(self) -> int:
        """All elements of all parts."""
        return min(sum(self.lengths), ENDLESS)

    def __call__(self, indices: Indices) -> tuple[Indices, Indices]:
        epochs, within = np.divmod(indices, self.length)
        parts, inner = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        for begin, end, active, offsets in self._stretches:
            rows = np.flatnonzero((within >= begin) & (within < end))
            if len(rows):
                chosen, places = self._mixture(active)(within[rows] - begin)
                parts[rows] = np.array(active)[chosen]
                inner[rows] = places + np.array(offsets)[chosen]
        return parts, inner + epochs * np.array(self.lengths)[parts]

    def _mixture(self, active: Sequence[int]) -> Mixture:
        return Mixture(tuple(self.weights[part] for part in active), (ENDLESS,) * len(active))

    @functools.cached_property
    def _stretches(self) -> list[tuple[int, int, list[int], list[int]]]:
        """Between two ends: the first element and the one behind the last, parts, where these are.

        A part that has no elements at the turn that ends a stretch ends there, too, at its own.
        """
        found = []
        active, taken = list(range(len(self.lengths))), [0] * len(self.lengths)
        begin = 0
        while active:
            choose = self._mixture(active)
            left = [self.lengths[part] - taken[part] for part in active]
            count = _fitting(choose, left)
            found.append((begin, begin + count, list(active), [taken[part] for part in active]))
            for part, number in zip(active, choose.counts(count), strict=True):
                taken[part] += number
            begin += count
            # The one whose turn it is has no more.
            ((ended,), _) = choose(np.array([count], np.int64))
            del active[int(ended)]
        return found


def _fitting(choose: Mixture, left: Sequence[int]) -> int:
    """Returns how many elements of a mixture there are before a part has too few for its turn."""
    low, high = 0, sum(left) + 1  # of more than there are, one part has too many
    while high - low > 1:
        middle = (low + high) // 2
        fits = all(map(operator.le, choose.counts(middle), left))
        low, high = (middle, high) if fits else (low, middle)
    return low


def mixture(
    weights: Sequence[float] | None, lengths: Sequence[int], stop: Stop = "first"
) -> Mixture | Exhaustion:
    """Returns a mixture of parts of such lengths.

    Args:
      weights: of any scale; None means equal ones.
      lengths: of the parts.
      stop: see `MapDataset.mix`.

    Raises:
      InvalidValueError: for weights that are not as many as parts, or not above zero; for a part
        without elements; for another `stop`.
    """
    whole = whole_weights(weights, len(lengths))
    if 0 in lengths:
        raise errors.InvalidValueError(
            f"dataset {lengths.index(0)} of mix has no elements. Leave it out."
        )
    if check_stop(stop) == "all":
        return Exhaustion(whole, tuple(lengths))
    return Mixture(whole, (ENDLESS,) * len(whole) if stop == "repeat" else tuple(lengths))


def check_stop(stop: Any) -> Stop:
    """Returns when a mixture ends, or refuses what says nothing."""
    if stop not in STOPS:
        raise errors.InvalidValueError(
            f'stop must be "first" (the first part to end ends the mixture), "all" (the others go '
            f'on) or "repeat" (it begins anew), got {stop!r}.'
        )
    found: Stop = stop
    return found


def whole_weights(weights: Sequence[float] | None, parts: int) -> tuple[int, ...]:
    """Returns weights in hundredths of the smallest one, as in Grain; None means equal ones.

    Raises:
      InvalidValueError: for weights that are not as many as parts, or not above zero.
    """
    given = [1] * parts if weights is None else list(weights)
    if len(given) != parts:
        raise errors.InvalidValueError(
            f"mix got {len(given)} weights for {parts} datasets: {given!r}. Give one weight "
            "for each."
        )
    for place, weight in enumerate(given):
        if not isinstance(weight, int | float | np.number) or not 0 < weight < float("inf"):
            raise errors.InvalidValueError(
                f"weight {place} of mix is {weight!r}. Weights are numbers above 0: leave out a "
                "dataset that is to give nothing."
            )
    smallest = min(given)
    scale = 100 / smallest  # first, since the other order of these rounds to other numbers
    whole = tuple(int(weight * scale) for weight in given)
    if sum(whole) > _LARGEST_SUM:
        raise errors.InvalidValueError(
            f"the weights of mix are too far apart: {max(given)!r} and {smallest!r}. Leave out the "
            "dataset of the smallest one."
        )
    return whole


@dataclasses.dataclass(frozen=True)
class Given:
    """What an object of the user's says, index by index.

    Attributes:
      chooser: with `__len__`, and `__getitem__` that returns part and index in it.
      parts: how many parts there are.
    """

    chooser: Any
    parts: int

    def __post_init__(self) -> None:
        for name in ("__len__", "__getitem__"):
            if not hasattr(self.chooser, name):
                raise errors.InvalidTypeError(
                    f"selection_map is {self.chooser!r}, which has no {name}. Derive from "
                    "transforms.DatasetSelectionMap."
                )

    @property
    def length(self) -> int:
        """What its `__len__` says."""
        return len(self.chooser)

    def __call__(self, indices: Indices) -> tuple[Indices, Indices]:
        pairs = [self._ask(index) for index in indices.tolist()]
        found = np.array(pairs, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _ask(self, index: int) -> tuple[int, int]:
        name, answer = type(self.chooser).__name__, self.chooser[index]
        try:
            part, inner = answer
            pair = part.__index__(), inner.__index__()
        except (TypeError, ValueError, AttributeError):
            raise errors.InvalidTypeError(
                f"{name}.__getitem__({index}) returned {answer!r}. Return two whole numbers: which "
                "dataset, and the index in it."
            ) from None
        if not 0 <= pair[0] < self.parts:
            raise errors.InvalidValueError(
                f"{name}.__getitem__({index}) chose dataset {pair[0]} of {self.parts}. Return a "
                f"number from 0 to {self.parts - 1} first."
            )
        return pair
