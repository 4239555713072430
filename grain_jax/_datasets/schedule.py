"""Schedule: which positions one lane of one shard takes, and how they are cut into units.

Pure arithmetic. Positions number the whole stream. Seen from a base position, shard s of S takes
s, s + S, s + 2S, …, and of these lane l of L takes every L-th. A unit is what one output is made
of: a batch's worth of records where a batch is made of a known number of them, else one record.

The end is decided for all shards together: full units that every shard has come first, and the rest
is dealt out in one last, possibly shorter unit, so that all shards agree on the number of units but
for that last one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from grain_jax._algebra.groupings.batch import kept

__all__ = ["Lane", "Span", "lane"]


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Some positions in arithmetic progression, and how many of the lane come before them."""

    first: int
    stride: int
    count: int
    ordinal: int

    def part(self, begin: int, end: int) -> Span:
        """Returns the positions number `begin` to `end - 1`."""
        first = self.first + begin * self.stride
        return Span(first, self.stride, end - begin, self.ordinal + begin)

    def positions(self) -> np.ndarray:
        """Returns the positions, int64, shape (count,)."""
        return self.first + self.stride * np.arange(self.count, dtype=np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class Lane:
    """The positions of one lane of one shard.

    Attributes:
      origin: position of the lane's first record.
      stride: distance between neighbouring records.
      unit: records per unit.
      full: number of full units; None for an endless stream.
      rest: records in the last unit; 0 if there is none.
      before: how many records of the shard come before the first.
    """

    origin: int
    stride: int
    unit: int
    full: int | None
    rest: int
    before: int = 0

    @property
    def units(self) -> int | None:
        """How many units there are; None for an endless stream."""
        return None if self.full is None else self.full + (self.rest > 0)

    @property
    def records(self) -> int | None:
        """How many records there are; None for an endless stream."""
        return None if self.full is None else self.full * self.unit + self.rest

    def span(self, ordinal: int, units: int) -> Span | None:
        """Returns up to `units` units from record `ordinal` on; None at the end."""
        count, done = units * self.unit, ordinal - self.before
        if self.records is not None:
            count = min(count, self.records - done)
        if count <= 0:
            return None
        return Span(self.origin + done * self.stride, self.stride, count, ordinal)

    def within(self, index: int, count: int) -> Lane:
        """Returns the same lane where its positions p stand for index + count * p."""
        return dataclasses.replace(
            self, origin=index + count * self.origin, stride=count * self.stride
        )


def lane(
    length: int | None,
    *,
    base: int = 0,
    shard: tuple[int, int] = (0, 1),
    lane_index: int = 0,
    lanes: int = 1,
    batches: Sequence[tuple[int, bool]] = (),
) -> Lane:
    """Returns the lane `lane_index` of a shard.

    Args:
      length: positions in the whole stream; None for an endless one.
      base: position from which shards and lanes are counted.
      shard: index and count.
      lane_index: which lane, from 0.
      lanes: how many there are.
      batches: size and drop_remainder of the batches, innermost first, that make up one unit.
    """
    index, count = shard
    unit = math.prod(size for size, _ in batches)
    origin, stride = base + index + count * lane_index, count * lanes
    if length is None:
        return Lane(origin, stride, unit, None, 0, base // count)
    rows, extra = divmod(max(length - base, 0), count)
    own_rows = max(0, -(-(rows - lane_index) // lanes))
    own_extra = extra if rows % lanes == lane_index else 0
    full = own_rows // unit
    rest = own_rows % unit + (index < own_extra)
    # What is full on the shard with the fewest records is full on all of them.
    rest = kept(own_rows % unit, tuple(batches), most=rest)
    return Lane(origin, stride, unit, full, rest, base // count)
