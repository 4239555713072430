"""Campaign: workers are killed while the user's code edits in place what they were given."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from typing import Any

import numpy as np

import grain_jax as grain
from tests.faults import campaign
from tests.faults.worker_kills import Killer

__all__ = ["run"]

_WIDTH = 2000
_MOST = 3  # kills a pipeline: as often as the default lets one task lose its worker


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    records: int
    before: bool  # a map that adds 1 in place, before the filter
    fan: int  # outputs of a flat-map, all with one array
    keep: int  # the filter drops what this divides
    after: bool  # the same map behind the filter
    size: int
    edits: bool  # a batch function that edits its records
    drop: bool
    spoils: bool  # a step behind the batch that writes to what it returned before
    seconds: float


class _Source:
    """Makes each record afresh."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> Any:
        return {"x": np.full(_WIDTH, key)}


class _Add(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        element["x"] += 1
        return element


class _Spread(grain.transforms.FlatMap):
    def __init__(self, fan: int) -> None:
        self.fan = fan

    def flat_map(self, element: Any) -> Any:
        return [{"x": element["x"]} for _ in range(self.fan)]


class _Keep(grain.transforms.Filter):
    def __init__(self, keep: int) -> None:
        self.keep = keep

    def filter(self, element: Any) -> bool:
        return bool(element["x"][0] % self.keep)


class _Edit:
    """Edits the records in two goes, and is slow between and after them: there kills come."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, records: Any) -> Any:
        for record in records:
            record["x"] *= 3
        time.sleep(self.seconds)
        for number, record in enumerate(records):
            record["x"] += number
        batch = {"x": np.stack([record["x"] for record in records])}
        time.sleep(self.seconds)
        return batch


class _Spoil(grain.transforms.Map):
    last: Any = None

    def map(self, element: Any) -> Any:
        if self.last is not None:
            self.last["x"][...] = -7
        self.last = element
        return element


def _draw(rng: random.Random) -> _Pipeline:
    return _Pipeline(
        records=rng.randint(20, 80),
        before=rng.random() < 0.5,
        fan=rng.randint(1, 3),
        keep=rng.choice([2, 3, 5]),
        after=rng.random() < 0.5,
        size=rng.randint(1, 5),
        edits=rng.random() < 0.8,
        drop=rng.random() < 0.5,
        spoils=rng.random() < 0.5,
        seconds=rng.choice([0.001, 0.005, 0.01]),
    )


def _loader(pipeline: _Pipeline, workers: int) -> grain.DataLoader:
    function = _Edit(pipeline.seconds) if pipeline.edits else None
    todo: list[Any] = [
        *[_Add()] * pipeline.before,
        *[_Spread(pipeline.fan)] * (pipeline.fan > 1),
        _Keep(pipeline.keep),
        *[_Add()] * pipeline.after,
        grain.transforms.Batch(pipeline.size, drop_remainder=pipeline.drop, batch_fn=function),
        *[_Spoil()] * pipeline.spoils,
    ]
    sampler = grain.samplers.SequentialSampler(pipeline.records)
    return grain.DataLoader(
        data_source=_Source(pipeline.records),
        sampler=sampler,
        operations=todo,
        worker_count=workers,
    )


def expected(pipeline: _Pipeline) -> list[list[int]]:
    """Returns what the batches must hold: the number that fills each of their rows."""
    values = [key + pipeline.before for key in range(pipeline.records)]
    values = [value for value in values for _ in range(pipeline.fan)]
    values = [value + pipeline.after for value in values if value % pipeline.keep]
    size = pipeline.size
    batches = [values[begin : begin + size] for begin in range(0, len(values), size)]
    if pipeline.drop:
        batches = [batch for batch in batches if len(batch) == size]
    if pipeline.edits:
        batches = [[3 * value + row for row, value in enumerate(batch)] for batch in batches]
    return batches


def _rows(batch: Any) -> list[int]:
    found: list[int] = batch["x"][:, 0].tolist()
    assert (batch["x"] == batch["x"][:, :1]).all(), "contents changed"
    return found


def run(count: int, seed: int) -> Counter[str]:
    """Kills workers that edit records; every batch must be that of an undisturbed run."""
    counts: Counter[str] = Counter()
    number = 0
    while counts["processes killed"] < count:
        rng = random.Random(f"{seed} {number}")
        number += 1
        _one(rng, count - counts["processes killed"], counts)
    return counts


def _one(rng: random.Random, most: int, counts: Counter[str]) -> None:
    pipeline = _draw(rng)
    killer = Killer(rng, min(most, rng.randint(1, _MOST)))
    batches = []
    with _loader(pipeline, rng.randint(1, 3)) as loader:
        iterator = iter(loader)
        killer.start()
        try:
            for batch in iterator:
                killer.begun.set()
                batches.append((_rows(batch), batch))
        finally:
            killer.end()
    wanted = expected(pipeline)
    assert [rows for rows, _ in batches] == wanted, pipeline
    assert [_rows(batch) for _, batch in batches] == wanted, pipeline
    counts["pipelines"] += 1
    counts["batches, all right"] += len(batches)
    for role, killed in killer.killed.items():
        counts["processes killed"] += killed
        counts[f"of them {role}s"] += killed


if __name__ == "__main__":
    campaign.main(run, "kills", 500)
