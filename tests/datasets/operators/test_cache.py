"""Elements that are kept for when they come again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import experimental
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")


class Noted:
    """A source that says how often it was read."""

    def __init__(self, length: int) -> None:
        self.length, self.read = length, [0]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.read[0] += 1
        return index


@pytest.mark.parametrize("length", [0, 1, 7])
def test_it_is_read_once(length: int) -> None:
    source = Noted(length)
    stream = experimental.CacheIterDataset(trees.of(source)).repeat(3)
    with iter(stream) as iterator:
        assert list(iterator) == list(range(length)) * 3
        assert source.read == [length]
        # What an iterator has kept, it has for a position that is set, too.
        iterator.set_state(json.loads(json.dumps(iter(stream).get_state())))
        assert list(iterator) == list(range(length)) * 3
        assert source.read == [length]
    assert list(stream) == list(range(length)) * 3
    assert source.read == [2 * length]


@pytest.mark.parametrize("workers", [0, 2])
def test_restored_at_every_position(workers: int) -> None:
    stream = trees.of(range(20)).filter(lambda x: x % 3).cache().repeat(3).map(lambda x: 10 * x)
    expected = [10 * x for x in range(20) if x % 3] * 3
    assert trees.check(stream, workers=[0, workers], every=3) == expected


def test_random_steps_behind_it_draw_anew_and_those_before_it_do_not() -> None:
    def noise(x: int, rng: np.random.Generator) -> tuple[Any, int]:
        return x, int(rng.integers(2**40))

    plain = trees.of(range(9)).random_map(noise, seed=1)
    cached = plain.cache().repeat(3).random_map(noise, seed=2)
    found = trees.check(cached, workers=[0, 2], every=5)
    assert found == list(plain.repeat(3).random_map(noise, seed=2))
    assert len({inner for inner, _ in found}) == 9
    assert len({drawn for _, drawn in found}) == 27


def test_a_sieve_an_operator_and_a_batch() -> None:
    stream = trees.of(range(30)).batch(4, drop_remainder=True).unbatch()
    stream = stream.window_shuffle(5, seed=1).cache().filter(lambda x: x % 2).repeat(2).batch(3)
    plain = trees.of(range(30)).batch(4, drop_remainder=True).unbatch()
    plain = plain.window_shuffle(5, seed=1).filter(lambda x: x % 2).repeat(2).batch(3)
    assert trees.same(trees.check(stream, workers=[0, 2], every=3), list(plain))


class Box:
    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_done_to_an_element_shows_in_no_later_epoch(workers: int) -> None:
    def boxed(x: int) -> Any:
        return [Box(x), {"at": [x]}]

    def spoiled(element: Any) -> tuple[int, int]:
        box, inner = element
        before = box.value, inner["at"][0]
        box.value = inner["at"][0] = -1
        return before

    stream = trees.of(range(5)).map(boxed).cache().repeat(3).map(spoiled)
    assert trees.whole(stream, workers) == [(x, x) for x in range(5)] * 3
    shown = trees.of(range(5)).map(boxed).map(lambda x: x).cache().repeat(2)
    found = []
    for element in iter(trees.with_workers(shown, workers) if workers else shown):
        found.append(element[0].value)
        spoiled(element)
    assert found == [*range(5)] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_are_read_only(workers: int) -> None:
    def changed(x: Any) -> Any:
        x += 1
        return x

    arrays = trees.of(range(5)).map(lambda x: np.full(3, x)).cache().repeat(2)
    for element in trees.whole(arrays, workers):
        assert not element.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        trees.whole(arrays.map(changed), workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_many_elements_do_not_keep_their_slots(workers: int) -> None:
    stream = trees.of(range(3000)).map(lambda x: np.full(100, x)).cache().repeat(2)
    found = trees.whole(stream.map(lambda x: int(x.sum())), workers)
    assert found == [100 * x for x in range(3000)] * 2


def test_of_an_iterable() -> None:
    opened = []

    def numbers() -> Any:
        opened.append(None)
        return iter(range(9))

    stream = grain.IterDataset.from_iterable(numbers).cache().repeat(3).map(lambda x: -x)
    for workers in (0, 2):
        opened.clear()
        assert trees.whole(stream, workers) == [-x for x in range(9)] * 3
        assert len(opened) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_records_that_are_left_out_are_counted_in_each_epoch(workers: int) -> None:
    def picky(x: int) -> int:
        if x % 4 == 3:
            raise ValueError("no")
        return x

    def counted(stream: Any) -> tuple[list[int], int]:
        policy = grain.ErrorPolicy(skip=(ValueError,))
        options = grain.MultiprocessingOptions(num_workers=workers, on_error=policy)
        with iter(stream.mp_prefetch(options)) as iterator:
            return list(iterator), iterator.skipped_count

    base = trees.of(range(24)).map(picky)
    assert counted(base.cache().repeat(2)) == counted(base.repeat(2))
