"""Builds the documentation: `docs/_build/site/VERSION`, beside the versions that lie there already.

    python -m tools.site

The folder `docs/_build/site` is the whole site. It can be opened from a disk, or be put on any
server of files; a version that is to stay is a folder that is left there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tools.source_graph import ROOT

__all__ = ["build", "index", "main"]

_FIRST_PAGE = '<!doctype html><meta http-equiv="refresh" content="0; url={version}/index.html">\n'


def build(site: Path, version: str) -> None:
    """Builds the pages of a version; a warning of Sphinx's is an error.

    Raises:
      subprocess.CalledProcessError: if there was one.
    """
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    subprocess.run([*command, ROOT / "docs", site / version], check=True)


def index(site: Path) -> list[str]:
    """Writes which versions there are, newest first, and a first page that leads to the newest."""
    versions = sorted((page.parent.name for page in site.glob("*/index.html")), key=_order)[::-1]
    (site / "versions.js").write_text(f"window.GRAIN_JAX_VERSIONS = {json.dumps(versions)};\n")
    (site / "index.html").write_text(_FIRST_PAGE.format(version=versions[0]))
    (site / ".nojekyll").touch()  # folders that begin with _ belong to the site
    return versions


def _order(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def main() -> None:
    """Builds the version that is checked out."""
    [version] = re.findall(
        r'^__version__ = "(.*)"', (ROOT / "grain_jax/__init__.py").read_text(), re.M
    )
    site = ROOT / "docs" / "_build" / "site"
    build(site, version)
    print(f"{site / 'index.html'}: {', '.join(index(site))}")


if __name__ == "__main__":
    main()
