"""The device stage in two real processes of `jax.distributed`, with two CPU devices each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What each process saw, by scene; one job plays all of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    two_devices = "--xla_force_host_platform_device_count=2"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": two_devices}
    command = [sys.executable, "-m", "tests.product.distributed_stage", address, "2"]
    processes = [
        subprocess.Popen(
            [*command, str(i)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def test_case_20_each_process_gives_its_rows_to_its_own_devices(seen: list[Any]) -> None:
    for process, scene in enumerate(s["sharded_batches"] for s in seen):
        for step, x in enumerate(scene["x"]):
            assert x["shape"] == [8]
            first = 100 * step + 10 * process
            assert sorted(x["here"].values()) == [
                [4 * process, [first, first + 1]],
                [4 * process + 2, [first + 2, first + 3]],
            ]
        assert scene["sums"] == [8 * 100 * k + 4 * 10 + 2 * 6 for k in range(3)]
        assert scene["names"] == [f"from {process}"] * 3


def test_leaves_without_axes_are_replicated(seen: list[Any]) -> None:
    for scene in (s["sharded_batches"] for s in seen):
        assert scene["steps"] == [0, 1, 2]
        assert scene["step_replicated"]


def test_processes_that_hold_the_same_rows_give_the_same_batch(seen: list[Any]) -> None:
    for scene in (s["model_axis_over_processes"] for s in seen):
        assert scene["shape"] == [4]
        assert sorted(scene["here"].values()) == [[0, [0, 1]], [2, [2, 3]]]


def test_a_process_alone_on_its_own_devices_waits_for_nobody(seen: list[Any]) -> None:
    assert [x["shape"] for x in seen[0]["local_mesh"]] == [[4]] * 3
    assert seen[1]["local_mesh"] is None


def test_each_process_pads_its_own_rows(seen: list[Any]) -> None:
    for process, scene in enumerate(s["padded"] for s in seen):
        assert [step[key]["shape"] for step in scene for key in step] == [[8]] * 4
        rows = [value for _, part in sorted(scene[1]["mask"]["here"].values()) for value in part]
        assert rows == [i < (3, 1)[process] for i in range(4)]
        x = [value for _, part in sorted(scene[1]["x"]["here"].values()) for value in part]
        assert x == [100 + 10 * process + i if real else 0 for i, real in enumerate(rows)]


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        ("rows_differ", "the batches have 4 rows on process 0 and 6 on process 1"),
        ("scalars_differ", "batch['seed'] is 0 on process 0 and 1 on process 1: a leaf without"),
        (
            "leaves_differ",
            "batch['only_0'] is float64 with rows of shape () on process 0 and nothing",
        ),
        ("dtypes_differ", "batch['y'] is float16 with rows of shape () on process 0 and float32"),
        ("one_is_empty", "process 1 has no batch at all, and process 0 has one"),
    ],
)
def test_a_difference_is_the_same_error_on_every_process_and_again(
    seen: list[Any], scene: str, text: str
) -> None:
    first, second = (s[scene] for s in seen)
    assert first == second
    assert len(first) == 2
    assert all(text in refusal for refusal in first)


def test_an_error_of_one_process_lets_no_other_wait_for_it(seen: list[Any]) -> None:
    first, second = (s["one_fails"] for s in seen)
    assert [text.partition(" holds")[0] for text in second] == ["batch['seed']"] * 2
    assert [text.partition(": ")[0] for text in first] == [
        "process 1 failed at its first batch"
    ] * 2


def test_a_batch_that_does_not_divide_says_what_is_cut_where(seen: list[Any]) -> None:
    for s in seen:
        assert (
            "has shape (3,), and axis 0 is cut into 2 parts, 4 over all processes, by the mesh axes"
            " ('batch',)" in s["indivisible"]
        )


def test_devices_of_another_process_are_refused(seen: list[Any]) -> None:
    for process, s in enumerate(seen):
        assert (
            f"none of its devices belongs to this process (process {process} of 2)"
            in (s["foreign_device"])
        )
