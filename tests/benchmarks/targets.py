"""Ratios of a workload's figures, and what they have to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.benchmarks.peers import Setting
from tests.benchmarks.results import Results
from tests.benchmarks.workloads import Workload

OURS = Setting("grain_jax", 2)
IN_PROCESS = Setting("grain_jax", 0)
RATE = "records_per_second"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A figure of a workload, and whether the target is the least or the most that it may be."""

    of: Callable[[Results, str], float | None]
    at_most: bool = False


def _to(ours: Setting, *peers: str, times: int = 1) -> Ratio:
    def of(results: Results, workload: str) -> float | None:
        best = results.best(workload, *peers)
        reached = results.median(workload, ours, RATE)
        if best is None or reached is None:
            return None
        return reached / (times * (results.median(workload, best, RATE) or 1))

    return Ratio(of)


def _first_batch(results: Results, workload: str) -> float | None:
    """Of the time that Grain takes with workers, whatever setting is its quickest."""
    theirs = [
        median
        for setting in results.settings(workload)
        if setting.peer == "grain"
        and setting.workers
        and (median := results.median(workload, setting, "first_batch")) is not None
    ]
    ours = results.median(workload, OURS, "first_batch")
    return ours / min(theirs) if theirs and ours is not None else None


def _figure(name: str, setting: Setting = OURS, per: float = 1.0) -> Ratio:
    def of(results: Results, workload: str) -> float | None:
        median = results.median(workload, setting, name)
        return None if median is None else median / per

    return Ratio(of, at_most=True)


def _small_batches(results: Results, workload: str) -> float | None:
    """How many times as long a record takes as it does where batches are small."""
    small, large = (results.median(name, OURS, RATE) for name in ("sparse-45", workload))
    return small / large if small and large else None


def _automatic(results: Results, workload: str) -> float | None:
    """What the automatic number of workers reaches of the best number by hand."""
    reached = results.median(workload, Setting("grain_jax", None), RATE)
    by_hand = [results.median(workload, one, RATE) for one in (OURS, IN_PROCESS)]
    best = max((rate for rate in by_hand if rate is not None), default=None)
    return None if reached is None or not best else reached / best


_TORCHES = ("torch", "stateful")
_EIGHT = Setting("grain_jax", 8)

RATIOS = {
    "grain": _to(OURS, "grain"),
    "grain in process": _to(IN_PROCESS, "grain"),
    "torch": _to(OURS, *_TORCHES),
    "torch in process": _to(IN_PROCESS, *_TORCHES),
    "spdl": _to(OURS, "spdl"),
    "floor": _to(OURS, "floor"),
    "floor in process": _to(IN_PROCESS, "floor"),
    "twice the floor": _to(OURS, "floor", times=2),
    "first batch": Ratio(_first_batch, at_most=True),
    "automatic": Ratio(_automatic),
    "time of batches of 45": Ratio(_small_batches, at_most=True),
    "PSS, GiB": _figure("pss_workers", _EIGHT, 2**30),
    "PSS mapped, GiB": _figure("pss_workers_mapped", _EIGHT, 2**30),
    "calls a state": _figure("calls"),
    "step to the longer": _figure("step_to_longer"),
}

TITLES = {
    "grain": "Grain",
    "grain in process": "Grain, in process",
    "torch": "torch",
    "torch in process": "torch, in process",
    "spdl": "SPDL",
    "floor": "a plain loop",
    "floor in process": "a plain loop, in process",
    "twice the floor": "twice a plain loop",
    "first batch": "Grain's first batch",
    "automatic": "the best number of workers by hand",
}


@dataclasses.dataclass(frozen=True)
class Check:
    """A target, and what was reached."""

    name: str
    reached: float
    target: float
    at_most: bool

    @property
    def met(self) -> bool:
        """Whether it is."""
        if self.at_most:
            return self.reached <= self.target
        return self.reached >= self.target

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        met = ", met" if self.met else ""
        name = TITLES.get(self.name, self.name)
        return f"{name}: {self.reached:.3g} ({sign} {self.target:g}{met})"


def checks(results: Results, workload: Workload) -> list[Check]:
    """The targets of a workload of which this run has the figures."""
    found = []
    for name, target in workload.targets.items():
        ratio = RATIOS[name]
        reached = ratio.of(results, workload.name)
        if reached is not None:
            found.append(Check(name, reached, target, ratio.at_most))
    return found
