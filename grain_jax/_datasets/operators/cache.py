"""A stream whose elements are kept in memory for when they come again."""

from __future__ import annotations

from typing import TypeVar

from grain_jax._algebra.groupings.cache import Cache
from grain_jax._datasets.iter_dataset import IterDataset

__all__ = ["CacheIterDataset"]

T = TypeVar("T", covariant=True)


class CacheIterDataset(IterDataset[T]):
    """The elements of a stream, which are read once by an iterator that goes through them often.

    Behind it stands a `repeat`: what comes before is done in the first epoch, and the elements are
    kept in the trainer's memory, all of them, once an epoch has gone from its start to its end.
    Elements and states are those of the stream without it. An element is that of a container in
    memory: its arrays are read-only, all else is a copy in each epoch.

    Args:
      parent: the stream.

    Example:
      >>> import grain_jax as grain
      >>> read = []
      >>> slow = grain.MapDataset.range(3).to_iter_dataset().map(lambda x: read.append(x) or x)
      >>> list(CacheIterDataset(slow).repeat(2)), read
      ([0, 1, 2, 0, 1, 2], [0, 1, 2])
    """

    def __init__(self, parent: IterDataset[T]) -> None:
        super().__init__(parent)
        self._make_of([parent], Cache(), "cache()")
