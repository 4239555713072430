"""ThreadPrefetchDatasetIterator: a dataset's iterator that a thread reads ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from grain_jax._datasets import iterators
from grain_jax._execution.ownership import Owned, Owner, refuse_owned
from grain_jax._execution.prefetch_iterator import PrefetchIterator
from grain_jax._values import notices, options

__all__ = ["ThreadPrefetchDatasetIterator"]

T = TypeVar("T")

# What an iterator of a pipeline says of its elements to who reads it ahead.
_SAID = ("_batch_rows", "_batch_sizes", "_keep_rest", "_outlook", "_tally")


class ThreadPrefetchDatasetIterator(PrefetchIterator[T], iterators.DatasetIterator[T]):
    """The elements of an iterator, which a thread makes ahead; states are those of the iterator.

    What reads this ahead, as `prefetch_to_device` does, takes the iterator itself.

    Args:
      parent: an iterator of a dataset, which belongs to this one from now on.
      prefetch_buffer_size: how many elements may wait; with 0 none is made before it is asked for.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(4).to_iter_dataset().map(lambda x: x + 1)
      >>> with ThreadPrefetchDatasetIterator(iter(ds), 2) as iterator:
      ...     list(iterator)
      [1, 2, 3, 4]
    """

    @notices.constructing("iterator")
    def __init__(self, parent: Iterator[T], prefetch_buffer_size: int) -> None:
        size = options.check_count("prefetch_buffer_size", prefetch_buffer_size, minimum=0)
        super().__init__(parent, _same, size)
        self._closes = self._unblocks  # it is nobody else's

    def __getattr__(self, name: str) -> Any:
        if name in _SAID:
            return getattr(self._iterator, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _hand_over(self, owner: Owner) -> Owned:
        """Gives the iterator itself away: two threads behind one another would be one too many."""
        refuse_owned(self, self._owner)
        with self._lock:
            self._check()
            self._halt()
            if self._rewind and self._upstream.has_state:
                self._upstream.set_state(self._position())
            self._rewind = False
            self._owner = owner
        return self._upstream


def _same(element: T) -> T:
    return element
