"""What cannot work is refused where it is given, naming value and remedy, and nothing is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors

Batch = grain.transforms.Batch
IndexSampler = grain.samplers.IndexSampler
ShardOptions = grain.sharding.ShardOptions


class Plus(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return element + 1


class Jitter(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + rng.integers(10)


def loader(*operations: Any, source: Any = range(10), **settings: Any) -> grain.DataLoader:
    settings.setdefault("sampler", IndexSampler(10, num_epochs=1))
    return grain.DataLoader(data_source=source, operations=operations, **settings)


def dataset(size: int = 10) -> grain.MapDataset[int]:
    return grain.MapDataset.range(size)


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


class Unbounded:
    """A sampler that does not say where it ends."""

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        return grain.RecordMetadata(index, record_key=index)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "workers below 0": (lambda: loader(worker_count=-1), ValueError, r"worker_count.*-1.*0 works"),
    "workers as text": (
        lambda: loader(worker_count="2"),
        TypeError,
        r"worker_count.*'2' of type str",
    ),
    "half a worker": (lambda: loader(worker_count=1.5), TypeError, r"worker_count.*1\.5"),
    "True workers": (lambda: loader(worker_count=True), TypeError, r"worker_count.*True"),
    "workers of load": (
        lambda: grain.load(range(3), worker_count=-2),
        ValueError,
        r"worker_count.*-2",
    ),
    "workers of a dataset": (
        lambda: grain.MultiprocessingOptions(num_workers=-1),
        ValueError,
        r"num_workers.*-1",
    ),
    "buffer below 0": (
        lambda: loader(worker_buffer_size=-1),
        ValueError,
        r"worker_buffer_size.*-1",
    ),
    "buffer as text": (
        lambda: loader(worker_buffer_size="a"),
        TypeError,
        r"worker_buffer_size.*'a'",
    ),
    "buffer of a dataset": (
        lambda: grain.MultiprocessingOptions(1, per_worker_buffer_size=-1),
        ValueError,
        r"per_worker_buffer_size.*-1",
    ),
    "threads": (lambda: grain.ReadOptions(num_threads=-1), ValueError, r"num_threads.*-1.*None"),
    "read buffer": (
        lambda: grain.ReadOptions(prefetch_buffer_size=1.5),
        TypeError,
        r"prefetch_buffer_size.*1\.5",
    ),
    "lanes": (lambda: loader(lanes=0), ValueError, r"lanes.*at least 1, got 0"),
    "on_error": (lambda: loader(on_error="skip"), ValueError, r"'skip'.*'raise'"),
    "restarts": (lambda: loader(max_worker_restarts=-1), ValueError, r"max_worker_restarts.*-1"),
    "stall timeout": (lambda: loader(stall_timeout=-1.0), ValueError, r"stall_timeout.*-1\.0"),
    "no epochs": (lambda: IndexSampler(10, num_epochs=0), ValueError, r"num_epochs.*0.*None"),
    "no epochs for load": (
        lambda: grain.load(range(3), num_epochs=0),
        ValueError,
        r"num_epochs.*0.*None",
    ),
    "no epochs for repeat": (lambda: dataset().repeat(0), ValueError, r"num_epochs.*0.*None"),
    "shuffle without a seed": (
        lambda: IndexSampler(10, shuffle=True),
        ValueError,
        r"shuffle=True needs a seed.*seed=0",
    ),
    "load's shuffle": (lambda: grain.load(range(3), shuffle=True), ValueError, r"needs a seed"),
    "a dataset's shuffle": (lambda: dataset().shuffle(), ValueError, r"shuffle needs a seed"),
    "seed too large": (
        lambda: IndexSampler(10, seed=2**32),
        ValueError,
        r"32 bits.*4294967296.*=0",
    ),
    "seed below 0": (lambda: grain.load(range(3), seed=-1), ValueError, r"seed.*-1"),
    "seed of a dataset": (lambda: dataset().shuffle(seed=2**40), ValueError, r"32 bits"),
    "random map without a seed": (
        lambda: loader(Jitter()),
        ValueError,
        r"step 1: random_map\(Jitter\).*seed=0",
    ),
    "shard index": (lambda: ShardOptions(2, 2), ValueError, r"shard_index.*below shard_count=2.*2"),
    "shard index below 0": (lambda: ShardOptions(-1, 2), ValueError, r"shard_index.*-1"),
    "shard count": (lambda: ShardOptions(0, 0), ValueError, r"shard_count.*0.*NoSharding"),
    "sharding given twice": (
        lambda: loader(
            sampler=IndexSampler(10, ShardOptions(0, 2)), shard_options=ShardOptions(1, 5)
        ),
        ValueError,
        r"given twice: shard 1 of 5 to the loader, shard 0 of 2 to the sampler.*once",
    ),
    "shard_options of another type": (
        lambda: loader(shard_options=(0, 2)),
        TypeError,
        r"ShardOptions or None, got \(0, 2\)",
    ),
    "sampler longer than its source": (
        lambda: loader(sampler=IndexSampler(11)),
        ValueError,
        r"num_records=11.*length 10.*has 10 records.*num_records=10",
    ),
    "something else as a sampler": (lambda: loader(sampler=7), TypeError, r"got 7 of type int"),
    "shards without an end": (
        lambda: loader(sampler=Unbounded(), shard_options=ShardOptions(0, 2)),
        TypeError,
        r"Unbounded has no __len__.*Give it one",
    ),
    "lanes without an end": (
        lambda: loader(sampler=Unbounded(), lanes=2),
        TypeError,
        r"Unbounded has no __len__",
    ),
    "empty source": (lambda: loader(source=[]), ValueError, r"list.*is empty.*path, split"),
    "empty source of load": (lambda: grain.load([]), ValueError, r"is empty"),
    "no batch": (lambda: Batch(0), ValueError, r"batch_size.*at least 1, got 0"),
    "no batch for load": (lambda: grain.load(range(3), batch_size=0), ValueError, r"batch_size"),
    "no batch for a dataset": (lambda: dataset().batch(0), ValueError, r"batch_size.*0"),
    "no batch operation": (
        lambda: grain.python.BatchOperation(batch_size=-1),
        ValueError,
        r"batch_size.*-1",
    ),
    "batch_fn": (lambda: Batch(2, batch_fn=3), TypeError, r"batch_fn.*3"),  # type: ignore[arg-type]
    "operation of an unknown type": (
        lambda: loader(5),
        TypeError,
        r"5 of type int is no transformation.*Derive",
    ),
    "a class as an operation": (
        lambda: loader(Plus),
        TypeError,
        r"Plus is a class.*Plus\(\.\.\.\)",
    ),
    "operations without a list": (
        lambda: grain.DataLoader(
            data_source=range(3),
            sampler=IndexSampler(3),
            operations=Plus(),  # type: ignore[arg-type]
        ),
        TypeError,
        r"operations must be a list.*Write \[",
    ),
    "source without a length": (
        lambda: loader(source=NoLength()),
        TypeError,
        r"NoLength is no data source: it has no __len__.*list\(",
    ),
    "dataset of a source without a length": (
        lambda: grain.MapDataset.source(NoLength()),
        TypeError,
        r"no __len__",
    ),
    "epochs from nowhere": (lambda: loader().epochs(start=-1), ValueError, r"start.*-1"),
    "epochs of an own sampler": (
        lambda: loader(sampler=Unbounded()).epochs(),
        TypeError,
        r"Unbounded is one of your own.*Iterate over the loader",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_where_it_is_given(name: str) -> None:
    call, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, errors.GrainError)


RAGGED = [{"x": np.zeros(3), "y": i} for i in range(5)] + [{"x": np.zeros(4), "y": 5}]


@pytest.mark.parametrize("workers", [0, 1])
def test_records_that_do_not_stack(workers: int) -> None:
    sampler = IndexSampler(6, num_epochs=1)
    with loader(Batch(3), source=RAGGED, sampler=sampler, worker_count=workers) as ragged:
        iterator = iter(ragged)
        assert next(iterator)["y"].tolist() == [0, 1, 2]
        state = iterator.get_state()
        for _ in range(2):
            with pytest.raises(ValueError, match=r"x.*\(3,\).*\(4,\)") as caught:
                next(iterator)
            notes = "".join(caught.value.__notes__)
            assert "step 1: batch(3)" in notes
            assert "position 3 (record key 3) and position 5 (record key 5)" in notes
            assert iterator.get_state() == state


@pytest.mark.usefixtures("no_process_left")
def test_a_transform_that_does_not_pickle_is_named() -> None:
    class Locked(grain.transforms.Map):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def map(self, element: Any) -> Any:
            return element

    locked = loader(Locked(), worker_count=1)
    iterator = iter(locked)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"lock.*Locked") as caught:
            next(iterator)
        assert isinstance(caught.value, errors.GrainError)
    assert b'"position": 0' in iterator.get_state()
    locked.close()
    # In process nothing needs to be pickled.
    assert list(loader(Locked())) == list(range(10))


STATE = {"seed": 1, "shuffle": True, "num_epochs": 1}
OTHERS: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "source length": ({**STATE, "records": 9}, [Batch(2)], r"source's length.*10.*9"),
    "seed": ({**STATE, "seed": 2}, [Batch(2)], r"seed=1.*seed=2"),
    "shuffle": ({**STATE, "shuffle": False}, [Batch(2)], r"shuffle\(.*in order\("),
    "steps that change counts": (STATE, [], r"steps that change counts.*\['batch'\].*\[\]"),
    "order of the steps": (STATE, [Batch(2), Batch(2)], r"\['batch'\].*\['batch', 'batch'\]"),
    "fewer records of the sampler": (
        {**STATE, "num_records": 8},
        [Batch(2)],
        r"records=10.*records=8",
    ),
}


def stated(settings: dict[str, Any], operations: list[Any]) -> grain.DataLoaderIterator:
    settings = dict(settings)
    records = settings.pop("records", 10)
    count = settings.pop("num_records", records)
    sampler = IndexSampler(count, **settings)
    return iter(loader(*operations, source=np.arange(records), sampler=sampler))


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_pipeline_shows_the_difference(name: str) -> None:
    settings, operations, message = OTHERS[name]
    saved = stated(STATE, [Batch(2)])
    next(saved)
    other = stated(settings, operations)
    expected = [np.asarray(x).tolist() for x in stated(settings, operations)]
    first = np.asarray(next(other)).tolist()
    with pytest.raises(errors.StateError, match=message):
        other.set_state(saved.get_state())
    # It goes on where it was.
    assert [first, *(np.asarray(x).tolist() for x in other)] == expected


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"", r"0 bytes are no state"),
        (b"\x00\x01", r"2 bytes are no state"),
        (b"\xff\xfe{", r"no state"),
        (b"[" * 100_000, r"no state"),
        (b"[1]", r"no state of grain_jax: \[1\]"),
        (b"{}", r"no state of grain_jax: \{\}"),
        (b'{"grain_jax": 99}', r"version 99.*versions 1 and 2"),
        (b'{"grain_jax": true}', r"version True"),
        (b'{"grain_jax": 1}', r"'pipeline' of the state is None, expected dict"),
        (17, r"bytes, got int"),
        (None, r"bytes, got NoneType"),
    ],
)
def test_bytes_that_are_no_state(state: Any, message: str) -> None:
    iterator = iter(loader(Batch(4)))
    next(iterator)
    with pytest.raises(errors.StateError, match=message):
        iterator.set_state(state)
    assert next(iterator).tolist() == [4, 5, 6, 7]


def test_a_state_cut_short() -> None:
    iterator = iter(loader(Batch(4)))
    next(iterator)
    state = iterator.get_state()
    for length in range(len(state)):
        with pytest.raises(errors.StateError):
            iterator.set_state(state[:length])
    assert next(iterator).tolist() == [4, 5, 6, 7]


def test_a_dataset_refuses_what_is_no_state() -> None:
    iterator = iter(dataset().to_iter_dataset().batch(4))
    next(iterator)
    for state in ({}, 3, None, b"x", {"grain_jax": 1}):
        with pytest.raises(errors.StateError, match="state"):
            iterator.set_state(state)  # type: ignore[arg-type]
    assert next(iterator).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("workers", [0, 1])
def test_use_after_close(workers: int) -> None:
    closed = loader(Batch(4), worker_count=workers)
    iterator = iter(closed)
    next(iterator)
    state = iterator.get_state()
    for close in (iterator.close, iterator.close, closed.close, closed.close):
        close()
    calls: list[Callable[[], Any]] = [
        lambda: next(iterator),
        lambda: iterator.set_state(state),
        iterator.start_prefetch,
    ]
    for call in calls:
        with pytest.raises(errors.ClosedError, match=r"iterator is closed.*iter\(\.\.\.\)"):
            call()
    with pytest.raises(errors.ClosedError, match="loader is closed"):
        iter(closed)
    # Where it was is still worth knowing.
    assert iterator.get_state() == state
    again = iter(loader(Batch(4)))
    again.set_state(state)
    assert next(again).tolist() == [4, 5, 6, 7]


def test_states_are_plain_json_of_constant_size() -> None:
    iterator = iter(loader(Batch(1), source=[f"secret {i}" for i in range(10)]))
    sizes = set()
    for _ in range(10):
        sizes.add(len(iterator.get_state()))
        assert b"secret" not in iterator.get_state()
        json.loads(iterator.get_state())
        next(iterator)
    assert len(sizes) == 1
