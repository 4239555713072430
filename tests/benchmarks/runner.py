"""Runs the suite: rounds of measurements, interleaved, each in a process of its own.

`make bench` takes every workload in every setting, three rounds; `make bench BENCH=quick` five
workloads and the best setting of each peer, one round; `make bench BENCH=best` every workload
with these, for 12 minutes. `python -m tests.benchmarks.runner --help` has the rest.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import files, order, peers, processes, table
from tests.benchmarks.peers import Setting
from tests.benchmarks.results import Results
from tests.benchmarks.workloads import BY_NAME, QUICK, WORKLOADS, Workload

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120
"""Seconds until a measurement is given up."""


def plan(workloads: list[Workload], *, best: bool) -> list[tuple[Workload, Setting]]:
    """The measurements of a round, in turn: what is compared follows one another."""
    return [
        (workload, setting)
        for workload in workloads
        for setting in peers.settings(workload, best=best)
    ]


def measure(workload: Workload, setting: Setting, seconds: float) -> dict[str, Any]:
    """Starts a process for one measurement, and ends it with all that it has started."""
    command = [sys.executable, "-m", "tests.benchmarks.measure", workload.name, str(setting)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, f"--seconds={seconds}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            # One thread for linear algebra: a workload's processes are what is counted.
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        watch = threading.Timer(LIMIT, process.kill)
        watch.start()
        try:
            with process.stdout or contextlib.nullcontext([]) as lines:
                # How it ends is not waited for.
                line = next((line for line in lines if line.startswith("{")), "")
        finally:
            watch.cancel()
            processes.end(processes.family(process.pid))
            process.wait()
        errors.seek(0)
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            return {"failed": (errors.read().strip().splitlines() or ["no answer"])[-1]}
    return found


def prepare(workloads: list[Workload]) -> None:
    """Makes what processes would otherwise make while they are measured."""
    compileall.compile_dir(ROOT / "grain_jax", quiet=1)
    compileall.compile_dir(Path(__file__).parent, quiet=1)
    for workload in workloads:
        if workload.source is files.Table:
            workload.source(workload.length)
        if workload.name == "tfds":
            files.digits()
        if workload.shuffle:
            order.indices(workload)


def about(command: str) -> dict[str, Any]:
    """What the figures depend on beside the code."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB",
        "python": platform.python_version(),
        "versions": peers.versions(),
        "missing": peers.missing(),
        "rounds": 0,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def rounds(args: argparse.Namespace) -> Iterator[Results]:
    """What is known after each round."""
    chosen = [BY_NAME[name] for name in args.workloads or [one.name for one in WORKLOADS]]
    prepare(chosen)
    measurements = plan(chosen, best=args.best)
    print(f"{len(measurements)} measurements a round", flush=True)
    results = Results(about(args.command))
    end = time.monotonic() + 60 * args.minutes if args.minutes else None
    while results.about["rounds"] < args.rounds:
        started = time.monotonic()
        for i, (workload, setting) in enumerate(measurements, 1):
            figures = measure(workload, setting, args.seconds)
            results.add(workload.name, setting, figures)
            results.save(args.json)  # what an interrupted run has found out is kept
            _tell(f"[{i}/{len(measurements)}] {workload.name}, {setting}", figures)
        results.about["rounds"] += 1
        yield results
        if end is not None and 2 * time.monotonic() - started > end:
            return


def _tell(what: str, figures: dict[str, Any]) -> None:
    for fault in ("failed", "wrong"):
        if figures.get(fault):
            print(f"{what}: {fault}: {figures[fault]}", flush=True)
            return
    shown = {k: v for k, v in figures.items() if isinstance(v, float)}
    text = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
    print(f"{what}: {text}", flush=True)


def arguments() -> argparse.Namespace:
    """What the command line says; a preset fills in what it leaves out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", nargs="?", choices=["full", "quick", "best"], default="full")
    parser.add_argument("--workloads", nargs="+", choices=BY_NAME)
    parser.add_argument("--rounds", type=int, help="at most")
    parser.add_argument("--minutes", type=float, help="no round begins that would end later")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--json", type=Path, default=ROOT / ".cache" / "benchmarks.json")
    parser.add_argument("--png", type=Path, default=ROOT / ".cache" / "benchmarks.png")
    args = parser.parse_args()
    filled = {
        "full": {"rounds": 3, "seconds": 1.0, "minutes": None, "workloads": None},
        "quick": {"rounds": 1, "seconds": 1.0, "minutes": None, "workloads": QUICK},
        "best": {"rounds": 9, "seconds": 0.6, "minutes": 12, "workloads": None},
    }[args.preset]
    for name, value in filled.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.best = args.preset != "full"
    args.command = "make bench" + ("" if args.preset == "full" else f" BENCH={args.preset}")
    return args


def main() -> None:
    args = arguments()
    args.json.parent.mkdir(exist_ok=True)
    absent = [peers.TITLES[peer] for peer in peers.missing()]
    if absent:
        print(f"not installed, and left out: {', '.join(absent)}")
    for results in rounds(args):
        results.save(args.json)
    print("\n" + table.show(results))
    try:
        from tests.benchmarks import chart

        chart.draw(results, args.png)
        print(f"\n{args.json} and {args.png} are written")
    except ImportError:
        print(f"\n{args.json} is written; a chart needs matplotlib")
    if results.faults():
        sys.exit(1)


if __name__ == "__main__":
    main()
