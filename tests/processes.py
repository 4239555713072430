"""Which processes there are. Workers of tests load this: it imports little."""

from __future__ import annotations

import os
from pathlib import Path


def children(pid: int | None = None) -> set[int]:
    """The live child processes of `pid` (default: this process), and theirs."""
    found: set[int] = set()
    parents = {pid or os.getpid()}
    listing = parent_of_each()
    while parents:
        parents = {child for child, parent in listing.items() if parent in parents} - found
        found |= parents
    return found


def parent_of_each() -> dict[int, int]:
    """The parent of every live process that can be seen.

    Without the resource tracker that `multiprocessing` starts for any user of its, and keeps: it is
    no test's to kill, or to miss.
    """
    listing = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # "pid (name) state ppid ...", and a name may hold spaces and parentheses.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            is_tracker = b"multiprocessing.resource_tracker" in (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if state != "Z" and not is_tracker:
            listing[int(entry.name)] = int(parent)
    return listing
