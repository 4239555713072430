"""device_put: elements of a dataset on a device, ahead on the host and again on the device."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax

from grain_jax._execution.prefetch_iterator import PrefetchIterator, known_length
from grain_jax._product.device import DeviceIterator, check_size
from grain_jax._product.leaves import detach
from grain_jax._product.remainder import Rows
from grain_jax._values import notices

__all__ = ["DeviceDataset", "device_put"]


@notices.constructing("device_put")
def device_put(
    ds: Iterable[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> DeviceDataset:
    """Moves the elements of a dataset to a device, ahead on the host and again on the device.

    Unlike `prefetch_to_device`, elements may differ in shape from one to the next. Over several
    processes they are the same on each, and as many.

    Args:
      ds: a dataset, or anything that can be iterated over again and again.
      device: a device or a `jax.sharding.Sharding`, or a tree prefix of these.
      cpu_buffer_size: how many elements may wait on the host.
      device_buffer_size: how many elements may wait on the device.

    Returns:
      What gives an iterator over `ds`, with its states, at each `iter`.

    Example:
      >>> import jax, grain_jax as grain
      >>> ds = grain.MapDataset.range(4).to_iter_dataset().batch(2)
      >>> [batch.tolist() for batch in device_put(ds, jax.devices()[0])]
      [[0, 1], [2, 3]]
    """
    return DeviceDataset(
        ds,
        device,
        check_size("cpu_buffer_size", cpu_buffer_size, 0),
        check_size("device_buffer_size", device_buffer_size, 0),
    )


class DeviceDataset:
    """What `device_put` returns: each `iter` starts at the beginning, with threads of its own."""

    def __init__(self, source: Iterable[Any], device: Any, host_size: int, device_size: int):
        self._source = source
        self._device = device
        self._host_size = host_size
        self._device_size = device_size

    @notices.constructing("iterator")
    def __iter__(self) -> DeviceIterator:
        return DeviceIterator(
            _HostIterator(self._source, self._host_size),
            self._device,
            buffer_size=self._device_size,
            rows=Rows(None, "mask", None),
            length=known_length(self._source),
            close_source=True,
        )

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        """False only where the source is known to be empty."""
        return known_length(self._source) != 0


class _HostIterator(PrefetchIterator[Any]):
    """Elements ahead on the host, in memory that nobody else writes to."""

    def __init__(self, source: Iterable[Any], size: int) -> None:
        detacher = _Detacher()
        super().__init__(source, detacher, size)
        detacher.is_fresh, self._is_fresh = self._is_fresh, True


class _Detacher:
    is_fresh = False

    def __call__(self, element: Any) -> Any:
        return jax.tree_util.tree_map(functools.partial(detach, is_fresh=self.is_fresh), element)
