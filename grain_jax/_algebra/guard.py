"""A guard over code of the user's that reads: whether it draws is seen as it runs.

A block whose reading has changed the state of the process-wide generators is read again, one record
at a time, with the generators seeded for each. From then on all that this code reads is read so.
All other code keeps its threads and its calls for many records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grain_jax._algebra import global_random

__all__ = ["DATASET", "DREW", "SAMPLER", "SOURCE", "Guard"]

DREW: Any = object()
"""Instead of what code returned that has drawn."""

# Which part of a pipeline draws. Above the numbers of stages and of a dataset's steps, which seed
# for the same positions; a class over another one counts on from DATASET.
SOURCE, DATASET, SAMPLER = 2 << 32, 3 << 32, 4 << 32


class Guard:
    """What this process knows of one piece of code.

    Args:
        part: which part of the pipeline it is.
        may_draw: whether the code may draw; where it certainly cannot, nothing is watched.

    Attributes:
        part, may_draw: the same.
        draws: whether it has been seen to.
    """

    def __init__(self, part: int = SOURCE, may_draw: bool = True) -> None:
        self.may_draw = may_draw
        self.draws = False
        self.part = part
        self._is_first = True

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.part, self.may_draw)

    def read(
        self, together: Callable[[], Any], one: Callable[[int], Any], positions: Any, seed: int
    ) -> Any:
        """Returns what `together` does or, where the code draws, what `one` does for each row.

        The generators are left as they were.

        Args:
            together: reads the rows in whatever way is quick.
            one: reads one of them.
            positions: an array of the rows' positions.
            seed: the pipeline's.
        """
        found = self.run(together, seed)
        if found is not DREW:
            return found
        with global_random.preserved():
            return [self.seeded(one, row, seed, p) for row, p in enumerate(positions.tolist())]

    def run(self, together: Callable[[], Any], seed: int) -> Any:
        """Returns what `together` does, or DREW if it draws.

        What it raised does not count if it drew: that may be why.
        """
        if not self.may_draw:
            return together()
        if self.draws:
            return DREW
        if not self._is_first:
            return _watched(together)
        # What code draws at its first use, and keeps, has to be the same in every process.
        self._is_first = False
        with global_random.preserved():
            global_random.seed_for(seed, 0, 1, self.part)
            return _watched(together)

    def seeded(self, call: Callable[[int], Any], row: int, seed: int, position: int) -> Any:
        """Returns `call(row)`, with the generators seeded for a position, and sees if it draws."""
        global_random.seed_for(seed, position, 0, self.part)
        if self.draws:
            return call(row)
        state = global_random.State()
        try:
            return call(row)
        finally:
            self.draws = state.has_changed()


def _watched(together: Callable[[], Any]) -> Any:
    state = global_random.State()
    try:
        found = together()
    except BaseException as error:
        if not state.has_changed():
            raise
        state.restore()
        if isinstance(error, Exception):
            return DREW
        raise
    if not state.has_changed():
        return found
    state.restore()
    return DREW
