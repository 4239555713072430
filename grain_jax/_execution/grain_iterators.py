"""States that Grain's dataset iterators wrote, and where they go on here.

Without workers such a state says how many records of the `MapDataset` have been read. That of
`mp_prefetch` says it for each of the workers, and whose turn it is: Grain's workers are lanes here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from grain_jax._datasets.plan import has_positions
from grain_jax._execution import cursors, forms, states
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._values import errors

__all__ = ["decode", "is_grain"]

_READ = "next_index"
_TURN = "next_index_in_cycle"
_WORKERS = "iterators_in_use_states"
_COUNTERS = ("counter", "index_for_rng")
"""What `map_with_index` and `random_map` of a stream count besides, around the state before."""


def is_grain(state: Any) -> bool:
    """Whether a JSON value has the form of such a state."""
    if not isinstance(state, Mapping) or "grain_jax" in state:
        return False
    return bool({_READ, _TURN} & state.keys()) or "parent" in state


def decode(
    state: Mapping[str, Any], pipeline: Pipeline, lanes: int | None, sequential: bool
) -> tuple[Layout, Position]:
    """Returns layout and position that continue what Grain's iterator delivered.

    Args:
      state: Grain's state, read from JSON.
      pipeline: which shall go on.
      lanes: the number of lanes the user asked for; None takes Grain's number of workers.
      sequential: whether the user asked for workers that take a part of the records each.

    Raises:
      StateError: if the state cannot be continued, saying why.
    """
    _check_pipeline(pipeline)
    state = _unwrapped(state)
    if state.keys() == {_READ}:
        read, turn = [state[_READ]], 0
    else:
        read, turn = _of_workers(state)
    if lanes is not None and lanes != len(read):
        raise errors.StateError(
            f"Grain's state is that of {len(read)} workers, which are lanes={len(read)} here, and "
            f"this dataset has lanes={lanes}. Write lanes={len(read)}, or leave lanes out."
        )
    if sequential and len(read) > 1:
        raise errors.StateError(
            "sequential_slice=True gives each of Grain's workers a part of the records, an order "
            "that is not to be had here. Start the epoch again, or train to its end with Grain."
        )
    layout = dataclasses.replace(pipeline.layout, lanes=len(read), joined=1)
    for number, count in enumerate(read):
        _check_read(count, number, layout)
    if pipeline.would_be_elastic(layout):
        return layout, Position(base=read[0])
    form = pipeline.form(Position(), layout)
    return layout, Position(cursor=forms.begun(form, iter(read), turn))


def _check_pipeline(pipeline: Pipeline) -> None:
    """Refuses a pipeline of which Grain's state does not say all."""
    layout = pipeline.layout
    if not has_positions(pipeline.plan.root):
        raise errors.StateError(
            "this is a state of a dataset iterator of Grain's, and this stream is made of others "
            "or of an iterable. Those of random-access datasets, steps and batches can be "
            "continued; of this one start the epoch again, or train to its end with Grain."
        )
    if layout.shards > 1 or layout.start:
        raise errors.StateError(
            f"this is a state of a dataset iterator of Grain's, and this stream is dealt out over "
            f"{layout.shards} shards. Cut the dataset before to_iter_dataset(), as in Grain: "
            "ds[index::count]."
        )
    stages = pipeline.stages_of(Position())
    for place, stage in enumerate(stages):
        for step in stage.steps:
            if step.counts == "any" or (step.needs_ordinal and place):
                raise errors.StateError(
                    f"a state of Grain's does not say how far {step.title} was. Start the epoch "
                    "again, or train to its end with Grain."
                )


def _unwrapped(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the state of what comes before steps that count."""
    while "parent" in state:
        inner = state["parent"]
        if not isinstance(inner, Mapping) or not state.keys() - {"parent"} <= set(_COUNTERS):
            raise _unlike(state)
        state = inner
    return state


def _of_workers(state: Mapping[str, Any]) -> tuple[list[int], int]:
    """Returns how many records each worker has read, and whose turn it is."""
    workers = state.get(_WORKERS)
    if (
        not isinstance(workers, list)
        or not workers
        or not all(isinstance(one, Mapping) for one in workers)
        or state.get("future_states")
        or state.get("iterators_in_use_indices") != list(range(len(workers)))
        or state.get("next_index_in_datasets") != len(workers)
    ):
        raise _unlike(state)
    read = [_unwrapped(one) for one in workers]
    if any(one.keys() != {_READ} for one in read):
        raise _unlike(state)
    turn = states.number(state, _TURN, below=len(workers) + 1)
    return [one[_READ] for one in read], turn % len(workers)


def _check_read(count: Any, worker: int, layout: Layout) -> None:
    records = layout.lane(worker, 0, None).records
    if type(count) is not int or not 0 <= count < cursors.LARGEST:
        raise errors.StateError(
            f"field {_READ!r} of Grain's state is {cursors.brief(count)}, expected a whole number "
            "from 0."
        )
    if records is not None and count > records:
        raise errors.StateError(
            f"Grain's state has read {count} records, and there are {records}"
            + (f" for worker {worker} of {layout.lanes}" if layout.lanes > 1 else "")
            + ". Build the dataset as it was, with as many epochs or more."
        )


def _unlike(state: Mapping[str, Any]) -> errors.StateError:
    return errors.StateError(
        f"this is no state of a dataset iterator of Grain's that can be continued: "
        f"{cursors.brief(dict(state))}. Those of random-access datasets, steps and batches can, "
        "with mp_prefetch or without."
    )
