"""One comparison between processes before the first batch: do they feed the same program?

It runs where the user asks for the first batch, at the same place in each process's program, and
never in the thread that runs ahead: collectives in two threads meet in a different order on
different processes. Only the processes that hold devices of the shardings take part.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from grain_jax._product.placement import spec
from grain_jax._values.errors import InvalidValueError

__all__ = ["Facts", "agree"]

# What a process says of its first batch: "rows"; "leaves", name to dtype and shape of a row, None
# without axes; "scalars", name to value; or "error" alone, if it failed. None without any batch.
Facts = dict[str, Any]


def agree(devices: list[Any], facts: Facts | None) -> None:
    """Compares this process's first batch with that of each other process; all of them call it.

    Args:
      devices: the devices of the shardings, the same list on every process.
      facts: of the first batch here.

    Raises:
      InvalidValueError: on every process alike, if they differ.
    """
    text = json.dumps(facts, sort_keys=True).encode()
    digest = hashlib.sha256(text).digest() + len(text).to_bytes(8, "little")
    digests = _gather(devices, digest)
    if len(set(digests.values())) == 1:
        return
    # All processes see the same digests, so all of them come here together.
    width = max(int.from_bytes(other[-8:], "little") for other in digests.values())
    texts = _gather(devices, text.ljust(width))
    raise InvalidValueError(_difference({k: json.loads(text) for k, text in texts.items()}))


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


def _difference(facts: dict[int, Facts | None]) -> str:
    for process, fact in facts.items():
        if fact is not None and "error" in fact:
            return f"process {process} failed at its first batch: {fact['error']}"
    missing = [process for process, fact in facts.items() if fact is None]
    if missing:
        return (
            f"process {missing[0]} has no batch at all, and process"
            f" {next(p for p, fact in facts.items() if fact is not None)} has one: the steps of the"
            " processes would not match. Give each process its share of the records"
            " (ShardByJaxProcess), and no more processes than there are batches."
        )
    first, one = next(iter(facts.items()))
    for process, other in facts.items():
        assert one is not None
        assert other is not None
        if other["rows"] != one["rows"]:
            return (
                f"the batches have {one['rows']} rows on process {first} and {other['rows']} on"
                f" process {process}, so that the processes would build arrays of different global"
                " shapes. Use the same batch size per process on each."
            )
        for name in sorted({*one["leaves"], *other["leaves"]}):
            mine, theirs = one["leaves"].get(name), other["leaves"].get(name)
            if mine != theirs:
                return (
                    f"{name} is {_describe(mine)} on process {first} and {_describe(theirs)} on"
                    f" process {process}: all processes need the same leaves, dtypes and shapes of"
                    " a row."
                )
        for name in sorted(one["scalars"]):
            mine, theirs = one["scalars"][name], other["scalars"].get(name)
            if mine != theirs:
                return (
                    f"{name} is {mine} on process {first} and {theirs} on process {process}: a leaf"
                    " without axes is replicated, so that it must be the same on every process."
                    " Give it one row for each example, or leave it out."
                )
    return "the processes disagree about their first batch"


def _describe(leaf: Any) -> str:
    if leaf is None:
        return "absent"
    dtype, row = leaf
    return f"{dtype} without axes" if row is None else f"{dtype} with rows of shape {tuple(row)}"
