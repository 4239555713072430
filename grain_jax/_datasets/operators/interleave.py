"""Elements of several datasets in turn, of which a few are open at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from grain_jax._algebra.groupings.interleave import Interleave
from grain_jax._algebra.index_maps import ENDLESS
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._datasets.map_dataset import MapDataset
from grain_jax._values import errors, options

__all__ = ["InterleaveIterDataset"]

T = TypeVar("T", covariant=True)


class InterleaveIterDataset(IterDataset[T]):
    """Elements of several datasets, one of each in turn; few of them are open at a time.

    With `cycle_length=1` it is one dataset after the other. Where one has ended, its place passes
    once, and goes on with the first dataset that has not been opened.

    Args:
      datasets: the datasets, or a `MapDataset` of them, such as of files that a `map` opens.
      cycle_length: how many are open at a time, 1 at least.
      num_make_iter_threads: accepted for compatibility, as are the others: the one that comes next
        is read ahead, by as much as workers have use for.
      make_iter_buffer_size: see there.
      iter_buffer_size: see there.

    Raises:
      InvalidTypeError: for what is no dataset.
      InvalidValueError: for a number out of range, and for datasets without an end.

    Example:
      >>> import grain_jax as grain
      >>> parts = [grain.MapDataset.range(3), grain.MapDataset.range(10, 12)]
      >>> list(InterleaveIterDataset(parts, cycle_length=2))
      [0, 10, 1, 11, 2]
    """

    def __init__(
        self,
        datasets: Sequence[IterDataset[T] | MapDataset[T]] | MapDataset[Any],
        *,
        cycle_length: int,
        num_make_iter_threads: int = 1,
        make_iter_buffer_size: int = 1,
        iter_buffer_size: int = 1,
    ) -> None:
        cycle_length = options.check_count("cycle_length", cycle_length, minimum=1)
        for name, value in (
            ("num_make_iter_threads", num_make_iter_threads),
            ("make_iter_buffer_size", make_iter_buffer_size),
            ("iter_buffer_size", iter_buffer_size),
        ):
            options.check_count(name, value, minimum=0)
        parts = [_stream(number, one) for number, one in enumerate(_all(datasets))]
        super().__init__(parts)
        self._cycle_length = cycle_length
        self._begin(parts)

    def _begin(self, parts: list[IterDataset[Any]]) -> None:
        places = self._cycle_length
        self._make_of(parts, Interleave(places), f"interleave(cycle_length={places})")
        self._parents = tuple(parts)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Leaves, in this very dataset, only the datasets that a slice of their list has.

        Args:
          sl: of the list.
          sequential_slice: accepted for compatibility.

        Raises:
          InvalidValueError: if none is left.
        """
        parts = list(self._parents[sl])
        if not parts:
            raise errors.InvalidValueError(
                f"set_slice({sl}) leaves none of {len(self._parents)} datasets. Write "
                "ds.shard(shard_options), which deals the records of each out."
            )
        self._begin(parts)


def _all(datasets: Any) -> list[Any]:
    """Returns the datasets, those that are there."""
    if isinstance(datasets, MapDataset):
        if len(datasets) >= ENDLESS:
            raise errors.InvalidValueError(
                "interleave got datasets without an end. Repeat what it makes of them: "
                "InterleaveIterDataset(...).repeat()."
            )
        found = (datasets[number] for number in range(len(datasets)))
        return [one for one in found if one is not None]
    if not isinstance(datasets, Sequence) or isinstance(datasets, str):
        raise errors.InvalidTypeError(
            "interleave takes a list of datasets, or a MapDataset of datasets, got "
            f"{datasets!r}. Write InterleaveIterDataset([...], cycle_length=...)."
        )
    return list(datasets)


def _stream(number: int, dataset: Any) -> IterDataset[Any]:
    if isinstance(dataset, MapDataset):
        return dataset.to_iter_dataset()
    if isinstance(dataset, IterDataset):
        return dataset
    raise errors.InvalidTypeError(
        f"dataset {number} of interleave is {dataset!r}, which is no dataset. Where a MapDataset "
        "of file names is given, map each to its dataset first: "
        "MapDataset.source(names).map(open_dataset)."
    )
