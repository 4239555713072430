"""Checkpoints of streams that count as they come, read by other numbers of processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors, transforms
from tests.product.pieces import Odd, plain, shuffled
from tests.product.shards import close, expected, flat, four_after, processes, restore, save, step

ShardOptions = grain.sharding.ShardOptions
pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.fixture
def four() -> list[Any]:
    return four_after(2)


def test_a_checkpoint_restores_on_every_number_that_divides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: list[Any]
) -> None:
    steps = expected("filter", 80, 4, 3, False)
    running = four
    for done, count in enumerate((4, 2, 1, 4), 2):
        save(running, folder := tmp_path / str(done), monkeypatch)
        running = processes("filter", 80, count, 12 // count, False)
        restore(running, folder, monkeypatch)
        assert step(running) == flat(steps[done])


def test_a_file_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: list[Any]
) -> None:
    save(four, tmp_path, monkeypatch)
    (tmp_path / "process_2-of-4.json").unlink()
    with pytest.raises(errors.StateError, match=r"process_2-of-4\.json is missing.*all processes"):
        restore(processes("filter", 80, 2, 6, False), tmp_path, monkeypatch)


def test_files_of_two_saves_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four: list[Any]
) -> None:
    save(four, tmp_path, monkeypatch)
    save(processes("filter", 80, 3, 4, False), tmp_path, monkeypatch)
    with pytest.raises(errors.StateError, match=r"of 3 processes and of 4 processes.*two saves"):
        restore(processes("filter", 80, 2, 6, False), tmp_path, monkeypatch)


def test_as_many_processes_with_other_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh with a model axis over both processes, after one without: both load everything."""
    begun = processes("filter", 80, 2, 3, False)
    step(begun)
    save(begun, tmp_path, monkeypatch)
    wanted = step(begun)
    same = [processes("filter", 80, 1, 6, False)[0] for _ in range(2)]
    restore(same, tmp_path, monkeypatch)
    assert [plain(next(iterator)) for iterator in same] == [wanted, wanted]


@pytest.mark.parametrize("axis", [0, 1])
def test_behind_the_device_stage(
    axis: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(count: int) -> list[Any]:
        stages = []
        for index in range(count):
            loader = shuffled(
                Odd(),
                transforms.Batch(12 // count, batch_fn=along(axis)),
                source=range(80),
                shard_options=ShardOptions(index, count),
            )
            device = jax.devices()[0]
            stage = grain.prefetch_to_device(loader, device, remainder="pad", axis=axis)
            stages.append(stage)
        return stages

    def rows(stages: list[Any]) -> list[int]:
        found = []
        for stage in stages:
            batch = next(stage, None)
            if batch is not None:
                found += np.asarray(batch["x"])[np.asarray(batch["mask"])].tolist()
        return found

    begun, whole = run(4), [flat(batches) for batches in expected("filter", 80, 4, 3, False)]
    assert [rows(begun), rows(begun)] == whole[:2]
    save(begun, tmp_path, monkeypatch)
    monkeypatch.undo()
    close(begun)
    fewer = run(2)
    restore(fewer, tmp_path, monkeypatch)
    monkeypatch.undo()
    assert [rows(fewer) for _ in whole[2:]] == whole[2:]
    assert rows(fewer) == []
    close(fewer)


def along(axis: int) -> Callable[[list[int]], dict[str, np.ndarray]]:
    """Makes a batch whose rows are along an axis."""

    def make(records: list[int]) -> dict[str, np.ndarray]:
        rows = np.array(records)
        return {"x": rows if axis == 0 else rows[np.newaxis]}

    return make


class Gaps:
    """Some of 40 records are absent, which nobody says before they are read."""

    def __init__(self, *absent: int) -> None:
        self.absent = absent

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int | None:
        return None if index in self.absent else index


def in_order(source: Gaps, count: int) -> list[Any]:
    """The processes of a run that reads its source in order, 8 records in a step."""
    sampler = grain.samplers.IndexSampler(len(source), num_epochs=1)
    shards = [ShardOptions(index, count) for index in range(count)]
    batch = transforms.Batch(8 // count)
    return [
        iter(shuffled(batch, source=source, sampler=sampler, shard_options=shard))
        for shard in shards
    ]


def test_one_process_has_met_an_absent_record_and_others_have_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = in_order(Gaps(9), 4)
    assert step(begun) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert step(begun) == [8, 12, 13, 17, 10, 14, 11, 15]
    save(begun, tmp_path, monkeypatch)
    restore(again := in_order(Gaps(9), 4), tmp_path, monkeypatch)
    assert step(again) == step(begun) == [16, 20, 21, 25, 18, 22, 19, 23]
    with pytest.raises(errors.StateError, match=r"process_1-of-4\.json.*met an absent record"):
        restore(in_order(Gaps(9), 2), tmp_path, monkeypatch)


def test_all_processes_have_met_absent_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = in_order(Gaps(8, 9), 2)
    assert step(begun) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert step(begun) == [10, 12, 14, 16, 11, 13, 15, 17]
    save(begun, tmp_path, monkeypatch)
    restore(again := in_order(Gaps(8, 9), 2), tmp_path, monkeypatch)
    assert step(again) == step(begun)
    with pytest.raises(errors.StateError, match="Restore with 2 processes"):
        restore(in_order(Gaps(8, 9), 1), tmp_path, monkeypatch)
