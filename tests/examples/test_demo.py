"""The demo, in a short form: what it prints is what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.mark.timeout(300)
def test_killed_and_resumed_run_equals_the_uninterrupted_one(no_process_left: None) -> None:
    done = subprocess.run(
        [sys.executable, DEMO, "--epochs=3", "--save-every=10", "--kill-at=25"],
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "uninterrupted run: 44 steps" in done.stdout
    assert "batches after the resume are those of the uninterrupted run: yes" in done.stdout
    assert "final parameters are bit-identical: yes" in done.stdout
