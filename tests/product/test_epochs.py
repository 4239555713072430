"""`loader.epochs()`: one iterator for each epoch, with its own order, end and position."""

from __future__ import annotations

import pytest

import grain_jax as grain
from grain_jax import errors
from tests.product.pieces import Add, Odd, load, plain_list

Batch = grain.transforms.Batch
IndexSampler = grain.samplers.IndexSampler
SequentialSampler = grain.samplers.SequentialSampler
ShardOptions = grain.sharding.ShardOptions
pytestmark = pytest.mark.usefixtures("no_process_left")


def test_each_epoch_has_its_own_order_and_end() -> None:
    sampler = IndexSampler(10, shuffle=True, seed=1, num_epochs=3)
    loader = load(Batch(4), source=range(10), sampler=sampler)
    orders = [[sampler[10 * e + i].record_key for i in range(10)] for e in range(3)]
    found = [plain_list(epoch) for epoch in loader.epochs()]
    assert found == [[o[:4], o[4:8], o[8:]] for o in orders]
    assert [plain_list(epoch) for epoch in loader.epochs(start=2)] == found[2:]
    assert list(loader.epochs(start=3)) == []


def test_resume_inside_an_epoch() -> None:
    sampler = IndexSampler(10, shuffle=True, seed=1, num_epochs=3)
    loader = load(Batch(4), source=range(10), sampler=sampler)
    first, second, third = loader.epochs()
    expected = plain_list(second)
    begun = next(loader.epochs(start=1))
    next(begun)
    resumed = next(loader.epochs(start=1))
    resumed.set_state(begun.get_state())
    assert plain_list(resumed) == expected[1:]
    for other, message in ((first, "ends at 10"), (third, "begins at 20.*epochs")):
        with pytest.raises(errors.StateError, match=message):
            other.set_state(begun.get_state())


def test_resume_inside_an_epoch_of_unknown_length() -> None:
    sampler = IndexSampler(10, shuffle=True, seed=1, num_epochs=3)
    loader = load(Odd(), Batch(2), source=range(10), sampler=sampler)
    first, second, third = loader.epochs()
    expected = plain_list(second)
    begun = next(loader.epochs(start=1))
    next(begun)
    resumed = next(loader.epochs(start=1))
    resumed.set_state(begun.get_state())
    assert plain_list(resumed) == expected[1:]
    for other in (first, third):
        with pytest.raises(errors.StateError, match="epoch"):
            other.set_state(begun.get_state())


@pytest.mark.parametrize("drop", [False, True])
def test_epochs_over_shards(drop: bool) -> None:
    # Each epoch by itself has 11 records: 3, 3 and 3 in full steps of one, then the rest.
    sampler = IndexSampler(11, num_epochs=2)
    for epoch in range(2):
        found = []
        for index in range(3):
            options = ShardOptions(index, 3, drop_remainder=drop)
            loader = load(source=range(11), sampler=sampler, shard_options=options)
            found.append(list(list(loader.epochs())[epoch]))
        rest: list[list[int]] = [[], [], []] if drop else [[9], [10], []]
        assert found == [[i, i + 3, i + 6, *rest[i]] for i in range(3)]


@pytest.mark.parametrize("drop", [False, True])
def test_batches_of_an_epoch_do_not_reach_into_the_next(drop: bool) -> None:
    sampler = IndexSampler(5, num_epochs=2)
    loader = load(Batch(2, drop), source=range(5), sampler=sampler)
    one = [[0, 1], [2, 3]] if drop else [[0, 1], [2, 3], [4]]
    assert [plain_list(epoch) for epoch in loader.epochs()] == [one, one]
    assert plain_list(loader) == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


def test_epochs_of_an_endless_sampler() -> None:
    loader = load(Batch(3), source=range(4), sampler=IndexSampler(4, shuffle=True, seed=0))
    epochs = loader.epochs(start=1_000)
    for _ in range(3):
        assert sorted(x for batch in next(epochs) for x in batch.tolist()) == [0, 1, 2, 3]


def test_epochs_of_a_sharded_sampler() -> None:
    sampler = IndexSampler(7, ShardOptions(1, 2), num_epochs=2)
    loader = load(Batch(2), source=range(7), sampler=sampler)
    assert [plain_list(epoch) for epoch in loader.epochs()] == [[[4, 5], [6]]] * 2


def test_epochs_with_workers_and_an_edit_between() -> None:
    add = Add(0)
    sampler = IndexSampler(3, num_epochs=3)
    found = []
    with load(add, source=range(3), sampler=sampler, worker_count=1) as loader:
        for number, epoch in enumerate(loader.epochs()):
            found.append(list(epoch))
            add.amount = 10 * (number + 1)
    assert found == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
