"""Streams that gather for long, that yield nothing, and that are left: what holds for each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests import devices
from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")


# Batches of more results than there are slots.


class Keep(grain.transforms.Filter):
    """Keeps one record in so many."""

    def __init__(self, one_in: int) -> None:
        self.one_in = one_in

    def filter(self, element: int) -> bool:
        return element % self.one_in == 0


class Wide(grain.transforms.Map):
    """Makes an element large."""

    def map(self, element: int) -> Any:
        return np.full(20_000, element)


class Fails(grain.transforms.Map):
    def map(self, element: int) -> int:
        if element % 6 == 0:
            raise ValueError(f"no {element}")
        return element


class Passes:
    """An operation of the user's own."""

    def __call__(self, records: Iterator[Any]) -> Iterator[Any]:
        yield from records


class DiesOnce(grain.transforms.Map):
    """Kills its worker at some elements, once each."""

    def __init__(self, folder: Path, at: set[int]) -> None:
        self.folder, self.at = folder, at

    def map(self, element: int) -> int:
        if int(element) in self.at:
            mark = self.folder / str(int(element))
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return element


def in_batches(elements: list[int], size: int) -> list[Any]:
    return [elements[begin : begin + size] for begin in range(0, len(elements), size)]


RECORDS = 3_000
Batch = grain.transforms.Batch
SIXTHS = list(range(0, RECORDS, 6))
PENDING: dict[str, tuple[list[Any], dict[str, Any], list[Any]]] = {
    "a filter": ([Keep(6), Batch(90)], {}, in_batches(SIXTHS, 90)),
    "two batches": ([Keep(6), Batch(5), Batch(20)], {}, in_batches(in_batches(SIXTHS, 5), 20)),
    "large elements": (
        [Keep(60), Wide(), Batch(20)],
        {},
        [[[e] * 20_000 for e in part] for part in in_batches(SIXTHS[::10], 20)],
    ),
    "lanes": (
        [Keep(3), Batch(40)],
        {"lanes": 2},
        [
            batch
            for pair in zip(
                in_batches([e for e in range(0, RECORDS, 2) if e % 3 == 0], 40),
                in_batches([e for e in range(1, RECORDS, 2) if e % 3 == 0], 40),
                strict=True,
            )
            for batch in pair
        ],
    ),
    "an error policy": (
        [Fails(), Batch(500)],
        {"on_error": grain.ErrorPolicy(skip=ValueError)},
        in_batches([e for e in range(RECORDS) if e % 6], 500),
    ),
    "an operation": ([Keep(6), Batch(90), Passes()], {}, in_batches(SIXTHS, 90)),
}


def loader(todo: list[Any], workers: int, **settings: Any) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=np.arange(RECORDS),
        sampler=grain.samplers.SequentialSampler(RECORDS),
        operations=todo,
        worker_count=workers,
        **settings,
    )


@pytest.fixture
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is the table's, which leaves seven; and tasks stay small."""
    monkeypatch.setattr("grain_jax._execution.engine.arena.MAX_SLOTS", 8)
    monkeypatch.setattr("grain_jax._execution.leaves._MOST_RECORDS", 8)
    monkeypatch.setattr("grain_jax._execution.leaves.MOST_UNITS", 8)


@pytest.mark.usefixtures("few_slots")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", PENDING)
def test_a_batch_of_more_results_than_slots(kind: str, workers: int) -> None:
    todo, settings, expected = PENDING[kind]
    with loader(todo, workers, **settings) as source:
        # All batches are kept, as by a user who does so.
        batches = list(source)
        assert [batch.tolist() for batch in batches] == expected


@pytest.mark.usefixtures("few_slots")
@pytest.mark.parametrize("kind", PENDING)
def test_workers_that_die_meanwhile_change_nothing(kind: str, tmp_path: Path) -> None:
    todo, settings, expected = PENDING[kind]
    deaths = DiesOnce(tmp_path, {0, 600, 601, 1_500, 2_400, 2_999})
    with loader([deaths, *todo], 2, **settings) as source:
        assert [batch.tolist() for batch in source] == expected
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.usefixtures("few_slots")
def test_a_worker_that_dies_as_it_makes_the_batch(tmp_path: Path) -> None:
    deaths = DiesOnce(tmp_path, {0, 90})

    def first_row(batch: Any) -> Any:
        deaths.map(batch[0])
        return batch

    dataset = grain.MapDataset.range(RECORDS).to_iter_dataset().filter(Keep(6)).batch(15)
    dataset = dataset.map(first_row).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    with iter(dataset) as iterator:
        assert [batch.tolist() for batch in iterator] == in_batches(SIXTHS, 15)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("few_slots")
