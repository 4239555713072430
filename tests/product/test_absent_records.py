"""Absent records in a stream that counts on all of them: from the first one on it is counted."""

from __future__ import annotations

from typing import Any

import pytest

import grain_jax as grain
from tests.product.pieces import Add, plain_list, shuffled

Batch = grain.transforms.Batch
IndexSampler = grain.samplers.IndexSampler
ShardOptions = grain.sharding.ShardOptions
pytestmark = pytest.mark.usefixtures("no_process_left")


class Gaps:
    """Some records are absent; counts what is read."""

    def __init__(self, size: int, absent: set[int]) -> None:
        self.size, self.absent = size, absent
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int | None:
        self.read.append(index)
        return None if index in self.absent else index


class Spread(grain.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: Any) -> list[Any]:
        return list(element)


GAPS: dict[str, list[Any]] = {
    "records": [],
    "batches": [Batch(3)],
    "map, batches": [Add(), Batch(3, drop_remainder=True)],
    "batches, filter": [Batch(2), grain.python.FilterOperation(lambda b: b.sum() % 3)],
    "batches, flat map, batches": [Batch(2), Spread(), Batch(3)],
}


def _gaps(name: str, **settings: Any) -> grain.DataLoader:
    sampler = IndexSampler(23, num_epochs=2)
    return shuffled(*GAPS[name], source=Gaps(23, {11, 12, 20}), sampler=sampler, **settings)


def _expected_with_gaps(name: str, shard: tuple[int, int] = (0, 1)) -> list[Any]:
    records = list(range(23)) * 2
    mine = [x for x in records[shard[0] :: shard[1]] if x not in (11, 12, 20)]

    def cut(items: list[int], size: int) -> list[list[int]]:
        return [items[i : i + size] for i in range(0, len(items), size)]

    match name:
        case "records":
            return mine
        case "batches":
            return cut(mine, 3)
        case "map, batches":
            return [b for b in cut([x + 1 for x in mine], 3) if len(b) == 3]
        case "batches, filter":
            return [b for b in cut(mine, 2) if sum(b) % 3]
        case _:
            return cut(mine, 3)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", GAPS)
def test_absent_records_are_left_out(name: str, workers: int) -> None:
    with _gaps(name, worker_count=workers) as loader:
        assert plain_list(loader) == _expected_with_gaps(name)


@pytest.mark.parametrize("name", GAPS)
def test_states_restore_on_both_sides_of_the_first_gap(name: str) -> None:
    expected = _expected_with_gaps(name)
    running = iter(_gaps(name))
    for step in range(len(expected) + 1):
        resumed = iter(_gaps(name))
        resumed.set_state(running.get_state())
        assert plain_list(resumed) == expected[step:]
        next(running, None)


def test_absent_records_over_shards_and_lanes() -> None:
    shards = [
        plain_list(_gaps("batches", shard_options=ShardOptions(index, 2))) for index in range(2)
    ]
    assert shards == [_expected_with_gaps("batches", (index, 2)) for index in range(2)]
    lanes = iter(_gaps("batches", lanes=2))
    expected = [b for pair in zip(*shards, strict=True) for b in pair]
    assert plain_list(lanes) == expected
    begun, resumed = iter(_gaps("batches", lanes=2)), iter(_gaps("batches"))
    for _ in range(5):
        next(begun)
    resumed.set_state(begun.get_state())
    assert plain_list(resumed) == expected[5:]


def test_the_first_gap_is_met_at_the_same_place_by_any_number_of_workers() -> None:
    states = []
    for workers in (0, 2):
        with _gaps("batches", worker_count=workers) as loader:
            iterator = iter(loader)
            states.append([iterator.get_state() for _ in iterator])
    assert states[0] == states[1]
