"""What processes have to say to each other, where no service carries messages."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from grain_jax._product.placement import spec

__all__ = ["exchange"]


def exchange(devices: list[Any], message: bytes) -> dict[int, bytes]:
    """Returns the message of each process, by process index: a collective of these devices."""
    sizes = _gather(devices, len(message).to_bytes(8, "little"))
    lengths = {process: int.from_bytes(size, "little") for process, size in sizes.items()}
    padded = _gather(devices, message.ljust(max(1, *lengths.values())))
    return {process: padded[process][: lengths[process]] for process in sorted(padded)}


def _gather(devices: list[Any], message: bytes) -> dict[int, bytes]:
    """Each process's message, all of one length, by process index."""
    mesh = Mesh(np.array(devices), ("devices",))
    row = np.frombuffer(message, np.uint8)[None]
    mine = [device for device in devices if device.process_index == jax.process_index()]
    scattered = jax.make_array_from_single_device_arrays(
        (len(devices), len(message)),
        NamedSharding(mesh, spec("devices")),
        [jax.device_put(row, device) for device in mine],
    )
    everywhere = NamedSharding(mesh, spec())
    gathered = jax.jit(lambda x: x, out_shardings=everywhere)(scattered)
    rows = np.asarray(gathered.addressable_data(0))
    return {device.process_index: rows[i].tobytes() for i, device in enumerate(devices)}
