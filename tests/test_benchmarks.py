"""The suite of benchmarks: every peer gives the stream that plain Python gives, and tables add up.

Nothing here is timed; what is small enough for a test runs in this process.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import drivers, files, order, peers, reference, runner, steps, table, targets
from tests.benchmarks.peers import Setting
from tests.benchmarks.results import Results
from tests.benchmarks.workloads import BY_NAME, QUICK, WORKLOADS, Workload

STREAMS = [workload for workload in WORKLOADS if workload.driver == "stream"]
SMALL = {
    "sparse": 8000,
    "sparse-45": 8000,
    "large": 64,
    "latency": 300,
    "sieve": 4000,
    "tfds": 1497,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes a workload small, and keeps its files out of the checkout."""
    for module in (files, order):
        monkeypatch.setattr(module, "CACHE", tmp_path)
    monkeypatch.setattr(steps, "work", steps.add_one)

    def shrink(workload: Workload) -> Workload:
        batch = 2 if workload.name == "large" else 8
        chosen = tuple(steps.ADD_ONE if step is steps.WORK else step for step in workload.steps)
        length = SMALL.get(workload.name, 2000)
        return dataclasses.replace(workload, length=length, batch=batch, steps=chosen)

    return shrink


# What torch and torchdata say of their own accord, of records that are read-only, too.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("peer", list(peers.DISTRIBUTIONS))
@pytest.mark.parametrize("workload", STREAMS, ids=lambda workload: workload.name)
def test_stream_of_a_peer_is_that_of_plain_python(
    peer: str, workload: Workload, small: Any
) -> None:
    if peer in peers.missing():
        pytest.skip(f"{peers.DISTRIBUTIONS[peer]} is not installed")
    if workload.name == "jpeg":
        pytest.importorskip("skimage", reason="scikit-image is not installed")
    settings = [one for one in peers.settings(workload) if (one.peer, one.workers) == (peer, 0)]
    if not settings:
        pytest.skip(f"{peer} has nothing like it")
    workload = small(workload)
    batches = iter(peers.batches(workload, settings[0]))
    wanted = itertools.islice(reference.expected(workload), 3)
    for want in wanted:
        assert reference.difference(workload, drivers.arrays(next(batches)), want) is None
    assert next(wanted, None) is None


@pytest.mark.parametrize("name", ["integers", "columns", "images", "filter", "first-fit", "split"])
def test_stream_of_workers(name: str, small: Any, no_process_left: None) -> None:
    workload, setting = small(BY_NAME[name]), Setting("grain_jax", 2)
    with iter(peers.batches(workload, setting)) as batches:
        first = next(batches)
        found = drivers.check(workload, setting, first, itertools.chain([first], batches), 0)
    assert found == (3, None)


def test_wrong_batches_are_seen() -> None:
    numbers = BY_NAME["integers"]
    assert reference.difference(numbers, np.arange(4), np.arange(4)) is None
    assert "want" in str(reference.difference(numbers, np.arange(4), np.arange(1, 5)))
    images = BY_NAME["images"]
    whole = np.stack([images.source(9)[i] for i in range(2)])
    crop = whole[:, 3:227, 5:229]
    assert reference.difference(images, crop[:, :, ::-1], whole) is None
    assert "no window of image 0" in str(reference.difference(images, crop[:, ::-1], whole))
    assert "no window of image 0" in str(reference.difference(images, crop[::-1], whole))


def test_order_is_a_permutation_that_all_are_given(small: Any) -> None:
    workload = small(BY_NAME["integers"])
    found = list(itertools.islice(order.endless(workload), 4000))
    assert sorted(found[:2000]) == list(range(2000))
    assert found[2000:] == found[:2000]
    assert list(itertools.islice(order.endless(workload, 1, 2), 500)) == found[1:1000:2]


def test_a_measurement_has_a_process_of_its_own() -> None:
    figures = runner.measure(BY_NAME["integers"], Setting("floor"), 0.05)
    assert figures["wrong"] is None
    assert figures["checked"] >= 3
    assert figures["records_per_second"] > 0
    assert figures["bytes_per_record"] == 8


def results() -> Results:
    """Two rounds in which grain_jax gives 60 and 80 records a second, and others less."""
    about = {"command": "make bench", "machine": "2 cores", "python": "3.11.7", "rounds": 2}
    found = Results(about | {"versions": {"floor": "2.0", "grain": "0.2.18"}, "missing": ["spdl"]})
    for rate in (60.0, 80.0):
        figures = {"records_per_second": rate, "first_batch": rate / 100, "wrong": None}
        found.add("images", Setting("grain_jax", 2), figures)
    theirs = [("grain-0w-0t", 7.0, 0.1), ("grain-2w-0t", 5.0, 2.0), ("grain-2w-16t", 6.0, 1.4)]
    for text, rate, first in theirs:
        figures = {"records_per_second": rate, "first_batch": first}
        found.add("images", Setting.parse(text), figures)
    found.add("images", Setting("floor"), {"records_per_second": 50.0})
    return found


def test_ratios_are_to_the_best_of_a_peer() -> None:
    found = {check.name: check for check in targets.checks(results(), BY_NAME["images"])}
    assert sorted(found) == ["grain", "twice the floor"]  # torch was not measured
    assert found["grain"].reached == 10
    assert found["grain"].met
    assert found["twice the floor"].reached == 0.7
    assert not found["twice the floor"].met
    assert targets.RATIOS["first batch"].of(results(), "images") == 0.5


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results().save(tmp_path / "found.json")
    found = Results.load(tmp_path / "found.json")
    assert found == results()
    ours = Setting("grain_jax", 2)
    assert found.median("images", ours, "records_per_second") == 70
    assert found.spread("images", ours, "records_per_second") == pytest.approx(1 / 7)
    assert found.median("images", ours, "pss") is None


def test_faults_are_told() -> None:
    found = results()
    assert found.faults() == []
    found.add("filter", Setting("torch", 2), {"wrong": "batch 3: got 1"})
    found.add("filter", Setting("spdl", 0, 2), {"failed": "ValueError"})
    assert found.faults() == [
        "filter, torch-2w: batch 3: got 1",
        "filter, spdl-0w-2t: ValueError",
    ]
    assert "NOT RIGHT:\nfilter, torch-2w" in table.show(found)


def test_pages_show_the_tables_that_they_name() -> None:
    page = "a\n<!-- benchmarks: ratios -->\nold\n<!-- end -->\nb\n"
    filled = table.filled(page, results())
    title = BY_NAME["images"].title
    assert filled == (
        "a\n<!-- benchmarks: ratios -->\n| workload | reached (target) |\n|---|---|\n"
        f"| {title} | Grain: 10 (≥ 3, met); **twice a plain loop: 0.7 (≥ 0.85)** |\n"
        "<!-- end -->\nb\n"
    )
    assert table.filled(filled, results()) == filled


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (1234567.0, "1.23 M"), (4671.0, "4.67 k"), (0.21, "0.21")]
)
def test_numbers_have_three_figures(value: float | None, text: str) -> None:
    assert table.number(value) == text


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_settings_are_read_as_they_are_written(workload: Workload) -> None:
    for setting in peers.settings(workload):
        assert Setting.parse(str(setting)) == setting
    assert set(peers.settings(workload, best=True)) <= set(peers.settings(workload)) | {
        Setting("grain_jax", 8)
    }


def test_targets_and_the_quick_run_name_what_there_is() -> None:
    assert len(QUICK) == 5
    assert set(QUICK) <= BY_NAME.keys()
    for workload in WORKLOADS:
        assert workload.targets.keys() <= targets.RATIOS.keys()
