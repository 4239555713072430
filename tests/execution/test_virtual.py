"""Datasets dealt out over shards: mixtures, packs and windows on any number of processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors
from tests.product.shards import restore, save

Shard = grain.sharding.ShardOptions
Stream = grain.IterDataset[Any]
Make = Callable[[Stream, Stream], Stream]

pytestmark = pytest.mark.usefixtures("no_process_left")

SHARDS, ROWS = 8, 16
OPTIONS = grain.MultiprocessingOptions(num_workers=1)


def parts(shard: int = 0, shards: int = 1) -> list[Stream]:
    """Two sources, or what a shard has of them."""
    records = (range(190)[shard::shards], range(1000, 1190)[shard::shards])
    return [grain.MapDataset.source(part).to_iter_dataset() for part in records]


def odd(number: int) -> bool:
    return number % 2 > 0


def mixed(a: Stream, b: Stream) -> Stream:
    return grain.IterDataset.mix([a.filter(lambda x: x % 3 > 0), b], [2, 1])


def packed(a: Stream, b: Stream) -> Stream:
    tokens = mixed(a, b).map(lambda x: {"tokens": np.full(1 + x % 4, x)})
    return grain.experimental.FirstFitPackIterDataset(
        tokens, length_struct={"tokens": 8}, num_packing_bins=3
    )


TREES: dict[str, Make] = {
    "mix": mixed,
    "pack": packed,
    "zip": lambda a, b: grain.experimental.ZipIterDataset([mixed(a, b), b], strict=False).map(list),
    "window": lambda a, b: grain.experimental.WindowShuffleIterDataset(
        mixed(a, b), window_size=5, seed=3
    ),
    "repeat": lambda a, b: grain.experimental.RepeatIterDataset(mixed(a, b), 2),
    "batches": lambda a, b: grain.IterDataset.mix([a.batch(2), b.batch(2)]),
    "unbatch": lambda a, b: mixed(a, b).batch(3).unbatch(),
    "interleave": lambda a, b: grain.experimental.InterleaveIterDataset(
        [mixed(a, b), b, a], cycle_length=2
    ),
    "cache": lambda a, b: mixed(a, b).cache().repeat(2),
    "all": lambda a, b: grain.IterDataset.mix([a.filter(odd), b], [2, 1], stop="all"),
    "weigh": lambda a, b: grain.IterDataset.mix([a.filter(odd), b], weigh=lambda x: 1 + x % 4),
}


def run(make: Make, count: int, workers: str = "", shards: int | None = SHARDS) -> list[Any]:
    """The processes of a run; workers stand before its batch, or behind it and before a map."""
    iterators = []
    for index in range(count):
        ds = make(*parts())
        if workers == "before":
            ds = ds.mp_prefetch(OPTIONS)
        ds = ds.batch(ROWS // count, batch_fn=list)
        if workers == "behind":
            ds = ds.mp_prefetch(OPTIONS).map(list)
        iterators.append(iter(ds.shard(Shard(index, count), virtual_shards=shards)))
    return iterators


def step(iterators: list[Any]) -> list[Any]:
    return [plain(row) for iterator in iterators for row in next(iterator, [])]


def plain(row: Any) -> Any:
    if isinstance(row, dict):
        return {key: value.tolist() for key, value in row.items()}
    return row.tolist() if isinstance(row, np.ndarray) else row


def taken(iterators: list[Any]) -> list[Any]:
    return list(iter(lambda: step(iterators), []))


def joint(iterators: list[Any]) -> Any:
    return json.loads(json.dumps({"processes": [it.get_state() for it in iterators]}))


def close(*runs: list[Any]) -> None:
    for iterators in runs:
        for iterator in iterators:
            iterator.close()


def expected(make: Make, shards: int = SHARDS) -> list[Any]:
    """The trees of all shards, each over its own records, two rows of each in a step."""
    rows = [[plain(row) for row in make(*parts(shard, shards))] for shard in range(shards)]
    share = ROWS // shards
    most = max(-(-len(own) // share) for own in rows)
    return [
        [row for own in rows for row in own[k * share : k * share + share]] for k in range(most)
    ]


@pytest.mark.parametrize("name", TREES)
def test_any_number_of_processes_has_the_steps_of_eight(name: str) -> None:
    whole = expected(TREES[name])
    assert len(whole) > 2
    for count in (1, 2, 4, 8):
        assert taken(run(TREES[name], count)) == whole


@pytest.mark.parametrize("name", TREES)
def test_a_state_goes_on_with_more_processes(name: str) -> None:
    two, eight = run(TREES[name], 2), run(TREES[name], 8)
    found = [step(two), step(two)]
    for iterator in eight:
        iterator.set_state(joint(two))
    assert found + taken(eight) == expected(TREES[name])


def test_epochs_are_those_of_the_virtual_shards() -> None:
    numbers = grain.MapDataset.range(40).repeat(2).to_iter_dataset().filter(odd)

    def epochs(count: int) -> list[list[Any]]:
        datasets = [
            numbers.batch(8 // count).shard(Shard(index, count), virtual_shards=4)
            for index in range(count)
        ]
        return [taken(list(each)) for each in zip(*(ds.epochs() for ds in datasets), strict=True)]

    shards = [[k for k in range(40)[shard::4] if k % 2] for shard in range(4)]
    once = [[row for own in shards for row in own[at : at + 2]] for at in range(0, 10, 2)]
    assert epochs(1) == epochs(2) == epochs(4) == [once, once]


@pytest.mark.parametrize("workers", ["before", "behind"])
def test_workers_may_stand_before_the_batch_and_behind_it(workers: str) -> None:
    """They move work, and mean nothing for who joins whom."""
    whole = expected(packed)
    begun = run(packed, 2, workers)
    found = [step(begun)]
    resumed = run(packed, 1, workers)
    resumed[0].set_state(joint(begun))
    assert found + taken(resumed) == whole
    assert found + taken(begun) == whole
    close(begun, resumed)


def test_a_checkpoint_goes_on_with_another_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for place, count in enumerate((4, 2, 8, 1)):
        running = run(packed, count)
        if place:
            restore(running, tmp_path / f"{place - 1}", monkeypatch)
        found.append(step(running))
        save(running, tmp_path / f"{place}", monkeypatch)
    assert found + taken(running) == expected(packed)


def test_without_virtual_shards_those_of_the_first_run_stay() -> None:
    four = run(mixed, 4, shards=None)
    found = [step(four)]
    (alone,) = run(mixed, 1, shards=None)
    alone.set_state(joint(four))
    assert found + taken([alone]) == expected(mixed, 4)
    with pytest.raises(errors.StateError, match=r"begun with 4 shards.*Restore it on 1, 2 or 4"):
        run(mixed, 8, shards=None)[0].set_state(joint(four))


def test_a_mixture_of_random_access_is_elastic_as_one_source_is() -> None:
    def make(index: int, count: int) -> Any:
        sources = [grain.MapDataset.range(40), grain.MapDataset.range(100, 140)]
        mixture = grain.MapDataset.mix(sources, [3, 1]).shuffle(seed=1)
        both = grain.MapDataset.concatenate([mixture, grain.MapDataset.range(7)])
        ds = both.to_iter_dataset().batch(12 // count)
        return iter(ds.shard(Shard(index, count), virtual_shards=count))

    def rows(iterators: list[Any]) -> list[int]:
        return sorted(row for it in iterators for row in next(it, np.zeros(0, int)).tolist())

    whole, most = [make(0, 1)], 6
    wanted = [rows(whole) for _ in range(most)]
    running, found = [make(index, 4) for index in range(4)], []
    for count in (3, 1, 2, 6, 4):
        found.append(rows(running))
        states = [iterator.get_state() for iterator in running]
        assert all(state["elastic"] and state == states[0] for state in states)
        running = [make(index, count) for index in range(count)]
        for iterator in running:
            iterator.set_state(states[0])
    assert [*found, rows(running)] == wanted


def limited(count: int) -> Make:
    return lambda a, b: grain.experimental.LimitIterDataset(mixed(a, b), count)


def test_a_limit_is_shared_out() -> None:
    whole = expected(limited(6))
    assert whole == [
        [row for k in range(8) for row in list(mixed(*parts(k, 8)))[:6][at : at + 2]]
        for at in (0, 2, 4)
    ]
    for count in (1, 4):
        assert taken(run(limited(48), count)) == whole
    with pytest.raises(
        errors.InvalidValueError, match=r"limit\(50\).*8 shards.*limit\(48\) or limit\(56\)"
    ):
        run(limited(50), 2)


class Own(grain.IterDataset[int]):
    """A user's own."""

    def __iter__(self) -> Any:
        return iter(range(9))


