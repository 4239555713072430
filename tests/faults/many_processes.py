"""Campaign: errors and interrupts in one process of a job; none of the others waits for ever."""

from __future__ import annotations

import dataclasses
import itertools
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults import campaign
from tests.product.jobs import job, results

__all__ = ["FAULTS", "KINDS", "Phase", "draw", "run"]

KINDS = ("loader", "filter", "function", "own")
FAULTS = ("source", "map", "function", "padding", "spec", "restore", "interrupt", "none")
_PHASES = 20  # of one job: starting one takes seconds
_PATIENCE = 30.0  # seconds until each process has an element, the end or an error

Batches = list[list[int]]


@dataclasses.dataclass(frozen=True)
class Phase:
    """One stream over all processes of a job, and what goes wrong in one of them.

    Attributes:
      count: processes.
      kind: how the batches are made.
      batch: rows on each process.
      records: of all processes.
      rule: what becomes of a remainder.
      buffer: batches ahead.
      workers: worker processes of each.
      fault: where it goes wrong.
      error: how, by name.
      process: in which one.
      place: at which record of it, counted in its own order.
      once: whether it goes well the next time.
      steps: batches before a position is set; None where none is.
    """

    count: int
    kind: str
    batch: int
    records: int
    rule: str
    buffer: int
    workers: int
    fault: str
    error: str
    process: int
    place: int
    once: bool
    steps: int | None

    @property
    def ends_well(self) -> bool:
        """Whether all processes come to the end, with all batches."""
        if self.fault in ("padding", "restore"):
            return False
        return self.fault in ("interrupt", "none") or self.once


def draw(rng: random.Random, count: int) -> Phase:
    """Draws a phase for so many processes."""
    kind, fault = rng.choice(KINDS), rng.choice(FAULTS)
    rule = rng.choice(("error", "drop", "pad"))
    batch = rng.choice((2, 4))
    if fault == "function":
        kind = "function"
    if fault in ("map", "spec", "restore") and kind == "own":
        kind = "loader"
    if fault == "padding":
        kind, rule = "own", "pad"
    whole = batch * count
    records = whole * rng.randint(3, 8)
    if rule != "error" and kind != "filter" and fault != "padding":
        records += rng.randrange(whole)
    if kind == "filter" and rule == "error":
        rule = "pad"
    # An element that an interrupt leaves behind would be a step more.
    sets_position = fault == "restore" or (fault != "interrupt" and rng.random() < 0.2)
    return Phase(
        count=count,
        kind=kind,
        batch=batch,
        records=records,
        rule=rule,
        buffer=rng.randint(1, 3),
        workers=int(rng.random() < 0.2 and kind != "own"),
        fault=fault,
        error=rng.choice(("OSError", "Unspeakable", "Unpicklable", "Base", "Exit")),
        process=rng.randrange(count),
        place=0 if fault == "spec" else rng.randrange(records // count),
        once=rng.random() < 0.5,
        steps=rng.randint(1, 2) if sets_position else None,
    )


def kept(record: int) -> bool:
    """What the filter keeps."""
    return record % 7 != 3


def batches(phase: Phase, process: int) -> Batches:
    """The batches of one process, the last of which may be short."""
    size, count = phase.batch, phase.count
    if phase.kind == "filter":
        own = [i for i in range(process, phase.records, count) if kept(i)]
        return [own[i : i + size] for i in range(0, len(own), size)]
    # Full global batches, and the rest dealt out.
    blocks = [
        list(range(first, min(first + size * count, phase.records)))[process::count]
        for first in range(0, phase.records, size * count)
    ]
    return [block for block in blocks if block]


def expected(phase: Phase, process: int) -> list[Any]:
    """What that process has to see: rows, and with "pad" which of them are real."""
    all_of = [batches(phase, p) for p in range(phase.count)]
    own, size = all_of[process], phase.batch
    if phase.rule == "pad":
        return [
            [rows + [0] * (size - len(rows)), [int(i < len(rows)) for i in range(size)]]
            for rows in (own[k] if k < len(own) else [] for k in range(max(map(len, all_of))))
        ]
    steps = min(sum(len(rows) == size for rows in of) for of in all_of)
    return [[rows, None] for rows in own[:steps]]


def run(count: int, seed: int) -> Counter[str]:
    """Plays phases on 2 to 4 real processes; checks what each of them saw."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in itertools.count():
            left = count - counts["phases"]
            if not left:
                return counts
            job_seed = f"{seed} {number}"
            rng = random.Random(job_seed)
            processes = rng.choice((2, 2, 3, 4))
            phases = [draw(rng, processes) for _ in range(min(_PHASES, left))]
            where = Path(folder) / str(number)
            where.mkdir()
            arguments = (job_seed, str(len(phases)), str(where))
            with job("tests.faults.many_processes_job", processes, *arguments) as started:
                seen = results(started, 60 + 2 * _PATIENCE * len(phases))
            for k, phase in enumerate(phases):
                for process in range(processes):
                    _check(phase, process, seen[process][k], counts)
                counts["phases"] += 1
                counts[f"of them with {phase.fault}"] += 1
    raise AssertionError("unreachable")


def _check(phase: Phase, process: int, seen: dict[str, Any], counts: Counter[str]) -> None:
    """Raises unless what a process saw is the stream, an error or its end."""
    where = f"process {process} of {phase}: {seen}"
    assert seen["longest"] < _PATIENCE, where
    wanted, place = expected(phase, process), 0
    may_skip = False
    for kind, *value in seen["events"]:
        if kind == "interrupt":
            may_skip = True  # one that came as an element was handed over left it behind
            counts["interrupts"] += 1
            continue
        if kind == "moved":
            place = value[0]
        elif kind == "batch":
            if may_skip and value[0] != wanted[place] and value[0] in wanted[place + 1 :]:
                place += 1
            assert place < len(wanted), where
            assert value[0] == wanted[place], where
            place += 1
            counts["elements"] += 1
        elif kind == "error":
            counts["errors"] += 1
        may_skip = False
    last = seen["events"][-1][0]
    assert last in ("end", "error"), where
    if phase.ends_well:
        assert last == "end", where
    if last == "end":
        assert place >= len(wanted) - may_skip, where


if __name__ == "__main__":
    campaign.main(run, "phases", 400)
