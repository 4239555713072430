"""Blend: elements of several streams in proportion to weights, by rules that `Mix` does not have.

Their shares are counted in elements, or in what a function says that each weighs; and where a part
comes to its end the others go on, or the part begins anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import selections
from grain_jax._algebra.groupings.base import Group, Grouper, Grouping, Measure, Restart
from grain_jax._algebra.index_maps import ENDLESS
from grain_jax._values import errors, options

__all__ = ["Blend"]

_PLANNED = 1024
"""Choices that are made at once."""


@dataclasses.dataclass(frozen=True)
class Blend(Grouping):
    """Elements of parts in proportion to weights.

    Without `weigh`, which part is next is the choice of `selections.Mixture`, of the parts that
    have not ended, as if they began together where the last other one ended. With it, that is the
    part whose share of the sums lags most behind its weight, the first of equals.

    Its own numbers are how many elements there have been since a part ended; and for each part how
    many of it, what these weigh, and how often it has ended.

    Attributes:
      weights: whole numbers above 0, one for each part.
      names: of the parts; None where they have none.
      stop: whether the first end is that of the stream ("first"), or the last one ("all"), or parts
        that end begin anew ("repeat").
      weigh: says how much an element counts; None counts each as 1.
    """

    weights: tuple[int, ...]
    names: tuple[str, ...] | None
    stop: selections.Stop
    weigh: Callable[[Any], int] | None

    def shares(self, parents: int) -> Sequence[float]:
        """Returns the weights, of which the sum is 1."""
        return [weight / sum(self.weights) for weight in self.weights]

    @property
    def measure(self) -> Measure | None:  # type: ignore[override]
        """Returns what an element weighs."""
        return None if self.weigh is None else _Weight(self.weigh)

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns that there has been no element."""
        return (0,) * (1 + 3 * parents)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper that goes on there."""
        return (_ByCount if self.weigh is None else _ByWeight)(self, kept, parents)

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns the numbers of a state."""
        ends = kept[1 + 2 * parents :]
        if self.stop != "repeat" and max(ends) > (self.stop == "all"):
            raise errors.StateError(
                f"the state says that parts have ended {list(ends)} times, and this mixture has "
                f"stop={self.stop!r}"
            )
        return kept

    def identity(self) -> str:
        """Names it; parts with names may have other weights in a later run."""
        weighs = "" if self.weigh is None else ", by weight"
        parts = "by name" if self.names is not None else f"weights={list(self.weights)}"
        return f"mix({parts}, stop={self.stop!r}{weighs})"

    def taken(self, kept: tuple[int, ...]) -> list[tuple[int, int]]:
        """Returns for each part how many elements there have been, and what they weigh."""
        count = len(self.weights)
        elements, sums = kept[1 : 1 + count], kept[1 + count : 1 + 2 * count]
        return list(zip(elements, elements if self.weigh is None else sums, strict=True))


@dataclasses.dataclass(frozen=True)
class _Weight:
    """A measure: what the user's function returns, which has to be a whole number."""

    function: Callable[[Any], int]

    def __call__(self, element: Any) -> int:
        return options.check_count("what weigh returns", self.function(element), minimum=0)


class _Blending(Grouper):
    """Takes note of what parts give, and of their ends."""

    def __init__(self, of: Blend, kept: tuple[int, ...], parents: int) -> None:
        super().__init__()
        self._of = of
        self._since = kept[0]  # elements since a part ended
        numbers = kept[1:]
        self._counts = list(numbers[:parents])
        self._sums = list(numbers[parents : 2 * parents])
        self._ends = list(numbers[2 * parents :])
        self._taken = [0] * parents
        # Parts that have given nothing since an end after which they began anew.
        self._silent: set[int] = set()
        self._empty: int | None = None
        self._is_over = of.stop == "all" and all(self._ends)

    def wants(self) -> tuple[int, int] | None:
        if self._empty is not None:
            raise self._nothing(self._empty)
        return None if self._is_over else self._next()

    def epoch(self, parent: int) -> int:
        return self._ends[parent] if self._of.stop == "repeat" else 0

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        self._silent.discard(parent)
        for place in range(count):
            self._since += 1
            self._counts[parent] += 1
            if measures is not None:
                self._sums[parent] += measures[place]
            first = self._taken[parent]
            self._taken[parent] += 1
            kept = (self._since, *self._counts, *self._sums, *self._ends)
            restart = Restart(tuple(self._taken), kept)
            self.groups.append(Group([(parent, first, first + 1)], None, restart))

    def end(self, parent: int) -> None:
        if self._of.stop == "first":
            self._is_over = True
            return
        self._ends[parent] += 1
        if self._of.stop == "all":
            self._since, self._is_over = 0, all(self._ends)
        elif parent in self._silent:
            self._empty = parent
        else:
            self._silent.add(parent)

    def _next(self) -> tuple[int, int]:
        raise NotImplementedError

    def _parts(self) -> list[int]:
        """Returns those that have not ended for good."""
        parts = range(len(self._ends))
        if self._of.stop == "repeat":
            return list(parts)
        return [part for part in parts if not self._ends[part]]

    def _nothing(self, part: int) -> errors.NoElementsError:
        names = self._of.names
        which = f"dataset {part}" if names is None else f"dataset {names[part]!r}"
        return errors.NoElementsError(
            f"{which} of mix has no elements, and is to be repeated. Leave it out, or write "
            'stop="all".'
        )


class _ByCount(_Blending):
    """Each element counts 1: plans ahead."""

    def __init__(self, of: Blend, kept: tuple[int, ...], parents: int) -> None:
        super().__init__(of, kept, parents)
        self._plan: list[tuple[int, int]] = []  # part, and how often; the next ones last

    def _next(self) -> tuple[int, int]:
        if not self._plan:
            active = self._parts()
            weights = tuple(self._of.weights[part] for part in active)
            choose = selections.Mixture(weights, (ENDLESS,) * len(active))
            chosen, _ = choose(np.arange(self._since, self._since + _PLANNED))
            ends = np.append(np.flatnonzero(np.diff(chosen)) + 1, _PLANNED)
            times = np.diff(ends, prepend=0).tolist()
            parts = [active[part] for part in chosen[ends - 1].tolist()]
            self._plan = list(zip(parts, times, strict=True))[::-1]
        return self._plan[-1]

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        super().take(parent, count, measures)
        part, times = self._plan.pop()
        if times > count:
            self._plan.append((part, times - count))

    def end(self, parent: int) -> None:
        super().end(parent)
        if self._of.stop == "all":
            self._plan = []


class _ByWeight(_Blending):
    """Which part is next is known when the last element has been weighed."""

    def _next(self) -> tuple[int, int]:
        weights, sums = self._of.weights, self._sums
        parts = self._parts()
        weight, total = sum(weights[part] for part in parts), sum(sums[part] for part in parts)
        # Shares and weights are fractions of these: their difference, times both.
        return max(parts, key=lambda part: weights[part] * total - sums[part] * weight), 1
