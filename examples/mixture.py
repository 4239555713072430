"""Trains on a named mixture, and goes on with other weights and a part more.

The parts are prose (what scikit-learn says of its data sets) and code (what NumPy is written in);
their shares are shares of bytes. The second run begins at the checkpoint of the first one: each
part goes on where it was, the new one begins, and shares count from there on.
"""

from __future__ import annotations

import importlib.resources
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import grain_jax as grain

LENGTH, ROWS = 256, 16
Weights = Mapping[str, float]


def lines(package: str, pattern: str) -> list[str]:
    """The lines of some files that a package ships."""
    files = sorted(Path(str(importlib.resources.files(package))).glob(pattern))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files[:20])
    return [line for line in text.splitlines() if line.strip()]


def tokens(line: str) -> dict[str, np.ndarray]:
    return {"tokens": np.frombuffer(line.encode()[:LENGTH], np.uint8).astype(np.int32)}


PARTS = {
    "prose": lines("sklearn.datasets", "descr/*.rst"),
    "code": lines("numpy", "lib/*.py"),
    "tests": lines("numpy", "lib/tests/*.py"),
}


def rows(weights: Weights) -> grain.IterDataset[Any]:
    parts = {
        name: grain.MapDataset.source(PARTS[name]).shuffle(seed=0).repeat().map(tokens)
        for name in weights
    }
    mixture = grain.IterDataset.mix(
        {name: part.to_iter_dataset() for name, part in parts.items()},
        weights,
        weigh=lambda element: len(element["tokens"]),
    )
    packed = mixture.pack({"tokens": LENGTH}, num_packing_bins=ROWS, seed=0)
    return packed.batch(ROWS).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))


@jax.jit
def train_step(table: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """A model of two bytes: a table of logits for the byte behind each byte."""
    now, then = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    segments = batch["tokens_segment_ids"]
    counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)

    def loss(table: jax.Array) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(table[now], then)
        return jnp.where(counts, losses, 0).sum() / counts.sum()

    value, slope = jax.value_and_grad(loss)(table)
    return table - 20 * slope, value


def train(folder: Path, weights: Weights, steps: int) -> None:
    """Trains for some steps more, behind the last save, and prints what there was of each part."""
    mesh = Mesh(jax.devices(), ("data",))
    table = jax.device_put(jnp.zeros((256, 256)), NamedSharding(mesh, PartitionSpec()))
    with (
        grain.prefetch_to_device(rows(weights)) as batches,
        ocp.CheckpointManager(folder) as checkpoints,
    ):
        start = checkpoints.latest_step() or 0
        if start:
            items = ocp.args.Composite(
                model=ocp.args.StandardRestore({"table": table}),
                data=grain.checkpoint.CheckpointRestore(batches),
            )
            with warnings.catch_warnings(action="ignore"):  # one says what has changed
                table = checkpoints.restore(start, args=items)["model"]["table"]
        last = start + steps
        for _ in range(steps):
            table, loss = train_step(table, next(batches))
        counts = {name: part["weight"] for name, part in batches.mixture_counts.items()}
        items = ocp.args.Composite(
            model=ocp.args.StandardSave({"table": table}),
            data=grain.checkpoint.CheckpointSave(batches),
        )
        checkpoints.save(last, args=items)
    shares = (f"{count / sum(counts.values()):.0%} {name}" for name, count in counts.items())
    print(f"steps {start + 1} to {last}: {', '.join(shares)}; loss {loss:.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), {"prose": 0.7, "code": 0.3}, steps=40)
        train(Path(folder), {"prose": 0.4, "code": 0.4, "tests": 0.2}, steps=40)