def test_states_between_such_batches_restore_the_rest() -> None:
    todo, _, expected = PENDING["a filter"]
    with loader(todo, 2) as source:
        iterator = iter(source)
        states = [iterator.get_state()]
        for _ in iterator:
            states.append(iterator.get_state())
        for taken, state in reversed(list(enumerate(states))):
            iterator.set_state(state)
            assert [batch.tolist() for batch in iterator] == expected[taken:]


@pytest.mark.usefixtures("few_slots")
@pytest.mark.parametrize("behind", [False, True], ids=["bare", "device stage"])
def test_an_epoch_left_in_the_middle_of_such_a_batch(behind: bool) -> None:
    todo, _, expected = PENDING["a filter"]
    with loader(todo, 2) as source:
        for _ in range(3):
            stream: Any = source
            if behind:
                stream = grain.prefetch_to_device(source, devices.first(), remainder="drop")
            for number, batch in enumerate(stream):
                assert batch.tolist() == expected[number]
                if number == 1:
                    break


@pytest.mark.usefixtures("few_slots")
def test_joined_shards_with_more_results_than_slots() -> None:
    def shard(index: int, count: int) -> Any:
        options = grain.sharding.ShardOptions(index, count)
        return iter(loader([Keep(3), Batch(60 // count)], 2, shard_options=options))

    four = [shard(index, 4) for index in range(4)]
    steps = [[batch.tolist() for batch in iterator] for iterator in four]
    assert sorted(e for own in steps for batch in own for e in batch) == list(range(0, RECORDS, 3))
    four = [shard(index, 4) for index in range(4)]
    for iterator in four:
        next(iterator)
    states = [json.loads(iterator.get_state()) for iterator in four]
    one = iter(loader([Keep(3), Batch(60)], 2))
    one.set_state(json.dumps({"processes": states}).encode())
    rest = [
        [e for own in steps for e in (own[number] if number < len(own) else [])]
        for number in range(1, max(map(len, steps)))
    ]
    assert [batch.tolist() for batch in one] == rest
    for iterator in [*four, one]:
        iterator.close()


@pytest.mark.usefixtures("few_slots")
def test_a_byte_budget_that_is_spent_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grain_jax._execution.engine.slots.default_budget", lambda: 1 << 16)
    todo, _, expected = PENDING["large elements"]
    with loader(todo, 2) as source:
        batches = list(source)
        assert [batch.tolist() for batch in batches] == expected


@pytest.mark.parametrize("memory", ["memfd", "file"])
@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
def test_a_filter_that_keeps_few_before_a_large_batch(
    mode: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One survivor in each task: more of them than there are slots, in files at least.
    monkeypatch.setattr("grain_jax._execution.leaves._MOST_RECORDS", 4)
    monkeypatch.setattr("grain_jax._execution.leaves.MOST_UNITS", 4)
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MODE", mode)
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", memory)
    with loader([Keep(4), Batch(700)], 2) as source:
        assert [b.tolist() for b in source] == in_batches(list(range(0, RECORDS, 4)), 700)


# Slices of a shuffled dataset.


@pytest.mark.parametrize("workers", [0, 2])
def test_slices_of_a_shuffled_dataset_share_no_record(workers: int) -> None:
    whole = grain.MapDataset.range(12).seed(7).shuffle()
    order = [whole[index] for index in range(12)]

    def stream(part: grain.MapDataset[int]) -> list[int]:
        dataset = part.repeat(3).to_iter_dataset()
        if workers:
            dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        with iter(dataset) as iterator:
            return [int(element) for element in iterator]

    assert stream(whole[:8]) == 3 * order[:8]
    assert stream(whole[8:]) == 3 * order[8:]
    assert sorted(order) == list(range(12))


# Interrupts.


def test_tests_started_with_interrupts_ignored_can_interrupt_all_the_same() -> None:
    body = """
import os, signal, subprocess, sys
before = signal.getsignal(signal.SIGINT)
import tests.conftest
for _ in range(1000):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        break
else:
    sys.exit("not interrupted")
program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
print(before == signal.SIG_IGN, flush=True)
subprocess.run([sys.executable, "-c", program], check=True)
"""
    done = subprocess.run(
        ["/bin/sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, body],
        cwd=scripts.ROOT,
        env={**os.environ, "PYTHONPATH": str(scripts.ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")
