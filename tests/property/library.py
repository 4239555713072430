"""The same pipelines, built with the library."""

from __future__ import annotations

from collections.abc import Sequence
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
        return bool(total(element) % self.number != 0)


class _FlatMap(grain.transforms.FlatMap):
    def __init__(self, number: int) -> None:
        self.max_fan_out = number

    def flat_map(self, element: Any) -> list[Any]:
        return [_plus(element, 10 * i) for i in range(total(element) % self.max_fan_out)]


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


def operations(pipeline: Pipeline) -> list[Any]:
    """Returns the operations of a pipeline."""
    found: list[Any] = []
    is_nested = False
    for kind, *arguments in pipeline.operations:
        if kind == "batch":
            size, drop = arguments
            batch_fn = _list_batch if is_nested else None
            found.append(grain.transforms.Batch(size, drop, batch_fn))
            is_nested = True
        else:
            found.append(_KINDS[kind](*arguments))
    return found


def sampler(pipeline: Pipeline) -> grain.samplers.IndexSampler:
    """Returns the sampler of a pipeline."""
    return grain.samplers.IndexSampler(
        pipeline.records, shuffle=pipeline.shuffle, seed=pipeline.seed, num_epochs=pipeline.epochs
    )


def loader(
    pipeline: Pipeline, workers: int = 0, todo: Sequence[Any] | None = None, **settings: Any
) -> grain.DataLoader:
    """Builds the loader of a pipeline.

    Args:
      pipeline: what to build.
      workers: worker processes.
      todo: operations in place of the pipeline's own.
      **settings: further arguments of the loader.
    """
    return grain.DataLoader(
        data_source=list(range(pipeline.records)),
        sampler=sampler(pipeline),
        operations=operations(pipeline) if todo is None else todo,
        worker_count=workers,
        shard_options=grain.sharding.ShardOptions(pipeline.shard, pipeline.shards),
        lanes=pipeline.lanes,
        **settings,
    )


def total(element: Any) -> int:
    """Returns the sum over an element that may be a batch."""
    if isinstance(element, np.ndarray) and element.dtype == object:
        return sum(total(e) for e in element)
    return int(np.sum(element))


def plain(value: Any) -> Any:
    """Returns an element as nested lists of ints."""
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value]
    return int(value)
