"""The language model, in a short form: what it prints is what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "language_model.py"


@pytest.mark.timeout(400)
def test_killed_and_resumed_run_equals_the_uninterrupted_one(no_process_left: None) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--steps=16", "--save-every=5", "--kill-at=7"],
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    first, second, shares, *equal = done.stdout.splitlines()
    assert first.startswith("uninterrupted run: 16 steps, loss ")
    before, after = first.partition(", loss ")[2].split(" to ")
    assert float(after) < float(before)  # it learns
    assert "killed after step" in second
    numbers = [float(part.split("%")[0]) for part in shares.removeprefix("tokens: ").split(", ")]
    assert numbers[0] == pytest.approx(70, abs=0.5)
    assert numbers[1] == pytest.approx(30, abs=0.5)
    assert equal == [
        "losses and tokens are those of the uninterrupted run: yes",
        "final parameters are bit-identical: yes",
    ]
