"""A state that a dataset iterator of Grain's wrote is continued with Grain's elements."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import grain_jax
from grain_jax.errors import StateError
from tests.compat.pairs import flat_map, plain

Make = Callable[[ModuleType], Any]


def keep(x: int) -> bool:
    """Leaves more to some lanes of two or three than to others."""
    return x in {0, 1, 2, 4, 6, 7, 8, 9, 10, 12, 13, 14, 17, 22}


def numbers(library: ModuleType, count: int = 23) -> Any:
    return library.MapDataset.range(count)


def stream(library: ModuleType, count: int = 23) -> Any:
    return numbers(library, count).to_iter_dataset(library.ReadOptions(num_threads=0))


def workers(library: ModuleType, ds: Any, count: int, **settings: Any) -> Any:
    return ds.mp_prefetch(library.MultiprocessingOptions(num_workers=count), **settings)


def drop_generator(x: Any, rng: Any) -> Any:
    return x


HERE: dict[str, Make] = {
    "records": stream,
    "epochs": lambda library: (
        numbers(library, 7)
        .seed(3)
        .shuffle()
        .map(lambda x: x + 1)
        .repeat(3)
        .to_iter_dataset(library.ReadOptions(num_threads=0))
    ),
    "batches": lambda library: stream(library).map(lambda x: 2 * x).batch(4),
    "dropped": lambda library: stream(library).batch(4, drop_remainder=True),
    "random-access batches": lambda library: (
        numbers(library).batch(3).to_iter_dataset(library.ReadOptions(num_threads=0))
    ),
    "batches of batches": lambda library: (
        stream(library).batch(2, drop_remainder=True).batch(3, drop_remainder=True)
    ),
    "a filter": lambda library: stream(library).filter(keep),
    "a filter and batches": lambda library: stream(library).filter(keep).batch(3),
    "a filter between batches": lambda library: (
        stream(library).filter(keep).batch(2).filter(lambda x: x[0] != 4).batch(2, batch_fn=list)
    ),
    "gaps and batches": lambda library: (
        numbers(library)
        .filter(keep)
        .to_iter_dataset(library.ReadOptions(num_threads=0))
        .batch(3, drop_remainder=True)
    ),
    "indices": lambda library: stream(library).map_with_index(lambda i, x: (i, x)).batch(2),
    "random": lambda library: (
        stream(library).seed(1).random_map(drop_generator).random_map(drop_generator).batch(2)
    ),
    "mixed at random access": lambda library: (
        library.MapDataset.mix([numbers(library, 9), numbers(library, 30)], [1, 2])
        .to_iter_dataset(library.ReadOptions(num_threads=0))
        .batch(4)
    ),
    "threads": lambda library: library.experimental.ThreadPrefetchIterDataset(
        stream(library).batch(4), prefetch_buffer_size=2
    ),
    "options": lambda library: library.experimental.WithOptionsIterDataset(
        stream(library).batch(4), library.experimental.DatasetOptions()
    ),
    "no workers": lambda library: workers(library, stream(library).batch(4), 0),
}

AWAY: dict[str, Make] = {
    "one": lambda library: workers(library, stream(library, 5), 1),
    "records": lambda library: workers(library, stream(library, 10), 3),
    "batches": lambda library: workers(library, stream(library, 17).batch(3), 2),
    "dropped": lambda library: workers(library, stream(library).batch(3, drop_remainder=True), 2),
    "a filter": lambda library: workers(library, stream(library).filter(keep), 3),
    "filtered batches": lambda library: workers(library, stream(library).filter(keep).batch(2), 2),
    "steps behind": lambda library: (
        workers(library, stream(library, 17).filter(keep), 2).map(lambda x: 2 * x).batch(3)
    ),
    "random behind": lambda library: (
        workers(library, stream(library, 9), 2).seed(1).random_map(drop_generator).batch(2)
    ),
}


def run(ds: Any) -> tuple[list[Any], list[Any]]:
    """The states before each element and at the end, and the elements."""
    iterator = iter(ds)
    states, elements = [iterator.get_state()], []
    for element in iterator:
        elements.append(plain(element))
        states.append(iterator.get_state())
    iterator.close()
    return json.loads(json.dumps(states)), elements


def check(theirs: Any, ours: Any) -> None:
    """Each of Grain's states goes on here with the elements that Grain has left."""
    states, elements = run(theirs)
    assert len(elements) > 1
    for place, state in enumerate(states):
        with iter(ours) as iterator:
            iterator.set_state(state)
            rest = []
            for element in iterator:
                rest.append(plain(element))
                if len(rest) == 1:
                    again = json.loads(json.dumps(iterator.get_state()))
            assert rest == elements[place:], state
        if rest:  # a state of ours, taken after one of Grain's
            with iter(ours) as iterator:
                iterator.set_state(again)
                assert [plain(element) for element in iterator] == elements[place + 1 :]


