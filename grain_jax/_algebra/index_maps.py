"""Index maps: what random-access operators do, as functions from indices to indices.

All are vectorised over int64 arrays. An index beyond the length stands in a later epoch; maps keep
the epoch on the way down, so that shuffles and random steps below see a new one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from typing import Any, Protocol

import numpy as np

from grain_jax._algebra import samplers
from grain_jax._values import errors, options, permutation, sharding

__all__ = ["ENDLESS", "IndexMap", "Picks", "Repeat", "Sample", "Shuffle", "Slice", "WindowShuffle"]

Indices = np.ndarray[Any, np.dtype[np.int64]]

ENDLESS = sys.maxsize
"""The length of a dataset without an end, as `len` has to give a number."""


class IndexMap(Protocol):
    """A function from indices to the indices of the dataset below."""

    @property
    def length(self) -> int:
        """How many elements there are in one epoch."""

    def __call__(self, indices: Indices) -> Indices: ...


@dataclasses.dataclass(frozen=True)
class Slice:
    """The elements that a slice picks out of `below` elements, the same ones in every epoch.

    Whatever reorders below has to be closed, too: see `Shuffle.closed`. A dataset without an end
    has no second epoch, so that every epoch of its slice is in its first.
    """

    picked: range
    below: int

    @property
    def length(self) -> int:
        """How many are picked."""
        return len(self.picked)

    def __call__(self, indices: Indices) -> Indices:
        epochs, within = np.divmod(indices, len(self.picked))
        start: Indices = self.picked.start + self.picked.step * within
        if self.below != ENDLESS and epochs.any():
            start += epochs * self.below
        return start


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Picks:
    """The elements at a list of indices out of `below` elements, the same ones in every epoch.

    As in `Slice`, whatever reorders below has to be closed.
    """

    picked: Indices
    below: int

    def __repr__(self) -> str:
        digest = hashlib.sha256(self.picked.astype("<i8").tobytes()).hexdigest()[:16]
        return f"Picks({len(self.picked)} indices {digest}, below={self.below})"

    @property
    def length(self) -> int:
        """How many indices there are."""
        return len(self.picked)

    def __call__(self, indices: Indices) -> Indices:
        epochs, within = np.divmod(indices, len(self.picked))
        found = self.picked[within]
        if self.below != ENDLESS and epochs.any():
            found += epochs * self.below
        return found


@dataclasses.dataclass(frozen=True)
class Shuffle:
    """Every epoch in an order of its own: `seed + epoch` keys the permutation.

    Attributes:
      length: elements in one epoch.
      seed: 32 bits.
      closed: after how many epochs their orders come again; None for never.
    """

    length: int
    seed: int
    closed: int | None = None

    def __call__(self, indices: Indices) -> Indices:
        places = indices if self.closed is None else indices % (self.closed * self.length)
        return permutation.permute_epochs(places, self.length, self.seed) + (
            indices // self.length * self.length
        )


@dataclasses.dataclass(frozen=True)
class WindowShuffle:
    """Windows of neighbours, each in an order of its own: `seed + window` keys the permutation.

    Windows go on counting over epochs; the last one of an epoch may be shorter.

    Attributes:
      length: elements in one epoch.
      window: elements of a window.
      seed: 32 bits.
      closed: after how many epochs their orders come again; None for never.
    """

    length: int
    window: int
    seed: int
    closed: int | None = None

    def __call__(self, indices: Indices) -> Indices:
        places = indices if self.closed is None else indices % (self.closed * self.length)
        size = max(1, min(self.window, self.length))
        epochs, within = np.divmod(places, self.length)
        windows, inner = np.divmod(within, size)
        numbers = windows + epochs * -(-self.length // size)
        result: Indices = indices - inner
        full = (windows + 1) * size <= self.length
        order = permutation.permute_epochs(numbers[full] * size + inner[full], size, self.seed)
        result[full] += order
        for number in np.unique(numbers[~full]).tolist():
            rows = numbers == number
            seed = self.seed + number
            result[rows] += permutation.permute(inner[rows], self.length % size, seed)
        return result


@dataclasses.dataclass(frozen=True)
class Repeat:
    """The elements below, over and over; `epochs=None` without an end."""

    below: int
    epochs: int | None
    reseed: bool

    def __post_init__(self) -> None:
        if self.epochs is not None:
            options.check_count("num_epochs", self.epochs, minimum=1, hint="None repeats for ever.")
        if self.below == ENDLESS:
            raise errors.InvalidValueError(
                "repeat cannot follow a repeat without an end: nothing comes after it. Write one "
                "repeat, at the end."
            )
        if self.length > ENDLESS:
            raise errors.InvalidValueError(
                f"repeat({self.epochs}) of {self.below} elements is more than {ENDLESS} of them. "
                "Write repeat() for a dataset without an end."
            )

    @property
    def length(self) -> int:
        """Elements over all epochs; there is no end to nothing, so that is empty."""
        if self.epochs is None:
            return ENDLESS if self.below else 0
        return self.below * self.epochs

    def __call__(self, indices: Indices) -> Indices:
        return indices if self.reseed else indices % self.below


@dataclasses.dataclass(frozen=True)
class Sample:
    """The record keys that a built-in sampler has at its positions."""

    sampler: samplers.IndexSampler | samplers.SequentialSampler

    @property
    def length(self) -> int:
        """Positions of the sampler."""
        length = self.sampler.length
        return ENDLESS if length is None else length

    @property
    def epoch(self) -> int:
        """Positions of the sampler in one epoch."""
        start, stop = sharding.even_split(self.sampler.num_records, self.sampler.shard_options)
        return stop - start

    def __call__(self, indices: Indices) -> Indices:
        return self.sampler.keys(indices)
