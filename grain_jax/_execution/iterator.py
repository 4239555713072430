"""PipelineIterator: the dataset iterator that a plan runs in."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, TypeVar

from grain_jax._datasets import iterators
from grain_jax._datasets.plan import Grouped, Plan, has_positions
from grain_jax._execution import fingerprint, grain_iterators, states, virtual
from grain_jax._execution.layout import Layout
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.positioned import Positioned
from grain_jax._execution.threaded import ThreadPrefetchDatasetIterator
from grain_jax._values import errors

__all__ = ["PipelineIterator", "batch_rows", "layout_of", "run"]

T = TypeVar("T")


class PipelineIterator(Positioned[T, dict[str, Any]], iterators.DatasetIterator[T]):
    """Iterates over a plan; see `DatasetIterator`."""

    def __init__(self, plan: Plan, setup: iterators.Setup, layout: Layout) -> None:
        super().__init__(Pipeline(plan, setup, layout))
        self._mark = fingerprint.fingerprint(plan, layout)
        self._options = setup.options
        self._sequential = setup.sequential

    def __len__(self) -> int:
        """The number of elements of the whole pass, wherever the iterator stands.

        Raises:
          InvalidTypeError: where nobody can know it.
        """
        return self._pipeline.layout.length_of("iterator", self._pipeline.stages)

    def __bool__(self) -> bool:
        return True  # as any iterator, with or without a length

    def _next(self) -> T:
        element: T = self._pipeline.next()
        return element

    def _state(self) -> dict[str, Any]:
        return {**states.encode(self._pipeline), "pipeline": copy.deepcopy(self._mark)}

    def _go_to(self, state: Any) -> None:
        if grain_iterators.is_grain(state):
            layout, position = grain_iterators.decode(
                state, self._pipeline, self._options.lanes, self._sequential
            )
            self._pipeline.go_to(position, layout)
            return
        layout, position = states.decode(
            state,
            self._pipeline,
            self._mark,
            lanes=self._options.lanes,
            strict=self._options.strict,
        )
        self._pipeline.go_to(position, layout)


def run(plan: Plan, setup: iterators.Setup) -> iterators.DatasetIterator[Any]:
    """Returns an iterator over a dataset's stream."""
    iterator: PipelineIterator[Any] = PipelineIterator(plan, setup, layout_of(plan, setup))
    return ThreadPrefetchDatasetIterator(iterator, setup.ahead) if setup.ahead else iterator


def batch_rows(plan: Plan, setup: iterators.Setup) -> tuple[tuple[int, ...], int | None] | None:
    """Returns what a dataset's iterator says of rows at its start; see `Layout.batch_rows`."""
    layout = layout_of(plan, setup)
    return layout.batch_rows(plan, layout.start)


def layout_of(plan: Plan, setup: iterators.Setup) -> Layout:
    """Returns how a dataset's stream is dealt out."""
    lanes = setup.options.lanes or 1
    if lanes > 1 and not has_positions(plan.root):
        what = "made of other streams" if isinstance(plan.root, Grouped) else "an iterable"
        raise errors.InvalidValueError(
            f"lanes={lanes} deals the records of one source out, and this dataset is {what}. "
            "Leave lanes out: the order does not depend on the workers."
        )
    layout = Layout(getattr(plan.root, "length", None), lanes=lanes)
    if plan.shards is not None:
        layout = virtual.of_tree(layout, plan)
    if setup.epoch is None:
        return layout
    start, end = setup.epoch
    layout = dataclasses.replace(layout, start=start, length=end)
    first = dataclasses.replace(layout, shard=(0, layout.shard[1]))  # it has most
    if first.elements(plan.stages()) == 0:
        raise errors.InvalidValueError(
            f"an epoch by itself yields nothing: drop_remainder drops all of its {end - start} "
            "elements, which do not fill one batch. Use a smaller batch or drop_remainder=False; "
            "or iterate over the dataset, where batches reach from one epoch into the next."
        )
    return layout


iterators.register(run)
