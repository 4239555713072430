"""Batches that gather more than there are slots: elements that wait hold nothing back."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import transforms
from grain_jax._execution.engine import arena, pool, slots
from tests.faults import pieces, worker_kills
from tests.product import shards
from tests.property import library, reference

pytestmark = [pytest.mark.usefixtures("no_process_left"), pytest.mark.timeout(300)]


@pytest.fixture(params=["memfd", "file"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", request.param)


@pytest.fixture
def few_slots(memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven slots for results, beside the one of the table."""
    monkeypatch.setattr(arena, "MAX_SLOTS", 8)


def every(step: int) -> Callable[[int], bool]:
    return lambda value: value % step == 0


def slowly(value: int) -> int:
    time.sleep(0.02)
    return value


def in_workers(dataset: Any, count: int = 2, buffer: int = 1) -> Any:
    return dataset.mp_prefetch(
        grain.MultiprocessingOptions(num_workers=count, per_worker_buffer_size=buffer)
    )


def taken(dataset: Any) -> list[Any]:
    with iter(dataset) as iterator:
        return [plain(element) for element in iterator]


def plain(element: Any) -> Any:
    if isinstance(element, np.ndarray | np.generic):
        return element.tolist()
    if isinstance(element, list | tuple):
        return [plain(one) for one in element]
    return element


