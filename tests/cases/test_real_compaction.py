"""Batches that gather more than there are slots: elements that wait hold nothing back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._execution.engine import arena

pytestmark = [pytest.mark.usefixtures("no_process_left"), pytest.mark.timeout(240)]


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
    records = 256 * size
    dataset = grain.MapDataset.range(records).to_iter_dataset().filter(every(256)).batch(size)
    assert taken(in_workers(dataset)) == [list(range(0, records, 256))]


def test_a_batch_of_slow_records_with_a_file_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")
    dataset = grain.MapDataset.range(600 * 32).to_iter_dataset().filter(every(32)).map(slowly)
    assert taken(in_workers(dataset.batch(600))) == [list(range(0, 600 * 32, 32))]


# Seven slots.


def test_a_filter_before_a_batch(few_slots: None) -> None:
    dataset = grain.MapDataset.range(6_000).to_iter_dataset().filter(every(50)).batch(40)
    assert taken(in_workers(dataset)) == in_batches(list(range(0, 6_000, 50)), 40)
