"""Shards from meshes of up to 1,024 processes, whose devices are plain numbers here."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from grain_jax._values.row_shards import row_shards
from grain_jax._values.sharding import ShardBySharding


def blocks(mesh: np.ndarray[Any, Any], split: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Rows of each device where a mesh of device numbers cuts rows along the axes in `split`.

    As NamedSharding numbers them: the first of these axes varies slowest.
    """
    parts = int(np.prod([mesh.shape[axis] for axis in split], dtype=int))
    size = mesh.size // parts
    rows = {}
    for where, device in np.ndenumerate(mesh):
        block = 0
        for axis in split:
            block = block * mesh.shape[axis] + where[axis]
        rows[int(device)] = (block * size, (block + 1) * size)
    return rows


def check(rows: dict[int, tuple[int, int]], processes: dict[int, int], expected: int) -> None:
    """Each row is in one shard, and each process has the shard with all rows of its devices."""
    shards = row_shards(rows, processes)
    assert shards.keys() == set(processes.values())
    assert {count for _, count in shards.values()} == {expected}
    assert {index for index, _ in shards.values()} == set(range(expected))
    rows_of_process: dict[int, set[int]] = {process: set() for process in shards}
    for device, interval in rows.items():
        rows_of_process[processes[device]].update(range(*interval))
    rows_of_shard: dict[int, set[int]] = {}
    for process, (index, _) in shards.items():
        mine = rows_of_process[process]
        assert rows_of_shard.setdefault(index, mine) == mine
    everything = sorted(row for shard in rows_of_shard.values() for row in shard)
    assert everything == list(range(max(stop for _, stop in rows.values())))
    assert len({len(shard) for shard in rows_of_shard.values()}) == 1


