"""What is measured: each workload is a source, steps and a grouping, the same for all peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tests.benchmarks import files, sources, steps

Driver = Literal["stream", "memory", "resume", "states", "device", "evaluation"]

ROW = 2048
"""Tokens in a packed row."""
BINS = 64
"""Rows that first-fit has open at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One row of the table.

    Attributes:
      name: what the command line calls it.
      title: what the table calls it.
      source: makes the source of so many records.
      length: records of an epoch; epochs follow one another without end.
      steps: what is done to each record.
      grouping: how records become rows before the batch.
      batch: rows of a batch.
      shuffle: whether the order is Grain's shuffled one.
      driver: how it is measured; see drivers.py.
      grain: workers and reading threads that are Grain's best.
      torch: workers that are best for torch; None where torch has nothing like it.
      threads: threads that are best for SPDL; None likewise.
      targets: what grain_jax has to reach, by the name of a ratio in targets.py.
    """

    name: str
    title: str
    source: Callable[[int], Any]
    length: int
    steps: tuple[steps.Step, ...] = ()
    grouping: Literal["none", "first-fit", "split"] = "none"
    batch: int
    shuffle: bool = True
    driver: Driver = "stream"
    grain: tuple[int, int] | None = (0, 0)
    torch: int | None = 2
    threads: int | None = 2
    floor: bool = True
    targets: Mapping[str, float] = dataclasses.field(default_factory=dict)


WORKLOADS = [
    Workload(
        name="integers",
        title="integers: shuffle, +1, batches of 256",
        source=sources.Numbers,
        length=1_000_000,
        steps=(steps.ADD_ONE,),
        batch=256,
        targets={"grain in process": 80, "grain": 120, "torch": 3, "first batch": 0.15},
    ),
    Workload(
        name="digits",
        title="28x28 images with labels, batches of 128",
        source=sources.Digits,
        length=60_000,
        batch=128,
        targets={"grain": 40, "torch": 5},
    ),
    Workload(
        name="columns",
        title="dict of arrays, 64 floats and a label a row, batches of 256",
        source=sources.columns,
        length=200_000,
        batch=256,
        torch=0,
        targets={"grain in process": 60, "torch in process": 10, "floor in process": 0.7},
    ),
    Workload(
        name="images",
        title="256x256x3 images: crop and flip, batches of 64",
        source=sources.Images,
        length=50_000,
        steps=(steps.CROP_AND_FLIP,),
        batch=64,
        grain=(2, 0),
        targets={"grain": 3, "torch": 2.5, "twice the floor": 0.85},
    ),
    Workload(
        name="jpeg",
        title="photographs: decode JPEG with Pillow, batches of 32",
        source=sources.Photographs,
        length=50_000,
        steps=(steps.DECODE,),
        batch=32,
        grain=(2, 0),
        targets={"grain": 1.3, "torch": 1.2, "twice the floor": 0.9},
    ),
    Workload(
        name="large",
        title="16 MB records, 64 different ones, batches of 4",
        source=sources.Large,
        length=10_000,
        batch=4,
        targets={"grain": 1.5, "torch": 8, "floor": 0.8},
    ),
    Workload(
        name="tfds",
        title="TFDS source on array_record, batches of 128",
        source=lambda length: files.digits(),
        length=1_497,
        batch=128,
        targets={"grain": 5},
    ),
    Workload(
        name="parquet",
        title="rows of Parquet files, batches of 256",
        source=files.Table,
        length=500_000,
        batch=256,
        shuffle=False,
        torch=None,
        threads=None,
        floor=False,
        targets={"grain": 5},
    ),
    Workload(
        name="latency",
        title="2 ms to read a record, batches of 64",
        source=sources.Slow,
        length=1_000_000,
        batch=64,
        grain=(2, 16),
        threads=16,
        targets={"grain": 1, "torch": 10, "floor": 0.9},
    ),
    Workload(
        name="filter",
        title="integers: shuffle, keep half, batches of 256",
        source=sources.Numbers,
        length=1_000_000,
        steps=(steps.KEEP_HALF,),
        batch=256,
        targets={"grain": 40, "torch": 5, "twice the floor": 0.5},
    ),
    Workload(
        name="sieve",
        title="integers: shuffle, keep 1 in 100, batches of 64",
        source=sources.Numbers,
        length=1_000_000,
        steps=(steps.KEEP_HUNDREDTH,),
        batch=64,
        targets={"grain": 40, "torch": 5, "twice the floor": 0.5},
    ),
    Workload(
        name="sparse-45",
        title="integers: keep 1 in 256, batches of 45",
        source=sources.Numbers,
        length=4_000_000,
        steps=(steps.KEEP_RARE,),
        batch=45,
        shuffle=False,
        grain=None,
        torch=None,
        threads=None,
        floor=False,
    ),
    Workload(
        name="sparse",
        title="integers: keep 1 in 256, batches of 4,500",
        source=sources.Numbers,
        length=4_000_000,
        steps=(steps.KEEP_RARE,),
        batch=4500,
        shuffle=False,
        grain=None,
        torch=None,
        threads=None,
        floor=False,
        targets={"time of batches of 45": 1.3},
    ),
    Workload(
        name="first-fit",
        title="tokens packed first-fit into rows of 2,048, batches of 8",
        source=sources.Tokens,
        length=100_000,
        grouping="first-fit",
        batch=8,
        shuffle=False,
        torch=None,
        threads=None,
        targets={"grain": 5, "floor": 0.5},
    ),
    Workload(
        name="split",
        title="tokens joined and split into rows of 2,048, batches of 8",
        source=sources.Tokens,
        length=100_000,
        grouping="split",
        batch=8,
        shuffle=False,
        torch=None,
        threads=None,
        targets={"grain": 5, "floor": 0.5},
    ),
    Workload(
        name="mixture",
        title="mixture of two sources, 3 to 1, +1, batches of 256",
        source=sources.Mixture,
        length=1_000_000,
        steps=(steps.ADD_ONE,),
        batch=256,
        shuffle=False,
        torch=None,
        threads=None,
        targets={"grain": 25},
    ),
    Workload(
        name="skewed",
        title="50 us a record, one in 50 takes 5 ms, batches of 64",
        source=sources.Numbers,
        length=1_000_000,
        steps=(steps.WORK,),
        batch=64,
        grain=(2, 0),
        targets={"grain": 1.5, "torch": 1.5, "twice the floor": 0.9},
    ),
    Workload(
        name="leaves",
        title="64 small leaves a record, batches of 64",
        source=sources.Leaves,
        length=100_000,
        batch=64,
        grain=(2, 0),
        targets={},
    ),
    Workload(
        name="memory",
        title="an array of 1 GiB, 8 workers: their memory",
        source=sources.columns,
        length=4_000_000,
        batch=256,
        driver="memory",
        grain=None,
        torch=None,
        threads=None,
        floor=False,
        targets={"PSS, GiB": 1.3, "PSS mapped, GiB": 1.2},
    ),
    Workload(
        name="resume",
        title="resume at record 10,000,000",
        source=sources.Numbers,
        length=20_000_000,
        steps=(steps.ADD_ONE,),
        batch=256,
        driver="resume",
        torch=None,
        threads=None,
        floor=False,
    ),
    Workload(
        name="states",
        title="integers, with `get_state` at every step",
        source=sources.Numbers,
        length=1_000_000,
        steps=(steps.ADD_ONE,),
        batch=256,
        driver="states",
        torch=None,
        threads=None,
        floor=False,
        targets={"calls a state": 40},
    ),
    Workload(
        name="device",
        title="device stage, with a step that sleeps as long as a batch takes",
        source=sources.Numbers,
        length=1_000_000,
        steps=(steps.WORK_A_LITTLE,),
        batch=64,
        driver="device",
        grain=None,
        torch=None,
        threads=None,
        floor=False,
        targets={"step to the longer": 1.05},
    ),
    Workload(
        name="evaluation",
        title="10,000 steps, evaluation on 10 batches every 100",
        source=sources.Numbers,
        length=1_000_000,
        steps=(steps.ADD_ONE,),
        batch=256,
        driver="evaluation",
        torch=2,
        threads=None,
        floor=False,
    ),
]

BY_NAME = {workload.name: workload for workload in WORKLOADS}
QUICK = ["integers", "digits", "images", "large", "filter"]
