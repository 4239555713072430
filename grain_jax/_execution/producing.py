"""What is called ahead of a user: the next element, converted, and the position after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from grain_jax._execution.ownership import Owned
from grain_jax._values.errors import InvalidTypeError

__all__ = ["NOWHERE", "SKIP", "Producer", "iterate"]

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
      in_hand: of an iterator that cannot go back, the element that `convert` refused, if there is
        one, and the state after it; it comes first.
    """

    def __init__(
        self,
        owned: Owned,
        convert: Callable[[Any], T],
        origin: Any,
        in_hand: list[tuple[Any, Any]],
    ) -> None:
        self._upstream = owned
        self._convert = convert
        self._origin = origin
        self._in_hand = in_hand

    def __call__(self) -> tuple[T, Any]:
        if self._origin is not NOWHERE:
            self._upstream.set_state(self._origin)
            self._origin = NOWHERE
        while True:
            if not self._in_hand:
                element = self._upstream.next()
                self._in_hand.append((element, self._upstream.state()))
                del element
            converted = self._convert(self._in_hand[0][0])
            _, state = self._in_hand.pop()
            if converted is not SKIP:
                return converted, state


def iterate(source: Any) -> Iterator[Any]:
    """Returns an iterator over a source of elements.

    Raises:
      InvalidTypeError: for what is none.
    """
    # One batch is iterable too, over its keys or its characters, and never what was meant.
    if isinstance(source, (dict, str, bytes)) or not hasattr(source, "__iter__"):
        raise InvalidTypeError(
            f"a {type(source).__name__} is no source of elements: give a loader, a dataset, or any"
            " iterable or iterator of batches"
        )
    return iter(source)
