"""Random trees of the methods of streams: what plain Python says, from every position on."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

import grain_jax as grain
from tests.datasets.operators import test_buckets, test_mix
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")

_MOST = 60
_KINDS = ["filter", "flat", "limit", "repeat", "unbatch", "pad", "zip"]
_KINDS += ["buckets"] * 2 + ["mix"] * 3


def weight(number: int) -> int:
    """How much an element counts."""
    return number % 7


def tree(rng: random.Random, depth: int) -> tuple[grain.IterDataset[int], list[int]]:
    """A random tree whose elements are whole numbers, and these."""
    if not depth:
        numbers = [rng.randrange(1000) for _ in range(rng.randrange(25))]
        return trees.of(numbers), numbers
    build = functools.partial(tree, rng, rng.randrange(depth))
    ds, numbers = build()
    kind = rng.choice(_KINDS)
    if kind == "filter":
        return ds.filter(lambda x: x % 3 > 0), [x for x in numbers if x % 3]
    if kind == "flat":
        made = ds.flat_map(lambda x: [x] * (x % 3))
        return made, [x for x in numbers for _ in range(x % 3)]
    if kind == "limit":
        count = rng.randrange(20)
        return ds.limit(count), numbers[:count]
    if kind == "repeat":
        epochs = rng.randint(1, 3)
        return ds.repeat(epochs), numbers * epochs
    if kind == "unbatch":
        size, drop = rng.randint(1, 5), rng.random() < 0.5
        end = len(numbers) // size * size if drop else len(numbers)
        return ds.batch(size, drop_remainder=drop).unbatch().map(int), numbers[:end]
    if kind == "pad":
        padded = ds.map(lambda x: {"x": [x] * (x % 4)}).map(_as_array).pad({"x": 3})
        return padded.map(lambda e: int(e["x"].sum() + e["x_mask"].sum())), [
            x % 4 * (x + 1) for x in numbers
        ]
    if kind == "buckets":
        sizes = [rng.randint(1, 4) for _ in range(3)]
        window, drop = rng.choice([1, 3, 8, 100]), rng.random() < 0.3
        made = ds.bucket_by_length(
            weight, [1, 4], sizes, window=window, drop_remainder=drop, batch_fn=sum
        )
        lengths = [weight(x) for x in numbers]
        groups = test_buckets.expected(lengths, [1, 4], sizes, window, drop)
        return made, [sum(numbers[n] for n in group) for group in groups]
    others = [(ds, numbers), *(build() for _ in range(rng.randint(1, 2)))]
    streams, elements = [one for one, _ in others], [two for _, two in others]
    if kind == "zip":
        made = grain.IterDataset.zip(streams, strict=False).map(sum)
        return made, [sum(row) for row in zip(*elements, strict=False)]
    weights = [rng.randint(1, 5) for _ in streams]
    weigh = rng.choice([None, weight])
    stop: Any = rng.choice(["first", "all", "repeat"] if all(elements) else ["first", "all"])
    scaled = [int(one * 100 / min(weights)) for one in weights]
    expected = test_mix.blended(elements, scaled, stop, weigh, _MOST)
    given: Any = streams, weights
    if rng.random() < 0.5:
        names = [f"part {place}" for place in range(len(streams))]
        given = [dict(zip(names, one, strict=True)) for one in given]
    return grain.IterDataset.mix(*given, stop=stop, weigh=weigh).limit(_MOST), expected


def _as_array(element: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    return {"x": np.array(element["x"], np.int64)}


@pytest.mark.parametrize("seed", range(60))
def test_a_tree_in_process(seed: int) -> None:
    stream, expected = tree(random.Random(seed), 4)
    assert trees.check(stream, workers=[0]) == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_with_workers(seed: int) -> None:
    rng = random.Random(100 + seed)
    stream, expected = tree(rng, 4)
    assert trees.check(stream, workers=[3 if seed % 2 else 1]) == expected
