"""The first elements of a stream."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from grain_jax._algebra.groupings.base import Group, Grouper, Grouping, Restart
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._values import errors, options

__all__ = ["LimitIterDataset"]

T = TypeVar("T", covariant=True)


@dataclasses.dataclass(frozen=True)
class Limit(Grouping):
    """The first elements of a stream. Its own number is how many of them have been handed out."""

    count: int

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns that none has."""
        return (0,)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper that goes on there."""
        return _Limiting(self.count, *kept)

    def of_shard(self, shards: int) -> Grouping:
        """Returns an equal part of the elements."""
        count, rest = divmod(self.count, shards)
        if rest:
            raise errors.InvalidValueError(
                f"limit({self.count}) does not divide over {shards} shards, each of which counts "
                f"for itself. Write limit({count * shards}) or limit({(count + 1) * shards})."
            )
        return Limit(count)

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns how many a state says have been handed out."""
        if kept[0] > self.count:
            raise errors.StateError(
                f"the state is behind {kept[0]} elements of limit({self.count})"
            )
        return kept


class _Limiting(Grouper):
    def __init__(self, limit: int, passed: int) -> None:
        super().__init__()
        self._limit = limit
        self._passed = passed
        self._taken = 0  # elements that the parent has given to this grouper
        self._over = False

    def wants(self) -> tuple[int, int] | None:
        if self._over or self._passed >= self._limit:
            return None
        return (0, self._limit - self._passed)

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        for _ in range(count):
            self._passed += 1
            first, self._taken = self._taken, self._taken + 1
            restart = Restart(delivered=(self._taken,), kept=(self._passed,))
            self.groups.append(Group([(parent, first, self._taken)], restart=restart))

    def end(self, parent: int) -> None:
        self._over = True


class LimitIterDataset(IterDataset[T]):
    """The first elements of a stream; what comes after them is not handed out, nor its errors.

    In this process and with `ReadOptions(num_threads=0)` nothing is done for what comes after
    them. Workers, and steps whose records reading threads are waited for, may be ahead by some.

    Args:
      parent: the stream.
      count: how many elements at most; 0 for none.

    Example:
      >>> import grain_jax as grain
      >>> numbers = grain.MapDataset.range(10).to_iter_dataset().filter(lambda x: x % 2)
      >>> list(LimitIterDataset(numbers, 3))
      [1, 3, 5]
    """

    def __init__(self, parent: IterDataset[T], count: int) -> None:
        super().__init__(parent)
        count = options.check_count("count", count, minimum=0)
        self._make_of([parent], Limit(count), f"limit({count})")
