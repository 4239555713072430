"""The same pipelines, built with the library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import grain_jax as grain
from tests.property import kinds, sources
from tests.property.reference import Pipeline, plus

Extra = Sequence[tuple[int, Any]]
"""Pairs of place among the pipeline's own operations, ascending, and operation."""


class _Of:
    """Computes with the numbers in an element of a kind."""

    def __init__(self, kind: str, number: int = 0) -> None:
        self.kind, self.number = kind, number

    def _plus(self, element: Any, number: int, factor: int = 1) -> Any:
        kind = kinds.kind_of(self.kind)
        value = kind.decode(element)
        return kind.encode(plus(factor * value if isinstance(value, int) else value, number))

    def _total(self, element: Any) -> int:
        return kinds.total(kinds.kind_of(self.kind).decode(element))


class _Map(_Of, grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return self._plus(element, self.number, 3)


class _Index(_Of, grain.transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> Any:
        return self._plus(element, index)


class _Random(_Of, grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return self._plus(element, int(rng.integers(1000)))


class _Filter(_Of, grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return self._total(element) % self.number != 0


class _FlatMap(_Of, grain.transforms.FlatMap):
    def __init__(self, kind: str, number: int) -> None:
        super().__init__(kind, number)
        self.max_fan_out = number

    def flat_map(self, element: Any) -> list[Any]:
        count = self._total(element) % self.max_fan_out
        return [self._plus(element, 10 * i) for i in range(count)]


class _Draw(_Of, grain.transforms.Map):
    def map(self, element: Any) -> Any:
        import random

        return self._plus(element, int(np.random.randint(1000)) + random.randrange(1000))


_KINDS = {
    "map": _Map,
    "map_with_index": _Index,
    "random_map": _Random,
    "filter": _Filter,
    "flat_map": _FlatMap,
    "draw": _Draw,
}


def operations(pipeline: Pipeline) -> list[Any]:
    """Returns the operations of a pipeline."""
    found: list[Any] = []
    # A batch of batches of unequal sizes does not stack, so such pipelines collect objects.
    stacks = kinds.kind_of(pipeline.kind).stacks
    for kind, *arguments in pipeline.operations:
        if kind == "batch":
            size, drop = arguments
            found.append(grain.transforms.Batch(size, drop, None if stacks else kinds.as_objects))
            stacks = False
        else:
            found.append(_KINDS[kind](pipeline.kind, *arguments))
    return found


def sampler(pipeline: Pipeline) -> grain.samplers.IndexSampler:
    """Returns the sampler of a pipeline."""
    return grain.samplers.IndexSampler(
        pipeline.records, shuffle=pipeline.shuffle, seed=pipeline.seed, num_epochs=pipeline.epochs
    )


def loader(
    pipeline: Pipeline,
    workers: int = 0,
    todo: Sequence[Any] | None = None,
    folder: Path | None = None,
    **settings: Any,
) -> grain.DataLoader:
    """Builds the loader of a pipeline.

    Args:
      pipeline: what to build.
      workers: worker processes.
      todo: operations in place of the pipeline's own.
      folder: for what its source keeps on disk.
      **settings: further arguments of the loader.
    """
    return grain.DataLoader(
        data_source=_source(pipeline, folder),
        sampler=sampler(pipeline),
        operations=operations(pipeline) if todo is None else todo,
        worker_count=workers,
        shard_options=grain.sharding.ShardOptions(pipeline.shard, pipeline.shards),
        lanes=pipeline.lanes,
        read_options=_reading(pipeline),
        **settings,
    )


def _reading(pipeline: Pipeline) -> grain.ReadOptions:
    return grain.ReadOptions(num_threads=pipeline.threads)


def _source(pipeline: Pipeline, folder: Path | None) -> Any:
    return sources.make(pipeline.source, pipeline.kind, pipeline.records, folder or Path())


def _dataset(pipeline: Pipeline, workers: int, todo: Sequence[Any], folder: Path | None) -> Any:
    dataset: Any = grain.MapDataset.source(_source(pipeline, folder)).seed(pipeline.seed)
    if pipeline.shuffle:
        dataset = dataset.shuffle(seed=pipeline.seed)
    dataset = dataset.repeat(pipeline.epochs)
    if pipeline.form == "stream":
        dataset = dataset.to_iter_dataset(_reading(pipeline))
    dataset = dataset.apply(list(todo))
    if pipeline.form == "map":
        dataset = dataset.to_iter_dataset(_reading(pipeline))
    options = grain.MultiprocessingOptions(num_workers=workers)
    return dataset.mp_prefetch(options) if workers else dataset


@contextlib.contextmanager
def opened(
    pipeline: Pipeline,
    folder: Path,
    workers: int = 0,
    extra: Extra = (),
    **settings: Any,
) -> Iterator[Any]:
    """Gives an iterator over a pipeline, of a loader, a dataset or a device stage; closes it all.

    Args:
      pipeline: what to build.
      folder: for what its source keeps on disk.
      workers: worker processes.
      extra: more operations.
      **settings: further arguments of a loader.
    """
    todo = operations(pipeline)
    for place, operation in reversed(extra):
        todo.insert(place, operation)
    with contextlib.ExitStack() as stack:
        if pipeline.slots is not None:
            from grain_jax._execution.engine import arena

            stack.enter_context(mock.patch.object(arena, "MAX_SLOTS", pipeline.slots))
        if pipeline.form == "loader":
            made: Any = stack.enter_context(loader(pipeline, workers, todo, folder, **settings))
        else:
            made = _dataset(pipeline, workers, todo, folder)
        if pipeline.remainder is None:
            yield stack.enter_context(contextlib.closing(iter(made)))
            return
        import jax

        stage = grain.prefetch_to_device(made, jax.devices()[0], remainder=pipeline.remainder)
        yield stack.enter_context(stage)


def total(element: Any) -> int:
    """Returns the sum over an element of numbers that may be a batch."""
    return kinds.total(plain(element))


def plain(value: Any) -> Any:
    """Returns an element of numbers as nested lists of ints."""
    return kinds.kind_of("number").decode(value)
