"""Random trees of streams: what plain Python says, with any workers, from every position on."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

import grain_jax as grain
from tests.datasets.operators.test_interleave import in_turn
from tests.property import sequences, stubs, trees

pytestmark = pytest.mark.usefixtures("no_process_left")

Rows = list[list[int]]


def packed(rows: Rows, length: int, bins: int) -> Iterator[list[int]]:
    """First fit, all bins at once when one is needed and none is left."""
    taken: Rows = []
    for row in [*rows, None]:
        fits = [bin for bin in taken if row is not None and len(bin) + len(row) <= length]
        if row is None or (not fits and len(taken) == bins):
            yield from (bin + [0] * (length - len(bin)) for bin in taken)
            taken, fits = [], []
        if row is not None:
            if not fits:
                taken.append([])
            (fits or taken)[0 if fits else -1].extend(row)


def shuffled(rows: Rows, window: int) -> Iterator[list[int]]:
    for number, begin in enumerate(range(0, len(rows), window)):
        part = rows[begin : begin + window]
        order = list(range(begin, begin + len(part)))
        random.Random(f"{window}/{number}").shuffle(order)
        yield from (rows[place] for place in order)


def mixed(parts: list[Rows], order: tuple[int, ...]) -> Iterator[list[int]]:
    sources = [iter(part) for part in parts]
    for number in range(sum(map(len, parts)) + 1):
        row = next(sources[order[number % len(order)]], None)
        if row is None:
            return
        yield row


Tree = tuple[grain.IterDataset[Any], Rows]


def tree(
    rng: random.Random, kind: str, depth: int, draws: bool, shard: tuple[int, int] = (0, 1)
) -> Tree:
    """A random tree, and what plain Python makes of the same sequences, or of those of a shard."""
    of = sequences.Kinded(kind)
    index, shards = shard
    if not depth:
        count = rng.randrange(26 * shards)
        rows = [
            [rng.randrange(100) for _ in range(rng.randint(1, sequences.MOST))]
            for _ in range(count)
        ]
        if rng.random() < 0.3:
            lines = [" ".join(map(str, row)) for row in rows]
            return trees.of_lines(lines).seed(3).map(of.parsed), rows[index::shards]
        elements = [of.encoded(row) for row in rows]
        if shards == 1 and rng.random() < 0.25:
            return grain.IterDataset.from_iterable(lambda: sequences.Listed(elements)), rows
        ds = grain.MapDataset.source(elements)
        # Some are read by threads where there are no workers.
        reading = grain.ReadOptions(num_threads=rng.choice([0, 0, 3]))
        return ds.seed(3).to_iter_dataset(reading), rows[index::shards]
    build = functools.partial(tree, rng, kind, rng.randrange(depth), draws, shard)
    ds, rows = build()
    if rng.random() < 0.1:
        ds = grain.experimental.multithread_prefetch(ds, 2, 2)
    choice = rng.choice(
        [
            "filter",
            "flat",
            "map",
            "limit",
            "repeat",
            "window",
            "pack",
            "split",
            "mix",
            "chain",
            "zip",
            "interleave",
            "cache",
        ]
        + ["random", "random"] * draws
    )
    if choice == "filter":
        return ds.filter(of.keeps), [row for row in rows if sum(row) % 3]
    if choice == "flat":
        return ds.flat_map(of.copies), [row for row in rows for _ in range(len(row) % 3)]
    if choice == "map":
        return ds.map(of.more), [[number + 1 for number in row] for row in rows]
    if choice == "random":
        return ds.random_map(of.noisy, seed=rng.randrange(9)), []
    if choice == "limit":
        count = rng.randint(1, 20)
        return stubs.stream(stubs.Limit(count * shards), ds), rows[:count]
    if choice == "repeat":
        epochs = rng.randint(1, 3)
        return stubs.stream(stubs.Repeat(epochs), ds), rows * epochs
    if choice == "cache":
        epochs = rng.randint(1, 3)
        return stubs.stream(stubs.Repeat(epochs), ds.cache()), rows * epochs
    if choice == "window":
        window = rng.randint(1, 6)
        return stubs.stream(stubs.Window(window), ds), list(shuffled(rows, window))
    if choice == "pack":
        bins = rng.randint(1, 4)
        grouping = stubs.FirstFit(sequences.MOST, bins)
        return stubs.stream(grouping, ds, make=of.row), list(packed(rows, sequences.MOST, bins))
    if choice == "split":
        length = rng.randint(1, sequences.MOST)
        flat = [number for row in rows for number in row]
        cut = [flat[begin : begin + length] for begin in range(0, len(flat), length)]
        return stubs.stream(stubs.Split(length), ds, make=of.pieces), cut
    other, others = build()
    if choice == "interleave":
        third, more = build()
        cycle = rng.randint(1, 3)
        parts = grain.IterDataset.interleave([ds, other, third], cycle_length=cycle)
        return parts, in_turn([rows, others, more], cycle)
    if choice == "mix":
        order = rng.choice([(0, 1), (0, 0, 1), (1, 0, 1, 1)])
        return stubs.stream(stubs.Mix(order), ds, other), list(mixed([rows, others], order))
    if choice == "chain":
        return stubs.stream(stubs.Chain(), ds, other), rows + others
    pairs = [(one + two)[: sequences.MOST] for one, two in zip(rows, others, strict=False)]
    return stubs.stream(stubs.Zip(), ds, other, make=of.joined), pairs


@pytest.mark.parametrize("seed", range(50))
def test_a_tree_in_process(seed: int) -> None:
    rng = random.Random(seed)
    kind = sequences.KINDS[seed % 4]
    stream, expected = tree(rng, kind, 4, draws=False)
    found = trees.check(stream, workers=[0])
    assert [sequences.decode(element) for element in found] == expected


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_with_workers(seed: int) -> None:
    rng = random.Random(100 + seed)
    kind = sequences.KINDS[seed % 4]
    stream, expected = tree(rng, kind, 4, draws=False)
    found = trees.check(stream, workers=[3 if seed % 2 else 1])
    assert [sequences.decode(element) for element in found] == expected


@pytest.mark.parametrize("seed", range(12))
def test_a_tree_that_draws(seed: int) -> None:
    stream, _ = tree(random.Random(200 + seed), sequences.KINDS[seed % 4], 4, draws=True)
    trees.check(stream, workers=[0, 3] if seed % 5 == 0 else [0])


def test_workers_may_stand_anywhere_in_a_tree() -> None:
    """What comes before an `mp_prefetch` is done by workers, the rest is not; all is the same."""
    of = sequences.Kinded("arrays")
    rows = [[number] * (1 + number % 5) for number in range(40)]
    parts = [
        grain.MapDataset.source([of.encoded(row) for row in rows[begin::2]]).to_iter_dataset()
        for begin in (0, 1)
    ]
    whole = trees.whole(stubs.stream(stubs.Mix((0, 1)), parts[0].filter(of.keeps), parts[1]))
    options = grain.MultiprocessingOptions(num_workers=2)
    one = stubs.stream(stubs.Mix((0, 1)), parts[0].filter(of.keeps).mp_prefetch(options), parts[1])
    both = stubs.stream(
        stubs.Mix((0, 1)),
        *(part.mp_prefetch(options) for part in (parts[0].filter(of.keeps), parts[1])),
    )
    assert trees.same(trees.whole(one.map(of.more)), [of.more(element) for element in whole])
    for stream in (one, both, both.mp_prefetch(options)):
        assert trees.same(trees.whole(stream), whole)
        with iter(stream) as iterator:
            next(iterator)
            state = json.loads(json.dumps(iterator.get_state()))
        with iter(both) as iterator:
            iterator.set_state(state)
            assert trees.same(list(iterator), whole[1:])


def test_pools_that_differ_are_refused() -> None:
    parts = [
        trees.with_workers(trees.of(range(4)), 1),
        trees.of(range(4)).mp_prefetch(
            grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=7)
        ),
    ]
    with pytest.raises(grain.errors.InvalidValueError, match="per_worker_buffer_size=1 and 7"):
        iter(stubs.stream(stubs.Chain(), *parts))
