"""The loader's iterator: its position, what restores, and what it yields wherever work is done."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors
from tests.product.pieces import Add, Odd, plain, plain_list, shuffled

Batch = grain.transforms.Batch
IndexSampler = grain.samplers.IndexSampler
ShardOptions = grain.sharding.ShardOptions
pytestmark = pytest.mark.usefixtures("no_process_left")


class Split(grain.transforms.FlatMap):
    max_fan_out = 3

    def flat_map(self, element: Any) -> list[Any]:
        return [100 * element + i for i in range(element % 4)][:3]


class Draw(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + rng.integers(0, 1000, np.shape(element))


PIPELINES: dict[str, list[Any]] = {
    "records": [Add()],
    "batches": [Add(), Batch(3)],
    "dropped": [Batch(3, drop_remainder=True), Draw()],
    "filter": [Odd(), Batch(3), Draw()],
    "flat map": [Split(), Draw(), Batch(4)],
    "flat map at the end": [Add(), Split()],
    "filter of batches": [Batch(2), Add(), grain.python.FilterOperation(lambda b: b.sum() % 3)],
    "two groupings": [
        Odd(),
        Batch(2),
        grain.python.FilterOperation(lambda b: b[0] % 4),
        Batch(2, batch_fn=list),
    ],
}


# States.


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_step_restores(name: str, lanes: int) -> None:
    expected = plain_list(shuffled(*PIPELINES[name], lanes=lanes))
    running = iter(shuffled(*PIPELINES[name], lanes=lanes))
    jumping = iter(shuffled(*PIPELINES[name], lanes=lanes))
    for step in range(len(expected) + 1):
        state = running.get_state()
        json.loads(state)
        # An unset number of lanes takes that of the state; one iterator is set again and again.
        for resumed in (jumping, iter(shuffled(*PIPELINES[name]))):
            resumed.set_state(state)
            assert resumed.get_state() == state
            assert plain_list(resumed) == expected[step:]
        assert plain(next(running, None)) == (expected[step] if step < len(expected) else None)
    assert running.get_state() == state


@pytest.mark.parametrize("name", ["batches", "filter", "flat map"])
def test_any_number_of_workers_continues_any_other(name: str) -> None:
    expected = plain_list(shuffled(*PIPELINES[name]))
    iterator = iter(shuffled(*PIPELINES[name]))
    done = 0
    for workers in (2, 0, 3, 1):
        with shuffled(*PIPELINES[name], worker_count=workers) as loader:
            following = iter(loader)
            following.set_state(iterator.get_state())
            assert next(following).tolist() == expected[done]
            done += 1
            iterator = following
            if workers == 1:
                assert plain_list(following) == expected[done:]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_that_of_the_last_element_received(workers: int) -> None:
    with shuffled(Batch(2), source=range(100), worker_count=workers) as loader:
        iterator = iter(loader)
        assert json.loads(iterator.get_state())["position"] == 0
        iterator.start_prefetch()
        assert json.loads(iterator.get_state())["position"] == 0
        for step in range(1, 6):
            next(iterator)
            assert json.loads(iterator.get_state())["position"] == 2 * step


def test_states_say_nothing_of_workers() -> None:
    states = []
    for workers in (0, 1, 2):
        with shuffled(Odd(), Batch(2), worker_count=workers) as loader:
            iterator = iter(loader)
            next(iterator)
            states.append(iterator.get_state())
    assert states[0] == states[1] == states[2]


def test_a_state_given_at_once() -> None:
    loader = shuffled(Batch(3))
    iterator = iter(loader)
    expected = plain_list(loader)
    next(iterator)
    state = json.loads(iterator.get_state())
    assert plain_list(grain.DataLoaderIterator(loader, None)) == expected
    assert plain_list(grain.DataLoaderIterator(loader, state)) == expected[1:]
    assert repr(iterator) == f"DataLoaderIterator(state={iterator.get_state().decode()})"


def test_a_changed_batch_size_counts_records() -> None:
    iterator = iter(shuffled(Batch(4)))
    for _ in range(3):
        next(iterator)
    records = plain_list(shuffled())
    resumed = iter(shuffled(Batch(5)))
    resumed.set_state(iterator.get_state())
    assert [x for batch in resumed for x in batch.tolist()] == records[12:]


def test_more_epochs_and_fewer() -> None:
    def epochs(count: int) -> grain.DataLoaderIterator:
        sampler = IndexSampler(20, shuffle=True, seed=4, num_epochs=count)
        return iter(shuffled(Batch(4), sampler=sampler))

    second = epochs(2)
    for _ in range(7):
        next(second)
    more = epochs(3)
    more.set_state(second.get_state())
    assert plain_list(more) == plain_list(epochs(3))[7:]
    with pytest.raises(errors.StateError, match=r"position 28.*ends at 20.*as many epochs"):
        epochs(1).set_state(second.get_state())


def test_fewer_epochs_where_counts_are_unknown() -> None:
    def epochs(count: int) -> grain.DataLoaderIterator:
        sampler = IndexSampler(20, shuffle=True, seed=4, num_epochs=count)
        return iter(shuffled(Odd(), Batch(3), sampler=sampler))

    second = epochs(2)
    for _ in range(5):
        next(second)
    more = epochs(3)
    more.set_state(second.get_state())
    assert plain_list(more) == plain_list(epochs(3))[5:]
    with pytest.raises(errors.StateError, match=r"this stream has 20.*as many epochs"):
        epochs(1).set_state(second.get_state())


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("records", [11, 12, 16])
def test_states_of_all_shards_are_equal_at_every_step(drop: bool, even: bool, records: int) -> None:
    sampler = IndexSampler(records, shuffle=True, seed=1, num_epochs=2)
    shards = [
        iter(
            shuffled(
                Batch(2, drop),
                source=range(records),
                sampler=sampler,
                shard_options=ShardOptions(index, 3, drop_remainder=even),
            )
        )
        for index in range(3)
    ]
    for _ in range(2 * records):
        assert len({shard.get_state() for shard in shards}) == 1
        ended = [next(shard, None) is None for shard in shards]
        if all(ended):
            break
    assert len({shard.get_state() for shard in shards}) == 1
    # The end is the end for any other number of shards, too.
    other = shuffled(
        Batch(2, drop),
        source=range(records),
        sampler=sampler,
        shard_options=ShardOptions(0, 2, drop_remainder=even),
    )
    resumed = iter(other)
    resumed.set_state(shards[0].get_state())
    # Three shards took whole steps of six if they drop, and what divides by three if it is even.
    total = 2 * records
    taken = total - total % 3 if even else total
    taken -= taken % 6 if drop else 0
    # Of the rest this shard has every second one.
    end = total - total % 2 if even else total
    left = [sampler[position].record_key for position in range(taken, end)]
    left = left[: len(left) // 4 * 4][::2] if drop else left[::2]
    assert plain_list(resumed) == [left[i : i + 2] for i in range(0, len(left), 2)]


def test_lanes_of_the_state_win_over_an_unset_argument_only() -> None:
    iterator = iter(shuffled(Batch(2), lanes=3))
    next(iterator)
    with pytest.raises(errors.StateError, match=r"lanes=3.*lanes=2.*leave lanes out"):
        iter(shuffled(Batch(2), lanes=2)).set_state(iterator.get_state())
    with pytest.raises(errors.StateError, match=r"lanes=3.*lanes=1"):
        iter(shuffled(Batch(2), lanes=1)).set_state(iterator.get_state())


def test_a_sampler_shard_is_its_own() -> None:
    def shard(index: int, count: int) -> grain.DataLoaderIterator:
        return iter(shuffled(Batch(2), sampler=IndexSampler(20, ShardOptions(index, count))))

    first = shard(0, 2)
    expected = [next(first).tolist() for _ in range(6)]
    begun = shard(0, 2)
    for _ in range(3):
        next(begun)
    resumed = shard(0, 2)
    resumed.set_state(begun.get_state())
    assert [next(resumed).tolist() for _ in range(3)] == expected[3:]
    with pytest.raises(errors.StateError, match=r"shard 0 of 2 given to the sampler.*shard 1 of 2"):
        shard(1, 2).set_state(begun.get_state())
    with pytest.raises(errors.StateError, match=r"kind of sharding.*'sampler'.*'none'"):
        shard(0, 1).set_state(begun.get_state())


def test_not_strict_warns_and_goes_on() -> None:
    iterator = iter(shuffled(Batch(4)))
    for _ in range(2):
        next(iterator)
    sampler = IndexSampler(20, shuffle=True, seed=5, num_epochs=2)
    lenient = iter(shuffled(Batch(4), sampler=sampler, strict=False))
    with pytest.warns(UserWarning, match=r"another pipeline.*seed=4.*seed=5"):
        lenient.set_state(iterator.get_state())
    assert plain_list(lenient) == plain_list(shuffled(Batch(4), sampler=sampler))[2:]
    with pytest.warns(UserWarning, match="seed=4"):
        grain.DataLoaderIterator(
            shuffled(Batch(4), sampler=sampler),
            json.loads(iterator.get_state()),
            validate_state=False,
        )


def records_read(cursor: Any) -> int:
    """How many records were read where a cursor of one leaf stands."""
    while not isinstance(cursor[0], int):
        ((cursor,), _, _) = cursor[0]
    count: int = cursor[0]
    return count


def test_not_strict_goes_on_with_other_steps() -> None:
    counted, uncounted = iter(shuffled(Batch(4))), iter(shuffled(Odd(), Batch(4)))
    next(counted)
    next(uncounted)
    position = records_read(json.loads(uncounted.get_state())["cursor"])
    records = plain_list(shuffled())
    to_uncounted = iter(shuffled(Odd(), strict=False))
    with pytest.warns(UserWarning, match="differs|another") as caught:
        to_uncounted.set_state(counted.get_state())
    assert "steps that change counts" in str(caught[0].message)
    assert plain_list(to_uncounted) == [x for x in records[4:] if x % 2]
    to_counted = iter(shuffled(strict=False))
    with pytest.warns(UserWarning, match="steps that change counts|differs"):
        to_counted.set_state(uncounted.get_state())
    assert plain_list(to_counted) == records[position:]


def test_renamed_maps_and_types_are_warned_of() -> None:
    class Other(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return element

    iterator = iter(shuffled(Add(), Batch(4), source=list(range(20))))
    next(iterator)
    other = iter(shuffled(Other(), Batch(4), source=np.arange(20)))
    with pytest.warns(UserWarning, match="differs") as caught:
        other.set_state(iterator.get_state())
    text = " ".join(str(warning.message) for warning in caught)
    assert "'list'" in text
    assert "'ndarray'" in text
    assert "map(Add)" in text
    assert "map(Other)" in text


# Reading.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["batches", "filter", "flat map"])
def test_restoring_reads_nothing_that_it_will_not_use(
    name: str, workers: int, tmp_path: Path
) -> None:
    class Source:
        """Notes in a file what is read, since workers have memory of their own."""

        def __init__(self, path: Path) -> None:
            self.path = path

        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> int:
            with self.path.open("a") as file:
                file.write(f"{index}\n")
            return index

    sampler = IndexSampler(200, num_epochs=1, seed=0)
    begun = iter(shuffled(*PIPELINES[name], source=Source(tmp_path / "begun"), sampler=sampler))
    for _ in range(20):
        next(begun)
    state = json.loads(begun.get_state())
    reached = state["position"] if state["elastic"] else records_read(state["cursor"])
    noted = tmp_path / "resumed"
    noted.touch()
    source = Source(noted)
    with shuffled(*PIPELINES[name], source=source, sampler=sampler, worker_count=workers) as loader:
        resumed = iter(loader)
        resumed.set_state(begun.get_state())
        assert noted.read_text() == ""
        list(resumed)
    counts = collections.Counter(int(line) for line in noted.read_text().split())
    assert sorted(counts) == list(range(reached, 200))
    assert set(counts.values()) == {1}


# The stream is the same wherever the work is done.


def _text(index: int) -> Any:
    return ["", "ä", "text of some length"][index % 3] + str(index)


SOURCES: dict[str, list[Any]] = {
    "text": [_text(i) for i in range(10)],
    "dicts": [{"x": np.full((2, 3), i, np.float32), "n": i, "s": _text(i)} for i in range(10)],
    "objects": [frozenset([i, "a"]) for i in range(10)],
    "nested": [(i, [float(i), {"b": np.bool_(i % 2)}]) for i in range(10)],
    "large": [np.full(2**21, i, np.float64) for i in range(3)],
    "empty": [np.zeros((0, 2), np.int16) for _ in range(10)],
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("batched", [False, True])
def test_any_records_are_the_same_from_workers(name: str, batched: bool) -> None:
    source = SOURCES[name]
    operations = [Batch(3, batch_fn=list if name == "objects" else None)] if batched else []
    sampler = IndexSampler(len(source), num_epochs=1)
    here = list(shuffled(*operations, source=source, sampler=sampler))
    with shuffled(*operations, source=source, sampler=sampler, worker_count=1) as loader:
        there = list(loader)
    assert _described(there) == _described(here)


def _described(value: Any) -> Any:
    """Types, dtypes, shapes and contents, as something that compares."""
    if isinstance(value, dict):
        return {key: _described(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [_described(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, [_described(item) for item in value.ravel()]
    return type(value), value
