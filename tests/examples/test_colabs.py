"""The notebooks run from top to bottom."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# In a process of its own: what Jupyter's packages warn about is not this project's to fix.
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3").execute(cwd=sys.argv[2])
"""

DEVICES = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "notebook", sorted((ROOT / "colabs").glob("*.ipynb")), ids=lambda p: p.stem
)
def test_notebook(notebook: Path, tmp_path: Path, no_process_left: None) -> None:
    if "matplotlib" in notebook.read_text() and not find_spec("matplotlib"):
        pytest.skip("matplotlib is not installed")
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, notebook, tmp_path],
        env={**os.environ, **DEVICES},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
