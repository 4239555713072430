"""Mixtures of many parts: what they take belongs to workers, and not to parts."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._execution.engine import slots
from tests.processes import children

pytestmark = [
    pytest.mark.usefixtures("no_process_left"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]

THREADS, WORKERS, LENGTH = 4, 4, 4000


class Slow:
    """A source of its own for each part, whose records have to be waited for."""

    def __init__(self, part: int, log: Path | None = None) -> None:
        self.part, self.log = part, log

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        time.sleep(2e-4)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{self.part} {index}\n")
        return self.part * LENGTH + index


def mixture(weights: list[int], log: Path | None = None) -> Any:
    reading = grain.ReadOptions(num_threads=THREADS)
    parts = [
        grain.MapDataset.source(Slow(part, log)).to_iter_dataset(reading)
        for part in range(len(weights))
    ]
    return grain.IterDataset.mix(parts, weights)


def count_of(pid: int, what: str) -> int:
    """How many threads ("task") or descriptors ("fd") a process has."""
    return len(os.listdir(f"/proc/{pid}/{what}"))


def census(weights: list[int], workers: int) -> dict[str, Any]:
    """What a mixture takes that has been read for a while."""
    ds = mixture(weights).batch(16)
    before = children()
    if workers:
        ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    with iter(ds) as iterator:
        for _ in range(60):
            next(iterator)
        below = sorted(children() - before)
        threads = [count_of(pid, "task") for pid in (os.getpid(), *below)]
        return {
            "processes": len(below),
            "threads": max(threads[1:], default=threads[0]),
            "descriptors here": count_of(os.getpid(), "fd"),
            "descriptors of workers": sorted(count_of(pid, "fd") for pid in below),
        }


UNEQUAL = [1 + 3 ** (part % 8) for part in range(40)]


@pytest.mark.parametrize(
    ("workers", "memory"), [(0, "memfd"), (WORKERS, "memfd"), (WORKERS, "file")]
)
def test_forty_parts_take_what_two_take(
    workers: int, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", memory)
    census([1], workers)  # what this process starts once
    few, many = census([2, 1], workers), census(UNEQUAL, workers)
    assert few["processes"] == (workers + 1 if workers else 0)
    assert few["threads"] > THREADS  # they have started
    assert many.pop("threads") <= few.pop("threads")
    assert many == few


def test_parts_are_read_ahead_as_they_are_wanted_next(tmp_path: Path) -> None:
    """As many of them as workers have use for, and not one task of each."""
    log = tmp_path / "log"
    weights = [10_000, *[5_000] * 3, *[1] * 36]
    order = list(mixture(weights))[:200]
    assert {number // LENGTH for number in order} == {0, 1, 2, 3}
    options = grain.MultiprocessingOptions(num_workers=WORKERS)
    with iter(mixture(weights, log).mp_prefetch(options)) as iterator:
        assert [next(iterator) for _ in range(200)] == order
    assert {int(line.split()[0]) for line in log.read_text().splitlines()} == {0, 1, 2, 3}


def timed(number: int) -> tuple[int, float, float]:
    begin = time.monotonic()
    time.sleep(2e-3)
    return os.getpid(), begin, time.monotonic()


def test_a_part_that_gives_most_is_worked_on_by_several_at_once() -> None:
    """Its tasks do not wait for one another because there are other parts."""
    numbers = grain.MapDataset.range(LENGTH).to_iter_dataset()
    parts = [numbers.map(timed), *[numbers.map(lambda number: ())] * 39]
    options = grain.MultiprocessingOptions(num_workers=WORKERS)
    with iter(grain.IterDataset.mix(parts, [390, *[1] * 39]).mp_prefetch(options)) as iterator:
        found = [element for element in itertools.islice(iterator, 400) if element]
    assert any(
        one[0] != other[0] and one[1] < other[2] and other[1] < one[2]
        for one, other in itertools.combinations(found, 2)
    )


# Windows and bins that hold many elements.

BUDGET = 64 << 20


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes all slots have held, from growth to growth."""
    found, grown = [0], slots.Slots.grown
    monkeypatch.setattr(slots, "default_budget", lambda: BUDGET)

    def noted(self: slots.Slots, slot: int, size: int) -> None:
        grown(self, slot, size)
        found.append(self._resident)

    monkeypatch.setattr(slots.Slots, "grown", noted)
    return found


def wide(number: int) -> dict[str, Any]:
    return {"number": number, "wide": np.full(500, number)}


def test_a_window_of_ten_thousand_stays_within_the_budget(used: list[int]) -> None:
    """It holds 8 MB of arrays, and then a second one."""
    ds = grain.MapDataset.range(25_000).to_iter_dataset().map(wide)
    ds = ds.window_shuffle(10_000, seed=3).batch(50)
    options = grain.MultiprocessingOptions(num_workers=2)
    numbers: list[int] = []
    with iter(ds.mp_prefetch(options)) as iterator:
        for batch in iterator:
            assert (batch["wide"] == batch["number"][:, None]).all()
            numbers += batch["number"].tolist()
    for begin in range(0, 25_000, 10_000):
        window = numbers[begin : begin + 10_000]
        assert window != sorted(window) == list(range(25_000))[begin : begin + 10_000]
    assert 8 << 20 < max(used) <= BUDGET


def test_packing_with_64_bins_stays_within_the_budget(used: list[int]) -> None:
    lengths = np.random.default_rng(5).integers(1, 1000, 12_000)
    ds = grain.MapDataset.source(lengths).to_iter_dataset()
    ds = ds.map(tokens).pack({"tokens": 2048}, num_packing_bins=64)
    found = np.zeros(1000, int)
    with iter(ds.batch(8).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))) as iterator:
        for batch in iterator:
            found += np.bincount(batch["tokens"].ravel(), minlength=1000)
    assert np.array_equal(found[1:], np.bincount(lengths)[1:] * np.arange(1, 1000))
    assert 1 << 20 < max(used) <= BUDGET


def tokens(length: int) -> dict[str, Any]:
    return {"tokens": np.full(length, length)}
