"""Sends bytes to the devices, and does the arithmetic there: a quarter of the way, no core used.

Images travel as `uint8`. A jitted function scales, flips and shifts a whole batch where it lies,
each row by a key of its own: the host draws a number for each record, which depends on the seed
and the record's position alone, so that a run that goes on after a kill augments as the unbroken
one.
"""

from __future__ import annotations

import os
from typing import Any

# A mesh of four devices on any machine; has to be set before jax is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import grain_jax as grain

Batch = dict[str, Any]


class DrawKey(grain.transforms.RandomMap):
    """All that the host does for a record: one number."""

    def random_map(self, record: Batch, rng: np.random.Generator) -> Batch:
        return record | {"key": rng.integers(2**32, dtype=np.uint32)}


def augment_one(image: jax.Array, number: jax.Array) -> jax.Array:
    flip, shift, noise = jax.random.split(jax.random.key(number), 3)
    image = image.astype(jnp.float32) / 16
    image = jnp.where(jax.random.bernoulli(flip), image[:, ::-1], image)
    image = jnp.roll(image, jax.random.randint(shift, (2,), -1, 2), axis=(0, 1))
    return image + 0.05 * jax.random.normal(noise, image.shape)


@jax.jit
def preprocess(batch: Batch) -> Batch:
    images = jax.vmap(augment_one)(batch["image"], batch["key"])
    return {"image": images, "label": batch["label"]}


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    source = {"image": images.reshape(-1, 8, 8).astype(np.uint8), "label": labels}
    loader = grain.load(
        source,
        shuffle=True,
        seed=0,
        num_epochs=2,
        transformations=[DrawKey()],
        batch_size=128,
        drop_remainder=True,
        worker_count=2,
    )
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    by_rows = NamedSharding(mesh, PartitionSpec("data"))

    def run(state: Any = None) -> tuple[list[np.ndarray], Any]:
        with grain.prefetch_to_device(loader, by_rows) as batches:
            if state is not None:
                batches.set_state(state)
            seen = []
            for number, raw in enumerate(batches):
                batch = preprocess(raw)  # train_step(model, optimizer, batch)
                seen.append(np.asarray(batch["image"]))
                if number == 9:
                    state = batches.get_state()
        print(f"{len(seen)} batches, {raw['image'].nbytes} bytes each on the way to the devices,")
        print(f"  {batch['image'].nbytes} bytes of {batch['image'].dtype} there:", end=" ")
        print(f"{batch['image'].sharding.spec} on {len(batch['image'].devices())} devices")
        return seen, state

    whole, state = run()
    rest, _ = run(state)
    equal = all(map(np.array_equal, whole[10:], rest))
    print("after a resume, augmented as in the unbroken run:", equal and len(rest) > 0)


if __name__ == "__main__":
    main()
