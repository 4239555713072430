"""Prints how grain_jax compares with Grain on this machine, in one run of a few minutes.

`make bench` runs this. Every figure is the best of several, each from a fresh process. The ratio is
grain_jax with 2 workers to the best of Grain's settings: 0 and 16 threads, 0 and 2 workers.
"""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Setting:
    library: str
    workers: int
    threads: int | None = None

    def __str__(self) -> str:
        threads = "" if self.threads is None else f", {self.threads} threads"
        return f"{self.library}, {self.workers} workers{threads}"


OURS = [Setting("grain_jax", workers) for workers in (2, 0)]
THEIRS = [Setting("grain", workers, threads) for workers in (2, 0) for threads in (16, 0)]


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str
    unit: str
    per_record: float
    """Units in one record."""
    peers: bool = True
    """Whether Grain runs it, too."""


WORKLOADS = [
    Workload("integers", "k records/s", 1e-3),
    Workload("filter", "k records/s", 1e-3),
    Workload("sieve", "records/s", 1.0, peers=False),
    Workload("sieve, large batches", "records/s", 1.0, peers=False),
    Workload("images", "images/s", 1.0),
    Workload("large records", "MB/s", 4 * 2**20 * 4 / 1e6),
]


def measure(workload: Workload, setting: Setting, seconds: float) -> dict[str, float]:
    """One fresh process; see workloads.py."""
    command = [sys.executable, HERE / "workloads.py", workload.name, str(setting.workers)]
    command.append(f"--seconds={seconds}")
    if setting.threads is not None:
        command.append(f"--threads={setting.threads}")
    environment = os.environ | {"GRAIN_BENCHMARK_LIBRARY": setting.library}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{workload.name}, {setting}:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def import_time(library: str) -> float:
    script = "import time; t = time.perf_counter(); import %s; print(time.perf_counter() - t)"
    done = subprocess.run(
        [sys.executable, "-c", script % library], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def compare(workload: Workload, rounds: int, seconds: float) -> float:
    """Prints a table; returns what grain_jax reaches with 2 workers."""
    rate, first = {}, {}
    for setting in (*OURS, *(THEIRS if workload.peers else ())):
        results = [measure(workload, setting, seconds) for _ in range(rounds)]
        rate[setting] = max(r["records_per_second"] for r in results) * workload.per_record
        first[setting] = min(r["first_batch"] for r in results)
        print(
            f"  {setting!s:34} {rate[setting]:10.1f} {workload.unit:12} "
            f"first batch {first[setting]:6.3f} s",
            flush=True,
        )
    if not workload.peers:
        return rate[OURS[0]]
    best = max(THEIRS, key=rate.__getitem__)
    started = min(first[setting] for setting in THEIRS if setting.workers)
    for ours in OURS:
        print(f"  {ours!s:34} {rate[ours] / rate[best]:.1f}x the best of Grain ({best})")
    print(f"  first batch in {first[OURS[0]] / started:.2f} of the time that Grain takes\n")
    return rate[OURS[0]]


def main(rounds: int, seconds: float) -> None:
    # Byte code of installed packages is there from the start; of a checkout it may not be.
    compileall.compile_dir(HERE.parents[1] / "grain_jax", quiet=1)
    reached = {}
    for workload in WORKLOADS:
        print(workload.name)
        reached[workload.name] = compare(workload, rounds, seconds)
    ratio = reached["sieve"] / reached["sieve, large batches"]
    print(f"a filter that keeps 1 in 256: batches of 4,500 take {ratio:.2f} of those of 45\n")
    print("import")
    for library in ("grain_jax", "grain"):
        print(f"  {library:10} {min(import_time(library) for _ in range(5)):.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    main(**vars(parser.parse_args()))
