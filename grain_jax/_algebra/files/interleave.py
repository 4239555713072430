"""Interleave: the order in which the records of several files take turns, as arithmetic.

So many files have a place at once. The places take turns, one record each. A file that has no more
when its turn comes loses the turn, and the next file has its place from the next round on.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from grain_jax._algebra.packing import Keys

__all__ = ["Interleave"]


class Interleave:
    """Which record of which file stands at a position.

    Args:
      counts: records of each file.
      places: how many files take turns.

    Example:
      >>> order = Interleave([2, 4, 1], places=2)
      >>> files, rows = order.at(np.arange(7))
      >>> files.tolist(), rows.tolist()
      ([0, 1, 0, 1, 1, 2, 1], [0, 0, 1, 1, 2, 0, 3])
    """

    def __init__(self, counts: Sequence[int], places: int) -> None:
        self.length = sum(counts)
        self._begins: list[int] = []
        self._turns: list[tuple[Keys, Keys]] = []  # of a stretch: files, and their next records
        turns = [(file, 0) for file in range(min(places, len(counts)))]
        following, position = len(turns), 0
        while turns:
            count = len(turns)
            # The turn at which each would have to give a record that it does not have.
            ends = [(counts[file] - row) * count + n for n, (file, row) in enumerate(turns)]
            end = min(ends)
            if end:
                self._begins.append(position)
                files, rows = zip(*turns, strict=True)
                self._turns.append((np.array(files, np.int64), np.array(rows, np.int64)))
            position += end
            rounds, last = divmod(end, count)
            turns = [(file, row + rounds + (n < last)) for n, (file, row) in enumerate(turns)]
            turns = turns[last + 1 :] + turns[:last]
            if following < len(counts):
                turns.append((following, 0))
                following += 1

    def at(self, positions: Keys) -> tuple[Keys, Keys]:
        """Returns for each position the number of the file, and that of the record in it."""
        if not len(positions):
            return positions, positions
        lowest = bisect.bisect_right(self._begins, int(positions.min())) - 1
        highest = bisect.bisect_right(self._begins, int(positions.max())) - 1
        if lowest == highest:
            return self._within(lowest, positions)
        stretches = np.searchsorted(self._begins, positions, side="right") - 1
        files, rows = np.empty_like(positions), np.empty_like(positions)
        for stretch in range(lowest, highest + 1):
            here = stretches == stretch
            files[here], rows[here] = self._within(stretch, positions[here])
        return files, rows

    def _within(self, stretch: int, positions: Keys) -> tuple[Keys, Keys]:
        files, rows = self._turns[stretch]
        rounds, turn = np.divmod(positions - self._begins[stretch], len(files))
        return files[turn], rows[turn] + rounds

    def one(self, position: int) -> tuple[int, int]:
        """Returns the file and the record at one position."""
        stretch = bisect.bisect_right(self._begins, position) - 1
        files, rows = self._turns[stretch]
        rounds, turn = divmod(position - self._begins[stretch], len(files))
        return int(files[turn]), int(rows[turn]) + rounds
