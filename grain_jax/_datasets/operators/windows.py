"""Windows of neighbouring elements, each in an order of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from grain_jax._algebra import index_maps
from grain_jax._algebra.groupings.base import Group, Grouper, Grouping, Restart
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._datasets.map_dataset import MapDataset
from grain_jax._values import errors, options, permutation

__all__ = ["WindowShuffleIterDataset", "WindowShuffleMapDataset"]

T = TypeVar("T", covariant=True)

_TOGETHER = 16
"""Elements of a window that are made together, at most: workers take several times as many."""


@dataclasses.dataclass(frozen=True)
class WindowShuffle(Grouping):
    """Every window in the order that `seed` and its number fix: its own number.

    Attributes:
      window: elements; the last window may have fewer.
      seed: 32 bits.
    """

    window: int
    seed: int

    @property
    def wanted(self) -> int:  # type: ignore[override]
        """Returns a good part of a window: nothing is handed out before all of it is there."""
        return min(self.window, _TOGETHER)

    def first(self, parents: int) -> tuple[int, ...]:
        """Returns the first window."""
        return (0,)

    def begin(self, kept: tuple[int, ...], parents: int) -> Grouper:
        """Returns a grouper at the beginning of a window."""
        (number,) = kept
        return _Shuffling(self.window, self.seed, number)


class _Shuffling(Grouper):
    """Restart points are the ends of windows, as an order needs all of its elements."""

    def __init__(self, window: int, seed: int, number: int) -> None:
        super().__init__()
        self._window = window
        self._seed = seed
        self._number = number
        self._begin = self._end = 0
        self._is_over = False

    def wants(self) -> tuple[int, int] | None:
        return None if self._is_over else (0, self._window - (self._end - self._begin))

    def take(self, parent: int, count: int, measures: Sequence[Any] | None = None) -> None:
        self._end += count
        if self._end - self._begin == self._window:
            self._shuffle()

    def end(self, parent: int) -> None:
        self._is_over = True
        if self._end > self._begin:
            self._shuffle()

    def _shuffle(self) -> None:
        count = self._end - self._begin
        # From the last place to the first one, as Grain has it.
        places = np.arange(count - 1, -1, -1)
        order = self._begin + permutation.permute(places, count, self._seed + self._number)
        self._number, self._begin = self._number + 1, self._end
        groups = [Group([(0, number, number + 1)]) for number in order.tolist()]
        groups[-1] = groups[-1]._replace(restart=Restart((self._end,), (self._number,)))
        self.groups += groups


class WindowShuffleIterDataset(IterDataset[T]):
    """A stream in windows of so many elements, each in an order of its own.

    A state in the middle of a window is restored by making its elements once more.

    Args:
      parent: the stream.
      window_size: elements of a window, all of which are held at once.
      seed: 32 bits; it fixes the order.

    Example:
      >>> import grain_jax as grain
      >>> numbers = grain.MapDataset.range(6).to_iter_dataset()
      >>> list(WindowShuffleIterDataset(numbers, window_size=3, seed=1))
      [0, 2, 1, 4, 5, 3]
    """

    def __init__(self, parent: IterDataset[T], *, window_size: int, seed: int) -> None:
        super().__init__(parent)
        window, seed = _checked(window_size, seed)
        text = f"window_shuffle(window_size={window}, seed={seed})"
        self._make_of([parent], WindowShuffle(window, seed), text)


class WindowShuffleMapDataset(MapDataset[T]):
    """A dataset in windows of so many neighbouring elements, each in an order of its own.

    Every epoch has other orders. What is read together lies close together, which a file on a disk
    or in a bucket is read faster by than by a `shuffle`.

    Args:
      parent: the dataset.
      window_size: elements of a window.
      seed: 32 bits; it fixes the order.

    Example:
      >>> import grain_jax as grain
      >>> list(WindowShuffleMapDataset(grain.MapDataset.range(6), window_size=3, seed=1))
      [1, 2, 0, 3, 5, 4]
    """

    def __init__(self, parent: MapDataset[T], *, window_size: int, seed: int) -> None:
        if not isinstance(parent, MapDataset):
            raise errors.InvalidTypeError(
                f"the parent of WindowShuffleMapDataset is {parent!r}, which is no MapDataset."
            )
        super().__init__(parent)
        window, seed = _checked(window_size, seed)
        index_map = index_maps.WindowShuffle(len(parent), window, seed)
        text = f"window_shuffle(window_size={window}, seed={seed})"
        self._be(parent._reordered(index_map, text))


def _checked(window_size: Any, seed: Any) -> tuple[int, int]:
    return options.check_count("window_size", window_size, minimum=1), options.check_seed(seed)
