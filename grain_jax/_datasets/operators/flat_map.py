"""Several elements for each one, as classes; the methods do the same."""

from __future__ import annotations

from typing import Any

from grain_jax._algebra import transforms
from grain_jax._datasets import merges
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._datasets.map_dataset import MapDataset

__all__ = ["FlatMapIterDataset", "FlatMapMapDataset"]


class FlatMapIterDataset(IterDataset[Any]):
    """The stream in which those that a transformation returns replace each element.

    Args:
      parent: the stream.
      transform: a `transforms.FlatMap`.

    Example:
      >>> import grain_jax as grain
      >>> class Twice(grain.transforms.FlatMap):
      ...     def flat_map(self, x):
      ...         return [x, x]
      >>> list(FlatMapIterDataset(grain.MapDataset.range(2).to_iter_dataset(), Twice()))
      [0, 0, 1, 1]
    """

    def __init__(self, parent: IterDataset[Any], transform: transforms.FlatMap) -> None:
        hint = "ds.to_iter_dataset() for a MapDataset"
        merges.checked(IterDataset, "FlatMapIterDataset", [parent], hint)
        super().__init__(parent)
        self._be(parent.flat_map(transform))


class FlatMapMapDataset(MapDataset[Any]):
    """The dataset in which up to `max_fan_out` elements replace each one; what is missing is None.

    Args:
      parent: the dataset.
      transform: a `transforms.FlatMap`.

    Example:
      >>> import grain_jax as grain
      >>> class Below(grain.transforms.FlatMap):
      ...     max_fan_out = 2
      ...     def flat_map(self, x):
      ...         return list(range(x))
      >>> ds = FlatMapMapDataset(grain.MapDataset.range(3), Below())
      >>> [ds[i] for i in range(len(ds))]
      [None, None, 0, None, 0, 1]
    """

    def __init__(self, parent: MapDataset[Any], transform: transforms.FlatMap) -> None:
        merges.checked(MapDataset, "FlatMapMapDataset", [parent])
        super().__init__(parent)
        self._be(parent.flat_map(transform))
