"""The command line: `python -m grain_jax inspect FILE:NAME`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grain_jax._product import inspecting, report
from grain_jax._values import errors

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m grain_jax")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser(
        "inspect",
        help="run a pipeline for some seconds and say what holds it up",
        description="Runs a loader or dataset of yours for some seconds, and says where the time "
        "goes, what holds it up, and what would help.",
    )
    inspect.add_argument("what", metavar="FILE:NAME", help="a loader, a dataset, or what makes one")
    inspect.add_argument("--seconds", type=float, default=5.0, help="how long (default: 5)")
    inspect.add_argument(
        "--step", metavar="FILE:FUNCTION", help="a training step: called with each batch on devices"
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.add_argument("--html", metavar="REPORT", help="write a page, too")
    given = parser.parse_args(arguments)
    try:
        pipeline = named(given.what)
        if callable(pipeline) and not hasattr(pipeline, "__iter__"):
            pipeline = pipeline()
        step = None if given.step is None else named(given.step)
    except errors.GrainError as error:
        parser.error(str(error))
    found = inspecting.inspect(pipeline, given.seconds, step)
    close = getattr(pipeline, "close", None)
    if close is not None:
        close()
    if given.html:
        Path(given.html).write_text(report.page(found), encoding="utf-8")
    print(json.dumps(found.as_json(), indent=2) if given.json else found)
    return 0


def named(text: str) -> Any:
    """Returns what a file calls by a name; the file is imported, once.

    Raises:
      InvalidValueError: where there is no such file or name.
    """
    file, _, name = text.rpartition(":")
    path = Path(file).resolve()
    if not file or not name.isidentifier():
        raise errors.InvalidValueError(f"{text!r} is not FILE:NAME. Write train.py:loader, say.")
    if not path.is_file():
        raise errors.InvalidValueError(f"there is no file {file}.")
    module = sys.modules.get(path.stem)
    if module is None:
        # By its name, so that workers find its functions there.
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    elif Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise errors.InvalidValueError(
            f"{file} has the name of the module {path.stem!r}, which is loaded already. Rename it."
        )
    if not hasattr(module, name):
        raise errors.InvalidValueError(
            f"{file} has no {name!r} when it is imported. What stands behind "
            "`if __name__ == '__main__':` is not there."
        )
    return getattr(module, name)
