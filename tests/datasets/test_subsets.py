"""Slices: the records of the first epoch in every epoch, whatever stands before and behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import grain_jax as grain
from grain_jax._datasets import subsets

Dataset = grain.MapDataset[Any]


def numbers(n: int = 12) -> Dataset:
    return grain.MapDataset.range(n).seed(7)


def twice(x: Any) -> Any:
    return 2 * x


class Several(grain.transforms.FlatMap):
    max_fan_out = 3

    def flat_map(self, element: int) -> list[int]:
        return [10 * element + place for place in range(element % 4)]


class Own(grain.MapDataset[Any]):
    """Hands on what a dataset below has, as a user's class does."""

    def __init__(self, parent: Dataset) -> None:
        super().__init__(parent)

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self._parent[index]


BEFORE: dict[str, Callable[[Dataset], Dataset]] = {
    "shuffle": lambda ds: ds.shuffle(),
    "two shuffles": lambda ds: ds.shuffle(1).shuffle(2),
    "map": lambda ds: ds.shuffle().map(twice),
    "filter": lambda ds: ds.shuffle().filter(lambda x: x % 3 != 0),
    "flat_map": lambda ds: ds.shuffle().flat_map(Several()),
    "batch": lambda ds: ds.shuffle().batch(2),
    "batch, dropping": lambda ds: ds.shuffle().batch(5, drop_remainder=True),
    "repeat": lambda ds: ds.shuffle().repeat(3),
    "repeat, alike": lambda ds: ds.shuffle().repeat(3, reseed_each_epoch=False),
    "repeat without an end": lambda ds: ds.shuffle().repeat(),
    "repeat, shuffle": lambda ds: ds.shuffle(1).repeat(2).shuffle(2),
    "slice": lambda ds: ds.shuffle()[1:11],
    "slice, repeat": lambda ds: ds.shuffle()[2:9].repeat(2),
    "slice, shuffle, repeat": lambda ds: ds.shuffle()[2:9].shuffle(3).repeat(2),
    "a class of one's own": lambda ds: Own(ds.shuffle()),
    "a class of one's own, repeat": lambda ds: Own(ds.shuffle()).repeat(2),
}
SLICES = st.builds(
    slice,
    st.none() | st.integers(-14, 14),
    st.none() | st.integers(-14, 14),
    st.none() | st.integers(-4, 4).filter(bool),
)
SIZED = sorted(BEFORE.keys() - {"repeat without an end"})


def plain(elements: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in elements]


@given(before=st.sampled_from(SIZED), part=SLICES, inner=SLICES)
def test_every_epoch_has_the_elements_of_the_first(before: str, part: slice, inner: slice) -> None:
    whole = BEFORE[before](numbers())
    first = [whole[i] for i in range(len(whole))[part]][inner]
    sliced = whole[part][inner]
    assert len(sliced) == len(first)
    expected = plain(element for element in first if element is not None)
    assert plain(sliced) == expected
    if first:
        assert plain(sliced.repeat(3)) == 3 * expected
        epochs = [[sliced[e * len(first) + i] for i in range(len(first))] for e in range(-2, 4)]
        assert [plain(epoch) for epoch in epochs] == 6 * [plain(first)]


@pytest.mark.parametrize("before", BEFORE)
def test_parts_that_share_nothing_stay_apart(before: str) -> None:
    whole = BEFORE[before](numbers())
    places = range(min(len(whole), 12))
    cut = len(places) // 2
    head, tail = whole[:cut], whole[cut : len(places)]
    for part, indices in ((head, places[:cut]), (tail, places[cut:])):
        expected = [whole[index] for index in indices]
        expected = plain(element for element in expected if element is not None)
        assert plain(part.repeat(3)) == 3 * expected


def test_train_and_test_share_no_record_over_all_epochs() -> None:
    whole = numbers().shuffle()
    train, test = list(whole[:8].repeat(5)), list(whole[8:].repeat(5))
    assert not set(train) & set(test)
    assert sorted(train + test) == sorted(5 * list(range(12)))


def test_a_shuffle_behind_a_slice_reorders_its_elements_in_each_epoch() -> None:
    part = numbers().shuffle()[:8]
    stream = list(part.shuffle(3).repeat(4))
    epochs = [stream[begin : begin + 8] for begin in range(0, 32, 8)]
    assert [sorted(epoch) for epoch in epochs] == 4 * [sorted(part)]
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("where", ["before", "behind"])
def test_random_steps_draw_anew_in_each_epoch(where: str) -> None:
    def noisy(x: int, rng: np.random.Generator) -> tuple[int, float]:
        return x, float(rng.random())

    whole = numbers().shuffle()
    part = whole.random_map(noisy)[:8] if where == "before" else whole[:8].random_map(noisy)
    stream = list(part.repeat(3))
    assert [x for x, _ in stream] == 3 * list(whole[:8])
    assert len({draw for _, draw in stream}) == 24
    alike = list(part.repeat(3, reseed_each_epoch=False))
    assert alike == 3 * stream[:8]


def test_an_elastic_iterator_of_a_slice() -> None:
    part = numbers().shuffle()[:8].repeat(2)
    shards = [
        grain.experimental.ElasticIterator(part, 4, grain.sharding.ShardOptions(shard, 2))
        for shard in range(2)
    ]
    taken = [element for shard in shards for batch in shard for element in batch.tolist()]
    assert sorted(taken) == sorted(2 * list(numbers().shuffle()[:8]))


@pytest.mark.parametrize(
    ("dataset", "times"),
    [
        (numbers().shuffle()[:8], None),
        (numbers()[:8].repeat(3), None),
        (numbers()[:8].shuffle().repeat(3), None),
        (numbers().shuffle().repeat(3)[:8], None),
        (numbers().shuffle()[:8].repeat(3, reseed_each_epoch=False), None),
        (numbers().shuffle().repeat(2, reseed_each_epoch=False)[:8].repeat(3), None),
        (numbers().shuffle()[:8].repeat(3, reseed_each_epoch=False).repeat(2), None),
        (numbers().shuffle()[:8].repeat(1), 1),
        (numbers().shuffle()[:8].repeat(3), 3),
        (numbers().shuffle()[:8].repeat(3).map(twice).batch(2), 3),
        (numbers().shuffle()[:8].repeat(3)[:20], 3),
        (numbers().shuffle()[:8].repeat(2).repeat(3), 6),
        (numbers().shuffle()[:8].repeat(), 0),
        (numbers().shuffle().batch(2)[:3].repeat(2), 2),
        (numbers().shuffle()[1:][:8].repeat(2), 2),
        (numbers().repeat()[:8].repeat(2), 2),
        (Own(numbers())[:8].repeat(2), 2),
        (Own(numbers()).repeat(2), None),
    ],
)
def test_which_slices_would_be_others_if_they_were_not_closed(
    dataset: Dataset, times: int | None
) -> None:
    assert subsets.times_sliced(dataset._node) == times
