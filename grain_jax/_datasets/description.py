"""Description: a stream as data: a root, steps, and how worker processes run them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grain_jax._algebra import steps
from grain_jax._datasets import iterators, shards
from grain_jax._datasets.plan import Grouped, Plan, Root, Upstream
from grain_jax._values import dataset_options, errors

__all__ = ["Description"]


@dataclasses.dataclass(frozen=True)
class Description:
    """What an `IterDataset` is made of.

    Attributes:
      root: where elements come from.
      steps: what is done with them.
      seed: for random steps to come.
      randoms: random steps so far, over the whole pipeline.
      numbered: steps so far, over the whole pipeline.
      remote: how many of `steps` worker processes run; None for none.
      setup: how they do it.
      below: how workers run the streams that the root is made of.
      shards: how the records of all of the pipeline are dealt out over processes.
      options: what holds for all transformations.
      ahead: how many elements a thread makes ahead; 0 without one.
    """

    root: Root | Upstream | Grouped
    steps: tuple[steps.Step, ...] = ()
    seed: int | None = None
    randoms: int = 0
    numbered: int = 0
    remote: int | None = None
    setup: iterators.Setup = dataclasses.field(default_factory=iterators.Setup)
    below: tuple[iterators.Setup, ...] = ()
    shards: shards.Shards | None = None
    options: dataset_options.DatasetOptions = dataclasses.field(
        default_factory=dataset_options.DatasetOptions
    )
    ahead: int = 0

    @property
    def setups(self) -> tuple[iterators.Setup, ...]:
        """How workers run all of the pipeline; empty if none do."""
        return self.below if self.remote is None else (self.setup, *self.below)

    def plan(self) -> Plan:
        """Returns what is to run, however it is done."""
        return Plan(
            self.root,
            list(self.steps),
            self.remote,
            self.seed or 0,
            (_together(self.setups) or self.setup).options.skips,
            self.shards,
            self.options,
        )

    def whole_setup(self, epoch: tuple[int, int] | None) -> iterators.Setup:
        """Returns how all of it is run, over the positions of one epoch; None: over all."""
        setup = _together(self.setups) or self.setup
        return dataclasses.replace(setup, ahead=self.ahead, epoch=epoch)


def _together(setups: Sequence[iterators.Setup]) -> iterators.Setup | None:
    """Returns how one set of workers runs all of a tree: as many as the largest one asked for.

    Raises:
      InvalidValueError: if anything else differs.
    """
    if not setups:
        return None
    most = max(setup.options.num_workers for setup in setups)
    first, *others = (dataclasses.replace(one.options, num_workers=most) for one in setups)
    for other in others:
        for field in dataclasses.fields(first):
            values = [getattr(one, field.name) for one in (first, other)]
            if values[0] != values[1]:
                raise errors.InvalidValueError(
                    f"one set of workers runs all of this dataset, and its mp_prefetch have "
                    f"{field.name}={values[0]!r} and {values[1]!r}. Give them the same, or write "
                    "mp_prefetch once, at the end."
                )
    return iterators.Setup(first, sequential=any(setup.sequential for setup in setups))
