"""Prints the newest Python, up to 3.14, that is installed and newer than this one, if any.

Looked for on the search path and among the versions of pyenv.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["find"]

_NEWEST = 14


def find() -> str | None:
    """Returns the path of the newest Python that runs; None where none is newer than this one."""
    for minor in range(_NEWEST, sys.version_info.minor, -1):
        for path in _candidates(minor):
            if _runs(path):
                return path
    return None


def _candidates(minor: int) -> Iterator[str]:
    found = shutil.which(f"python3.{minor}")
    if found is not None:
        yield found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for folder in sorted(root.glob(f"versions/3.{minor}.*"), reverse=True):
        yield str(folder / "bin" / "python")


def _runs(path: str) -> bool:
    # The search path may hold a link to a version that is not chosen, which only complains.
    command = [path, "-c", "import ensurepip"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


if __name__ == "__main__":
    print(find() or "")