def test_what_cannot_be_dealt_out_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"Own has no positions.*over 8 shards.*begin with"):
        run(lambda a, b: grain.IterDataset.mix([a, Own()]), 1)
    with pytest.raises(TypeError, match="over 2 shards"):
        run(lambda a, b: Own(), 2, shards=None)
    one_batch = "virtual_shards=8 run as one where a batch takes an equal share"
    two = Shard(0, 2)
    for ds in (
        mixed(*parts()),
        mixed(*parts()).batch(8).filter(len),
        grain.IterDataset.mix([part.batch(8) for part in parts()]),
        mixed(*parts()).map_with_index(lambda k, x: x).batch(8),
    ):
        with pytest.raises(errors.InvalidValueError, match=one_batch):
            iter(ds.shard(two, virtual_shards=8))
    with pytest.raises(errors.InvalidValueError, match=r"batch of 6 .* 4 virtual shards"):
        iter(mixed(*parts()).batch(6).shard(two, virtual_shards=8))
    with pytest.raises(errors.InvalidValueError, match="the 3 shards of shard_options"):
        iter(mixed(*parts()).batch(6).shard(Shard(0, 3), virtual_shards=8))


def test_bad_arguments() -> None:
    (ds, other) = parts()
    with pytest.raises(TypeError, match="shard takes a ShardOptions, got 3"):
        ds.shard(3)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidValueError, match="virtual_shards"):
        ds.shard(Shard(0, 2), virtual_shards=0)
    sharded = ds.shard(Shard(0, 2))
    with pytest.raises(errors.InvalidValueError, match="Write shard once"):
        sharded.shard(Shard(0, 2))
    with pytest.raises(errors.InvalidValueError, match="Write shard once, behind it"):
        grain.IterDataset.mix([sharded, other])


def test_it_may_stand_anywhere_in_the_tree() -> None:
    both = [part.shard(Shard(1, 2), virtual_shards=SHARDS) for part in parts()]
    ds = mixed(*both).batch(8)
    behind = mixed(*parts()).batch(8).shard(Shard(1, 2), virtual_shards=SHARDS)
    assert list(map(plain, ds)) == list(map(plain, behind))
