"""Trains a digit classifier; started again in the same folder, it goes on after its last save.

Run it with `python examples/train.py FOLDER`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

# A mesh of four devices on any machine; has to be set before jax is imported.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import tensorflow_datasets as tfds
from digits.digits_dataset_builder import Builder
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import grain_jax as grain

Batch = dict[str, Any]

# Orbax reports a save that an earlier process did not finish; after a kill that is no news.
logging.getLogger("absl").setLevel(logging.ERROR)


class ShiftByAPixel(grain.transforms.RandomMap):
    """Moves the image by at most one pixel each way; runs in the worker processes."""

    def random_map(self, record: Batch, rng: np.random.Generator) -> Batch:
        """Draws from `rng`, which depends on the seed and the record's position alone."""
        shift = rng.integers(-1, 2, size=2)
        return record | {"image": np.roll(record["image"], shift, axis=(0, 1))}


class Classifier(nnx.Module):
    """One hidden layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """Logits of shape (rows, 10) for images of shape (rows, 8, 8)."""
        return self.out(nnx.relu(self.hidden(image.reshape(-1, 64))))


@nnx.jit
def train_step(model: Classifier, optimizer: nnx.Optimizer, batch: Batch) -> None:
    def loss(model: Classifier) -> jax.Array:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    optimizer.update(model, nnx.grad(loss)(model))


def read_digits(folder: Path) -> Builder:
    tfds.disable_progress_bar()
    builder = Builder(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return builder


def digest(*arrays: Any) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.asarray(array).tobytes())
    return sha.hexdigest()[:16]


def save(checkpoints: ocp.CheckpointManager, step: int, *, data: Any, **parts: nnx.Pytree) -> None:
    """Saves the position of `data` and the state of each part, together or not at all."""
    items = {name: ocp.args.StandardSave(nnx.state(part)) for name, part in parts.items()}
    items["data"] = grain.checkpoint.CheckpointSave(data)
    checkpoints.save(step, args=ocp.args.Composite(**items))


def restore(checkpoints: ocp.CheckpointManager, *, data: Any, **parts: nnx.Pytree) -> int:
    """Restores the last save, if there is one, in place; returns its step."""
    step: int | None = checkpoints.latest_step()
    if step is None:
        return 0
    items = {name: ocp.args.StandardRestore(nnx.state(part)) for name, part in parts.items()}
    items["data"] = grain.checkpoint.CheckpointRestore(data)
    saved = checkpoints.restore(step, args=ocp.args.Composite(**items))
    for name, part in parts.items():
        nnx.update(part, saved[name])
    return step


def train(workdir: Path, epochs: int, save_every: int) -> None:
    workdir = workdir.absolute()  # Orbax wants it so
    digits = read_digits(workdir / "data")
    loader = grain.load(
        digits.as_data_source("train"),
        shuffle=True,
        seed=0,
        num_epochs=epochs,
        transformations=[ShiftByAPixel()],
        batch_size=100,
        drop_remainder=True,
        worker_count=2,
    )
    mesh = Mesh(jax.devices(), ("data",))
    batches = grain.prefetch_to_device(loader, NamedSharding(mesh, PartitionSpec("data")))

    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    for part in (model, optimizer):
        replicated = jax.device_put(nnx.state(part), NamedSharding(mesh, PartitionSpec()))
        nnx.update(part, replicated)

    with (
        batches,
        ocp.CheckpointManager(workdir / "checkpoints") as checkpoints,
        (workdir / "steps.jsonl").open("a") as log,
    ):
        start = restore(checkpoints, data=batches, model=model, optimizer=optimizer)
        for step, batch in enumerate(batches, start + 1):
            train_step(model, optimizer, batch)
            seen = {"records": digest(batch["id"]), "pixels": digest(batch["image"])}
            print(json.dumps({"step": step, **seen}), file=log, flush=True)
            if step % save_every == 0:
                save(checkpoints, step, data=batches, model=model, optimizer=optimizer)

    [test] = grain.load(digits.as_data_source("test"), num_epochs=1, batch_size=300)
    accuracy = (model(test["image"]).argmax(-1) == test["label"]).mean()
    parameters = digest(*jax.tree.leaves(nnx.state(model)))
    result = {"accuracy": float(accuracy), "parameters": parameters}
    (workdir / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=50)
    train(**vars(parser.parse_args()))
