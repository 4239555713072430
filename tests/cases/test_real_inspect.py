"""`python -m grain_jax inspect` names what holds a pipeline up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._product import inspecting, report
from tests.cases.scripts import ROOT

pytestmark = pytest.mark.usefixtures("no_process_left")

WORKERS = pytest.mark.parametrize("workers", [0, 2])
LONG = 0.02  # seconds; all else here takes far less


class Records:
    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: Any) -> Any:
        time.sleep(self._pause)
        return np.full(10, int(index), np.float32)


def slow(element: Any) -> Any:
    time.sleep(LONG)
    return element


def same(element: Any) -> Any:
    return element


def slow_batch(elements: Any) -> Any:
    time.sleep(4 * LONG)
    return np.stack(elements)


def slow_step(batch: Any) -> Any:
    time.sleep(4 * LONG)
    return batch


def streams() -> dict[str, tuple[Any, Any, str]]:
    """Pipelines slow at one place, the training step, and what that place is called."""

    def plain(pause: float = 0.0) -> Any:
        return grain.MapDataset.source(Records(pause)).to_iter_dataset()

    second = plain().map(same).map(slow).map(same)
    mixed = grain.IterDataset.mix({"fast": plain(), "slow": plain().map(same).map(slow)})
    return {
        "source": (plain(LONG).map(same).batch(4), None, "source"),
        "second": (second.batch(4), None, "step 2: map(slow)"),
        "batch function": (plain().batch(4, batch_fn=slow_batch), None, "step 1: batch(4)"),
        "mixture": (mixed.batch(4), None, "step 2: map(slow) (in slow)"),
        "training": (plain().map(same).batch(4), slow_step, "training"),
        "second before a step": (second.batch(4), same, "step 2: map(slow)"),
        "mixture before a step": (mixed.batch(4), same, "step 2: map(slow) (in slow)"),
        "training on a mixture": (
            grain.IterDataset.mix([plain(), plain()]).batch(4),
            slow_step,
            "training",
        ),
    }


@WORKERS
@pytest.mark.parametrize("name", streams())
def test_the_bottleneck_is_what_is_slow(name: str, workers: int) -> None:
    stream, step, expected = streams()[name]
    if workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    found = inspecting.inspect(stream, 0.5, step)
    assert found.bottleneck == expected
    assert 0.5 < found.share <= 1
    assert found.would_be > 0
    line = f"bottleneck: {expected} ({found.share:.0%} of "
    assert line in str(found)
    assert json.loads(json.dumps(found.as_json()))["bottleneck"] == expected


def test_a_loader_an_iterable_and_a_stream_that_ends() -> None:
    loader = grain.load(Records(), num_epochs=1, transformations=[grain.python.MapOperation(slow)])
    assert inspecting.inspect(loader, 0.2).bottleneck == "step 1: map(slow)"
    loader.close()
    found = inspecting.inspect((slow(number) for number in range(4)), 5.0)
    assert (found.bottleneck, found.stats.elements) == ("source", 3)
    assert inspecting.inspect([], 5.0).stats.elements == 0
    assert inspecting.inspect([1], 5.0).stats.elements == 1


def test_more_workers_are_worth_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grain_jax._values.options.usable_cores", lambda: 8)
    stream = grain.MapDataset.source(Records()).to_iter_dataset().map(slow).batch(4)
    found = inspecting.inspect(stream, 0.5)
    assert found.suggestion == "more workers, worker_count=8"
    assert found.would_be == pytest.approx(8 * found.rate, rel=0.5)


def test_the_page_has_all_of_it() -> None:
    stream = grain.MapDataset.source(Records()).to_iter_dataset().map(slow).map(same).batch(4)
    text = report.page(inspecting.inspect(stream, 0.2))
    for part in ("Bottleneck: step 1: map(slow)", "<svg", "loop waits", "process 1", "map(same)"):
        assert part in text


FILE = """
import time
import numpy as np
import grain_jax as grain

class Slow(grain.transforms.Map):
    def map(self, element):
        time.sleep(0.02)
        return element

def make():
    return grain.load(
        np.zeros((10_000, 4), np.float32), num_epochs=1, transformations=[Slow()], batch_size=4,
        worker_count=2)

def step(batch):
    return batch.sum()

if __name__ == "__main__":
    raise SystemExit("this trains")
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pipeline.py").write_text(FILE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "grain_jax", "inspect", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_command_with_a_step_and_reports(tmp_path: Path) -> None:
    options = ("--seconds", "0.5", "--json", "--html", "report.html")
    done = command(tmp_path, "pipeline.py:make", "--step", "pipeline.py:step", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["bottleneck"] == "step 1: map(Slow)"
    assert "Bottleneck: step 1: map(Slow)" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("pipeline.py", "'pipeline.py' is not FILE:NAME"),
        ("other.py:make", "there is no file other.py"),
        ("pipeline.py:loader", "pipeline.py has no 'loader' when it is imported"),
    ],
)
def test_the_command_says_what_it_cannot_find(tmp_path: Path, what: str, message: str) -> None:
    done = command(tmp_path, what)
    assert done.returncode == 2
    assert message in done.stderr
