"""Iterators that are given to another iterator, which reads them ahead of its own user.

An owned iterator belongs to its owner: its own `next` raises, and its state methods act on what
the owner has delivered. An iterator of this library takes part with one method,
`_hand_over(owner) -> Owned`; of any other iterator nothing is asked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from grain_jax._values.errors import ClosedError, InvalidTypeError, InvalidValueError
from grain_jax._values.stats import Stats

__all__ = ["Owned", "Owner", "alone", "refuse_owned", "require_state", "take_over"]


class Owner(Protocol):
    """Who answers for the position of an owned iterator, in that iterator's own kind of state."""

    def get_state(self, own: Callable[[], Any]) -> Any:
        """Returns the position of the last element that the user received.

        Args:
          own: returns the position of the owned iterator, which is that before the first element.
        """

    def set_state(self, state: Any) -> None:
        """Moves there, dropping what was read ahead."""

    def start_prefetch(self) -> None:
        """Starts reading ahead."""

    def start_stats(self) -> None:
        """Begins to measure."""

    def stats(self) -> Stats:
        """Returns what was measured."""


class Owned(Protocol):
    """An iterator in the hands of its owner."""

    has_state: bool
    draws: str
    """What may draw from the process-wide generators in this process, seeded by this library; the
    iterator then has to run in its user's own thread. Empty if nothing may."""
    is_fresh: bool
    """Whether the memory of each element was made for it, and nobody else has a hold on it."""

    def next(self) -> Any:
        """Returns the next element, or raises StopIteration."""

    def state(self) -> Any:
        """Returns the position after the last element that `next` returned."""

    def set_state(self, state: Any) -> None:
        """Moves to a position."""

    def close(self) -> None:
        """Closes the iterator."""


class _Plain:
    """An iterator that knows nothing of ownership."""

    draws = ""  # it is as it is: nothing of ours seeds for it
    is_fresh = False  # it may hand out what its user had before, and goes on writing to

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator: Any = iterator
        self.has_state = hasattr(iterator, "get_state") and hasattr(iterator, "set_state")
        self.next = iterator.__next__

    def state(self) -> Any:
        # A copy: the iterator may hand out the very object that it goes on counting in.
        return copy.deepcopy(self._iterator.get_state()) if self.has_state else None

    def set_state(self, state: Any) -> None:
        require_state(self._iterator, self.has_state)
        self._iterator.set_state(copy.deepcopy(state))

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


def take_over(iterator: Iterator[Any], owner: Owner) -> Owned:
    """Returns the handle through which `owner` uses an iterator from now on."""
    hand_over = getattr(iterator, "_hand_over", None)
    if hand_over is None:
        return _Plain(iterator)
    owned: Owned = hand_over(owner)
    return owned


def refuse_owned(iterator: object, owner: Owner | None) -> None:
    """Raises if an iterator has been given away.

    Raises:
      ClosedError: if it has an owner.
    """
    if owner is not None:
        raise ClosedError(
            f"this {type(iterator).__name__} was given to another iterator, which reads it ahead:"
            " take the elements from that one. get_state and set_state work on either."
        )


def alone(lock: Any) -> Any:
    """Returns the lock of an iterator, for a thread that is not inside of it already.

    Args:
      lock: a `threading.RLock`.

    Raises:
      InvalidValueError: if this thread has it: a signal handler was called, say, as it waited.
    """
    if lock._is_owned():
        raise InvalidValueError(
            "next() of this iterator was called within its own next(), in the same thread: by a"
            " signal handler, or by code of the pipeline. Let the handler set a flag, and look at"
            " it between two elements; get_state() and close() may be called anywhere."
        )
    return lock


def require_state(iterator: object, has_state: bool) -> None:
    """Raises if an iterator has no position that could be saved or set.

    Raises:
      InvalidTypeError: if so.
    """
    if not has_state:
        raise InvalidTypeError(
            f"a {type(iterator).__name__} has no get_state and set_state, so its position cannot be"
            " saved or restored. Give a loader, a dataset, or an iterator with these two methods."
        )
