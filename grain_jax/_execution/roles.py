"""What a prefetch iterator is to others: the owner of its source, and owned itself.

These two know its inside; see `ownership` for what an owner and an owned iterator do.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grain_jax._execution.producing import NOWHERE
from grain_jax._values.errors import ClosedError
from grain_jax._values.stats import Stats

if TYPE_CHECKING:
    from grain_jax._execution.prefetch_iterator import PrefetchIterator

__all__ = ["Answering", "Held"]


class Answering:
    """Answers for the position of the source, which it refers to as little as to the iterator.

    The source refers to this, and would otherwise be part of a cycle that only a collection ends.
    """

    def __init__(self, outer: PrefetchIterator[Any]) -> None:
        self.state: Any = NOWHERE
        self._outer = weakref.ref(outer)

    def get_state(self, own: Callable[[], Any]) -> Any:
        outer = self._outer()
        if outer is not None and outer._owner is not None:
            return outer._decode(outer._owner.get_state(outer._own_state))
        return copy.deepcopy(own() if self.state is NOWHERE else self.state)

    def set_state(self, state: Any) -> None:
        self._living().set_state(state)

    def start_prefetch(self) -> None:
        self._living().start_prefetch()

    def start_stats(self) -> None:
        self._living().start_stats()

    def stats(self) -> Stats:
        return self._living().stats()

    def _living(self) -> PrefetchIterator[Any]:
        outer = self._outer()
        if outer is None:
            raise ClosedError("the iterator that this one was given to is gone. Make both anew.")
        return outer


class Held:
    """A `PrefetchIterator` in the hands of its own owner."""

    def __init__(self, iterator: PrefetchIterator[Any]) -> None:
        self._iterator = iterator
        self.has_state = iterator._upstream.has_state
        self.draws = iterator._upstream.draws
        self.is_fresh = iterator._is_fresh
        self.next = iterator._next
        self.close = iterator.close

    def state(self) -> Any:
        iterator = self._iterator
        return iterator._encode(iterator._position())

    def set_state(self, state: Any) -> None:
        with self._iterator._lock:
            self._iterator._move_to(state)
