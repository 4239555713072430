"""Masks: which rows of a padded batch are real.

A mask is cut as the rows are, so that each process knows its own part. Where its sharding gives a
process rows of others, each says which of its rows are real, and all make the whole mask.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from grain_jax._product.placement import layout, row_sharding
from grain_jax._product.remainder import Rows
from grain_jax._product.row_states import Shape

__all__ = ["Masks"]

_Interval = tuple[int, int]


class Masks:
    """The masks of one stream of batches.

    Args:
      sharding: of the mask; None for that of the rows.
      rows: how many there are in a batch.
    """

    def __init__(self, sharding: Sharding | None, rows: Rows) -> None:
        self._sharding = sharding
        self._rows = rows

    def told(self, short: Shape, count: int | None) -> Any:
        """Says as a JSON value which rows of a batch are real.

        Args:
          short: lengths of the row axes before the padding.
          count: how many records a batch of batches has, in order; None where `short` says it.
        """
        return list(short) if count is None else count

    def is_spread(self, rows: Sharding) -> bool:
        """Whether a process holds parts of the mask that are about rows of other processes."""
        if self._sharding is None or rows.is_fully_addressable:
            return False
        axis, shape = self._rows.axis, self._global_shape(rows)
        return _merged(_rows_of(self._sharding, shape, axis)) != _merged(
            _rows_of(_cut(rows, self._rows.axes), shape, axis)
        )

    def place(self, told: Any, rows: Sharding) -> jax.Array:
        """Returns the mask of what this process knows of its own rows."""
        mask = self._mask(told)
        sharding = self._sharding or _cut(rows, self._rows.axes)
        shape = layout(sharding, mask.ndim).global_shape(mask.shape, self._rows.axis)
        make: Any = jax.make_array_from_process_local_data
        placed: jax.Array = make(sharding, mask, shape)
        return placed

    def whole(self, told: dict[int, Any], rows: Sharding) -> jax.Array:
        """Returns the mask of what all processes say; of one that says nothing all is padding."""
        axis, shape = self._rows.axis, self._global_shape(rows)
        mask = np.zeros(shape, bool)
        for process, intervals in _rows_of(_cut(rows, self._rows.axes), shape, axis).items():
            if told.get(process) is None:
                continue
            own, done = np.moveaxis(self._mask(told[process]), axis, 0), 0
            for start, stop in intervals:
                np.moveaxis(mask, axis, 0)[start:stop] = own[done : done + stop - start]
                done += stop - start
        assert self._sharding is not None
        return jax.make_array_from_callback(shape, self._sharding, mask.__getitem__)

    def _mask(self, told: Any) -> Any:
        full = self._rows.full
        assert full is not None
        mask = np.zeros(full, bool)
        if isinstance(told, int):
            mask.reshape(-1)[:told] = True
        elif told is not None:
            mask[tuple(map(slice, told))] = True
        mask.flags.writeable = False
        return mask

    def _global_shape(self, rows: Sharding) -> Shape:
        full = self._rows.full
        assert full is not None
        return layout(_cut(rows, self._rows.axes), len(full)).global_shape(full, self._rows.axis)


def _cut(rows: Sharding, axes: int) -> Sharding:
    return row_sharding(rows, axes - 1)


@functools.lru_cache(maxsize=64)
def _rows_of(sharding: Sharding, shape: Shape, axis: int) -> dict[int, list[_Interval]]:
    """The rows of each process, by process index."""
    found: defaultdict[int, set[_Interval]] = defaultdict(set)
    device: Any
    for device, index in sharding.devices_indices_map(shape).items():
        start, stop, _ = index[axis].indices(shape[axis])
        found[device.process_index].add((start, stop))
    return {process: sorted(intervals) for process, intervals in found.items()}


def _merged(rows: dict[int, list[_Interval]]) -> dict[int, list[_Interval]]:
    """The same with neighbouring intervals as one."""
    merged: dict[int, list[_Interval]] = {}
    for process, intervals in rows.items():
        mine = merged[process] = []
        for start, stop in intervals:
            if mine and mine[-1][1] == start:
                mine[-1] = (mine[-1][0], stop)
            else:
                mine.append((start, stop))
    return merged
