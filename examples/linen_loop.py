"""A training loop in Flax's linen, with a TrainState, resumed from its checkpoint."""

from __future__ import annotations

import tempfile
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import grain_jax as grain

Batch = dict[str, Any]


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits of shape (rows, 10) for x of shape (rows, 64)."""
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


@jax.jit
def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
    def loss(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    value, slopes = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=slopes), value


def main() -> None:
    x, label = load_digits(return_X_y=True)
    source = {"x": (x / 16).astype(np.float32), "label": label.astype(np.int32)}
    loader = grain.load(
        source,
        shuffle=True,
        seed=0,
        num_epochs=6,
        batch_size=128,
        drop_remainder=True,
        worker_count=2,
    )
    model = Classifier()
    params = model.init(jax.random.key(0), np.zeros((1, 64)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2))
    # On every device, and so it comes back from a checkpoint.
    mesh = Mesh(jax.devices(), ("data",))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))

    with tempfile.TemporaryDirectory() as folder:
        for leave_after in (30, None):
            with (
                grain.prefetch_to_device(loader) as batches,
                ocp.CheckpointManager(folder) as checkpoints,
            ):
                start = checkpoints.latest_step() or 0
                if start:
                    items = ocp.args.Composite(
                        state=ocp.args.StandardRestore(state),
                        data=grain.checkpoint.CheckpointRestore(batches),
                    )
                    state = checkpoints.restore(start, args=items)["state"]
                for step, batch in enumerate(batches, start + 1):
                    state, loss = train_step(state, batch)
                    if step % 20 == 0:
                        items = ocp.args.Composite(
                            state=ocp.args.StandardSave(state),
                            data=grain.checkpoint.CheckpointSave(batches),
                        )
                        checkpoints.save(step, args=items)
                    if step == leave_after:
                        break
            print(f"steps {start + 1} to {step}: loss {loss:.3f}")
        assert int(state.step) == len(loader)


if __name__ == "__main__":
    main()
