"""The declared stream in plain Python, written from the contract and from nothing else.

An element is a value with the position of its (last) record and its flat-map number. Values are
ints, or nested lists of ints where a batch was made.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A random pipeline: what the library and the reference both read."""

    records: int
    epochs: int
    seed: int
    shuffle: bool
    shards: int
    shard: int
    lanes: int
    operations: tuple[tuple[Any, ...], ...]


def generator(seed: int, position: int, output: int, step: int) -> np.random.Generator:
    """Philox with key (seed, position) and counter (0, 0, output, step)."""
    bits = np.random.Philox(
        counter=np.array([0, 0, output, step], np.uint64), key=np.array([seed, position], np.uint64)
    )
    return np.random.Generator(bits)


def total(value: Any) -> int:
    """The sum over a value that may be a batch."""
    return sum(total(v) for v in value) if isinstance(value, list) else value


def plus(value: Any, number: int) -> Any:
    """Adds a number everywhere in a value."""
    return [plus(v, number) for v in value] if isinstance(value, list) else value + number


def stream(pipeline: Pipeline, order: Sequence[int]) -> list[Any]:
    """What one shard yields. `order` has the record key of every position, over all epochs."""
    lanes = [_lane(pipeline, order, lane) for lane in range(pipeline.lanes)]
    out = []
    while any(lanes):
        out += [lane.pop(0) for lane in lanes if lane]
    return out


def _lane(pipeline: Pipeline, order: Sequence[int], lane: int) -> list[Any]:
    rows = [order[i : i + pipeline.shards] for i in range(0, len(order), pipeline.shards)]
    mine = [
        (row[pipeline.shard], number * pipeline.shards + pipeline.shard, 0)
        for number, row in enumerate(rows)
        if number % pipeline.lanes == lane and pipeline.shard < len(row)
    ]
    full = sum(
        len(row) == pipeline.shards for n, row in enumerate(rows) if n % pipeline.lanes == lane
    )
    is_counted = pipeline.shards > 1  # all shards end together, as long as they can be counted
    randoms = 0
    for op in pipeline.operations:
        is_counted = is_counted and op[0] not in ("filter", "flat_map")
        if op[0] == "batch":
            mine = _batch(mine, op[1], op[2], full if is_counted else None)
        elif op[0] == "map":
            mine = [(plus(3 * v if isinstance(v, int) else v, op[1]), p, o) for v, p, o in mine]
        elif op[0] == "map_with_index":
            mine = [(plus(v, p), p, o) for v, p, o in mine]
        elif op[0] == "random_map":
            mine = [
                (plus(v, int(generator(pipeline.seed, p, o, randoms).integers(1000))), p, o)
                for v, p, o in mine
            ]
            randoms += 1
        elif op[0] == "filter":
            mine = [e for e in mine if total(e[0]) % op[1] != 0]
        elif op[0] == "flat_map":
            mine = [
                (plus(v, 10 * i), p, (o << 32) + i)
                for v, p, o in mine
                for i in range(total(v) % op[1])
            ]
    return [value for value, _, _ in mine]


def _batch(elements: list[Any], size: int, drop: bool, full_rows: int | None) -> list[Any]:
    """Batches; where shards end together, a batch that not all of them can fill is no full one."""
    whole = len(elements) // size if full_rows is None else full_rows // size
    cuts = [elements[i * size : (i + 1) * size] for i in range(whole)]
    if elements[whole * size :] and not drop:
        cuts.append(elements[whole * size :])
    return [([v for v, _, _ in cut], cut[-1][1], cut[-1][2]) for cut in cuts]


def order(pipeline: Pipeline, index_shuffle: Any) -> list[int]:
    """The record key of every position, from Grain's own permutation."""
    n = pipeline.records
    keys = []
    for epoch in range(pipeline.epochs):
        if pipeline.shuffle and n > 1:
            seed = (pipeline.seed + epoch) % 2**32
            keys += [index_shuffle(i, n - 1, seed, 4) for i in range(n)]
        else:
            keys += list(range(n))
    return keys


def draw(rng: random.Random) -> Pipeline:
    """Returns a random pipeline."""
    shards = rng.choice([1, 1, 2, 3])
    lanes = rng.choice([1, 1, 1, 2, 3])
    operations: list[tuple[Any, ...]] = []
    batches = 0
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(["map", "map_with_index", "random_map", "filter", "flat_map", "batch"])
        if kind == "batch":
            # Nested batches over shards are tested on their own.
            if batches and shards > 1:
                continue
            batches += 1
            operations.append(("batch", rng.randint(1, 6), rng.random() < 0.4))
        elif kind == "map":
            operations.append(("map", rng.randint(0, 9)))
        elif kind in ("filter", "flat_map"):
            operations.append((kind, rng.randint(2, 4)))
        else:
            operations.append((kind,))
    return Pipeline(
        records=rng.randint(1, 40),
        epochs=rng.randint(1, 3),
        seed=rng.choice([0, 1, 7, 2**32 - 1]),
        shuffle=rng.random() < 0.6,
        shards=shards,
        shard=rng.randrange(shards),
        lanes=lanes,
        operations=tuple(operations),
    )
