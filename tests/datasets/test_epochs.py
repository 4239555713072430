"""Epochs of datasets: one iterator for each, with its order, ended by it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")

SHUFFLED = grain.MapDataset.range(10).shuffle(seed=3)


def orders(count: int) -> list[list[int]]:
    """The order of each epoch."""
    whole = list(SHUFFLED.repeat(count))
    return [whole[begin : begin + 10] for begin in range(0, 10 * count, 10)]


def rows(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def test_each_epoch_has_its_order_and_no_batch_reaches_into_the_next() -> None:
    stream = SHUFFLED.repeat(3).map(lambda x: 10 * x).to_iter_dataset().batch(4)
    found = [rows(epoch) for epoch in stream.epochs()]
    assert found == [
        [[10 * x for x in order[begin : begin + 4]] for begin in (0, 4, 8)] for order in orders(3)
    ]
    assert [rows(epoch) for epoch in stream.epochs(start=1)] == found[1:]
    assert {tuple(sorted(x for batch in epoch for x in batch)) for epoch in found} == {
        tuple(range(0, 100, 10))
    }
    assert len({*map(str, found)}) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_behind_filters_restored_inside_an_epoch(workers: int) -> None:
    stream = SHUFFLED.repeat().to_iter_dataset().filter(lambda x: x % 3 > 0).batch(2)
    stream = trees.with_workers(stream, workers) if workers else stream
    kept = [[x for x in order if x % 3] for order in orders(3)]
    expected = [[epoch[begin : begin + 2] for begin in (0, 2, 4)] for epoch in kept]
    assert [rows(epoch) for epoch in itertools.islice(stream.epochs(), 3)] == expected

    second = next(stream.epochs(start=1))
    assert next(second).tolist() == expected[1][0]
    state = second.get_state()
    second.close()
    with next(stream.epochs(start=1)) as again:
        again.set_state(state)
        assert rows(again) == expected[1][1:]


def test_a_state_belongs_to_its_epoch() -> None:
    stream = SHUFFLED.repeat(3).to_iter_dataset()
    third = next(stream.epochs(start=2))
    next(third)
    state = third.get_state()
    with pytest.raises(grain.errors.StateError, match="position 21"):
        next(stream.epochs(start=1)).set_state(state)


def test_random_access_has_them_too() -> None:
    assert [list(epoch) for epoch in SHUFFLED.repeat(2).epochs()] == orders(2)
    assert [list(epoch) for epoch in SHUFFLED.epochs()] == orders(1)
    copies = grain.MapDataset.range(2).repeat(2).flat_map(_Twice()).map(lambda x: x + 1)
    assert [list(epoch) for epoch in copies.epochs()] == [[1, 1, 2, 2]] * 2


class _Twice(grain.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: int) -> list[int]:
        return [element] * 2


def test_random_steps_draw_as_in_the_whole_stream() -> None:
    drawn = (
        grain.MapDataset.range(4).seed(1).repeat(2).random_map(lambda x, rng: float(rng.random()))
    )
    assert [x for epoch in drawn.epochs() for x in epoch] == list(drawn)


@pytest.mark.parametrize(
    "behind",
    [
        lambda ds: ds.batch(4),
        lambda ds: ds[:15],
        lambda ds: ds.shuffle(seed=1),
        lambda ds: grain.MapDataset.mix([ds, ds]),
        lambda ds: grain.MapDataset.mix([SHUFFLED, SHUFFLED], stop="repeat"),
    ],
)
def test_epochs_that_cannot_be_told_apart_are_refused_at_the_call(behind: Any) -> None:
    with pytest.raises(grain.errors.InvalidValueError, match=r"where an epoch ends.*repeat\(\) la"):
        behind(SHUFFLED.repeat(2)).epochs()


def test_what_has_no_epochs_is_refused_at_the_call() -> None:
    mixed = grain.IterDataset.mix([trees.of(range(3)), trees.of(range(3))])
    with pytest.raises(grain.errors.InvalidValueError, match="begins with one MapDataset"):
        mixed.epochs()
    with pytest.raises(grain.errors.InvalidValueError, match="start must be at least 0, got -1"):
        SHUFFLED.epochs(start=-1)


def test_an_epoch_that_yields_nothing_is_refused() -> None:
    stream = SHUFFLED.repeat().to_iter_dataset().batch(16, drop_remainder=True)
    assert len(np.asarray(next(iter(stream)))) == 16
    with pytest.raises(grain.errors.InvalidValueError, match="drops all of its 10 elements"):
        next(stream.epochs())