@pytest.mark.parametrize("name", HERE)
def test_states_of_iterators_without_workers(reference_grain: ModuleType, name: str) -> None:
    check(HERE[name](reference_grain), HERE[name](grain_jax))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", AWAY)
def test_states_of_iterators_with_workers(reference_grain: ModuleType, name: str) -> None:
    theirs = AWAY[name](reference_grain)

    class Here:
        """The module with `mp_prefetch` as it is without worker processes: much faster."""

        experimental, MapDataset, ReadOptions = (
            grain_jax.experimental,
            grain_jax.MapDataset,
            grain_jax.ReadOptions,
        )

        @staticmethod
        def MultiprocessingOptions(num_workers: int) -> Any:
            return grain_jax.MultiprocessingOptions(num_workers=0)

    check(theirs, AWAY[name](Here))  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_process_left")
def test_with_worker_processes_of_another_number() -> None:
    state = {
        "next_index_in_cycle": 1,
        "next_index_in_datasets": 2,
        "iterators_in_use_indices": [0, 1],
        "iterators_in_use_states": [{"next_index": 6}, {"next_index": 3}],
        "exhausted": [0, 0],
        "future_states": {},
    }
    with iter(workers(grain_jax, stream(grain_jax, 17).batch(3), 3)) as iterator:
        iterator.set_state(state)
        # The records of the second worker are the odd ones, and it has read three.
        assert [batch.tolist() for batch in iterator] == [
            [7, 9, 11],
            [12, 14, 16],
            [13, 15],
        ]


WORKERS = {
    "next_index_in_cycle": 0,
    "next_index_in_datasets": 2,
    "iterators_in_use_indices": [0, 1],
    "iterators_in_use_states": [{"next_index": 0}, {"next_index": 0}],
    "exhausted": [0, 0],
    "future_states": {},
}


@pytest.mark.parametrize(
    ("make", "state", "text"),
    [
        (stream, {"next_index": 24}, "has read 24 records, and there are 23"),
        (stream, {"next_index": -1}, "expected a whole number from 0"),
        (stream, {"next_index": "5"}, "expected a whole number from 0"),
        (stream, {"next_index": 2, "more": 1}, "no state of a dataset iterator"),
        (stream, {"parent": {"next_index": 2}, "unknown": 1}, "no state of a dataset iterator"),
        (stream, {**WORKERS, "future_states": {"0": {}}}, "no state of a dataset iterator"),
        (stream, {**WORKERS, "next_index_in_cycle": 5}, "next_index_in_cycle"),
        (
            stream,
            {**WORKERS, "iterators_in_use_states": [{"next_index": 0}, {"next_index": 12}]},
            "has read 12 records, and there are 11 for worker 1 of 2",
        ),
        (
            lambda library: workers(library, stream(library), 2, sequential_slice=True),
            WORKERS,
            "sequential_slice=True",
        ),
        (
            lambda library: stream(library).mp_prefetch(library.MultiprocessingOptions(2, lanes=3)),
            WORKERS,
            "Write lanes=2",
        ),
        (
            lambda library: library.experimental.LimitIterDataset(stream(library), 3),
            {"next_index": 1},
            "this stream is made of others",
        ),
        (
            lambda library: library.experimental.FlatMapIterDataset(
                stream(library), flat_map(library, 2, 2)
            ),
            {"next_index": 1},
            "does not say how far step 1: flat_map",
        ),
        (
            lambda library: stream(library).filter(keep).map_with_index(lambda i, x: (i, x)),
            {"parent": {"next_index": 1}, "counter": 1},
            "does not say how far step 2: map_with_index",
        ),
    ],
)
def test_what_cannot_be_continued(make: Make, state: dict[str, Any], text: str) -> None:
    ds = make(grain_jax)
    with iter(ds) as iterator, pytest.raises(StateError, match=text):
        iterator.set_state(state)
