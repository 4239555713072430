"""One process of a job: builds global batches on several meshes and prints them as JSON."""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grain_jax import load, prefetch_to_device
from grain_jax.sharding import ShardBySharding
from grain_jax.transforms import Batch, Map
from tests.product.jobs import initialize

SEQUENCE = 8


class Tokens(Map):
    """Record i: tokens 100 i, 100 i + 1, …, and its label i."""

    def map(self, number: Any) -> Any:
        tokens = 100 * number + np.arange(SEQUENCE, dtype=np.int32)
        return {"tokens": tokens, "label": np.int32(number)}


class TimeFirst(Map):
    """Sequences run along axis 0, rows along axis 1."""

    def map(self, batch: Any) -> Any:
        tokens = np.swapaxes(batch["tokens"], 0, 1)
        return {"tokens": tokens, "label": np.broadcast_to(batch["label"], tokens.shape)}


class WithTable(Map):
    """Adds a leaf that is the same in every batch."""

    def map(self, batch: Any) -> Any:
        return {**batch, "table": np.arange(3, dtype=np.float32)}


def mesh(order: list[int], shape: tuple[int, ...], *names: str) -> Mesh:
    return Mesh(np.array(jax.devices())[order].reshape(shape), names)


# Devices 0 and 1 belong to process 0, devices 2 and 3 to process 1.
SPLIT = [0, 1, 2, 3]
MESHES = {
    "data": (mesh, (SPLIT, (4,), "data")),
    "data, in another order": (mesh, ([0, 2, 1, 3], (4,), "data")),
    "data, backwards": (mesh, ([3, 2, 1, 0], (4,), "data")),
    "data over processes, model inside": (mesh, (SPLIT, (2, 2), "data", "seq")),
    "model over processes": (mesh, (SPLIT, (2, 2), "seq", "data")),
    "model over processes, crosswise": (mesh, ([0, 2, 3, 1], (2, 2), "data", "seq")),
}


def gathered(array: jax.Array) -> list[Any]:
    """All values of a global array, through a collective."""
    whole = everywhere(array.sharding.mesh)(array)
    return np.asarray(whole.addressable_data(0)).tolist()  # type: ignore[no-any-return]


@functools.cache
def everywhere(grid: Mesh) -> Any:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(grid, P()))


def batches(sharding: Any, by: NamedSharding, axis: int, steps: list[Any]) -> Any:
    """All batches of 24 records, 8 of them in each, with this process's share from `by`."""
    shard = ShardBySharding(by, axis=axis)
    loader = load(
        range(24),
        num_epochs=1,
        transformations=[Tokens(), Batch(8 // shard.shard_count), *steps],
        shard_options=shard,
    )
    with prefetch_to_device(loader, sharding, axis=axis) as iterator:
        found = []
        for batch in iterator:
            for leaf in jax.tree.leaves(batch):
                assert leaf.shape == np.shape(gathered(leaf))
            found.append({name: gathered(leaf) for name, leaf in batch.items()})
    return {"shard": [shard.shard_index, shard.shard_count], "batches": found}


def scenes(name: str) -> dict[str, Any]:
    make, arguments = MESHES[name]
    grid = make(*arguments)

    def on(*axes: Any) -> NamedSharding:
        return NamedSharding(grid, P(*axes))

    tree = {"tokens": on("data"), "label": on("data"), "table": on()}
    played = {
        "rows": batches(on("data"), on("data"), 0, []),
        "tree": batches(tree, on("data"), 0, [WithTable()]),
        "time first": batches(on(None, "data"), on(None, "data"), 1, [TimeFirst()]),
        "microbatches": micro(on(None, "data")),
    }
    if "seq" in grid.axis_names:
        sequence = {"tokens": on("data", "seq"), "label": on("data")}
        played["sequence"] = batches(sequence, on("data", "seq"), 0, [])
        replicated = {"tokens": on(None, "seq"), "label": on()}
        played["replicated"] = batches(replicated, on(), 0, [])
    return played


def micro(sharding: NamedSharding) -> Any:
    """Two microbatches a step, and a last step with one of them."""
    shard = ShardBySharding(sharding, axis=1)
    loader = load(
        range(24),
        num_epochs=1,
        transformations=[Tokens(), Batch(8 // shard.shard_count), Batch(2)],
        shard_options=shard,
    )
    found = []
    with prefetch_to_device(loader, sharding, axis=1, remainder="pad") as iterator:
        for batch in iterator:
            assert batch["mask"].sharding.is_equivalent_to(sharding, 2)
            found.append({name: gathered(leaf) for name, leaf in batch.items()})
    return {"shard": [shard.shard_index, shard.shard_count], "batches": found}


def main() -> None:
    initialize(*sys.argv[1:4])
    print(json.dumps({name: scenes(name) for name in MESHES}))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
