"""What is called ahead of a user: the next element, converted, and the position after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from grain_jax._execution.ownership import Owned

__all__ = ["NOWHERE", "SKIP", "Producer"]

T = TypeVar("T")

SKIP: Any = object()
"""In place of a converted element: there is none."""

NOWHERE: Any = object()
"""In place of a position: that where the iterator stands."""


class Producer(Generic[T]):
    """Returns elements of an iterator, one with each call.

    Args:
      owned: the iterator.
      convert: called with each element; `SKIP` as its result drops it.
      origin: the position to begin at.
    """

    def __init__(self, owned: Owned, convert: Callable[[Any], T], origin: Any) -> None:
        self._upstream = owned
        self._convert = convert
        self._origin = origin

    def __call__(self) -> tuple[T, Any]:
        if self._origin is not NOWHERE:
            self._upstream.set_state(self._origin)
            self._origin = NOWHERE
        while True:
            element = self._upstream.next()
            state = self._upstream.state()
            converted = self._convert(element)
            if converted is not SKIP:
                return converted, state
