"""The loader: who shards, epochs, samplers of one's own, indices, draws, copies, lengths."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors
from tests.product.pieces import Add, Odd, load
from tests.property.reference import generator

Batch = grain.transforms.Batch
IndexSampler = grain.samplers.IndexSampler
SequentialSampler = grain.samplers.SequentialSampler
ShardOptions = grain.sharding.ShardOptions
pytestmark = pytest.mark.usefixtures("no_process_left")


class Split(grain.transforms.FlatMap):
    max_fan_out = 3

    def flat_map(self, element: Any) -> list[Any]:
        return [element] * (element % 3)


class Draw(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return int(rng.integers(2**40))


class Where(grain.transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> Any:
        return (index, int(element))


# Sharding.


@pytest.mark.parametrize("index", range(3))
def test_the_loaders_shards_stride_the_global_order(index: int) -> None:
    sampler = IndexSampler(10, shuffle=True, seed=3, num_epochs=1)
    order = [sampler[i].record_key for i in range(10)]
    mine = load(source=range(10), sampler=sampler, shard_options=ShardOptions(index, 3))
    assert list(mine) == order[index::3]


@pytest.mark.parametrize("index", range(3))
def test_the_samplers_shards_are_blocks(index: int) -> None:
    sampler = IndexSampler(10, ShardOptions(index, 3), num_epochs=2)
    block = [range(4), range(4, 7), range(7, 10)][index]
    assert list(load(source=range(10), sampler=sampler)) == [*block, *block]


def test_a_sequential_sampler_strides() -> None:
    for index in range(3):
        sampler = SequentialSampler(10, ShardOptions(index, 3))
        assert list(load(source=range(10), sampler=sampler)) == list(range(10))[index::3]


def test_equal_options_in_both_mean_the_samplers_with_a_warning() -> None:
    options = ShardOptions(1, 2)
    with pytest.warns(UserWarning, match="sampler's is used") as caught:
        both = grain.DataLoader(
            data_source=range(12),
            sampler=IndexSampler(12, options, num_epochs=1),
            shard_options=options,
        )
    assert caught[0].filename == __file__
    assert list(both) == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("given", [None, grain.sharding.NoSharding(), ShardOptions(0, 1)])
def test_one_shard_of_one_is_no_sharding(given: ShardOptions | None) -> None:
    sampler = IndexSampler(12, ShardOptions(1, 2), num_epochs=1)
    assert list(load(sampler=sampler, shard_options=given)) == [6, 7, 8, 9, 10, 11]
    assert list(load(shard_options=given)) == list(range(12))


def test_load_shards_at_the_loader() -> None:
    shards = [
        list(grain.load(range(7), num_epochs=1, shard_options=ShardOptions(i, 2))) for i in range(2)
    ]
    assert shards == [[0, 2, 4, 6], [1, 3, 5]]


def test_shards_that_drop_a_remainder_are_equally_long() -> None:
    shards = [
        list(load(source=range(11), shard_options=ShardOptions(i, 3, drop_remainder=True)))
        for i in range(3)
    ]
    assert shards == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_dropping_acts_once_on_the_whole_stream() -> None:
    # 11 records twice are 22, of which one goes, not two in each epoch.
    sampler = IndexSampler(11, num_epochs=2)
    shards = [
        list(
            load(
                source=range(11),
                sampler=sampler,
                shard_options=ShardOptions(i, 3, drop_remainder=True),
            )
        )
        for i in range(3)
    ]
    assert [len(shard) for shard in shards] == [7, 7, 7]
    assert sorted(x for shard in shards for x in shard) == sorted([*range(11), *range(10)])


def test_more_shards_than_records() -> None:
    shards = [list(load(source=range(2), shard_options=ShardOptions(i, 4))) for i in range(4)]
    assert shards == [[0], [1], [], []]
    assert [
        len(load(Batch(3), source=range(2), shard_options=ShardOptions(i, 4))) for i in range(4)
    ] == [1, 1, 0, 0]


def test_one_jax_process_is_no_shard() -> None:
    options = grain.sharding.ShardByJaxProcess()
    assert list(load(shard_options=options)) == list(range(12))


def test_a_subclass_of_a_sampler_keeps_its_sharding() -> None:
    class Mine(IndexSampler):
        def __getitem__(self, index: int) -> grain.RecordMetadata:
            found = super().__getitem__(index)
            return grain.RecordMetadata(found.index, 11 - found.record_key)

    sampler = Mine(12, ShardOptions(1, 2), num_epochs=1)
    assert list(load(sampler=sampler)) == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        # 14 records over 2 shards: one full unit of 2 * 2 each, and the rest in one last step.
        (
            False,
            False,
            [[[[0, 2], [4, 6]], [[8, 10], [12]]], [[[1, 3], [5, 7]], [[9, 11], [13]]]],
        ),
        # Its two batches make the second one full, be the last of them short.
        (
            False,
            True,
            [[[[0, 2], [4, 6]], [[8, 10], [12]]], [[[1, 3], [5, 7]], [[9, 11], [13]]]],
        ),
        (
            True,
            False,
            [[[[0, 2], [4, 6]], [[8, 10]]], [[[1, 3], [5, 7]], [[9, 11]]]],
        ),
    ],
)
def test_nested_batches_end_for_all_shards_together(
    inner: bool, outer: bool, expected: Any
) -> None:
    found = [
        [
            [b.tolist() for b in step]
            for step in load(
                Batch(2, inner),
                Batch(2, outer, list),
                source=range(14),
                shard_options=ShardOptions(index, 2),
            )
        ]
        for index in range(2)
    ]
    assert found == expected


# Indices and draws.


# Indices and draws.


@pytest.mark.parametrize("workers", [0, 1])
def test_map_with_index_gets_the_samplers_position(workers: int) -> None:
    sampler = IndexSampler(5, shuffle=True, seed=2, num_epochs=2)
    with load(
        Where(),
        source=range(5),
        sampler=sampler,
        shard_options=ShardOptions(1, 2),
        worker_count=workers,
    ) as loader:
        assert list(loader) == [(p, sampler[p].record_key) for p in (1, 3, 5, 7, 9)]
    only = load(Odd(), Where(), source=range(5), sampler=IndexSampler(5, num_epochs=2))
    assert list(only) == [(1, 1), (3, 3), (6, 1), (8, 3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_output_of_a_flat_map_has_a_generator_of_its_own(workers: int) -> None:
    sampler = IndexSampler(6, seed=9, num_epochs=2)
    with load(Split(), Draw(), source=range(6), sampler=sampler, worker_count=workers) as loader:
        found = list(loader)
    expected = [
        int(generator(9, position, output, 0).integers(2**40))
        for position in range(12)
        for output in range(position % 6 % 3)
    ]
    assert found == expected
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("workers", [1, 2])
def test_process_wide_draws_do_not_depend_on_workers(workers: int) -> None:
    class Global(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            import random

            return (int(element), random.random(), float(np.random.rand()))

    here = list(load(Global()))
    with load(Global(), worker_count=workers) as loader:
        assert list(loader) == here
    assert len({draw for _, draw, _ in here}) == 12


def test_the_process_wide_generators_of_the_user_stay() -> None:
    class Global(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return element + 0 * np.random.rand()

    np.random.seed(7)
    expected = np.random.rand(2).tolist()
    np.random.seed(7)
    iterator = iter(load(Global()))
    found = []
    for _ in range(2):
        next(iterator)
        found.append(float(np.random.rand()))
    assert found == expected


# Copies.


@pytest.mark.parametrize("workers", [0, 1])
def test_edits_are_for_the_next_iteration(workers: int) -> None:
    add = Add(0)
    with load(add, source=range(3), worker_count=workers) as loader:
        running, waiting = iter(loader), iter(loader)
        assert next(running) == 0
        add.amount = 10
        assert list(running) == [1, 2]
        assert list(waiting) == [0, 1, 2]
        assert list(loader) == [10, 11, 12]


def test_a_copy_shares_the_source_and_its_arrays() -> None:
    class Source:
        reads = 0

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            self.reads += 1
            return index

    source = Source()
    assert list(load(source=source)) == [0, 1, 2]
    assert source.reads == 3


# Lengths and settings.


@pytest.mark.parametrize(
    ("operations", "length"),
    [([], 12), ([Add(1)], 12), ([Batch(5)], 3), ([Batch(5, True)], 2), ([Batch(2), Batch(4)], 2)],
)
def test_length_is_that_of_one_iteration(operations: list[Any], length: int) -> None:
    loader = load(*operations)
    assert len(loader) == length == len(list(loader))


@pytest.mark.parametrize("lanes", [1, 2, 5])
@pytest.mark.parametrize("shards", [1, 3])
def test_length_with_lanes_and_shards(lanes: int, shards: int) -> None:
    for index in range(shards):
        loader = load(
            Batch(2), source=range(23), lanes=lanes, shard_options=ShardOptions(index, shards)
        )
        assert len(loader) == len(list(loader))


@pytest.mark.parametrize("operation", [Odd(), Split()])
def test_no_length_where_it_is_unknown(operation: Any) -> None:
    with pytest.raises(TypeError, match="unknown; a filter, flat_map or operation"):
        len(load(operation, Batch(2)))


def test_options_as_they_were_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = load(worker_count=2, worker_buffer_size=3, enable_profiling=True, lanes=2)
    options = loader.multiprocessing_options
    assert (options.num_workers, options.per_worker_buffer_size) == (2, 3)
    assert (options.enable_profiling, options.lanes, options.strict) == (True, 2, True)
    automatic = load(worker_count=None).multiprocessing_options.num_workers
    assert 1 <= automatic <= 16


# Life.


def test_an_unfinished_iterator_ends_its_workers_when_it_is_forgotten() -> None:
    iterator = iter(load(worker_count=1))
    assert next(iterator) == 0
    del iterator
    gc.collect()  # and the fixture looks for processes


def test_break_and_begin_again() -> None:
    with load(Batch(2), worker_count=1) as loader:
        for _ in range(3):
            for batch in loader:
                assert batch.tolist() == [0, 1]
                break
        assert len(list(loader)) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_two_iterators_at_once(workers: int) -> None:
    with load(Batch(2), worker_count=workers) as loader:
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [([i, i + 1],) * 2 for i in range(0, 12, 2)]


def test_closing_the_loader_closes_its_iterators() -> None:
    loader = load(worker_count=1)
    running, done = iter(loader), iter(loader)
    next(running)
    list(done)
    loader.close()
    for iterator in (running, done):
        with pytest.raises(errors.ClosedError):
            next(iterator)
