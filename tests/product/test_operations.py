"""Operations of the user's own: a serial stage, its metadata, its errors and its position."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors
from tests.product.pieces import Add, Odd, plain, plain_list

Batch = grain.transforms.Batch
Record, RecordMetadata = grain.Record, grain.RecordMetadata
pytestmark = pytest.mark.usefixtures("no_process_left")

Records = Iterator[Any]


def load(*operations: Any, **settings: Any) -> grain.DataLoader:
    settings.setdefault("sampler", grain.samplers.IndexSampler(12, num_epochs=2, seed=5))
    return grain.DataLoader(data_source=range(12), operations=operations, **settings)


class Total:
    """The running sum: what it keeps lies in itself."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, records: Records) -> Records:
        for record in records:
            self.total += record.data
            yield Record(record.metadata, self.total)


class SavedTotal(Total):
    """The running sum, which can be saved; the very object that it counts in is handed out."""

    def __init__(self) -> None:
        self.state = {"total": 0}

    def __call__(self, records: Records) -> Records:
        for record in records:
            self.state["total"] += record.data
            yield Record(record.metadata, self.state["total"])

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Pairs:
    """Two records become one; a last one without a partner is dropped."""

    def __init__(self) -> None:
        self.held: int | None = None

    def __call__(self, records: Records) -> Records:
        for record in records:
            if self.held is None:
                self.held = record.data
            else:
                first, self.held = self.held, None
                yield Record(record.metadata.remove_record_key(), 100 * first + record.data)

    def get_state(self) -> Any:
        return self.held

    def set_state(self, state: Any) -> None:
        self.held = state


class Twice:
    """Two outputs of every record."""

    def __call__(self, records: Records) -> Records:
        for record in records:
            yield record
            yield Record(record.metadata, -record.data)


class Split(grain.transforms.FlatMap):
    max_fan_out = 3

    def flat_map(self, element: Any) -> list[Any]:
        return [element + i for i in range(element % 4)][:3]


