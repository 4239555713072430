"""A guard over code of the user's that reads: whether it draws is seen as it runs.

A block whose reading has changed the state of the process-wide generators is read again, one record
at a time, with the generators seeded for each. From then on all that this code reads is read so.
All other code keeps its threads and its calls for many records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grain_jax._algebra import global_random

__all__ = ["DREW", "Guard"]

DREW: Any = object()
"""Instead of what code returned that has drawn."""

# Above the numbers of segments and of a dataset's steps, which seed for the same positions.
_PART = 2 << 32
_FIRST = _PART + 1


class Guard:
    """What this process knows of one piece of code.

    Args:
        may_draw: whether the code may draw; where it certainly cannot, nothing is watched.

    Attributes:
        may_draw: the same.
        draws: whether it has been seen to.
    """

    def __init__(self, may_draw: bool = True) -> None:
        self.may_draw = may_draw
        self.draws = False
        self._is_first = True

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.may_draw,)

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
        records = []
        with global_random.preserved():
            for row, position in enumerate(positions.tolist()):
                global_random.seed_for(seed, position, 0, _PART)
                if self.draws:
                    records.append(one(row))
                    continue
                state = global_random.State()
                try:
                    records.append(one(row))
                finally:
                    self.draws = state.has_changed()
        return records

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
            global_random.seed_for(seed, 0, 0, _FIRST)
            return _watched(together)


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
