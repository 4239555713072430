"""Kills a training run, starts it again, and shows that nothing was lost or seen twice.

`make demo` runs this. It trains once without interruption, then once more with a SIGKILL between
two saves, and compares the two runs: every batch after the resume, and the final parameters.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def start(workdir: Path, epochs: int, save_every: int) -> subprocess.Popen[bytes]:
    """A training process that logs its steps and saves in `workdir`."""
    command = [sys.executable, HERE / "train.py", workdir]
    return subprocess.Popen(
        [*command, f"--epochs={epochs}", f"--save-every={save_every}"], stdout=subprocess.DEVNULL
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        sys.exit(f"the training process ended with status {process.returncode}")


def steps(workdir: Path) -> list[dict[str, Any]]:
    """The steps logged so far: number, and digests of the record ids and of the pixels."""
    log = workdir / "steps.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def kill_after(step: int, process: subprocess.Popen[bytes], workdir: Path) -> None:
    """Ends the process with SIGKILL as soon as its log shows `step`."""
    while not any(line["step"] >= step for line in steps(workdir)):
        if process.poll() is not None:
            sys.exit("the training process ended before it could be killed")
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()


def demo(workdir: Path, epochs: int, save_every: int, kill_at: int) -> bool:
    """Prints what happened; returns whether the interrupted run equals the other one."""
    whole, cut = workdir / "uninterrupted", workdir / "interrupted"

    finish(start(whole, epochs, save_every))
    expected = steps(whole)
    print(f"uninterrupted run: {len(expected)} steps")

    process = start(cut, epochs, save_every)
    kill_after(kill_at, process, cut)
    before = steps(cut)
    print(f"second run: killed with SIGKILL after step {before[-1]['step']}")

    finish(start(cut, epochs, save_every))
    after = steps(cut)[len(before) :]
    print(f"second run: resumed at step {after[0]['step']} from the last save")

    same_batches = before == expected[: len(before)] and after == expected[-len(after) :]
    results = [json.loads((run / "result.json").read_text()) for run in (whole, cut)]
    same_parameters = results[0]["parameters"] == results[1]["parameters"]
    answer = {True: "yes", False: "NO"}
    print(f"batches after the resume are those of the uninterrupted run: {answer[same_batches]}")
    print(f"final parameters are bit-identical: {answer[same_parameters]}")
    print(f"test accuracy: {results[1]['accuracy']:.1%}")
    return same_batches and same_parameters


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--kill-at", type=int, default=175)
    with tempfile.TemporaryDirectory(prefix="grain_jax_demo_") as folder:
        sys.exit(not demo(Path(folder), **vars(parser.parse_args())))
