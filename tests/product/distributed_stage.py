"""One of two processes of a job: runs each scene by name and prints what it saw as JSON.

The scenes run in the same order in both processes, as a training program would.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grain_jax import prefetch_to_device


def batches(process: int, sizes: tuple[int, ...] = (4, 4, 4), **more: Any) -> list[Any]:
    """Batch k of process p holds the numbers 100 k + 10 p + row."""
    return [
        {"x": 100 * k + 10 * process + np.arange(size, dtype=np.int32), "step": k, **more}
        for k, size in enumerate(sizes)
    ]


def see(array: jax.Array) -> dict[str, Any]:
    """The array as all processes together know it, and the part that lies here."""
    return {
        "shape": list(array.shape),
        "here": {
            str(shard.device.id): [shard.index[0].start, np.asarray(shard.data).tolist()]
            for shard in array.addressable_shards
            if shard.index
        },
        "replicated": array.is_fully_replicated,
    }


def sharded_batches(process: int) -> Any:
    with prefetch_to_device(batches(process, name=f"from {process}")) as iterator:
        got = list(iterator)
    total = jax.jit(lambda x: x.sum())
    return {
        "x": [see(batch["x"]) for batch in got],
        "sums": [int(total(batch["x"])) for batch in got],
        "steps": [int(batch["step"]) for batch in got],
        "step_replicated": got[0]["step"].is_fully_replicated,
        "names": [batch["name"] for batch in got],
    }


def model_axis_over_processes(process: int) -> Any:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2).T, ("data", "model"))
    sharding = NamedSharding(mesh, P("data"))
    with prefetch_to_device(batches(0), sharding) as iterator:
        return see(next(iterator)["x"])


def local_mesh(process: int) -> Any:
    """Only one process iterates, on its own devices: no other may be waited for."""
    if process == 1:
        return None
    sharding = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), P("data"))
    with prefetch_to_device(batches(0), sharding) as iterator:
        return [see(batch["x"]) for batch in iterator]


def padded(process: int) -> Any:
    sizes = (4, 3) if process == 0 else (4, 1)
    with prefetch_to_device(batches(process, sizes), remainder="pad") as iterator:
        got = list(iterator)
    return [{key: see(batch[key]) for key in ("x", "mask")} for batch in got]


def refusal(make: Callable[[int], list[Any]]) -> Callable[[int], Any]:
    def scene(process: int) -> Any:
        with prefetch_to_device(make(process)) as iterator:
            texts = []
            for _ in range(2):
                try:
                    next(iterator)
                except ValueError as error:
                    texts.append(str(error))
            return texts

    return scene


def indivisible(process: int) -> Any:
    with prefetch_to_device(batches(process, (3,))) as iterator:
        try:
            next(iterator)
        except ValueError as error:
            return str(error)


def foreign_device(process: int) -> Any:
    other = next(d for d in jax.devices() if d.process_index != process)
    try:
        prefetch_to_device([], other)
    except ValueError as error:
        return str(error)


SCENES: dict[str, Callable[[int], Any]] = {
    "sharded_batches": sharded_batches,
    "model_axis_over_processes": model_axis_over_processes,
    "local_mesh": local_mesh,
    "padded": padded,
    "rows_differ": refusal(lambda process: batches(process, (4 + 2 * process,))),
    "scalars_differ": refusal(lambda process: batches(process, seed=process)),
    "leaves_differ": refusal(lambda process: batches(process, **{f"only_{process}": np.ones(4)})),
    "dtypes_differ": refusal(lambda process: batches(process, y=np.ones(4, f"f{2 + 2 * process}"))),
    "one_is_empty": refusal(lambda process: [] if process else batches(process)),
    "one_fails": refusal(lambda process: batches(process, seed=2 ** (31 + process) - 1)),
    "indivisible": indivisible,
    "foreign_device": foreign_device,
}


def main() -> None:
    address, count, process = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, process)
    print(json.dumps({name: scene(process) for name, scene in SCENES.items()}))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
