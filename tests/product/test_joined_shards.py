"""Streams that count as they come, on other numbers of processes: shards stay, and are joined."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax as grain
from grain_jax import errors, transforms
from tests.product.pieces import Odd, plain, shuffled
from tests.product.shards import (
    KINDS,
    close,
    expected,
    flat,
    four_after,
    joint,
    order,
    processes,
    restore,
    save,
    step,
)

ShardOptions = grain.sharding.ShardOptions
pytestmark = pytest.mark.usefixtures("no_process_left")


@settings(max_examples=150)
@given(data=st.data())
def test_any_path_over_numbers_that_divide_the_shards(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    length, shards = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([2, 3, 4, 6]))
    size, drop = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    counts = st.sampled_from([n for n in range(1, shards + 1) if shards % n == 0])
    left = [KINDS[kind][2](order(length)[shard::shards]) for shard in range(shards)]

    def wanted() -> list[int]:
        """The next share of each shard, one behind the other."""
        rows = []
        for items in left:
            if len(items) >= size or not drop:
                rows += items[:size]
                del items[:size]
        return rows

    running = processes(kind, length, shards, size, drop)
    for count in data.draw(st.lists(counts, max_size=4)):
        for _ in range(data.draw(st.integers(0, 3))):
            assert step(running) == wanted()
        state = joint(running)
        # With what a shard has dropped at its end, another size would begin anew.
        size = size if drop else data.draw(st.integers(1, 3))
        running = processes(kind, length, count, size * shards // count, drop)
        for iterator in running:
            iterator.set_state(state)
    while rows := wanted():
        assert step(running) == rows
    assert step(running) == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_workers(kind: str) -> None:
    steps = expected(kind, 37, 4, 2, False)
    begun = processes(kind, 37, 4, 2, False)
    assert [step(begun) for _ in range(3)] == [flat(batches) for batches in steps[:3]]
    resumed = processes(kind, 37, 2, 4, False, worker_count=1)
    for iterator in resumed:
        iterator.set_state(joint(begun))
    assert [step(resumed) for _ in steps[3:]] == [flat(batches) for batches in steps[3:]]
    assert step(resumed) == []
    close(resumed)


def test_each_record_keeps_its_augmentation() -> None:
    class Draw(transforms.RandomMap):
        def random_map(self, element: int, rng: np.random.Generator) -> int:
            return element + 100 * int(rng.integers(1000))

    def run(count: int) -> list[Any]:
        return [
            iter(
                shuffled(
                    Odd(),
                    Draw(),
                    transforms.Batch(12 // count),
                    source=range(64),
                    shard_options=ShardOptions(index, count),
                )
            )
            for index in range(count)
        ]

    whole, begun, resumed = run(4), run(4), run(2)
    for _ in range(2):
        assert step(begun) == step(whole)
    for iterator in resumed:
        iterator.set_state(joint(begun))
    for _ in range(3):
        rows = step(resumed)
        assert rows == step(whole)
        assert len({row // 100 for row in rows}) > len(rows) // 2  # or nothing was drawn


def test_what_was_left_out_counts_once() -> None:
    begun = processes("error policy", 40, 4, 3, False)
    for _ in range(5):
        step(begun)
    counts = [iterator.skipped_count for iterator in begun]  # type: ignore[attr-defined]
    assert all(counts)
    fewer = processes("error policy", 40, 2, 6, False)
    for iterator in fewer:
        iterator.set_state(joint(begun))  # type: ignore[attr-defined]
    assert [it.skipped_count for it in fewer] == [  # type: ignore[attr-defined]
        counts[0] + counts[1],
        counts[2] + counts[3],
    ]
    again = processes("error policy", 40, 4, 3, False)
    for iterator in again:
        iterator.set_state(joint(fewer))  # type: ignore[attr-defined]
    totals = [it.skipped_count for it in again]  # type: ignore[attr-defined]
    assert sum(totals) == sum(counts)


def test_each_of_the_joined_shards_has_the_limit_of_one() -> None:
    class Bad(transforms.Map):
        def map(self, element: int) -> int:
            # Two records on each shard at first, and two more later on.
            if element < 8 or 60 <= element < 68:
                raise ValueError("bad")
            return element

    def run(count: int, limit: int) -> list[Any]:
        policy = grain.ErrorPolicy(ValueError, max_count=limit)
        return [
            iter(
                shuffled(
                    Bad(),
                    transforms.Batch(12 // count),
                    source=range(80),
                    sampler=grain.samplers.IndexSampler(80, num_epochs=1),
                    shard_options=ShardOptions(index, count),
                    on_error=policy,
                )
            )
            for index in range(count)
        ]

    expected = [x for x in range(80) if not (x < 8 or 60 <= x < 68)]
    for limit, path in ((4, [4, 2]), (4, [4, 1, 4])):
        running, rows = run(path[0], limit), []
        for count in path[1:]:
            rows += step(running)
            state = joint(running)
            running = run(count, limit)
            for iterator in running:
                iterator.set_state(state)
        while more := step(running):
            rows += more
        assert sorted(rows) == expected
    begun = run(4, 3)
    step(begun)
    (one,) = run(1, 3)
    one.set_state(joint(begun))
    with pytest.raises(errors.TooManyErrors, match=r"16 records.*max_count=3 for each of 4 shards"):
        for _ in one:
            pass


# What cannot be


def moved(kind: str, state: bytes, index: int, count: int, size: int = 6, **more: Any) -> str:
    """The error of setting a state."""
    iterator: Any = processes(kind, 80, count, size, False, **more)[index]
    before = iterator.get_state()
    with pytest.raises(errors.StateError) as caught:
        iterator.set_state(state)
    assert iterator.get_state() == before  # it has not moved
    return str(caught.value)


@pytest.fixture
def four() -> list[Any]:
    return four_after(2)


def test_a_number_that_does_not_divide_is_refused_with_those_that_do(four: list[Any]) -> None:
    assert "begun with 4 shards" in (message := moved("filter", joint(four), 0, 3))
    assert "Restore it on 1, 2 or 4 shards" in message
    assert "Restore it on 1, 2 or 4 shards" in moved("filter", joint(four), 7, 8)


def test_one_of_the_states_alone_is_refused_with_the_way_to_go(four: list[Any]) -> None:
    message = moved("filter", four[1].get_state(), 0, 2)
    assert "shard 1 of 4" in message
    assert "shard 0 of 2" in message
    assert "restore it on 1, 2 or 4 shards, from the states of all" in message


@pytest.mark.parametrize("count", [0, -1, 2**62])
def test_a_number_beyond_all_measure_is_refused_at_once(count: int, four: list[Any]) -> None:
    state = {**json.loads(four[0].get_state()), "shard": [0, count], "joined": 2**40}
    assert f"0 of {count}" in moved("filter", json.dumps(state).encode(), 0, 2)


def test_a_state_that_is_missing_is_named(four: list[Any]) -> None:
    for missing in (2, 0):
        rest = [it for index, it in enumerate(four) if index != missing]
        assert f"state of shard {missing} of 4 is missing" in moved("filter", joint(rest), 0, 2)


def test_states_may_be_given_as_they_were_returned(four: list[Any]) -> None:
    fewer: list[Any] = processes("filter", 80, 2, 6, False)
    for iterator in fewer:
        iterator.set_state({"processes": [it.get_state() for it in four]})
    assert step(fewer) == step(four)


def test_a_batch_that_the_joined_shards_cannot_share_is_refused(four: list[Any]) -> None:
    message = moved("filter", joint(four), 0, 1, size=6)
    assert "a batch of 6 cannot be made of equal shares of 4 shards" in message


def test_states_of_different_steps_are_refused(four: list[Any]) -> None:
    next(four[2])
    fewer: list[Any] = processes("filter", 80, 2, 6, False)
    for iterator in fewer:
        iterator.set_state(joint(four))
        # Process 0 has two shards of one step, and they are behind.
        with pytest.raises(errors.StateError, match=r"to 2 batches, and another one to 3"):
            next(iterator)
    again: list[Any] = processes("filter", 80, 4, 3, False)
    for index, iterator in enumerate(again):
        iterator.set_state(joint(four))
        if index == 2:
            assert plain(next(iterator)) == plain(next(four[2]))
        else:
            with pytest.raises(errors.StateError, match="taken at different steps"):
                next(iterator)


def test_states_of_different_programs_are_refused(four: list[Any]) -> None:
    other: Any = processes("filter", 81, 4, 3, False)[2]
    next(other)
    message = moved("filter", joint([*four[:2], other, four[3]]), 0, 2)
    assert "the state of process 2" in message
    assert "'pipeline'" in message


def test_processes_with_the_same_shard_have_to_agree(four: list[Any]) -> None:
    twice = [it for it in four for _ in range(2)]
    iterator: Any = processes("filter", 80, 2, 6, False)[0]
    iterator.set_state(joint(twice))
    ahead: Any = processes("filter", 80, 4, 3, False)[0]
    next(ahead)
    assert "'cursor'" in moved("filter", joint([*twice[:-1], ahead, twice[-1]]), 0, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("joined", 0),
        ("joined", None),
        ("joined", "1"),
        ("shard", [4, 4]),
        ("shard", [0]),
        ("shard", 3),
        ("cursor", []),
        ("cursor", 5),
        ("cursor", [1, 0]),
        ("cursor", [[[[1, 0], [2, 0]], [1, 1], 0], 0]),
        ("cursor", [[[[1, 0]], [1, -1], 0], 0]),
        ("cursor", [[[[1, 0]], [1, 1], 1], 0]),
        ("cursor", [[[[1, 0]], [1, 1], 0], 1]),
        ("skipped", None),
        ("elastic", True),
        ("base", -1),
    ],
)
def test_a_damaged_state_among_them_is_refused(field: str, value: Any, four: list[Any]) -> None:
    states = [json.loads(it.get_state()) for it in four]
    states[1][field] = value
    assert field in moved("filter", json.dumps({"processes": states}).encode(), 0, 2)


@pytest.mark.parametrize("states", [None, 3, [], "text", {}, [3], [{}], [None]])
def test_what_are_no_states_is_refused(states: Any) -> None:
    moved("filter", json.dumps({"processes": states}).encode(), 0, 2)


def test_states_that_are_not_joined_are_told_apart() -> None:
    alone: Any = processes("filter", 80, 1, 6, False)
    assert "tied to its process: restore with as many" in moved("filter", joint(alone), 0, 2)
    elastic = [iter(shuffled(transforms.Batch(4), shard_options=TWO)) for _ in range(2)]
    assert "any one is enough" in moved("filter", joint(elastic), 0, 2)


def test_batches_before_a_filter_are_those_of_each_shard() -> None:
    """Only the last Batch is made of shares: a run with fewer processes has the same ones in it."""

    def run(count: int) -> list[Any]:
        todo = [
            transforms.Batch(2),
            grain.python.FilterOperation(lambda pair: sum(pair) % 3 > 0),
            transforms.Batch(8 // count),
        ]
        shards = [ShardOptions(index, count) for index in range(count)]
        return [iter(shuffled(*todo, shard_options=shard)) for shard in shards]

    whole = []
    for shard in range(4):
        records = order(20)[shard::4]
        pairs = [records[i : i + 2] for i in range(0, len(records), 2)]
        kept = [pair for pair in pairs if sum(pair) % 3]
        whole.append([kept[i : i + 2] for i in range(0, len(kept), 2)])
    begun = run(4)
    assert step(begun) == [pair for own in whole for pair in own[0]]
    for count in (2, 1):
        resumed = run(count)
        for iterator in resumed:
            iterator.set_state(joint(begun))
        assert step(resumed) == [pair for own in whole for pair in own[1]]


class Total:
    """An operation: it sees one record after the other."""

    def __call__(self, records: Iterator[Any]) -> Iterator[Any]:
        yield from records


TWO = ShardOptions(0, 2)
UNJOINED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "no batch": ([Odd()], {}),
    "a filter of batches": ([transforms.Batch(2), grain.python.FilterOperation(np.any)], {}),
    "two batches": ([Odd(), transforms.Batch(2), transforms.Batch(2)], {}),
    "an operation": ([Odd(), transforms.Batch(2), Total()], {}),
    "lanes": ([Odd(), transforms.Batch(2)], {"lanes": 2}),
}


@pytest.mark.filterwarnings("ignore:.*run again from its start")
@pytest.mark.parametrize("name", sorted(UNJOINED))
def test_other_streams_keep_their_number_of_processes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo, more = UNJOINED[name]

    def run(count: int) -> list[Any]:
        shards = [ShardOptions(index, count) for index in range(count)]
        return [iter(shuffled(*todo, shard_options=shard, **more)) for shard in shards]

    begun = run(2)
    for iterator in begun:
        next(iterator)
    save(begun, tmp_path, monkeypatch)
    restore(again := run(2), tmp_path, monkeypatch)
    assert list(map(plain, map(next, again))) == list(map(plain, map(next, begun)))
    with pytest.raises(errors.StateError, match=r"written by 2 processes.*1 process would"):
        restore(run(1), tmp_path, monkeypatch)
    with pytest.raises(errors.StateError, match=r"tied to its process"):
        run(1)[0].set_state(joint(begun))
