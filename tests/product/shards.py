"""Shards of streams that count as they come: what each has to yield, and states of all together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import transforms
from tests.product.pieces import Add, Odd, plain, shuffled

__all__ = [
    "KINDS",
    "close",
    "expected",
    "flat",
    "four_after",
    "joint",
    "order",
    "processes",
    "restore",
    "save",
    "step",
]


class Repeat(transforms.FlatMap):
    """Of n, n % 3 outputs."""

    max_fan_out = 2

    def flat_map(self, element: int) -> list[int]:
        return [100 * element + i for i in range(element % 3)]


class Fifths(transforms.Map):
    """Fails for every fifth record."""

    def map(self, element: int) -> int:
        if element % 5 == 0:
            raise ValueError("a fifth")
        return element


SKIP = grain.ErrorPolicy(skip=ValueError)

# Operations before the batch, settings, and what they do to the records of a shard.
KINDS: dict[str, tuple[list[Any], dict[str, Any], Callable[[list[int]], list[int]]]] = {
    "filter": ([Odd()], {}, lambda records: [x for x in records if x % 2]),
    "map, filter, map": (
        [Add(), Odd(), Add()],
        {},
        lambda records: [x + 2 for x in records if x % 2 == 0],
    ),
    "flat map": (
        [Repeat()],
        {},
        lambda records: [100 * x + i for x in records for i in range(x % 3)],
    ),
    "error policy": ([Fifths()], {"on_error": SKIP}, lambda records: [x for x in records if x % 5]),
}


def order(length: int) -> list[int]:
    """The records of the two shuffled epochs that `shuffled` reads; the order itself is Grain's."""
    sampler = grain.samplers.IndexSampler(length, shuffle=True, seed=4, num_epochs=2)
    return [sampler[i].record_key for i in range(2 * length)]


def expected(kind: str, length: int, shards: int, size: int, drop: bool) -> list[list[list[int]]]:
    """For each step the batch of each shard that has one."""
    batches = []
    for shard in range(shards):
        items = KINDS[kind][2](order(length)[shard::shards])
        cut = [items[i : i + size] for i in range(0, len(items), size)]
        batches.append([batch for batch in cut if len(batch) == size or not drop])
    most = max(map(len, batches))
    return [[own[k] for own in batches if k < len(own)] for k in range(most)]


def processes(
    kind: str, length: int, count: int, size: int, drop: bool, **more: Any
) -> list[Iterator[Any]]:
    todo, given_settings, _ = KINDS[kind]
    return [
        iter(
            shuffled(
                *todo,
                transforms.Batch(size, drop),
                source=range(length),
                shard_options=grain.sharding.ShardOptions(index, count),
                **given_settings,
                **more,
            )
        )
        for index in range(count)
    ]


def four_after(steps: int) -> list[Any]:
    """The processes of a run with a filter on 4 shards, after some steps."""
    iterators = processes("filter", 80, 4, 3, False)
    for _ in range(steps):
        step(iterators)
    return iterators


def joint(iterators: list[Any]) -> bytes:
    """The states of all processes, as a checkpoint gives them to each of another number."""
    return json.dumps({"processes": [json.loads(it.get_state()) for it in iterators]}).encode()


def step(iterators: list[Any]) -> list[int]:
    """The rows of all processes together, in their order."""
    return [row for it in iterators for row in plain(next(it, np.zeros(0, int)))]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def close(iterators: list[Any]) -> None:
    for iterator in iterators:
        iterator.close()


def save(iterators: list[Any], folder: Path, patch: pytest.MonkeyPatch) -> None:
    handler = grain.checkpoint.CheckpointHandler()
    folder.mkdir(exist_ok=True)
    for index, iterator in enumerate(iterators):
        as_process(patch, index, len(iterators))
        handler.save(folder, iterator)


def restore(iterators: list[Any], folder: Path, patch: pytest.MonkeyPatch) -> None:
    handler = grain.checkpoint.CheckpointHandler()
    for index, iterator in enumerate(iterators):
        as_process(patch, index, len(iterators))
        handler.restore(folder, iterator)


def as_process(patch: pytest.MonkeyPatch, index: int, count: int) -> None:
    patch.setattr("jax.process_index", lambda: index)
    patch.setattr("jax.process_count", lambda: count)
