"""Threads that make elements ahead change neither the order nor the states."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._execution.ahead import RunAhead
from tests.compat.pairs import plain_list

experimental = grain.experimental

Make = Callable[[Any], Any]

MADE: list[Make] = [
    lambda ds: experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3),
    lambda ds: experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=0),
    lambda ds: experimental.multithread_prefetch(ds, 2, 2),
    lambda ds: experimental.multithread_prefetch(ds, 0, 2),
    lambda ds: experimental.multithread_prefetch(ds, 2, 0, sequential_slice=True),
]


def numbers(count: int = 40) -> Any:
    return grain.MapDataset.range(count).shuffle(seed=3).to_iter_dataset()


def pipelines(made: Make) -> list[Any]:
    """Streams with threads somewhere."""
    return [
        made(numbers()).map(lambda x: 2 * x).batch(3),
        made(numbers().filter(lambda x: x % 3 > 0)).batch(4),
        made(made(numbers()).map(lambda x: x + 1)).random_map(lambda x, rng: rng.random(), seed=5),
        experimental.ZipIterDataset([made(numbers()), numbers().map(lambda x: -x)]).batch(2),
        made(grain.IterDataset.mix([made(numbers(9)), numbers(30)], [1, 2])),
    ]


def plain(ds: Any) -> tuple[list[Any], list[Any]]:
    """The elements, and the state before each and behind the last."""
    with iter(ds) as iterator:
        found, states = [], [iterator.get_state()]
        for element in iterator:
            found.append(element)
            states.append(iterator.get_state())
    return plain_list(found), states


@pytest.mark.parametrize("made", MADE)
def test_order_and_states_are_those_without(made: Make) -> None:
    for with_threads, without in zip(pipelines(made), pipelines(lambda ds: ds), strict=True):
        expected, states = plain(without)
        assert plain(with_threads) == (expected, states)
        for place, state in enumerate(json.loads(json.dumps(states))):
            for ds in (with_threads, without):
                with iter(ds) as iterator:
                    iterator.set_state(state)
                    assert plain_list(iterator) == expected[place:]


@pytest.mark.usefixtures("no_process_left")
def test_with_worker_processes() -> None:
    options = grain.MultiprocessingOptions(num_workers=2)
    for made in MADE[:3:2]:
        for with_threads, without in zip(pipelines(made), pipelines(lambda ds: ds), strict=True):
            assert plain(with_threads.mp_prefetch(options)) == plain(without)


def test_a_thread_is_at_work() -> None:
    ds = experimental.ThreadPrefetchIterDataset(numbers(), prefetch_buffer_size=2)
    for one in (ds.map(lambda x: x + 1), experimental.multithread_prefetch(numbers(), 2, 2)):
        with iter(one) as iterator:
            next(iterator)
            assert isinstance(iterator, experimental.ThreadPrefetchDatasetIterator)
            assert isinstance(iterator, grain.DatasetIterator)
            assert isinstance(iterator._run, RunAhead)
    assert not isinstance(
        iter(experimental.ThreadPrefetchIterDataset(numbers(), prefetch_buffer_size=0)),
        experimental.ThreadPrefetchDatasetIterator,
    )


def test_records_are_read_by_the_threads_that_are_asked_for() -> None:
    def threads(ds: Any) -> list[int | None]:
        with iter(ds) as iterator:
            leaves = iterator._iterator._pipeline.plan.leaves()
            return [root.read_options.num_threads for root in leaves]

    said = grain.MapDataset.range(5).to_iter_dataset(grain.ReadOptions(num_threads=1))
    both = experimental.ZipIterDataset([numbers(5), said])
    assert threads(experimental.multithread_prefetch(both, 3, 2)) == [3, 1]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_behind_the_device_stage(taken: int) -> None:
    ds = experimental.ThreadPrefetchIterDataset(numbers().batch(4), prefetch_buffer_size=2)
    with iter(numbers().batch(4)) as plain_iterator:
        expected = [batch.tolist() for batch in plain_iterator]
    iterator = iter(ds)
    before = [next(iterator).tolist() for _ in range(taken)]
    stage = grain.prefetch_to_device(iterator)
    with stage:
        found = []
        for batch in stage:
            assert type(batch).__module__.startswith("jax")
            found.append(np.asarray(batch).tolist())
            if len(before) + len(found) == 7:
                state = stage.get_state()
    assert before + found == expected
    with grain.prefetch_to_device(ds) as again:
        again.set_state(state)
        assert [np.asarray(batch).tolist() for batch in again] == expected[7:]


def test_the_iterator_by_itself() -> None:
    with experimental.ThreadPrefetchDatasetIterator(iter(numbers(6)), 4) as iterator:
        first = [next(iterator) for _ in range(2)]
        state = iterator.get_state()
        rest = list(iterator)
        iterator.set_state(state)
        assert list(iterator) == rest
        assert first + rest == list(numbers(6))
    with iter(numbers(6)) as other:
        other.set_state(state)
        assert list(other) == rest


def test_its_number_can_be_asked_and_set() -> None:
    ds = experimental.ThreadPrefetchIterDataset(numbers().batch(4), prefetch_buffer_size=2)
    with iter(ds) as iterator:
        assert [next(iterator).tolist() for _ in range(2)] == [
            batch.tolist() for batch in numbers().batch(4)
        ][:2]
        assert experimental.get_next_index(iterator) == 2
        experimental.set_next_index(iterator, 9)
        assert [batch.tolist() for batch in iterator] == [
            batch.tolist() for batch in numbers().batch(4)
        ][9:]


def test_an_error_comes_in_its_turn() -> None:
    def fail(x: int) -> int:
        if x == 5:
            raise ArithmeticError("five")
        return x

    ds = grain.MapDataset.range(8).to_iter_dataset().map(fail)
    with iter(experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=4)) as iterator:
        assert [next(iterator) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ArithmeticError, match="five"):
            next(iterator)


def test_the_same_elements_as_in_grain(reference_grain: ModuleType) -> None:
    for make in (
        lambda library, ds: library.experimental.ThreadPrefetchIterDataset(
            ds, prefetch_buffer_size=2
        ),
        lambda library, ds: library.experimental.multithread_prefetch(ds, 2, 2),
    ):
        ours, theirs = (
            plain_list(
                make(library, library.MapDataset.range(20).shuffle(seed=1).to_iter_dataset()).batch(
                    3
                )
            )
            for library in (grain, reference_grain)
        )
        assert ours == theirs


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda ds: experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=-1),
            "prefetch_buffer_size must be at least 0, got -1",
        ),
        (lambda ds: experimental.multithread_prefetch(ds, -1, 2), "num_threads must be at least 0"),
        (lambda ds: experimental.multithread_prefetch(ds, 1, "x"), "buffer_size must be a whole"),
        (
            lambda ds: experimental.ThreadPrefetchIterDataset(
                grain.MapDataset.range(3),  # type: ignore[arg-type]
                prefetch_buffer_size=1,
            ),
            r"takes an IterDataset, got .* Write ds\.to_iter_dataset\(\)",
        ),
        (
            lambda ds: experimental.ThreadPrefetchDatasetIterator(iter(ds), -2),
            "prefetch_buffer_size must be at least 0, got -2",
        ),
    ],
)
def test_bad_input(make: Make, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make(numbers())
