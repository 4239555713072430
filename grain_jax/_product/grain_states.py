"""States that Grain's `DataLoader` wrote (version 2), and where they go on here.

Such a state holds for each of Grain's workers the sampler's position of the last record that went
into what it delivered, and which worker delivered last. Grain's workers are lanes here: worker w
of W on shard s of S takes positions s + S (w + W j).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._values import errors

__all__ = ["decode", "is_grain"]

_FIELDS = ("version", "last_seen_indices", "last_worker_index", "worker_count")


def is_grain(state: Any) -> bool:
    """Whether a JSON value has the form of such a state."""
    return isinstance(state, Mapping) and "last_seen_indices" in state


def decode(
    state: Mapping[str, Any], pipeline: Pipeline, sampler_text: str | None, lanes: int | None
) -> tuple[Layout, Position]:
    """Returns layout and position that continue what Grain delivered.

    Args:
      state: Grain's state, read from JSON.
      pipeline: which shall go on.
      sampler_text: the repr of the loader's sampler.
      lanes: the number of lanes the user asked for; None takes Grain's worker count.

    Raises:
      StateError: if the state cannot be continued, saying why.
    """
    missing = [field for field in _FIELDS if field not in state]
    if missing or state["version"] != 2:
        raise errors.StateError(
            "the state has the form of Grain's, but "
            + (f"lacks {missing}" if missing else f"is of version {state['version']!r}, not 2")
            + ". A state of Grain 0.2's DataLoader can be continued."
        )
    segments = pipeline.start_segments
    if any("flat_map" in step.title for segment in segments for step in segment.steps):
        raise errors.StateError(
            "a state of Grain's for a pipeline with FlatMap does not say which outputs of a record "
            "were delivered. Start the epoch again, or train to its end with Grain."
        )
    workers = max(1, _count(state, "worker_count"))
    if lanes is not None and lanes != workers:
        raise errors.StateError(
            f"Grain's state is that of worker_count={state['worker_count']}, which is "
            f"lanes={workers} here, and this loader was built with lanes={lanes}. Write "
            f"lanes={workers}, or leave lanes out."
        )
    layout = pipeline.layout
    _check_sampler(state, sampler_text, layout)
    index, count = layout.sampler_shard if layout.sampler_shard[1] > 1 else layout.shard
    seen = state["last_seen_indices"]
    if not isinstance(seen, Mapping) or sorted(seen) != sorted(str(w) for w in range(workers)):
        raise errors.StateError(
            f"field 'last_seen_indices' of Grain's state is {seen!r}, expected one index for each "
            f"of {workers} workers."
        )
    cursors = tuple(_cursor(seen[str(w)], w, workers, index, count) for w in range(workers))
    turn = (_count(state, "last_worker_index", minimum=-1) + 1) % workers
    layout = dataclasses.replace(layout, lanes=workers)
    if workers == 1 and layout.is_elastic(segments, sparse=False) and count == 1:
        return layout, Position(base=cursors[0][0])
    return layout, Position(cursors=cursors, next_lane=turn)


def _cursor(seen: Any, worker: int, workers: int, index: int, count: int) -> tuple[int, ...]:
    """Returns the lane's cursor: how many of its records are behind it."""
    if type(seen) is not int:
        raise errors.StateError(f"field 'last_seen_indices' of Grain's state holds {seen!r}")
    first = index + count * worker
    done, off = divmod(seen - first, count * workers)
    if off:
        raise errors.StateError(
            f"Grain's state says that worker {worker} of {workers} saw index {seen}, which is not "
            f"one that it takes on shard {index} of {count}. Restore it on the shard that wrote "
            "it, with the same shard_options."
        )
    return (done + 1, 0)


def _check_sampler(state: Mapping[str, Any], text: str | None, layout: Layout) -> None:
    """Refuses a state whose sampler was another one; the number of epochs may differ."""
    saved = state.get("sampler")
    if not isinstance(saved, str) or text is None:
        return
    shard = re.search(r"shard_index=(\d+), shard_count=(\d+)", saved)
    if shard and int(shard[2]) > 1 and (int(shard[1]), int(shard[2])) != layout.sampler_shard:
        raise errors.StateError(
            f"the sampler in Grain's state is shard {shard[1]} of {shard[2]}, and this loader's "
            f"sampler is shard {layout.sampler_shard[0]} of {layout.sampler_shard[1]}. Write "
            f"shard_options=ShardOptions({shard[1]}, {shard[2]}) in the sampler."
        )
    if _without_epochs(saved) != _without_epochs(text):
        raise errors.StateError(
            f"Grain's state was saved with {saved}, and this loader has {text}. Build the loader "
            "with the sampler of the state."
        )


def _without_epochs(text: str) -> str:
    return re.sub(r"num_epochs=\w+(, )?|[, ]*drop_remainder=\w+|NoSharding|ShardOptions", "", text)


def _count(state: Mapping[str, Any], key: str, minimum: int = 0) -> int:
    value = state[key]
    if type(value) is not int or value < minimum:
        raise errors.StateError(f"field {key!r} of Grain's state is {value!r}, expected a number")
    return value