class Draw(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + rng.integers(0, 10_000, np.shape(element))


PIPELINES: dict[str, Callable[[], list[Any]]] = {
    "total": lambda: [Total()],
    "saved total": lambda: [SavedTotal()],
    "pairs": lambda: [Pairs()],
    "twice": lambda: [Twice()],
    "after steps": lambda: [Odd(), Draw(), Total()],
    "saved after steps": lambda: [Odd(), Draw(), SavedTotal()],
    "before steps": lambda: [Pairs(), Odd(), Add(), Draw(), Batch(2)],
    "before flat map": lambda: [SavedTotal(), Split(), Draw(), Batch(2)],
    "two": lambda: [SavedTotal(), Add(), Pairs()],
    "one of two saves": lambda: [Total(), Pairs(), Batch(2, drop_remainder=True)],
    "of batches": lambda: [Batch(3), Twice()],
}
REPLAYED = ["total", "twice", "after steps", "before flat map", "one of two saves", "of batches"]


def test_the_streams_are_what_is_written() -> None:
    once = grain.samplers.SequentialSampler(5)
    for total in (Total, SavedTotal):
        assert list(load(total(), sampler=once)) == [0, 1, 3, 6, 10]
    assert list(load(Pairs(), sampler=once)) == [1, 203]
    assert list(load(Odd(), Twice(), Add(), sampler=once)) == [2, 0, 4, -2]
    assert plain_list(load(Batch(2), Twice(), sampler=once)) == [
        [0, 1],
        [0, -1],
        [2, 3],
        [-2, -3],
        [4],
        [-4],
    ]


@pytest.mark.parametrize("name", PIPELINES)
def test_every_step_restores(name: str) -> None:
    expected = plain_list(load(*PIPELINES[name]()))
    running = iter(load(*PIPELINES[name]()))
    for step in range(len(expected) + 1):
        state = running.get_state()
        resumed = iter(load(*PIPELINES[name]()))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            resumed.set_state(state)
        texts = [str(warning.message) for warning in caught]
        if name in REPLAYED and step:
            assert len(texts) == 1
            assert "operation(" in texts[0]
            assert f"run again from its start, up to output {step}" in texts[0]
        else:
            assert texts == []
        assert resumed.get_state() == state
        assert plain_list(resumed) == expected[step:]
        next(running, None)
    # The end has not moved it.
    assert running.get_state() == state


@pytest.mark.parametrize("name", ["before steps", "saved after steps"])
def test_workers_do_what_comes_before(name: str) -> None:
    expected = plain_list(load(*PIPELINES[name]()))
    with load(*PIPELINES[name](), worker_count=2) as loader:
        iterator = iter(loader)
        assert plain(next(iterator)) == expected[0]
        state = iterator.get_state()
    with load(*PIPELINES[name](), worker_count=1) as loader:
        resumed = iter(loader)
        resumed.set_state(state)
        assert plain_list(resumed) == expected[1:]


def test_an_operation_runs_in_this_process() -> None:
    class Where:
        def __call__(self, records: Records) -> Records:
            for record in records:
                yield Record(record.metadata, (record.data, os.getpid()))

    class Pid(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return os.getpid()

    with load(Pid(), Where(), worker_count=1) as loader:
        worker, here = next(iter(loader))
    assert here == os.getpid() != worker


class Watch:
    """Passes on what it notes."""

    seen: ClassVar[list[Any]] = []

    def __call__(self, records: Records) -> Records:
        for record in records:
            meta = record.metadata
            draw = None if meta.rng is None else int(meta.rng.integers(2**60))
            self.seen.append((meta.index, meta.record_key, draw))
            yield record


def watched(*operations: Any, **settings: Any) -> list[Any]:
    Watch.seen.clear()
    list(load(*operations, Watch(), **settings))
    return list(Watch.seen)


def test_metadata_of_records() -> None:
    sampler = grain.samplers.IndexSampler(12, shuffle=True, seed=3, num_epochs=2)
    options = grain.sharding.ShardOptions(1, 2)
    seen = watched(Odd(), sampler=sampler, shard_options=options)
    keys = {p: sampler[p].record_key for p in range(1, 24, 2)}
    assert [(i, k) for i, k, _ in seen] == [(p, k) for p, k in keys.items() if k % 2]
    assert len({draw for _, _, draw in seen}) == len(seen)
    assert [draw for *_, draw in seen] == [
        int(sampler[i].rng.integers(2**60))
        for i, _, _ in seen  # type: ignore[union-attr]
    ]


def test_metadata_of_batches_and_without_a_seed() -> None:
    sampler = grain.samplers.SequentialSampler(5)
    assert watched(Batch(2), sampler=sampler) == [(1, None, None), (3, None, None), (4, None, None)]


def test_metadata_of_a_sampler_of_ones_own() -> None:
    class Backwards:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> RecordMetadata:
            return RecordMetadata(index, 3 - index, np.random.default_rng(index))

    expected = [
        (index, 3 - index, int(np.random.default_rng(index).integers(2**60))) for index in range(4)
    ]
    assert watched(sampler=Backwards()) == expected


def test_random_steps_after_an_operation_draw_other_numbers() -> None:
    class Note(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return (element, int(rng.integers(2**60)))

    class Same:
        def __call__(self, records: Records) -> Records:
            return records

    found = list(load(Note(), Same(), Note()))
    assert all(first != second for (_, first), second in found)
    assert len({second for _, second in found}) == 24


def test_edits_are_for_the_next_iteration() -> None:
    class Plus:
        amount = 0

        def __call__(self, records: Records) -> Records:
            for record in records:
                yield Record(record.metadata, record.data + self.amount)

    plus = Plus()
    loader = load(plus)
    running = iter(loader)
    plus.amount = 100
    assert next(running) == 0
    assert next(iter(loader)) == 100


def test_each_iteration_begins_anew_even_with_a_lock_in_it() -> None:
    class Locked(Total):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    loader = load(Locked())
    assert list(loader) == list(loader)


# Errors.


def test_an_error_of_an_operation_is_located_and_tried_again() -> None:
    class Fails:
        broken = True

        def __call__(self, records: Records) -> Records:
            for record in records:
                if record.data == 3 and Fails.broken:
                    raise KeyError("operation")
                yield record

    expected = list(load(SavedTotal()))
    iterator = iter(load(Fails(), SavedTotal()))
    assert [next(iterator) for _ in range(3)] == expected[:3]
    state = iterator.get_state()
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            next(iterator)
        assert "step 1: operation(Fails), at the record at position 3" in caught.value.__notes__[0]
        assert iterator.get_state() == state
    Fails.broken = False
    assert list(iterator) == expected[3:]


@pytest.mark.parametrize("operations", [[SavedTotal()], [Total()], [Total(), Batch(2)]])
def test_an_error_before_an_operation_moves_nothing(operations: list[Any]) -> None:
    class Fails(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            if element == 7:
                raise OSError("disk")
            return element

    iterator = iter(load(Fails(), *operations))
    good = plain_list(load(*operations))
    size = 2 if len(operations) == 2 else 1
    steps = 7 // size
    assert plain_list(next(iterator) for _ in range(steps)) == good[:steps]
    state = iterator.get_state()
    for _ in range(2):
        with pytest.raises(OSError, match="disk") as caught:
            next(iterator)
        assert "step 1: map(Fails), at position 7" in caught.value.__notes__[0]
        assert len(caught.value.__notes__) == 1
        assert iterator.get_state() == state


def test_an_error_after_an_operation_names_its_step() -> None:
    class Fails(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            raise OSError("late")

    with pytest.raises(OSError, match="late") as caught:
        next(iter(load(Total(), Fails())))
    assert "step 2: map(Fails), at position 0" in caught.value.__notes__[0]


def test_what_is_no_record_is_named() -> None:
    class Bare:
        def __call__(self, records: Records) -> Records:
            for record in records:
                yield record.data

    for operations in ([Bare()], [Bare(), Add()], [Bare(), Total()]):
        with pytest.raises(errors.InvalidTypeError, match=r"operation\(Bare\) yielded int.*Record"):
            next(iter(load(*operations)))


def test_what_is_no_iterator_is_located() -> None:
    def nothing(records: Records) -> Any:
        return None

    with pytest.raises(TypeError, match="not iterable") as caught:
        next(iter(load(nothing)))
    assert "operation(nothing), at its start" in caught.value.__notes__[0]


def test_states_of_operations_must_be_json() -> None:
    class Odd(SavedTotal):
        def get_state(self) -> Any:
            return {1, 2}

    iterator = iter(load(Odd()))
    assert [next(iterator), next(iterator)] == [0, 1]  # not all who iterate save
    with pytest.raises(TypeError, match=r"operation\(Odd\): get_state returned \{1, 2\}.*no JSON"):
        iterator.get_state()


def test_a_state_that_an_operation_refuses_changes_nothing() -> None:
    class Picky(SavedTotal):
        def set_state(self, state: Any) -> None:
            if state["total"] > 3:
                raise ValueError("too much")
            super().set_state(state)

    ahead, iterator = iter(load(Picky())), iter(load(Picky()))
    expected = [next(ahead) for _ in range(6)]
    assert [next(iterator) for _ in range(2)] == expected[:2]
    state = iterator.get_state()
    with pytest.raises(ValueError, match="too much"):
        iterator.set_state(ahead.get_state())
    assert iterator.get_state() == state
    assert [next(iterator) for _ in range(4)] == expected[2:]


def test_states_of_other_operations_are_refused() -> None:
    iterators = [iter(load()), iter(load(SavedTotal())), iter(load(Pairs(), Pairs()))]
    for saved in iterators:
        for other in iterators:
            if other is not saved:
                with pytest.raises(errors.StateError, match="steps that change counts"):
                    other.set_state(saved.get_state())


@pytest.mark.parametrize("field", ["outputs", "operations"])
@pytest.mark.parametrize("wrong", [-1, "a", [], [0, 0], True, 2**60])
def test_damaged_states_of_operations_are_refused(field: str, wrong: Any) -> None:
    import json

    iterator = iter(load(SavedTotal()))
    expected = list(load(SavedTotal()))
    next(iterator)
    state = json.loads(iterator.get_state())
    state["serial"][field] = wrong
    with pytest.raises(errors.StateError, match=f"field '{field}'"):
        iterator.set_state(json.dumps(state).encode())
    assert list(iterator) == expected[1:]


def test_epochs_with_an_operation() -> None:
    loader = load(SavedTotal(), Batch(5))
    first, second = (plain_list(epoch) for epoch in loader.epochs())
    assert first == second == [*plain_list(load(SavedTotal(), Batch(5)))[:2], [55, 66]]
    begun, resumed = list(loader.epochs()), list(loader.epochs())
    next(begun[1])
    resumed[1].set_state(begun[1].get_state())
    assert plain_list(resumed[1]) == second[1:]
    with pytest.raises(errors.StateError, match="epoch"):
        resumed[0].set_state(begun[1].get_state())


def test_a_loader_of_operations_has_no_length() -> None:
    with pytest.raises(TypeError, match="operation makes the number of elements unknown"):
        len(load(Total()))
    assert load(Total(), Batch(2))._batch_rows() is None
