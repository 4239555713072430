"""Which modules a pipeline names, and whether importing them leaves what a fork would share."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

__all__ = ["Traces", "import_all", "module_of"]

# Devices without a position: it does no harm that processes share them.
_PLAIN = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
_NO_MODULES = {"__main__", "__mp_main__", "builtins"}


def module_of(obj: Any) -> str | None:
    """Returns the module that loading `obj` by name imports; None where there is none."""
    if isinstance(obj, types.ModuleType):
        name = getattr(obj, "__name__", None)
    elif isinstance(obj, type | types.FunctionType | types.BuiltinFunctionType):
        name = getattr(obj, "__module__", None)
    else:
        return None
    # What is not among the modules was never imported by this name.
    return name if isinstance(name, str) and _is_module(name) else None


def _is_module(name: str) -> bool:
    return name not in _NO_MODULES and name in sys.modules


def import_all(names: Iterable[str]) -> None:
    """Imports modules; one that fails to import does so again where it is needed."""
    for name in names:
        with contextlib.suppress(BaseException):  # SystemExit, too
            importlib.import_module(name)


class Traces:
    """What this process has, of what a forked child would share with it or lack."""

    def __init__(self) -> None:
        self._descriptors = _descriptors()
        self._mappings = _shared_mappings()

    def unsafe(self) -> str:
        """Returns what has come since, that a fork after it would share or lack; "" if nothing."""
        try:
            threads = len(os.listdir("/proc/self/task"))
        except OSError:
            return "it is unknown how many threads there are"
        if threads > 1:
            return f"{threads - 1} threads"
        opened = _descriptors() - self._descriptors
        if opened:
            return "open files: " + ", ".join(sorted(path for _, path in opened))
        mapped = _shared_mappings() - self._mappings
        if mapped:
            return "shared memory: " + ", ".join(sorted(mapped))
        return "child processes" if _has_children() else ""


def _descriptors() -> set[tuple[str, str]]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing is closed
            path = os.readlink(f"/proc/self/fd/{number}")
            if path not in _PLAIN:
                found.add((number, path))
    return found


def _shared_mappings() -> set[str]:
    with open("/proc/self/maps") as file:
        return {line.strip() for line in file if line.split(None, 2)[1].endswith("s")}


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
