"""The same pipelines, built with the library."""

from __future__ import annotations

from typing import Any

import numpy as np

import grain_jax as grain
from tests.property.reference import Pipeline


class _Map(grain.transforms.Map):
    def __init__(self, number: int) -> None:
        self.number = number

    def map(self, element: Any) -> Any:
        return (3 * element if np.ndim(element) == 0 else element) + self.number


class _Index(grain.transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> Any:
        return element + index


class _Random(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + int(rng.integers(1000))


class _Filter(grain.transforms.Filter):
    def __init__(self, number: int) -> None:
        self.number = number

    def filter(self, element: Any) -> bool:
        return bool(_total(element) % self.number != 0)


class _FlatMap(grain.transforms.FlatMap):
    def __init__(self, number: int) -> None:
        self.max_fan_out = number

    def flat_map(self, element: Any) -> list[Any]:
        return [_plus(element, 10 * i) for i in range(_total(element) % self.max_fan_out)]


def _total(element: Any) -> int:
    if isinstance(element, np.ndarray) and element.dtype == object:
        return sum(_total(e) for e in element)
    return int(np.sum(element))


def _plus(element: Any, number: int) -> Any:
    return element + number


_KINDS = {
    "map": _Map,
    "map_with_index": _Index,
    "random_map": _Random,
    "filter": _Filter,
    "flat_map": _FlatMap,
}


def _list_batch(elements: Any) -> np.ndarray[Any, Any]:
    """A batch of batches of unequal sizes does not stack, so such pipelines collect objects."""
    out = np.empty(len(elements), object)
    for row, element in enumerate(elements):
        out[row] = element
    return out


def loader(pipeline: Pipeline, workers: int = 0) -> grain.DataLoader:
    """Builds the loader of a pipeline."""
    operations: list[Any] = []
    is_nested = False
    for kind, *arguments in pipeline.operations:
        if kind == "batch":
            size, drop = arguments
            batch_fn = _list_batch if is_nested else None
            operations.append(grain.transforms.Batch(size, drop, batch_fn))
            is_nested = True
        else:
            operations.append(_KINDS[kind](*arguments))
    return grain.DataLoader(
        data_source=list(range(pipeline.records)),
        sampler=grain.samplers.IndexSampler(
            pipeline.records,
            shuffle=pipeline.shuffle,
            seed=pipeline.seed,
            num_epochs=pipeline.epochs,
        ),
        operations=operations,
        worker_count=workers,
        shard_options=grain.sharding.ShardOptions(pipeline.shard, pipeline.shards),
        lanes=pipeline.lanes,
    )


def plain(value: Any) -> Any:
    """Returns an element as nested lists of ints."""
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value]
    return int(value)
