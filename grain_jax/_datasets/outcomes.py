"""What a task of a program takes, and what it tells the trainer besides its outputs."""

from __future__ import annotations

import dataclasses
from typing import Any

from grain_jax._algebra.blocks import Block, Sieved
from grain_jax._algebra.running import Skip
from grain_jax._values import clock

__all__ = ["GapError", "Gathered", "Outcome", "Read"]


@dataclasses.dataclass(slots=True)
class Gathered:
    """The payload of a later stage: the whereabouts of the elements of its units."""

    positions: list[int]
    outputs: list[int] | None
    ordinal: int
    rngs: list[Any] | None = None
    sizes: list[int] | None = None
    """How many elements each unit has; None where each is one."""
    layouts: list[Any] | None = None
    """What the step that makes an element of a unit needs besides; None where it needs nothing."""


@dataclasses.dataclass(slots=True)
class Outcome:
    """What the trainer needs to know about the outputs of a task, besides the outputs.

    Attributes:
      seconds: how long the task took.
      waited: how much of it went by in reading without work for this thread.
      done: units that were completed; fewer than asked for where a later one failed.
      units: for each output the unit, counted within the task; None where each gave one output.
      positions: for each output the position of its last record; empty where `units` is None.
      outputs: for each output its flat-map number; None while all are 0.
      skipped: records that were left out, with the unit they were, in order.
      sieved: what each filter has left; None where nobody asks.
      error: what the unit after those that are done has raised.
      rngs: for each output the generator that a sampler gave, with what was drawn from it; None if
        it gave none.
      measures: columns of what groupings have to know of the outputs; None where nobody asks.
      costs: what the task took, step by step; None where nobody asks.
    """

    seconds: float
    waited: float
    done: int
    units: list[int] | None = None
    positions: list[int] = dataclasses.field(default_factory=list)
    outputs: list[int] | None = None
    rngs: list[Any] | None = None
    measures: list[list[Any]] | None = None
    skipped: list[tuple[int, Skip]] = dataclasses.field(default_factory=list)
    sieved: list[Sieved] | None = None
    error: Any = None
    costs: clock.Costs | None = None


class GapError(Exception):
    """An element is absent where a batch counts on it: the stream has to be counted as it runs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """The records of some units, and how long reading them only waited, in seconds.

    That is 0 for brief reads, and where the one before was brief.
    """

    units: int
    block: Block
    waited: float
    steps: dict[str, clock.Cost] | None = None
    """What reading took a thread that was ahead of the task, where somebody asks."""
