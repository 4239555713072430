"""What the campaigns share: their command line, their counts, and a look at other processes."""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

__all__ = ["main", "marked", "shared_memory"]

Run = Callable[[int, int], Counter[str]]


def main(run: Run, what: str, count: int) -> None:
    """Runs a campaign from the command line and prints its counts.

    Args:
      run: called with how many and the seed; raises at the first fault that is not taken well.
      what: what is counted, for the help text.
      count: how many in the long form.
    """
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("--count", type=int, default=count, help=f"number of {what}")
    parser.add_argument("--seed", type=int, help="repeats a run; without it each has a new one")
    chosen = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if chosen.seed is None else chosen.seed
    name = Path(parser.prog).stem
    print(f"{name}: --count={chosen.count} --seed={seed}", flush=True)
    began = time.monotonic()
    counts = run(chosen.count, seed)
    seconds = time.monotonic() - began
    print(f"{name}: " + ", ".join(f"{n} {what}" for what, n in counts.items()), end="")
    print(f" ({seconds:.0f} s)")


def marked(mark: str) -> set[int]:
    """Returns the processes, zombies left out, that were started with `mark` in the environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def shared_memory() -> set[str]:
    """Returns what has a name in shared memory and is this library's, by that name."""
    return {name for name in os.listdir("/dev/shm") if "grain" in name}
