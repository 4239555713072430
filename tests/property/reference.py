"""The declared stream in plain Python, written from the contract and from nothing else.

An element is a value with the position of its (last) record and its flat-map number. Values are
ints, or nested lists of ints where a batch was made.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A random pipeline: what the library and the reference both read.

    Attributes:
      records: of the source.
      epochs: how often it is read.
      seed: of the order and the random steps.
      shuffle: whether each epoch has a random order.
      shards: of the loader.
      shard: which of them.
      lanes: of the loader.
      operations: kinds and arguments.
      form: "loader"; "map" for a dataset of random access; "stream" for one of streams.
      kind: of elements; see `kinds`.
      source: see `sources`.
      remainder: "pad" or "drop" for a device stage around it; None for none.
      threads: that read; None leaves it to the library.
      slots: how many pieces of memory workers have for their results; None for the usual number.
    """

    records: int
    epochs: int
    seed: int
    shuffle: bool
    shards: int
    shard: int
    lanes: int
    operations: tuple[tuple[Any, ...], ...]
    form: str = "loader"
    kind: str = "number"
    source: str = "list"
    remainder: str | None = None
    slots: int | None = None
    threads: int | None = None

    @property
    def draws(self) -> bool:
        """Whether user code draws from the generators of the process."""
        return self.source == "drawing" or any(op[0] == "draw" for op in self.operations)

    @property
    def is_counted(self) -> bool:
        """Whether the number of elements is known before."""
        return not {"filter", "flat_map"} & {op[0] for op in self.operations}


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
    if pipeline.form == "map":
        return _random_access(pipeline, order)
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
            # A stream has no positions: there it is the number of elements before.
            places = [p if pipeline.form == "loader" else n for n, (_, p, _) in enumerate(mine)]
            mine = [(plus(v, n), p, o) for n, (v, p, o) in zip(places, mine, strict=True)]
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


def _random_access(pipeline: Pipeline, order: Sequence[int]) -> list[Any]:
    """What a dataset of random access yields: each element is a function of its index."""
    found: list[Any] = list(order)
    randoms = 0
    for op in pipeline.operations:
        present = [(index, value) for index, value in enumerate(found) if value is not None]
        if op[0] == "batch":
            size, drop = op[1:]
            end = len(found) // size * size if drop else len(found)
            found = [found[i : min(i + size, end)] for i in range(0, end, size)]
        elif op[0] == "flat_map":
            wide: list[Any] = [None] * (op[1] * len(found))
            for index, value in present:
                for i in range(total(value) % op[1]):
                    wide[op[1] * index + i] = plus(value, 10 * i)
            found = wide
        elif op[0] == "filter":
            for index, value in present:
                found[index] = value if total(value) % op[1] != 0 else None
        else:
            for index, value in present:
                if op[0] == "map":
                    found[index] = plus(3 * value if isinstance(value, int) else value, op[1])
                elif op[0] == "map_with_index":
                    found[index] = plus(value, index)
                else:
                    rng = generator(pipeline.seed, index, 0, randoms)
                    found[index] = plus(value, int(rng.integers(1000)))
            randoms += op[0] == "random_map"
    return [value for value in found if value is not None]


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


def padded(values: list[Any], pipeline: Pipeline) -> list[tuple[list[int], int]]:
    """What a device stage makes of batches of numbers: the rows, and how many more are padding.

    A batch step says how many rows there are; a dataset of random access says nothing, so that the
    first batch tells.
    """
    size = pipeline.operations[-1][1]
    if pipeline.form == "map" and values:
        size = len(values[0])
    if pipeline.remainder == "drop":
        if pipeline.is_counted and pipeline.shards > 1:
            # A step that not all shards have in full is dropped on all, where that is known.
            values = values[: pipeline.records * pipeline.epochs // (size * pipeline.shards)]
        return [(value, 0) for value in values if len(value) == size]
    return [(value, size - len(value)) for value in values]


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


# Sources that exist for each kind of element are in `sources`; these are all there are.
_FORMS = ["loader", "loader", "map", "stream"]


def draw_of_any_kind(
    rng: random.Random, sources: Mapping[str, Sequence[str]], drawing: str
) -> Pipeline:
    """Returns a random pipeline on any source and kind of element, as a loader or a dataset.

    Args:
      rng: draws.
      sources: names, and the kinds of elements that each has.
      drawing: the one that draws from the generators of the process.
    """
    source = rng.choice(list(sources))
    kind = rng.choice(sources[source])
    form = rng.choice(_FORMS)
    pipeline = dataclasses.replace(draw(rng), form=form, kind=kind, source=source)
    if form != "loader":
        pipeline = dataclasses.replace(pipeline, shards=1, shard=0, lanes=1)
    operations = list(pipeline.operations)
    if form == "map":
        operations = _without_batches_over_gaps(operations)
    if source == drawing or rng.random() < 0.1:
        operations.insert(rng.randint(0, len(operations)), ("draw",))
    if kind in DEVICE_KINDS and pipeline.lanes == 1 and rng.random() < 0.5:
        operations = [op for op in operations if op[0] != "batch"]
        if form != "map" or not {"filter", "flat_map"} & {op[0] for op in operations}:
            operations.append(("batch", rng.randint(1, 6), rng.random() < 0.3))
            pipeline = dataclasses.replace(pipeline, remainder=rng.choice(["pad", "drop"]))
    return dataclasses.replace(pipeline, operations=tuple(operations))


def draw_large_groups(rng: random.Random) -> Pipeline:
    """Returns a random pipeline whose batches are of more records than there is room for."""
    form = rng.choice(["loader", "loader", "stream"])
    gaps = rng.choice([("filter", rng.randint(2, 4)), ("flat_map", rng.randint(2, 4))])
    operations: list[tuple[Any, ...]] = [gaps, ("batch", rng.randint(20, 80), rng.random() < 0.3)]
    for kind in ("random_map", "map_with_index"):
        if rng.random() < 0.3:
            operations.insert(rng.randint(0, len(operations)), (kind,))
    return Pipeline(
        records=rng.randint(100, 400),
        epochs=rng.randint(1, 2),
        seed=rng.randint(0, 9),
        shuffle=rng.random() < 0.5,
        shards=1,
        shard=0,
        lanes=1 if form == "stream" else rng.choice([1, 1, 2]),
        operations=tuple(operations),
        form=form,
        kind=rng.choice(["number", "arrays", "text"]),
        source=rng.choice(["list", "own"]),
        slots=8,
    )


# Dicts of numbers: a padded batch has a place for the mask, and its rows have zeros.
DEVICE_KINDS = ("arrays", "columns")


def _without_batches_over_gaps(operations: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Random access refuses a batch behind what leaves gaps."""
    gaps = [n for n, op in enumerate(operations) if op[0] in ("filter", "flat_map")]
    first = min(gaps, default=len(operations))
    return [op for n, op in enumerate(operations) if op[0] != "batch" or n < first]
