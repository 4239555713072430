"""The examples do what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUMBER = r"\d+\.\d+"

PRINTED = {
    "dataframes": rf"""
        pyarrow: ({NUMBER}), polars: \1, pandas: \1
        one stream, whatever the library: True""",
    "device_preprocessing": r"""
        28 batches, 8192 bytes each on the way to the devices,
          32768 bytes of float32 there: .* on 4 devices
        18 batches, 8192 bytes each on the way to the devices,
          32768 bytes of float32 there: .* on 4 devices
        after a resume, augmented as in the unbroken run: True""",
    "equinox_loop": rf"""
        steps 1 to 30: loss {NUMBER}
        steps 21 to 85: loss {NUMBER}""",
    "from_grain": r"""
        31 batches, as with Grain: True
        with 2 workers, the same: True
        goes on at Grain's checkpoint: True""",
    "hugging_face": r"""
        in memory: 10 batches, as if never cut off: True
        streaming: 10 batches, as if never cut off: True""",
    "linen_loop": rf"""
        steps 1 to 30: loss {NUMBER}
        steps 21 to 84: loss {NUMBER}""",
    "mixture": rf"""
        steps 1 to 40: 70% prose, 30% code; loss {NUMBER}
        steps 41 to 80: 40% prose, 40% code, 20% tests; loss {NUMBER}""",
    "object_store": r"""
        901 images of 0 to 4, in batches of \(64, 8, 8\)
        \['ONE', 'TWO', 'THREE'\]""",
}
ELSEWHERE = {"demo", "language_model", "multihost", "train"}  # have tests of their own


def run(name: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    return done.stdout.splitlines()


def losses(lines: list[str]) -> list[float]:
    return [float(loss) for loss in re.findall(rf"loss ({NUMBER})", "\n".join(lines))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PRINTED)
def test_example(name: str, no_process_left: None) -> None:
    if name == "equinox_loop" and not find_spec("equinox"):
        pytest.skip("equinox is not installed")
    lines = run(name)
    expected = "\n".join(line.removeprefix(" " * 8) for line in PRINTED[name].splitlines()[1:])
    assert re.fullmatch(expected, "\n".join(lines)), lines
    assert losses(lines) == sorted(losses(lines), reverse=True)  # it learns


@pytest.mark.timeout(600)
def test_images_go_on_in_the_middle_of_an_epoch(tmp_path: Path, no_process_left: None) -> None:
    first = run("images", str(tmp_path / "cut"), "--epochs=2", "--stop-after=17")
    second = run("images", str(tmp_path / "cut"), "--epochs=2")
    whole = run("images", str(tmp_path / "whole"), "--epochs=2")
    right = r"\d\d\.\d% of the test images are right"
    assert re.fullmatch(f"epoch 0: {right}", first[0])
    assert second[0] == "goes on behind step 15"  # the 4th of 11 in epoch 1
    assert re.fullmatch(f"epoch 1: {right}", second[1])
    assert whole == [first[0], second[1]]


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, *ELSEWHERE, "images"}
