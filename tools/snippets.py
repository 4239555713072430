"""Runs what Markdown pages show: the blocks of a page, one after the other, as one script.

    python -m tools.snippets README.md docs/start.md

A block of ```python is part of the script of its page; one of ```output behind it is what it prints
(`...` stands for anything). A comment in the line before a block says what is special about it:

    <!-- new script -->     it begins another script, in a process of its own
    <!-- file: NAME -->     it is what the file NAME holds
    <!-- run -->            a block of ```sh: its commands are run, too
    <!-- not run: WHY -->   it is only shown

and a comment that begins with `<!--python` is code of the script that readers do not see.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.source_graph import ROOT

__all__ = ["Block", "blocks", "main", "pages", "run"]

_OPENING = re.compile(r"^( *)(?:`{3,}|~{3,})\{?(?:code-block\} )?(\w+)\}?\s*$")
_COMMENT = re.compile(r"^ *<!-- (new script|run|file: \S+|not run: .*) -->$")
_MARK = "-- end of the block --"
_TIMEOUT = 240.0


@dataclasses.dataclass
class Block:
    """A block of a page: its language, its first line, its text, and what its comment says."""

    language: str
    line: int
    text: str
    remark: str = ""


def pages(root: Path = ROOT) -> list[Path]:
    """Returns the pages with code, of the README and all below `docs`."""
    every = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [page for page in every if "python\n" in page.read_text()]


def blocks(page: str) -> Iterator[Block]:
    """Yields the blocks of a page, in order."""
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        at += 1
        if lines[at - 1] == "<!--python":
            indent, language, end = "", "python", re.compile("^-->$")
        elif opening := _OPENING.match(lines[at - 1]):
            indent, language = opening[1], opening[2]
            end = re.compile(rf"^{indent}(`{{3,}}|~{{3,}})\s*$")
        else:
            continue
        comment = _COMMENT.match(lines[at - 2]) if at > 1 else None
        first = at
        while at < len(lines) and not end.match(lines[at]):
            at += 1
        text = "\n".join(line.removeprefix(indent) for line in lines[first:at])
        yield Block(language, first + 1, text, comment[1] if comment else "")
        at += 1


def run(page: Path, folder: Path) -> int:
    """Runs the blocks of a page in a folder, and returns how many there were.

    Raises:
      AssertionError: if a script fails, warns, or prints something else than the page says.
    """
    script = _Script(page, folder)
    count = 0
    for block in blocks(page.read_text()):
        if block.remark.startswith("not run: "):
            continue
        if block.remark.startswith("file: "):
            (folder / block.remark.removeprefix("file: ")).write_text(block.text + "\n")
        elif block.language == "python":
            if block.remark == "new script":
                script.finish()
            script.blocks.append(block)
        elif block.language == "output":
            script.outputs[len(script.blocks)] = block
            continue
        elif block.language == "sh" and block.remark == "run":
            script.finish()
            _call(["bash", "-ec", block.text], folder, f"{page.name}, line {block.line}")
        else:
            continue
        count += 1
    script.finish()
    return count


class _Script:
    """Blocks of a page that run in one process, in lines of the numbers that they have there."""

    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self.blocks: list[Block] = []
        self.outputs: dict[int, Block] = {}

    def finish(self) -> None:
        """Runs what has been collected, and forgets it."""
        lines: list[str] = []
        for block in self.blocks:
            lines += [""] * (block.line - 1 - len(lines))
            lines += [*block.text.splitlines(), f"print({_MARK!r}, flush=True)"]
        if lines:
            path = self._folder / f"{self._page.stem}_page.py"
            path.write_text("\n".join(lines) + "\n")
            said = _call([sys.executable, path.name], self._folder, self._page.name)
            self._compare(said.split(f"{_MARK}\n"))
        self.blocks, self.outputs = [], {}

    def _compare(self, said: list[str]) -> None:
        for number, output in self.outputs.items():
            pattern = ".*".join(re.escape(part) for part in output.text.strip().split("..."))
            found = said[number - 1].strip()
            assert re.fullmatch(pattern, found, re.DOTALL), (
                f"{self._page.name}, line {output.line}: the page says\n{output.text}\n"
                f"and the block before it prints\n{found}"
            )


def _call(command: list[str], folder: Path, what: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
    assert done.returncode == 0, f"{what}:\n{done.stdout[-2000:]}{done.stderr}"
    assert "Warning" not in done.stderr, f"{what}:\n{done.stderr}"
    return done.stdout


def main(names: list[str]) -> None:
    """Runs the pages of the command line, or all."""
    for page in [Path(name) for name in names] or pages():
        with tempfile.TemporaryDirectory(prefix="grain_jax_page_") as folder:
            print(f"{page}: {run(page, Path(folder))} blocks", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
