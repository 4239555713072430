"""Trains a classifier on a folder of image files, and validates it after each epoch.

Run it with `python examples/images.py FOLDER`; started again in the same folder it goes on in the
epoch, and behind the batch, of its last save. The files are written there at the first run: the
digits of scikit-learn, as `images/train/LABEL/NUMBER.png` and `images/test/...`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image
from sklearn.datasets import load_digits

import grain_jax as grain

Batch = dict[str, Any]


class ImageFolder:
    """Images in folders that are called as their class is; a file is opened where it is read."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.png"))
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Batch:
        path = self.paths[index]
        with Image.open(path) as image:
            pixels = np.asarray(image)
        return {"image": pixels, "label": np.int32(self.classes.index(path.parent.name))}


class ShiftByAPixel(grain.transforms.RandomMap):
    """An augmentation; what it draws depends on the seed and the record's position alone."""

    def random_map(self, record: Batch, rng: np.random.Generator) -> Batch:
        shift = rng.integers(-1, 2, size=2)
        return record | {"image": np.roll(record["image"], shift, axis=(0, 1))}


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.convolution = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.out = nnx.Linear(16 * 64, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """Logits of shape (rows, 10) for images of 8 by 8 bytes."""
        scaled = image[..., None].astype(jnp.float32) / 255
        return self.out(nnx.relu(self.convolution(scaled)).reshape(len(image), -1))


@nnx.jit
def train_step(model: Classifier, optimizer: nnx.Optimizer, batch: Batch) -> None:
    def loss(model: Classifier) -> jax.Array:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    optimizer.update(model, nnx.grad(loss)(model))


@nnx.jit
def count_right(model: Classifier, batch: Batch) -> jax.Array:
    right = model(batch["image"]).argmax(-1) == batch["label"]
    return (right & batch["mask"]).sum()


def validate(model: Classifier, images: ImageFolder) -> float:
    loader = grain.load(images, num_epochs=1, batch_size=128)
    with grain.prefetch_to_device(loader, remainder="pad") as batches:
        return sum(int(count_right(model, batch)) for batch in batches) / len(images)


def write_images(folder: Path) -> None:
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        part = folder / ("test" if number % 5 == 0 else "train") / str(label)
        part.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype(np.uint8)).save(part / f"{number:04}.png")


def train(workdir: Path, epochs: int, stop_after: int | None) -> None:
    if not (workdir / "images").exists():
        write_images(workdir / "images")
    loader = grain.load(
        ImageFolder(workdir / "images" / "train"),
        shuffle=True,
        seed=0,
        num_epochs=epochs,
        transformations=[ShiftByAPixel()],
        batch_size=128,
        drop_remainder=True,
        worker_count=2,
    )
    test = ImageFolder(workdir / "images" / "test")
    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    # On every device, and so they come back from a checkpoint.
    mesh = Mesh(jax.devices(), ("data",))
    parts = jax.device_put(nnx.state((model, optimizer)), NamedSharding(mesh, PartitionSpec()))
    nnx.update((model, optimizer), parts)

    with ocp.CheckpointManager(workdir.absolute() / "checkpoints") as checkpoints:
        step = checkpoints.latest_step() or 0
        epochs = loader.epochs()
        if step:
            items = ocp.args.Composite(
                parts=ocp.args.StandardRestore(parts),
                data=grain.checkpoint.CheckpointRestore(epochs),
            )
            nnx.update((model, optimizer), checkpoints.restore(step, args=items)["parts"])
            print(f"goes on behind step {step}")
        for epoch in epochs:
            with grain.prefetch_to_device(epoch) as batches:
                for batch in batches:
                    train_step(model, optimizer, batch)
                    step += 1
                    if step % 5 == 0:
                        items = ocp.args.Composite(
                            parts=ocp.args.StandardSave(nnx.state((model, optimizer))),
                            data=grain.checkpoint.CheckpointSave(epochs),
                        )
                        checkpoints.save(step, args=items)
                    if step == stop_after:
                        return
            right = validate(model, test)
            print(f"epoch {epoch.number}: {right:.1%} of the test images are right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--stop-after", type=int, help="a step at which to leave, as if killed")
    train(**vars(parser.parse_args()))
