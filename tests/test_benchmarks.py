"""The suite of benchmarks: its workloads are the same stream for all, and its tables say so."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import drivers, peers, runner, table
from tests.benchmarks.peers import Setting
from tests.benchmarks.results import Results
from tests.benchmarks.targets import checks
from tests.benchmarks.workloads import BY_NAME, QUICK, WORKLOADS

# That of TFDS needs a data set on disk, which takes tensorflow to write; `make bench` has it.
STREAMS = [one.name for one in WORKLOADS if one.driver == "stream" and one.name != "tfds"]
SETTINGS = [Setting("grain_jax"), Setting("grain", 0, 0), Setting("floor")]


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("files", "order"):
        monkeypatch.setattr(f"tests.benchmarks.{module}.CACHE", tmp_path)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_stream_is_exact(name: str, setting: Setting) -> None:
    workload = dataclasses.replace(BY_NAME[name], length=8000)
    if {one.peer for one in peers.settings(workload)}.isdisjoint({setting.peer}):
        pytest.skip(f"{setting.peer} takes no part in {name}, or is not installed")
    workload = dataclasses.replace(workload, batch=min(workload.batch, 16))
    iterator = iter(peers.batches(workload, setting))
    first = next(iterator)
    got = itertools.chain([first], iterator)
    checked, wrong = drivers.check(workload, setting, first, got, seconds=0)
    assert wrong is None
    assert checked == 3
    drivers._close(iterator)


def test_a_stream_that_is_not_the_declared_one_is_found() -> None:
    workload = dataclasses.replace(BY_NAME["integers"], length=3000, batch=4)
    right = iter(peers.batches(workload, Setting("floor")))
    batches = list(itertools.islice(right, 3))
    batches[2] = batches[2][::-1]
    checked, wrong = drivers.check(workload, Setting("floor"), batches[0], iter(batches))
    assert checked == 2
    assert wrong is not None
    assert "batch 2" in wrong


def test_a_process_is_measured_and_ends() -> None:
    figures = runner.measure(BY_NAME["integers"], Setting("floor"), 0.05)
    assert figures["wrong"] is None
    assert figures["records_per_second"] > 0
    assert figures["bytes_per_record"] == 8
    assert figures["checked"] >= 3


def rates(**per_second: float) -> Results:
    about = {
        "command": "make bench",
        "machine": "2 cores",
        "python": "3.11.7",
        "versions": {"grain_jax": "0.2.0", "grain": "0.2.18", "floor": "2.4"},
        "missing": ["torch", "stateful", "spdl"],
        "rounds": 2,
    }
    results = Results(about)
    for setting, rate in per_second.items():
        for factor in (0.9, 1.1):
            figures: dict[str, Any] = {"records_per_second": factor * rate, "wrong": None}
            results.add("filter", Setting.parse(setting.replace("_jax_", "_jax-")), figures)
    return results


def test_ratios_are_to_the_best_setting_of_a_peer(tmp_path: Path) -> None:
    results = rates(grain_jax_2w=1000, grain_jax_0w=300)
    for setting, rate in (("grain-0w-0t", 20.0), ("grain-2w-16t", 10.0), ("floor-0w", 800.0)):
        results.add("filter", Setting.parse(setting), {"records_per_second": rate, "wrong": None})
    results.save(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["about"]["rounds"] == 2
    results = Results.load(tmp_path / "found.json")
    found = {one.name: one for one in checks(results, BY_NAME["filter"])}
    assert found["grain"].reached == pytest.approx(50)
    assert found["grain"].met  # 40 are asked
    assert found["twice the floor"].reached == pytest.approx(1000 / 1600)
    assert "torch" not in found
    assert results.spread("filter", Setting("grain_jax", 2), "records_per_second") == 0.1


def test_a_page_gets_the_table_that_it_names() -> None:
    page = "# Speed\n<!-- benchmarks: speeds -->\nold\n<!-- end -->\nrest\n"
    filled = table.filled(page, rates(grain_jax_2w=1000, grain_jax_0w=300))
    head, row = filled.splitlines()[2], filled.splitlines()[4]
    assert head.startswith("| workload, records/s | grain_jax, 2 workers | in process |")
    assert row == f"| {BY_NAME['filter'].title} | 1 k | 300 | - | - | - | - | - |"
    assert filled.startswith("# Speed\n")
    assert filled.endswith("<!-- end -->\nrest\n")
    assert "old" not in filled


def test_what_is_not_right_is_told() -> None:
    results = rates(grain_jax_2w=1000)
    assert "every stream was exact" in table.show(results)
    results.add("filter", Setting("floor"), {"wrong": "batch 3: got 1, want 2"})
    assert "filter, floor-0w: batch 3: got 1, want 2" in table.show(results)


def test_the_quick_form_has_five_workloads_and_the_best_setting_of_each_peer() -> None:
    chosen = runner.plan([BY_NAME[name] for name in QUICK], best=True)
    assert len({workload.name for workload, _ in chosen}) == 5
    for name in QUICK:
        of_grain = [s for w, s in chosen if w.name == name and s.peer == "grain" and not s.workers]
        assert len(of_grain) <= 1
