"""What is released installs where nothing else is, and runs the first code of the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import grain_jax
from tools import snippets

ROOT = Path(__file__).resolve().parents[2]


def call(*command: str | Path, folder: Path) -> str:
    # Nothing of this environment leads back to the checkout.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    """Returns the Python of a new environment with some packages and what they need."""
    call(sys.executable, "-m", "venv", folder, folder=folder.parent)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    call(*pip, *packages, folder=folder)
    return python


@pytest.mark.timeout(1200)
def test_wheel_and_sdist_in_an_empty_environment(tmp_path: Path) -> None:
    python = environment(tmp_path / "builder", "build", "hatchling")
    out = tmp_path / "dist"
    # The wheel is made of the sdist, so that the sdist has all that it takes.
    call(python, "-m", "build", "--no-isolation", "--outdir", out, ROOT, folder=tmp_path)
    [wheel], [sdist] = out.glob("*.whl"), out.glob("*.tar.gz")
    assert wheel.name == f"grain_jax-{grain_jax.__version__}-py3-none-any.whl"
    assert sdist.name == f"grain_jax-{grain_jax.__version__}.tar.gz"

    python = environment(tmp_path / "empty", wheel)
    first, *_ = snippets.blocks((ROOT / "README.md").read_text())
    script = tmp_path / "first.py"
    script.write_text(first.text)
    where = "import grain_jax; print(grain_jax.__version__, grain_jax.__file__)"
    for _ in range(2):
        version, _, file = call(python, "-c", where, folder=tmp_path).strip().partition(" ")
        assert version == grain_jax.__version__
        assert Path(file).is_relative_to(tmp_path / "empty")
        call(python, "-W", "error::UserWarning", script, folder=tmp_path)
        call(python, "-m", "pip", "install", "--no-deps", "--force-reinstall", sdist, folder=out)


def test_all_say_the_same_version() -> None:
    version = grain_jax.__version__
    said = {
        "CITATION.cff": r"^version: (.*)$",
        "conda/meta.yaml": r'^{% set version = "(.*)" %}$',
        "CHANGELOG.md": r"^## \[(\d.*?)\]",
    }
    for name, pattern in said.items():
        found = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
        assert found, name
        assert found[1] == version, name


def test_the_recipe_needs_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.sub(r"\[.*?\]", "", text) for text in project["dependencies"]}
    recipe = (ROOT / "conda/meta.yaml").read_text().partition("  run:\n")[2].partition("\n\n")[0]
    listed = {line.removeprefix("    - ").replace(" ", "") for line in recipe.splitlines()}
    assert listed == needed | {f"python{project['requires-python']}"}
