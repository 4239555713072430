"""Processor time and memory of a process and all of its descendants, from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_PROC = Path("/proc")
_TICK = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and its descendants; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            children.setdefault(_fields(int(entry.name))[1], []).append(int(entry.name))
    found = [pid] if (_PROC / str(pid)).exists() else []
    for parent in found:
        found += children.get(parent, [])
    return found


def _fields(pid: int) -> list[int]:
    """State (0 for a zombie), parent, processor time: its own, and that of children waited for."""
    text = (_PROC / str(pid) / "stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return [int(fields[0] != "Z"), int(fields[1]), *map(int, fields[11:15])]


def processor_seconds(pid: int) -> float | None:
    """What they have used so far, with those that have ended and were waited for."""
    ticks = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            ticks += sum(_fields(member)[2:])
    return ticks / _TICK or None


def memory(pids: list[int]) -> int | None:
    """Bytes of proportional set size: a page that n processes share counts 1/n for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total or None


def end(pids: list[int]) -> None:
    """Kills processes that are left, and waits until they are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return _fields(pid)[0] == 1
    except OSError:
        return False
