"""Elements of several datasets in turn."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import grain_jax as grain
from grain_jax import experimental
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")

interleave = experimental.InterleaveIterDataset


def in_turn(parts: Sequence[Sequence[Any]], cycle: int) -> list[Any]:
    """What an interleave of the parts is."""
    places: list[Iterator[Any] | None] = [None] * cycle
    waiting, turn, found = [iter(part) for part in parts], 0, []
    while waiting or any(place is not None for place in places):
        if places[turn] is None and waiting:
            places[turn] = waiting.pop(0)
        place = places[turn]
        if place is not None:
            try:
                found.append(next(place))
            except StopIteration:
                places[turn] = None
        turn = (turn + 1) % cycle
    return found


def parts_of(lengths: Sequence[int]) -> list[list[int]]:
    return [[100 * part + k for k in range(length)] for part, length in enumerate(lengths)]


@pytest.mark.parametrize("seed", range(30))
def test_elements_in_turn(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randrange(7) for _ in range(rng.randint(1, 7))]
    cycle = rng.randint(1, 8)
    parts = parts_of(lengths)
    found = trees.check(interleave([trees.of(part) for part in parts], cycle_length=cycle), [0])
    assert found == in_turn(parts, cycle)
    assert sorted(found) == [x for part in parts for x in part]


@pytest.mark.parametrize("cycle", [1, 3])
def test_of_filtered_streams_with_workers(cycle: int) -> None:
    parts = parts_of([9, 4, 0, 12, 5, 7])
    made = interleave(
        [trees.of(part).filter(lambda x: x % 3) for part in parts], cycle_length=cycle
    )
    kept = [[x for x in part if x % 3] for part in parts]
    found = trees.check(made.map(lambda x: 10 * x), [0, 2], every=3)
    assert found == [10 * x for x in in_turn(kept, cycle)]


def test_random_steps_behind_it_draw_differently_for_each_element() -> None:
    made = interleave([trees.of([0] * 8) for _ in range(5)], cycle_length=2)
    drawn = made.random_map(lambda x, rng: int(rng.integers(2**40)), seed=1)
    assert len(set(trees.check(drawn, [0, 2], every=9))) == 40


def test_of_iterables_which_are_open_a_few_at_a_time() -> None:
    opened: list[int] = []
    closed: list[int] = []

    def numbers(part: int) -> Any:
        def numbered() -> Iterator[int]:
            opened.append(part)
            try:
                yield from range(10 * part, 10 * part + 4)
            finally:
                closed.append(part)

        return grain.IterDataset.from_iterable(numbered)

    made = interleave([numbers(part) for part in range(40)], cycle_length=3)
    for workers in (0, 2):
        opened.clear()
        closed.clear()
        stream = made.map(lambda x: x)
        with iter(trees.with_workers(stream, workers) if workers else stream) as iterator:
            for _ in range(20):
                next(iterator)
                assert len(opened) - len(closed) <= 4 + bool(workers)
        expected = in_turn([range(10 * part, 10 * part + 4) for part in range(40)], 3)
        assert trees.whole(stream, workers) == expected


@pytest.mark.filterwarnings("ignore:.*read again and left out")
def test_of_iterables_restores() -> None:
    def numbers(part: int) -> Any:
        return grain.IterDataset.from_iterable(lambda: iter(range(10 * part, 10 * part + part)))

    made = interleave([numbers(part) for part in range(6)], cycle_length=2).map(lambda x: x + 1)
    expected = in_turn([range(10 * part, 10 * part + part) for part in range(6)], 2)
    assert trees.check(made, [0, 2], every=4) == [x + 1 for x in expected]


def test_of_a_dataset_of_datasets() -> None:
    lengths = grain.MapDataset.source([3, None, 2, 4])
    parts = lengths.map(lambda n: grain.MapDataset.range(n))
    expected = in_turn([range(3), range(2), range(4)], 2)
    assert list(parts.interleave(cycle_length=2)) == expected
    streams = parts.map(lambda ds: ds.to_iter_dataset())
    assert list(interleave(streams, cycle_length=2)) == expected
    assert list(parts.repeat(2).interleave(cycle_length=1)) == [0, 1, 2, 0, 1, 0, 1, 2, 3] * 2
    given = grain.IterDataset.interleave([grain.MapDataset.range(2)] * 2, cycle_length=2)
    assert list(given) == [0, 0, 1, 1]


def test_a_slice_of_the_datasets() -> None:
    made = interleave(
        [grain.MapDataset.range(10 * n, 10 * n + 2) for n in range(5)], cycle_length=2
    )
    made.set_slice(slice(1, None, 2))
    assert list(made) == [10, 30, 11, 31]
    assert len(made.parents) == 2
    with pytest.raises(ValueError, match=r"leaves none of 2 datasets"):
        made.set_slice(slice(2, 2))


def test_many_datasets_share_the_workers() -> None:
    """Those that are open have work under way, and not all that there are."""
    parts = [trees.of(range(3 * n, 3 * n + 3)) for n in range(300)]
    found = trees.whole(interleave(parts, cycle_length=4).map(lambda x: x), 2)
    assert found == in_turn([range(3 * n, 3 * n + 3) for n in range(300)], 4)


def test_a_state_of_other_datasets_is_refused() -> None:
    parts = [trees.of(range(3)) for _ in range(4)]
    iterator = iter(interleave(parts, cycle_length=2))
    next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    for other in (interleave(parts, cycle_length=3), interleave(parts[:3], cycle_length=2)):
        with pytest.raises(grain.errors.StateError):
            iter(other).set_state(state)
    for kept in ([2, 2, 1, 2], [0, 5, 1, 2], [0, 2, 3, 1], [0, 2, 1, 1], [0, 2, 1]):
        state["cursor"][0][1] = kept
        with pytest.raises(grain.errors.StateError):
            iter(interleave(parts, cycle_length=2)).set_state(state)


@pytest.mark.parametrize(
    ("datasets", "settings", "text"),
    [
        ([], {}, "interleave got no datasets"),
        (["a.txt"], {}, "dataset 0 of interleave is 'a.txt', which is no dataset"),
        ("a.txt", {}, "takes a list of datasets"),
        ([grain.MapDataset.range(1)], {"cycle_length": 0}, "cycle_length"),
        ([grain.MapDataset.range(1)], {"iter_buffer_size": -1}, "iter_buffer_size"),
        (grain.MapDataset.range(3), {}, "dataset 0 of interleave is 0"),
        (grain.MapDataset.range(3).repeat(), {}, "without an end"),
    ],
)
def test_what_cannot_be(datasets: Any, settings: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        interleave(datasets, **{"cycle_length": 2, **settings})
