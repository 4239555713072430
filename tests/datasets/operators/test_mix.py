"""Streams in proportion to weights."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")


def parts(*lengths: int) -> list[Any]:
    """Streams whose elements say which one, and where in it."""
    return [
        trees.of([(part, place) for place in range(length)]) for part, length in enumerate(lengths)
    ]


def chosen(weights: list[int], count: int) -> list[int]:
    """Grain's rule, one element at a time."""
    found = []
    for number in range(count):
        rest, before, after = sum(weights), number, number + 1
        for part, weight in enumerate(weights):
            less = before * (rest - weight) // rest, after * (rest - weight) // rest
            if before - less[0] != after - less[1]:
                found.append(part)
                break
            (before, after), rest = less, rest - weight
    return found


def merged(elements: list[list[Any]], weights: list[int]) -> list[Any]:
    """What plain Python makes of parts."""
    sources = [iter(part) for part in elements]
    found = []
    for part in chosen(weights, sum(map(len, elements)) + 1):
        try:
            found.append(next(sources[part]))
        except StopIteration:
            return found
    raise AssertionError


@pytest.mark.parametrize(
    ("lengths", "weights"),
    [
        ([5, 7], [1, 1]),
        ([9, 4], [3, 1]),
        ([4, 30], [1, 7]),
        ([6, 0, 3], [1, 1, 1]),
        ([20, 9, 5], [5, 3, 2]),
        ([3], [4]),
        ([0], [1]),
    ],
)
def test_elements_come_in_proportion(lengths: list[int], weights: list[int]) -> None:
    made = grain.IterDataset.mix(parts(*lengths), weights)
    scaled = [int(weight * 100 / min(weights)) for weight in weights]
    apart = [[(part, place) for place in range(size)] for part, size in enumerate(lengths)]
    assert trees.check(made, workers=[0]) == merged(apart, scaled)


def test_equal_shares_without_weights() -> None:
    assert trees.whole(grain.IterDataset.mix(parts(2, 3))) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_filtered_and_batched_parts_with_workers() -> None:
    one, other = parts(40, 60)
    one = one.filter(lambda pair: pair[1] % 3 > 0).map(lambda pair: pair[1])
    made = grain.IterDataset.mix([one, other.map(lambda pair: -pair[1])], [2, 1]).batch(4)
    kept = [[n for n in range(40) if n % 3], [-n for n in range(60)]]
    found = trees.check(made, workers=[0, 2], every=3)
    assert np.concatenate(found).tolist() == merged(kept, [200, 100])


def test_random_steps_behind_it_draw_otherwise_for_each_part() -> None:
    def noise(pair: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(1 << 60))

    made = grain.IterDataset.mix(parts(50, 50)).random_map(noise, seed=3)
    assert len(set(trees.check(made, workers=[0], every=9))) == 100


def test_thousands_of_elements_are_those_of_the_random_access_mixture() -> None:
    """Choices are planned some thousands at a time."""
    lengths, weights = [9000, 9000, 9000], [7, 2, 4]
    apart = [grain.MapDataset.range(n * 10**6, n * 10**6 + size) for n, size in enumerate(lengths)]
    expected = list(grain.MapDataset.mix(apart, weights))
    made = grain.IterDataset.mix([part.to_iter_dataset() for part in apart], weights)
    with iter(made) as iterator:
        assert list(itertools.islice(iterator, len(expected))) == expected
        state = iterator.get_state()
    with iter(made) as iterator:
        iterator.set_state(state)
        rest = list(iterator)
    assert expected + rest == list(made)


def test_a_part_is_not_asked_for_more_than_its_share() -> None:
    asked = []

    def noted(pair: Any) -> Any:
        asked.append(pair)
        return pair

    one, other = parts(9, 9)
    stream = iter(grain.IterDataset.mix([one.map(noted), other], [1, 8]))
    assert [next(stream) for _ in range(8)].count((0, 0)) == 1
    assert asked == [(0, 0)]


def test_parts_by_name() -> None:
    one, other = parts(9, 9)
    named = grain.IterDataset.mix({"web": one, "books": other}, {"books": 1, "web": 3})
    assert list(named) == list(grain.IterDataset.mix([one, other], [3, 1]))
    assert repr(named).startswith("mix(weights={'books': 1, 'web': 3})")
    with iter(named) as iterator:
        next(iterator)
        state = iterator.get_state()
    renamed = grain.IterDataset.mix({"web": one, "code": other}, {"code": 1, "web": 3})
    with (
        iter(renamed) as iterator,
        pytest.raises(grain.errors.StateError, match=r"'books'.*'code'"),
    ):
        iterator.set_state(state)


def test_a_state_of_other_weights_is_refused() -> None:
    with iter(grain.IterDataset.mix(parts(9, 9), [1, 2])) as iterator:
        next(iterator)
        state = iterator.get_state()
    with (
        iter(grain.IterDataset.mix(parts(9, 9), [2, 1])) as iterator,
        pytest.raises(grain.errors.StateError, match=r"100, 200.*200, 100"),
    ):
        iterator.set_state(state)


def test_mixtures_of_mixtures() -> None:
    a, b, c = ([(part, place) for place in range(9)] for part in range(3))
    inner = grain.IterDataset.mix([trees.of(a), trees.of(b)], [1, 2])
    made = grain.IterDataset.mix([inner, trees.of(c)], [3, 1])
    assert trees.check(made, workers=[0]) == merged([merged([a, b], [100, 200]), c], [300, 100])


@pytest.mark.parametrize(
    ("names", "weights", "text"),
    [
        (False, [1], "1 weights for 2 datasets"),
        (False, [1, 0], "weight 1 of mix is 0"),
        (False, [-2, 1], "weight 0 of mix is -2"),
        (False, [1, float("nan")], "weight 1 of mix is nan"),
        (False, {"a": 1, "b": 1}, "weights by name"),
        (True, [1, 2], r"Give the weights by name, too: \{'a': 1, 'b': 1\}"),
        (True, {"a": 1}, "'b' is not in both"),
        (True, {"a": 1, "b": 2, "c": 3}, "'c' is not in both"),
    ],
)
def test_bad_weights_are_refused(names: bool, weights: Any, text: str) -> None:
    datasets: Any = dict(zip("ab", parts(3, 3), strict=True)) if names else parts(3, 3)
    with pytest.raises(grain.errors.GrainError, match=text):
        grain.IterDataset.mix(datasets, weights)


@pytest.mark.parametrize(
    ("datasets", "text"),
    [
        ([], "no datasets"),
        ({}, "no datasets"),
        (trees.of(range(3)), "takes a list of datasets"),
        ([trees.of(range(3)), grain.MapDataset.range(3)], r"dataset 1 of mix.*to_iter_dataset"),
        ({1: trees.of(range(3))}, "named 1"),
    ],
)
def test_what_is_no_list_of_streams_is_refused(datasets: Any, text: str) -> None:
    with pytest.raises(grain.errors.GrainError, match=text):
        grain.IterDataset.mix(datasets)
