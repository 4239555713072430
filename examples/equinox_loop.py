"""A training loop in Equinox: a tree of arrays, saved with the position in the data."""

from __future__ import annotations

import tempfile
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import grain_jax as grain

Batch = dict[str, Any]
adam = optax.adam(1e-2)


@eqx.filter_jit
def train_step(model: eqx.Module, moments: Any, batch: Batch) -> tuple[eqx.Module, Any, jax.Array]:
    def loss(model: eqx.Module) -> jax.Array:
        logits = jax.vmap(model)(batch["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        # Rows that fill up the last batch do not count.
        return jnp.where(batch["mask"], losses, 0).sum() / batch["mask"].sum()

    value, slopes = eqx.filter_value_and_grad(loss)(model)
    updates, moments = adam.update(slopes, moments)
    return eqx.apply_updates(model, updates), moments, value


def main() -> None:
    x, label = load_digits(return_X_y=True)
    source = {"x": (x / 16).astype(np.float32), "label": label.astype(np.int32)}
    loader = grain.load(source, shuffle=True, seed=0, num_epochs=6, batch_size=128, worker_count=2)
    model = eqx.nn.MLP(64, 10, 64, 1, key=jax.random.key(0))
    moments = adam.init(eqx.filter(model, eqx.is_array))
    # On every device, and so it comes back from a checkpoint.
    mesh = Mesh(jax.devices(), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    model, moments = eqx.filter_shard((model, moments), replicated)

    with tempfile.TemporaryDirectory() as folder:
        for leave_after in (30, None):
            with (
                grain.prefetch_to_device(loader, remainder="pad") as batches,
                ocp.CheckpointManager(folder) as checkpoints,
            ):
                # What is no array (activation functions, sizes) is the program's to know.
                arrays, rest = eqx.partition((model, moments), eqx.is_array)
                start = checkpoints.latest_step() or 0
                if start:
                    items = ocp.args.Composite(
                        arrays=ocp.args.StandardRestore(jax.tree.leaves(arrays)),
                        data=grain.checkpoint.CheckpointRestore(batches),
                    )
                    leaves = checkpoints.restore(start, args=items)["arrays"]
                    arrays = jax.tree.unflatten(jax.tree.structure(arrays), leaves)
                    model, moments = eqx.combine(arrays, rest)
                for step, batch in enumerate(batches, start + 1):
                    model, moments, loss = train_step(model, moments, batch)
                    if step % 20 == 0:
                        arrays, _ = eqx.partition((model, moments), eqx.is_array)
                        items = ocp.args.Composite(
                            arrays=ocp.args.StandardSave(jax.tree.leaves(arrays)),
                            data=grain.checkpoint.CheckpointSave(batches),
                        )
                        checkpoints.save(step, args=items)
                    if step == leave_after:
                        break
            print(f"steps {start + 1} to {step}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
