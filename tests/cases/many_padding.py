"""Scenes for a job of two processes, of which the second has run out and gets padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import grain_jax as grain

__all__ = ["SCENES"]


class Uneven(grain.transforms.Filter):
    """Of the records of process 1, the odd ones, only the first two are left."""

    def filter(self, record: Any) -> bool:
        return bool(record % 2 == 0 or record < 4)


def stage(batch_fn: Callable[[list[Any]], Any]) -> Any:
    """Five batches on process 0, the last with one record, and one on process 1."""
    loader = grain.load(
        np.arange(18),
        num_epochs=1,
        transformations=[Uneven(), grain.transforms.Batch(2, batch_fn=batch_fn)],
        shard_options=grain.sharding.ShardByJaxProcess(),
    )
    return grain.prefetch_to_device(loader, remainder="pad")


def values(leaf: Any) -> Any:
    """The rows of this process, by row; and what stays on the host as it is."""
    if not hasattr(leaf, "addressable_shards"):
        return [values(part) for part in leaf] if isinstance(leaf, (list, tuple)) else leaf
    rows = {shard.index[0].start or 0: np.asarray(shard.data) for shard in leaf.addressable_shards}
    return np.concatenate([rows[start] for start in sorted(rows)]).tolist()


def batches(batch_fn: Callable[[list[Any]], Any]) -> Callable[[int], Any]:
    def scene(process: int) -> Any:
        with stage(batch_fn) as iterator:
            return [{name: values(leaf) for name, leaf in batch.items()} for batch in iterator]

    return scene


def with_texts(records: list[Any]) -> Any:
    return {"x": np.stack(records), "t": [f"record {record}" for record in records]}


def by_bucket(records: list[Any]) -> Any:
    """Batches of two structures in turn."""
    x = np.stack(records)
    return {"x": x, "y": x * 0.5} if records[0] % 8 < 4 else {"a": x * 0.5, "x": x}


SCENES: dict[str, Callable[[int], Any]] = {
    "padding beside texts": batches(with_texts),
    "padding beside buckets": batches(by_bucket),
}
