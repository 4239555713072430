"""A stream over and over."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from grain_jax._algebra.groupings.base import Grouping, Schedule
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._values import errors, options

__all__ = ["RepeatIterDataset"]

T = TypeVar("T", covariant=True)


@dataclasses.dataclass(frozen=True)
class Repeat(Grouping):
    """All elements of a stream, several times. Its own number is how often it has begun anew.

    Attributes:
      epochs: how often; None without an end.
    """

    epochs: int | None
    wanted = 16

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns that it has not."""
        return (0,)

    def schedule(self, kept: tuple[int, ...], parents: int) -> Schedule:
        """Returns the elements from that epoch on."""
        (epoch,) = kept
        return _Repeating(self.epochs, epoch)

    def read(self, kept: tuple[int, ...], parents: int, *, joined: bool) -> tuple[int, ...]:
        """Returns which epoch a state is in."""
        if self.epochs is not None and kept[0] >= self.epochs:
            raise errors.StateError(f"the state is in epoch {kept[0]} of repeat({self.epochs})")
        return kept


class _Repeating(Schedule):
    def __init__(self, epochs: int | None, epoch: int) -> None:
        self._epochs = epochs
        self._epoch = epoch
        self._is_empty = False  # whether nothing has come since an end that began this epoch
        self._is_over = False

    def next(self, most: int) -> tuple[Sequence[int], Sequence[tuple[int, ...]]]:
        return ((), ()) if self._is_over else ([0] * most, [(self._epoch,)] * most)

    def take(self, count: int) -> None:
        self._is_empty = False

    def end(self, parent: int) -> None:
        last = self._epochs is not None and self._epoch + 1 >= self._epochs
        if last or self._is_empty:
            self._is_over = True
        else:
            self._epoch, self._is_empty = self._epoch + 1, True

    def epoch(self, parent: int) -> int:
        return self._epoch


class RepeatIterDataset(IterDataset[T]):
    """All elements of a stream over and over, in the same order.

    Random steps behind it draw anew in each epoch, those before it draw the same again.

    Args:
      parent: the stream.
      num_epochs: how often; None without an end, unless the stream has no elements.

    Example:
      >>> import grain_jax as grain
      >>> odd = grain.MapDataset.range(6).to_iter_dataset().filter(lambda x: x % 2)
      >>> list(RepeatIterDataset(odd, 2))
      [1, 3, 5, 1, 3, 5]
    """

    def __init__(self, parent: IterDataset[T], num_epochs: int | None = None) -> None:
        super().__init__(parent)
        if num_epochs is not None:
            hint = "None repeats for ever."
            num_epochs = options.check_count("num_epochs", num_epochs, minimum=1, hint=hint)
        text = "repeat()" if num_epochs is None else f"repeat({num_epochs})"
        self._make_of([parent], Repeat(num_epochs), text)
