"""Epochs: an iterator for each, and one state for the number of the epoch and the place in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from grain_jax._values import checkpointable, errors

__all__ = ["Epochs", "spent"]

T = TypeVar("T")


class Epochs(checkpointable.StatefulCheckpointable, Iterator[T], Generic[T]):
    """Yields an iterator for each epoch; `get_state` says which one is under way, and where.

    An iterator has a `number`, that of its epoch. A state is that of the last batch received, also
    where a device stage reads the iterator ahead. Restored, the first iterator goes on inside its
    epoch; where that was at its end, it has no element left, so that what follows an epoch is done.

    Example:
      >>> import grain_jax as grain
      >>> loader = grain.load(range(6), num_epochs=2, batch_size=2)
      >>> epochs = loader.epochs()
      >>> for epoch in epochs:
      ...     for batch in epoch:
      ...         if epoch.number == 1:
      ...             break
      >>> again = loader.epochs()
      >>> again.set_state(epochs.get_state())
      >>> [(epoch.number, [batch.tolist() for batch in epoch]) for epoch in again]
      [(1, [[2, 3], [4, 5]])]

    Args:
      make: returns the iterator of an epoch.
      start: the first epoch.
      end: the one behind the last; None without an end.
    """

    def __init__(self, make: Callable[[int], T], start: int, end: int | None) -> None:
        self._make = make
        self._next = start
        self._end = end
        self._current: Any = None
        self._waiting = False  # whether the current one is not handed out yet

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._waiting:
            self._waiting = False
        elif self._end is not None and self._next >= self._end:
            raise StopIteration
        else:
            self._begin(self._next)
            self._next += 1
        found: T = self._current
        return found

    def _begin(self, number: int) -> None:
        iterator: Any = self._make(number)
        iterator.number = number
        self._current = iterator

    def get_state(self) -> dict[str, Any]:
        """Returns the epoch and the place in it, as a JSON value."""
        if self._current is None:
            return {"epoch": self._next, "state": None}
        state = self._current.get_state()
        if isinstance(state, bytes):
            state = json.loads(state)
        return {"epoch": self._current.number, "state": state}

    def set_state(self, state: Any) -> None:
        """Goes to an epoch, and to a place in it, that `get_state` returned.

        Raises:
          StateError: for what is no such state, or is refused by the epoch's iterator.
        """
        number, inside = _parsed(state)
        if self._end is not None and not 0 <= number <= self._end:
            raise errors.StateError(
                f"the state is in epoch {number}, and there are {self._end} here, from 0 on. Build "
                "the pipeline with as many epochs as before, or more."
            )
        before = self._current, self._next, self._waiting
        try:
            self._current, self._next, self._waiting = None, number, False
            if inside is not None:
                self._begin(number)
                self._current.set_state(inside)
                self._next, self._waiting = number + 1, True
        except BaseException:
            self._current, self._next, self._waiting = before
            raise


def _parsed(state: Any) -> tuple[int, Any]:
    """Returns the epoch of a state and what is inside; of all processes', if they are at one."""
    parts = state.get("processes") if isinstance(state, dict) else None
    if parts is not None:
        found = [_parsed(part) for part in parts]
        numbers = {number for number, _ in found}
        if len(numbers) != 1:
            raise errors.StateError(f"the processes' states are in several epochs: {numbers}")
        (number,) = numbers
        inside = [one for _, one in found]
        return number, None if None in inside else {"processes": inside}
    if not isinstance(state, dict) or {*state} != {"epoch", "state"}:
        raise errors.StateError(
            "this is no state of epochs(): give what its get_state() returned. The state of one "
            "epoch's iterator is set on that iterator."
        )
    number = state["epoch"]
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise errors.StateError(f"field 'epoch' of the state is {number!r}, expected a number")
    return number, state["state"]


def spent(iterator: object) -> errors.InvalidValueError:
    """Returns what a loop over an iterator raises that has come to its end before."""
    return errors.InvalidValueError(
        f"this {type(iterator).__name__} has come to its end, so a loop over it would do nothing. "
        "Make one for each pass: `for epoch in loader.epochs(): for batch in "
        "prefetch_to_device(epoch): ...`; or go back with set_state."
    )
