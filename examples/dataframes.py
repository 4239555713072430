"""Tables of pandas, polars and pyarrow as sources, and a regression on one.

A record is a row, a dict of its columns. A missing value is None, and its column keeps its type;
workers get the columns as memory that they share, and do not import the library.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from sklearn.datasets import load_diabetes

import grain_jax as grain

Row = dict[str, Any]
FEATURES = ["age", "bmi", "bp", "s5"]


def columns() -> dict[str, np.ndarray]:
    data = load_diabetes(as_frame=True).frame
    found = {name: data[name].to_numpy(np.float32) for name in FEATURES}
    return found | {"progression": data["target"].to_numpy(np.float32)}


class ToArrays(grain.transforms.Map):
    def map(self, row: Row) -> Row:
        x = np.array([row[name] for name in FEATURES], np.float32)
        return {"x": x, "y": row["progression"] / 100}


class Known(grain.transforms.Filter):
    def filter(self, row: Row) -> bool:
        return row["bmi"] is not None


@jax.jit
def train_step(weights: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((batch["x"] @ weights[:-1] + weights[-1] - batch["y"]) ** 2)

    value, slope = jax.value_and_grad(loss)(weights)
    return weights - 0.3 * slope, value


def train(table: Any) -> float:
    loader = grain.load(
        table,
        shuffle=True,
        seed=0,
        num_epochs=25,
        transformations=[Known(), ToArrays()],
        batch_size=64,
        drop_remainder=True,
        worker_count=2,
    )
    weights = jnp.zeros(len(FEATURES) + 1)
    with grain.prefetch_to_device(loader) as batches:
        losses = []
        for batch in batches:
            weights, loss = train_step(weights, batch)
            losses.append(loss)
    return float(jnp.stack(losses[-20:]).mean())


def main() -> None:
    data = columns()
    bmi = pa.array(data["bmi"], mask=np.arange(len(data["bmi"])) % 10 == 0)  # some are missing
    arrow = pa.table(data | {"bmi": bmi})
    tables = {
        "pyarrow": arrow,
        "polars": pl.from_arrow(arrow),
        "pandas": arrow.to_pandas(types_mapper={pa.float32(): pd.Float32Dtype()}.get),
    }
    losses = {name: train(table) for name, table in tables.items()}
    print(", ".join(f"{name}: {loss:.3f}" for name, loss in losses.items()))
    print("one stream, whatever the library:", len(set(losses.values())) == 1)


if __name__ == "__main__":
    main()
