"""Runs small scripts as users do: a file of their own, a process of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(
    folder: Path, text: str, timeout: float = 200, warn: str = "error", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `text` as `script.py` in `folder` and returns what it printed.

    Args:
      folder: where the script lies and runs.
      text: the script.
      timeout: seconds.
      warn: what the interpreter does with warnings.
      environment: further variables.
    """
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "-W", warn, str(script)],
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
            "JAX_PLATFORMS": "cpu",
            "HOME": str(folder),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output(folder: Path, text: str, timeout: float = 200, **environment: str) -> list[str]:
    """Returns the lines that a script printed; it must succeed and say nothing on stderr."""
    done = run(folder, text, timeout, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()
