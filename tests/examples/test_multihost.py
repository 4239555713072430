"""Real jobs of the example: as many processes as there happen to be, killed and started again."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import children
from tests.product.jobs import free_address, running
from tests.waiting import until

load_digits = pytest.importorskip("sklearn.datasets").load_digits

# 25 steps; the last one has four records.
SIZES = ["--records=290", "--epochs=2", "--global-batch=24", "--save-every=4"]
STEPS = 25

# `make test-modes` runs the job that also goes on with more processes than it had.
EVERY = os.environ.get("GRAIN_JAX_TEST_MODES") == "all"


@contextlib.contextmanager
def started(folder: Path, count: int, *more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The example in `count` processes."""
    address = free_address()
    job = [f"--processes={count}", f"--coordinator={address}", *SIZES, *more]
    commands = [
        ["examples/multihost.py", str(folder), f"--process={index}", *job] for index in range(count)
    ]
    with running(commands, devices=1) as processes:
        yield processes


def lines(folder: Path, count: int) -> list[list[dict[str, Any]]]:
    """What each process has logged in the job of this many of them."""
    logs = []
    for index in range(count):
        log = folder / f"process_{index}.jsonl"
        text = log.read_text().splitlines(keepends=True) if log.exists() else []
        parsed = [json.loads(line) for line in text if line.endswith("\n")]
        logs.append([line for line in parsed if line["of"] == count])
    return logs


def last_save(folder: Path) -> int:
    """The step of the last save that is complete."""
    names = (path.name for path in (folder / "checkpoints").glob("*"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def wait_for(condition: Callable[[], bool], processes: list[subprocess.Popen[str]]) -> None:
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def run_until_save(folder: Path, count: int, save: int, *more: str) -> None:
    """Runs a job until it has saved a step and gone on from there; kills all of it."""
    with started(folder, count, "--pause=0.1", *more) as processes:
        wait_for(
            lambda: (
                last_save(folder) >= save
                and all(log and log[-1]["step"] > save for log in lines(folder, count))
            ),
            processes,
        )
        for process in processes:
            process.send_signal(signal.SIGKILL)


def run_until_preempted(folder: Path, count: int, step: int, *more: str) -> None:
    """Runs a job until one process is told to end, and all of it ends well."""
    with started(folder, count, "--pause=0.1", *more) as processes:
        wait_for(
            lambda: all(log and log[-1]["step"] >= step for log in lines(folder, count)), processes
        )
        processes[-1].send_signal(signal.SIGTERM)
        for process in processes:
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors


def run_to_the_end(folder: Path, count: int, *more: str) -> None:
    with started(folder, count, *more) as processes:
        for process in processes:
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors


def run_with_one_command(folder: Path, count: int, *more: str) -> None:
    """Runs a job that the example itself launches on this machine."""
    command = ["examples/multihost.py", str(folder), f"--processes={count}", *SIZES, *more]
    with running([command]) as (process,):
        output, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        assert "accuracy on the digits: " in output


def records_by_step(logs: list[list[dict[str, Any]]]) -> dict[int, list[list[Any]]]:
    """Of each step that all processes have logged: number and digest of each record."""
    steps = [{line["step"]: line["records"] for line in log} for log in logs]
    common = set.intersection(*(set(step) for step in steps))
    return {k: sorted(itertools.chain(*(own[k] for own in steps))) for k in sorted(common)}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_process_left")
def test_case_8_a_run_on_4_then_2_then_3_then_1_process_is_the_run_on_one(tmp_path: Path) -> None:
    whole, elastic = tmp_path / "whole", tmp_path / "elastic"
    run_with_one_command(whole, 1, "--workers=0")
    expected = records_by_step(lines(whole, 1))
    assert list(expected) == list(range(1, STEPS + 1))
    seen = [record for records in expected.values() for record, _ in records]
    assert sorted(seen) == sorted([*range(290)] * 2)

    run_until_save(elastic, 4, 4, "--workers=0")
    saves = [last_save(elastic)]
    run_until_preempted(elastic, 2, saves[0] + 2, "--workers=1")
    saves.append(last_save(elastic))
    run_until_save(elastic, 3, saves[1] // 4 * 4 + 4, "--workers=0")
    saves.append(last_save(elastic))
    run_to_the_end(elastic, 1, "--workers=1")

    first = 1
    for count, last in zip((4, 2, 3, 1), [*saves, STEPS], strict=True):
        got = records_by_step(lines(elastic, count))
        assert min(got) == first
        assert max(got) >= last
        assert got == {step: expected[step] for step in got}
        first = last + 1
    # A preempted job saves the step that it ends with, on all processes.
    assert {log[-1]["step"] for log in lines(elastic, 2)} == {saves[1]}

    with np.load(whole / "parameters.npz") as one, np.load(elastic / "parameters.npz") as other:
        assert set(one) == set(other) == {"hidden", "out"}
        for name in one:
            np.testing.assert_allclose(other[name], one[name], rtol=1e-4, atol=1e-5)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("counts", [(4, 2), *[(4, 8, 2)] * EVERY])
def test_with_a_filter_a_run_on_4_then_2_then_1_process_is_the_run_on_one(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    """Of eight virtual shards. A run of one process has the steps that one of eight has."""
    whole, elastic = tmp_path / "whole", tmp_path / "elastic"
    few = ["--without=8", "--without=3", "--workers=0", "--virtual-shards=8"]
    run_to_the_end(whole, 1, *few)
    expected = records_by_step(lines(whole, 1))
    seen = [record for records in expected.values() for record, _ in records]
    kept = [i for i, label in enumerate(load_digits().target[:290]) if label not in (8, 3)]
    assert sorted(seen) == sorted(kept * 2)

    saves = [0]
    for count in counts[:-1]:
        run_until_save(elastic, count, saves[-1] + 4, *few)
        saves.append(last_save(elastic))
    run_until_preempted(elastic, counts[-1], saves[-1] + 2, *few)
    saves.append(last_save(elastic))
    with started(elastic, 3, *few[:-1]) as processes:
        said = [process.communicate(timeout=200)[1] for process in processes]
        assert all(process.returncode for process in processes)
        # The end of the first one, which says why, may end others in their words: JAX does that.
        assert any("Restore it on 1, 2, 4 or 8 shards" in errors for errors in said)
    run_to_the_end(elastic, 1, *few)

    got = {count: records_by_step(lines(elastic, count)) for count in (*counts, 1)}
    assert [min(got[count]) for count in got] == [save + 1 for save in saves]
    assert set().union(*got.values()) == {*expected}
    for records in got.values():
        assert records == {step: expected[step] for step in records}
    with np.load(whole / "parameters.npz") as one, np.load(elastic / "parameters.npz") as other:
        for name in ("hidden", "out"):
            np.testing.assert_allclose(other[name], one[name], rtol=1e-4, atol=1e-5)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_when_one_process_is_killed_the_others_end_and_leave_nothing(tmp_path: Path) -> None:
    with started(tmp_path, 2, "--pause=0.05", "--workers=1", "--heartbeat=10") as processes:
        wait_for(lambda: all(len(log) > 2 for log in lines(tmp_path, 2)), processes)
        workers = {pid for process in processes for pid in children(process.pid)}
        assert len(workers) >= 4  # a helper and a worker each
        processes[1].kill()
        processes[0].communicate(timeout=200)
        assert processes[0].returncode not in (0, None)
        until(lambda: not any(map(is_alive, workers)))
        assert not [pid for pid in workers if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
