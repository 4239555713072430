"""Campaign: workers, their helper and the zygote are killed at random moments."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import threading
from collections import Counter
from typing import Any

from tests.faults import campaign, pieces
from tests.processes import parent_of_each
from tests.property import reference

__all__ = ["Killer", "run"]

_ROLES = ("zygote", "helper", "worker")  # child of the trainer, its child, and its child
_MOST = 3  # kills a pipeline: as often as the default lets one task lose its worker


class Killer(threading.Thread):
    """Kills processes of the loader until it has killed enough or is told to stop."""

    def __init__(self, rng: random.Random, most: int) -> None:
        super().__init__(daemon=True)
        self.killed: Counter[str] = Counter()
        self._rng = rng
        self._left = most
        self._late = rng.random() < 0.8  # else also while processes start
        self.begun = threading.Event()
        self._told = threading.Event()

    def run(self) -> None:
        if self._late:
            self.begun.wait()
        while self._left and not self._told.wait(self._rng.expovariate(1 / 0.03)):
            role = self._rng.choices(_ROLES, (1, 3, 16))[0]
            found = _at_depth(1 + _ROLES.index(role))
            if found and not self._told.is_set():
                with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(self._rng.choice(sorted(found)), signal.SIGKILL)
                    self.killed[role] += 1
                    self._left -= 1

    def end(self) -> None:
        self._told.set()
        self.begun.set()
        self.join()


def _at_depth(depth: int) -> set[int]:
    listing = parent_of_each()
    found = {os.getpid()}
    for _ in range(depth):
        found = {child for child, parent in listing.items() if parent in found}
    return found


def run(count: int, seed: int) -> Counter[str]:
    """Kills processes of random pipelines; every stream must be exact, kept batches included."""
    counts: Counter[str] = Counter()
    number = 0
    while counts["processes killed"] < count:
        rng = random.Random(f"{seed} {number}")
        number += 1
        _one(rng, count - counts["processes killed"], counts)
    return counts


def _one(rng: random.Random, most: int, counts: Counter[str]) -> None:
    pipeline = dataclasses.replace(reference.draw(rng), records=rng.randint(20, 60))
    expected = pieces.expected(pipeline)
    places = len(pipeline.operations)
    slow = pieces.Slow(rng.randint(1, 5), rng.choice([0.002, 0.01, 0.03]))
    extra: list[tuple[int, Any]] = [(rng.randint(0, places), slow), (places, pieces.Widen())]
    keeps = rng.random() < 0.5
    workers = rng.randint(1, 3)
    kept, got = [], []
    killer = Killer(rng, min(most, rng.randint(1, _MOST)))
    with pieces.loader(pipeline, workers, extra) as loader:
        iterator = iter(loader)
        killer.start()
        try:
            for element in iterator:
                killer.begun.set()
                got.append(pieces.value_of(element))
                if keeps:
                    kept.append(element)
        finally:
            killer.end()
        assert got == expected, (pipeline, workers, extra)
        assert [pieces.value_of(element) for element in kept] == expected[: len(kept)]
    counts["pipelines"] += 1
    counts["elements, all right"] += len(got)
    for role, killed in killer.killed.items():
        counts["processes killed"] += killed
        counts[f"of them {role}s"] += killed


if __name__ == "__main__":
    campaign.main(run, "kills", 300)
