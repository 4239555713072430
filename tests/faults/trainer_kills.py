"""Campaign: the training process is killed at random moments, also inside saves, and resumes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import numpy as np

from tests.cases.scripts import ROOT
from tests.faults import campaign
from tests.waiting import until

__all__ = ["run"]

_STEPS = 60
_LIVES = 12  # of one training run, at most; in the last it may come to its end
_SECONDS = 5.0  # after which nothing may be left


def run(count: int, seed: int) -> Counter[str]:
    """Kills training runs and resumes them; what they see and learn is that of an unbroken run."""
    counts: Counter[str] = Counter()
    expected, parameters = _unbroken()
    number = 0
    while counts["kills"] < count:
        rng = random.Random(f"{seed} {number}")
        number += 1
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _train(folder, rng, count, counts)
            _check_log((folder / "log").read_text().splitlines(), expected)
            assert (folder / "parameters").read_bytes() == parameters
        counts["training runs, all right"] += 1
    return counts


def _unbroken() -> tuple[list[str], bytes]:
    """Returns what the log and the parameters must be, computed here and without workers."""
    import jax.numpy as jnp

    from tests.faults import trainer

    parameters, lines = jnp.zeros((40, 100)), []
    for step, batch in zip(range(1, _STEPS + 1), trainer.batches(0), strict=False):
        text, parameters = trainer.step_of(batch, parameters)
        lines.append(f"{step} {text}")
    return lines, np.asarray(parameters).tobytes()


def _train(folder: Path, rng: random.Random, count: int, counts: Counter[str]) -> None:
    for life in range(_LIVES):
        may_end = life == _LIVES - 1 or counts["kills"] >= count
        shared = campaign.shared_memory()
        mark = f"GRAIN_JAX_MARK={uuid.uuid4().hex}"
        how = "" if may_end else rng.choice(["at any time", "during a save", "inside a write"])
        trainer = _start(folder, mark, rng if how == "inside a write" else None)
        try:
            _wait_and_kill(trainer, folder, how, rng)
            _, errors = trainer.communicate(timeout=120)
        finally:
            trainer.kill()
            trainer.wait()
        # Orbax tells that it removes what an interrupted save has left.
        own = [line for line in errors.splitlines() if not line.startswith("WARNING:absl:")]
        assert not own, errors
        assert until(lambda mark=mark: not campaign.marked(mark), _SECONDS)  # type: ignore[misc]
        left = campaign.shared_memory() - shared
        assert not left, f"shared memory left after a kill {how}: {left}"
        if trainer.returncode == 0:
            return
        assert trainer.returncode == -signal.SIGKILL, trainer.returncode
        counts["kills"] += 1
        counts[f"of them {how}"] += 1
    raise AssertionError("it never came to its end")


def _start(folder: Path, mark: str, inside: random.Random | None) -> subprocess.Popen[str]:
    name, value = mark.split("=")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", name: value}
    if inside is not None:
        environment["GRAIN_JAX_KILL"] = str(inside.randint(1, 60))
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.faults.trainer", str(folder), str(_STEPS)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_and_kill(
    trainer: subprocess.Popen[str], folder: Path, how: str, rng: random.Random
) -> None:
    log, checkpoints = folder / "log", folder / "checkpoints"
    size = log.stat().st_size if log.exists() else 0

    def steps_are_made() -> bool:
        return (log.exists() and log.stat().st_size > size) or trainer.poll() is not None

    def is_saving() -> bool:
        names = os.listdir(checkpoints) if checkpoints.exists() else []
        return any("tmp" in name for name in names) or trainer.poll() is not None

    if how == "at any time" and rng.random() < 0.3:
        time.sleep(rng.uniform(0, 4))  # maybe before it has begun
    elif how == "at any time":
        until(steps_are_made, 60)
        time.sleep(rng.uniform(0, 1.5))
    elif how == "during a save":
        until(steps_are_made, 60)
        time.sleep(rng.uniform(0, 0.5))
        until(is_saving, 60)
        time.sleep(rng.uniform(0, 0.03))
    else:
        return
    trainer.kill()


def _check_log(lines: list[str], expected: list[str]) -> None:
    before = 0
    for line in lines:
        step = int(line.split()[0])
        assert line == expected[step - 1], "other records than without the kill"
        assert step <= before + 1, f"steps {before + 1} to {step - 1} are lost"
        before = step
    assert before == _STEPS


if __name__ == "__main__":
    campaign.main(run, "kills", 100)
