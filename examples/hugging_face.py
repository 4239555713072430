"""A data set of Hugging Face's: in memory, where it is a source, and as a stream.

Both runs are cut off in the middle and go on by their state. `load_dataset(NAME, split="train")`
and `load_dataset(..., streaming=True)` in the place of `make` are all that a data set of theirs
needs.
"""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
from sklearn.datasets import load_digits

import grain_jax as grain

Batch = dict[str, Any]


def make() -> datasets.Dataset:
    images, labels = (column[:1000] for column in load_digits(return_X_y=True))
    rows = {"pixels": images.astype(np.uint8).tolist(), "label": labels.tolist()}
    return datasets.Dataset.from_dict(rows)


def scale(row: Batch) -> Batch:
    return {"x": np.asarray(row["pixels"], np.float32) / 16, "label": row["label"]}


def in_memory(rows: datasets.Dataset) -> grain.IterDataset[Batch]:
    """With an index: shuffled as a whole, and read by the workers."""
    source = grain.MapDataset.source(rows.with_format("numpy")).shuffle(seed=0)
    return source.map(scale).to_iter_dataset().batch(100, drop_remainder=True)


def streaming(rows: datasets.IterableDataset) -> grain.IterDataset[Batch]:
    """Without one: read in order, in this process; workers do what follows."""
    stream = grain.IterDataset.from_iterable(rows).map(scale)
    return stream.window_shuffle(200, seed=0).batch(100, drop_remainder=True)


def labels(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["label"]).tolist() for batch in batches]


def main() -> None:
    rows = make()
    kinds = {"in memory": in_memory(rows), "streaming": streaming(rows.to_iterable_dataset())}
    for name, dataset in kinds.items():
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
        expected = labels(dataset)
        with grain.prefetch_to_device(dataset) as first:
            before = [next(first) for _ in range(4)]
            state = first.get_state()
        with grain.prefetch_to_device(dataset) as again:
            again.set_state(state)
            found = labels(before) + labels(again)
        print(f"{name}: {len(found)} batches, as if never cut off: {found == expected}")


if __name__ == "__main__":
    main()
