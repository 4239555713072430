"""Options for all transformations of a dataset."""

from __future__ import annotations

from typing import TypeVar

from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._values import dataset_options, errors

__all__ = ["WithOptionsIterDataset"]

T = TypeVar("T", covariant=True)


class WithOptionsIterDataset(IterDataset[T]):
    """The same stream, with options for all of its transformations, before and behind.

    Options that are given several times are merged; of the same one the last counts.

    Args:
      parent: the stream.
      options: what holds for it.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(5).to_iter_dataset()
      >>> options = grain.experimental.DatasetOptions(filter_warn_threshold_ratio=0.6)
      >>> list(WithOptionsIterDataset(ds, options).filter(lambda x: x > 2))
      [3, 4]
    """

    def __init__(self, parent: IterDataset[T], options: dataset_options.DatasetOptions) -> None:
        super().__init__(parent)
        if not isinstance(parent, IterDataset):
            raise errors.InvalidTypeError(
                f"WithOptionsIterDataset takes an IterDataset, got {parent!r}. Write "
                "ds.to_iter_dataset() for a MapDataset."
            )
        if not isinstance(options, dataset_options.DatasetOptions):
            raise errors.InvalidTypeError(
                f"options must be an experimental.DatasetOptions, got {options!r}."
            )
        merged = options.merge(parent._description.options)
        self._be(parent._then("with_options", options=merged))