def by_process(devices: int, each: int) -> dict[int, int]:
    return {device: device // each for device in range(devices)}


@pytest.mark.parametrize("count", [1, 2, 3, 16, 1024])
@pytest.mark.parametrize("each", [1, 4])
def test_data_parallel_each_process_has_a_shard_of_its_own(count: int, each: int) -> None:
    mesh = np.arange(count * each)
    rows, processes = blocks(mesh, (0,)), by_process(mesh.size, each)
    check(rows, processes, count)
    assert row_shards(rows, processes) == {p: (p, count) for p in range(count)}


@pytest.mark.parametrize(
    ("shape", "split", "each", "expected"),
    [
        ((512, 4), (0,), 4, 512),  # the model axis inside a process
        ((512, 8), (0,), 4, 512),  # ... over two: pairs of processes share their rows
        ((16, 256), (0,), 4, 16),  # ... over 64
        ((1, 4096), (0,), 4, 1),  # the model axis only: everybody loads everything
        ((4096, 1), (0,), 4, 1024),
        ((64, 64), (), 4, 1),  # replicated
        ((1024, 2), (0,), 8, 256),  # several row blocks on a process
        ((2, 512, 4), (0, 1), 4, 1024),  # rows over two axes
        ((2, 512, 4), (1,), 4, 512),  # replicas: far processes share their rows
        ((2, 16, 128), (1, 0), 4, 32),  # rows numbered across the order of the axes
        ((8, 4), (1,), 4, 1),  # each process has a device in every row block
        ((8, 8), (1,), 4, 2),  # ... or in every second half
    ],
)
def test_meshes_of_several_axes(
    shape: tuple[int, ...], split: tuple[int, ...], each: int, expected: int
) -> None:
    mesh = np.arange(np.prod(shape)).reshape(shape)
    check(blocks(mesh, split), by_process(mesh.size, each), expected)


@pytest.mark.parametrize("seed", range(5))
def test_processes_in_any_order_hold_blocks_anywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Each process has four devices of the data axis, and they lie anywhere along it.
    devices = rng.permutation(1024 * 4)
    mesh = np.stack([devices, devices + 4096], axis=1)
    processes = {d: int(d) // 4 for d in range(4096)} | {d: int(d) // 4 for d in range(4096, 8192)}
    check(blocks(mesh, (0,)), processes, 1024)
    first = {}
    rows = blocks(mesh, (0,))
    for device, (start, _) in rows.items():
        first[processes[device]] = min(start, first.get(processes[device], start))
    ordered = sorted({p: s for p, s in first.items() if p < 1024}, key=first.__getitem__)
    shards = row_shards(rows, processes)
    assert [shards[p][0] for p in ordered] == list(range(1024))


def test_several_blocks_of_one_process_may_be_apart() -> None:
    mesh = np.arange(8).reshape(2, 4).T.ravel()  # 0 4 1 5 2 6 3 7
    check(blocks(mesh, (0,)), by_process(8, 2), 4)
    assert row_shards(blocks(mesh, (0,)), by_process(8, 4)) == {0: (0, 2), 1: (1, 2)}


def test_some_rows_in_common_and_some_not_is_refused() -> None:
    rows = {0: (0, 2), 1: (2, 4), 2: (2, 4), 3: (4, 6), 4: (4, 6), 5: (0, 2)}
    with pytest.raises(
        InvalidValueError,
        match=r"process 0 holds rows 0-3 of the global batch and process 1 rows 2-5: they share",
    ):
        row_shards(rows, by_process(6, 2))


def test_intervals_that_overlap_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"process 0 holds rows 0-3 .* process 1 rows 2-5"):
        row_shards({0: (0, 4), 1: (2, 6)}, {0: 0, 1: 1})


def test_processes_with_more_rows_than_others_are_refused() -> None:
    with pytest.raises(
        InvalidValueError,
        match=r"process 1 holds 1 rows .*\(3\) and process 0 holds 3 \(0-2\), counted in",
    ):
        row_shards({d: (d, d + 1) for d in range(4)}, {0: 0, 1: 0, 2: 0, 3: 1})


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    process_index: int


class FakeSharding:
    """What `ShardBySharding` asks a sharding: a mesh of devices that cuts one axis of arrays."""

    def __init__(self, mesh: np.ndarray[Any, Any], split: tuple[int, ...], axis: int) -> None:
        self._mesh, self._split, self._axis = mesh, split, axis
        self.spec = (None,) * axis + ("data",)
        self.device_set = set(mesh.flat)

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        numbers = np.arange(self._mesh.size).reshape(self._mesh.shape)
        everything = (slice(None),) * len(shape)
        return {
            self._mesh.flat[number]: (
                *everything[: self._axis],
                slice(*interval) if self._split else slice(None),
                *everything[self._axis + 1 :],
            )
            for number, interval in blocks(numbers, self._split).items()
        }


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("process", [0, 1, 511, 1023])
def test_a_process_of_1024_finds_its_shard(
    process: int, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    monkeypatch.setattr(jax, "process_index", lambda: process)
    monkeypatch.setattr(jax, "process_count", lambda: 1024)
    mesh = np.array([Device(i, i // 4) for i in range(4096)]).reshape(512, 8)
    options = ShardBySharding(FakeSharding(mesh, (0,), axis), axis=axis, drop_remainder=True)
    assert (options.shard_index, options.shard_count) == (process // 2, 512)
    assert options.drop_remainder
    replicated = ShardBySharding(FakeSharding(mesh, (), axis), axis=axis)
    assert (replicated.shard_index, replicated.shard_count) == (0, 1)
    assert not replicated.is_given


def test_a_process_without_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    monkeypatch.setattr(jax, "process_index", lambda: 7)
    monkeypatch.setattr(jax, "process_count", lambda: 8)
    mesh = np.array([Device(i, i) for i in range(4)])
    with pytest.raises(InvalidValueError, match="process 7 of 8 has no device of the sharding"):
        ShardBySharding(FakeSharding(mesh, (0,), 0))


def test_real_shardings_of_one_process() -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
    from jax.sharding import PartitionSpec as P

    grid = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    for sharding in (
        NamedSharding(grid, P("data")),
        NamedSharding(grid, P(("model", "data"), None)),
        NamedSharding(grid, P()),
        SingleDeviceSharding(jax.devices()[0]),
    ):
        assert ShardBySharding(sharding) == ShardBySharding(sharding, axis=1)
        assert ShardBySharding(sharding).shard_count == 1


@pytest.mark.parametrize("wrong", [None, "data", 3])
def test_what_is_no_sharding_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"must be a jax\.sharding\.Sharding, got"):
        ShardBySharding(wrong)


@pytest.mark.parametrize("axis", [-1, 1.5, True])
def test_an_axis_is_a_whole_number(axis: Any) -> None:
    import jax
    from jax.sharding import SingleDeviceSharding

    with pytest.raises((InvalidTypeError, InvalidValueError), match="axis"):
        ShardBySharding(SingleDeviceSharding(jax.devices()[0]), axis=axis)