def in_batches(values: list[Any], size: int) -> list[list[Any]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


# The slots as they are.


@pytest.mark.parametrize(("kind", "size"), [("memfd", 4500), ("file", 600)])
def test_a_batch_of_more_single_survivors_than_there_are_slots(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", kind)
    monkeypatch.setattr(slots, "default_budget", lambda: 64 << 20)
    used, grown = [0], slots.Slots.grown

    def noted(self: slots.Slots, slot: int, size: int) -> None:
        grown(self, slot, size)
        used.append(self._resident)

    monkeypatch.setattr(slots.Slots, "grown", noted)
    records = 256 * size
    dataset = grain.MapDataset.range(records).to_iter_dataset().filter(every(256)).batch(size)
    assert taken(in_workers(dataset)) == [list(range(0, records, 256))]
    assert 0 < max(used) <= 64 << 20


def test_a_batch_of_slow_records_with_a_file_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")
    dataset = grain.MapDataset.range(600 * 32).to_iter_dataset().filter(every(32)).map(slowly)
    assert taken(in_workers(dataset.batch(600))) == [list(range(0, 600 * 32, 32))]


# Seven slots.


def thrice(value: int) -> list[int]:
    return [value, value + 1, value + 2][: value % 4]


def wide(value: int) -> Any:
    return {"value": value, "wide": np.full(8_000, value)}


def flat(values: list[int]) -> list[int]:
    return [one for value in values for one in thrice(value)]


RANGE = grain.MapDataset.range(2_400).to_iter_dataset()
KEPT = [*range(0, 2_400, 20)]
STREAMS: dict[str, tuple[Any, list[Any]]] = {
    "filter, batch": (RANGE.filter(every(20)).batch(50), in_batches(KEPT, 50)),
    "filter, short batch dropped": (
        RANGE.filter(every(20)).batch(50, drop_remainder=True),
        in_batches(KEPT, 50)[:2],
    ),
    "filter, batches of batches": (
        RANGE.filter(every(20)).batch(12).batch(5),
        in_batches(in_batches(KEPT, 12), 5),
    ),
    "filter, batches of batches, filter between": (
        RANGE.filter(every(20)).batch(3).filter(lambda rows: rows[0] % 7 < 3).batch(10),
        in_batches([rows for rows in in_batches(KEPT, 3) if rows[0] % 7 < 3], 10),
    ),
    "flat-map, batch": (
        RANGE.filter(every(7)).flat_map(thrice).batch(101),
        in_batches(flat([*range(0, 2_400, 7)]), 101),
    ),
}


@pytest.mark.parametrize("kind", [*STREAMS])
def test_streams(kind: str, few_slots: None) -> None:
    dataset, expected = STREAMS[kind]
    assert taken(dataset) == expected
    for workers, buffer in [(2, 1), (3, 5)]:
        assert taken(in_workers(dataset, workers, buffer)) == expected


@pytest.mark.parametrize("mode", ["fork_first", "fresh"])
def test_start_modes(mode: str, few_slots: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MODE", mode)
    dataset, expected = STREAMS["flat-map, batch"]
    assert taken(in_workers(dataset)) == expected


def free_slots(iterator: Any) -> int:
    """How many slots can be acquired once all attempts have reported."""
    (mine,) = [one for one in iterator._pipeline._executors if isinstance(one, pool.Pool)]
    deadline = time.monotonic() + 60
    while mine._ledger._flying and time.monotonic() < deadline:
        with mine._lock:
            mine._pump()
        time.sleep(0.005)
    return mine._ledger._slots.available()


@pytest.mark.parametrize("kind", [*STREAMS])
def test_restores_at_every_position(kind: str, few_slots: None) -> None:
    dataset, expected = STREAMS[kind]
    with iter(in_workers(dataset)) as iterator:
        states = [iterator.get_state()]
        for element in expected:
            assert plain(next(iterator)) == element
            states.append(iterator.get_state())
        for place in random.Random(kind).sample(range(len(states) - 1), len(states) - 1):
            iterator.set_state(states[place])
            assert plain(next(iterator)) == expected[place]
            # In the middle of gathering the next one.
            iterator.set_state(states[place])
            assert free_slots(iterator) == 7
            assert [plain(element) for element in iterator] == expected[place:]


def test_all_batches_are_kept(few_slots: None) -> None:
    dataset = RANGE.filter(every(5)).map(wide).batch(15)
    values = in_batches([*range(0, 2_400, 5)], 15)
    with iter(in_workers(dataset, buffer=100)) as iterator:
        kept = list(iterator)
    assert [batch["value"].tolist() for batch in kept] == values
    for batch, expected in zip(kept, values, strict=True):
        assert (batch["wide"] == np.array(expected)[:, None]).all()


def test_single_records_are_kept(few_slots: None) -> None:
    with iter(in_workers(RANGE.filter(every(20)).map(wide))) as iterator:
        kept = list(iterator)
    assert [record["value"] for record in kept] == KEPT
    assert all((record["wide"] == record["value"]).all() for record in kept)


def test_what_waits_is_more_than_the_memory_for_results(
    memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "default_budget", lambda: 1 << 20)
    dataset = RANGE.filter(every(20)).map(wide).batch(50)  # 64 KB each
    with iter(in_workers(dataset)) as iterator:
        for values in in_batches(KEPT, 50):
            batch = next(iterator)
            assert batch["value"].tolist() == values
            assert (batch["wide"] == np.array(values)[:, None]).all()


def test_what_waits_has_a_limit_and_the_error_names_who_holds_it(few_slots: None) -> None:
    dataset = RANGE.filter(every(4)).map(wide).batch(400)
    for limit, waits in ((0, None), (1_000_000, None), (1 << 30, 400)):
        options = grain.MultiprocessingOptions(num_workers=2, memory_limit=limit)
        with iter(dataset.mp_prefetch(options)) as iterator:
            if waits is not None:
                assert len(next(iterator)["value"]) == waits
                continue
            with pytest.raises(MemoryError, match=f"memory_limit is {limit}") as caught:
                next(iterator)
            assert isinstance(caught.value, grain.errors.MemoryLimitError)
            note = "".join(caught.value.__notes__)
            assert "step 3: batch(400) holds most of it: " in note
            assert "elements that wait for others" in note


def test_a_batch_in_this_process_of_records_from_workers(few_slots: None) -> None:
    begun = in_workers(RANGE.filter(every(20)).map(wide))
    pairs = begun.map(lambda record: (record["value"], record["wide"].sum())).batch(25)
    values, sums = [], []
    with iter(pairs) as iterator:
        for batch in iterator:
            values.append(batch[0].tolist())
            sums.append(batch[1].tolist())
    assert values == in_batches(KEPT, 25)
    assert sums == in_batches([8_000 * value for value in KEPT], 25)


def test_lanes(few_slots: None) -> None:
    class Every(transforms.Filter):
        def filter(self, element: int) -> bool:
            return element % 10 == 0

    with grain.load(
        range(2_400),
        transformations=[Every()],
        batch_size=16,
        num_epochs=1,
        worker_count=2,
        lanes=3,
    ) as loader:
        batches = [plain(batch) for batch in loader]
    each = [in_batches([n for n in range(lane, 2_400, 3) if n % 10 == 0], 16) for lane in range(3)]
    assert batches == [batch for turn in zip(*each, strict=True) for batch in turn]


@pytest.mark.parametrize("kind", sorted(shards.KINDS))
def test_three_shards_joined(kind: str, few_slots: None) -> None:
    steps = shards.expected(kind, 120, 3, 12, False)
    begun = shards.processes(kind, 120, 3, 12, False)
    assert [shards.step(begun) for _ in range(2)] == [shards.flat(batch) for batch in steps[:2]]
    resumed = shards.processes(kind, 120, 1, 36, False, worker_count=2)
    for iterator in resumed:
        iterator.set_state(shards.joint(begun))
    assert [shards.step(resumed) for _ in steps[2:]] == [shards.flat(batch) for batch in steps[2:]]
    assert shards.step(resumed) == []
    shards.close(resumed)


_draw = reference.draw


def large(rng: random.Random) -> reference.Pipeline:
    """Returns a random pipeline whose batches are larger than there are slots."""
    pipeline = _draw(rng)
    operations = [
        ("batch", operation[1] * rng.randint(3, 9), operation[2])
        if operation[0] == "batch"
        else operation
        for operation in pipeline.operations
    ]
    operations.insert(rng.randint(0, len(operations)), ("filter", rng.randint(2, 4)))
    if operations[-1][0] != "batch" and pipeline.shards == 1:
        operations.append(("batch", rng.randint(8, 40), rng.random() < 0.3))
    return dataclasses.replace(pipeline, records=rng.randint(40, 200), operations=tuple(operations))


@pytest.mark.parametrize("block", range(3))
def test_random_pipelines(block: int, few_slots: None) -> None:
    for number in range(5):
        rng = random.Random(f"{block} {number}")
        pipeline = large(rng)
        expected = pieces.expected(pipeline)
        stop = rng.randint(0, len(expected))
        extra = [(rng.randint(0, len(pipeline.operations)), pieces.Slow(3, 0.001))]
        with pieces.loader(pipeline, rng.randint(1, 3), extra) as loader:
            iterator = iter(loader)
            begun = [library.plain(next(iterator)) for _ in range(stop)]
            state = iterator.get_state()
            with contextlib.suppress(StopIteration):
                next(iterator)
            iterator.set_state(state)
            rest = [library.plain(element) for element in iterator]
        assert begun + rest == expected, (pipeline, stop)


def test_workers_that_are_killed(few_slots: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "draw", large)
    counts = worker_kills.run(8, 5)
    assert counts["processes killed"] == 8


class FailsAtTimes(transforms.Map):
    """Raises OSError at every 37th call, and nothing the next time."""

    def __init__(self) -> None:
        self.calls = 0

    def map(self, element: Any) -> Any:
        self.calls += 1
        if self.calls % 37 == 0:
            raise OSError("not now")
        return element


class Several(transforms.FlatMap):
    max_fan_out = 3

    def flat_map(self, element: Any) -> Any:
        return [element + 1000 * number for number in range(int(element) % 4)]


def test_lanes_with_errors_while_all_batches_are_kept(few_slots: None) -> None:
    values = [n + 1000 * number for n in range(392) for number in range(n % 4)]
    lanes = [
        [n + 1000 * number for n in range(first, 392, 2) for number in range(n % 4)]
        for first in (0, 1)
    ]
    assert sorted(values) == sorted(lanes[0] + lanes[1])
    cut = [[lane[i : i + 39] for i in range(0, len(lane), 39)] for lane in lanes]
    right = [b for pair in itertools.zip_longest(*cut) for b in pair if b is not None]
    loader = grain.load(
        np.arange(392),
        num_epochs=1,
        transformations=[Several(), FailsAtTimes()],
        batch_size=39,
        lanes=2,
        worker_count=2,
    )
    kept: list[Any] = []
    with loader:
        iterator = iter(loader)
        for _ in range(2000):
            try:
                kept.append(next(iterator))
            except StopIteration:
                break
            except OSError:
                continue
    assert [batch.tolist() for batch in kept] == right
