"""Messages between the processes that hold the devices of a sharding.

An exchange is called by all of them, in the same order, like a collective; it gives each the
messages of all. It goes through the key-value store of the coordination service that
`jax.distributed` starts, so that it neither waits for devices nor meets other collectives there.
Where there is no such service, it is a collective.
"""

from __future__ import annotations

import collections
import hashlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from grain_jax._product.placement import spec

__all__ = ["exchange"]

# A process may need this long for its next batch. One that is gone is noticed much earlier, by the
# service's own heartbeat, and then the wait fails.
_PATIENCE_MS = 7 * 24 * 3600 * 1000

# How many exchanges each set of processes has had.
_rounds: collections.Counter[tuple[int, ...]] = collections.Counter()


def exchange(devices: list[Any], message: bytes) -> dict[int, bytes]:
    """Returns each process's message, by process index.

    Args:
      devices: of the processes that take part, the same list on each.
      message: of this process; small, since it goes to all.
    """
    processes = tuple(sorted({device.process_index for device in devices}))
    if len(processes) == 1:
        return {processes[0]: message}
    client = _client()
    if client is None:
        return _collective(devices, message)
    return _through_store(client, processes, message)


def _client() -> Any:
    """The client of the coordination service, if there is one that can do what is needed."""
    try:
        from jax._src.distributed import global_state  # JAX has no public name for it
    except ImportError:
        return None
    client = global_state.client
    needed = ("key_value_set_bytes", "key_value_dir_get_bytes", "wait_at_barrier")
    return client if all(hasattr(client, name) for name in needed) else None


def _through_store(client: Any, processes: tuple[int, ...], message: bytes) -> dict[int, bytes]:
    names = ",".join(map(str, processes)).encode()
    prefix = f"grain_jax/{hashlib.sha256(names).hexdigest()[:16]}"
    number = _rounds[processes]
    _rounds[processes] += 1
    me = jax.process_index()
    client.key_value_set_bytes(f"{prefix}/{number}/{me}", message)
    # The service forgets nothing about a barrier, so that two names take turns.
    client.wait_at_barrier(f"{prefix}/{number % 2}", _PATIENCE_MS, list(processes))
    listed = client.key_value_dir_get_bytes(f"{prefix}/{number}/")
    found = {int(key.rpartition("/")[2]): value for key, value in listed}
    for process in processes:
        if process not in found:  # an older service lets nobody wait twice at one barrier
            key = f"{prefix}/{number}/{process}"
            found[process] = client.blocking_key_value_get_bytes(key, _PATIENCE_MS)
    if number:
        # Whoever has written for this round has read everything of the round before.
        client.key_value_delete(f"{prefix}/{number - 1}/{me}")
    return {process: found[process] for process in processes}


def _collective(devices: list[Any], message: bytes) -> dict[int, bytes]:
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
