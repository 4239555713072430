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

from grain_jax._execution import cursors, forms, states
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._values import errors

__all__ = ["decode", "is_grain"]

_FIELDS = ("version", "last_seen_indices", "last_worker_index", "worker_count")
_FLAT_MAP = "next_index_in_buffer"


def is_grain(state: Any) -> bool:
    """Whether a JSON value has the form of such a state."""
    return isinstance(state, Mapping) and ("last_seen_indices" in state or _FLAT_MAP in state)


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
    if _FLAT_MAP in state or any(step.counts == "any" for step in pipeline.plan.steps):
        raise errors.StateError(
            "a state of Grain's for a pipeline with FlatMap does not say which outputs of a record "
            "were delivered. Start the epoch again, or train to its end with Grain."
        )
    missing = [field for field in _FIELDS if field not in state]
    if missing or state["version"] != 2:
        raise errors.StateError(
            "the state has the form of Grain's, but "
            + (f"lacks {missing}" if missing else f"is of version {state['version']!r}, not 2")
            + ". A state of Grain 0.2's DataLoader can be continued."
        )
    workers = max(1, states.number(state, "worker_count"))
    if lanes is not None and lanes != workers:
        raise errors.StateError(
            f"Grain's state is that of worker_count={state['worker_count']}, which is "
            f"lanes={workers} here, and this loader was built with lanes={lanes}. Write "
            f"lanes={workers}, or leave lanes out."
        )
    _check_sampler(state, sampler_text, pipeline.layout)
    if pipeline.layout.start:
        raise errors.StateError(
            "Grain's state is that of a whole stream, and this iterator is one of "
            "`loader.epochs()`. Set it on `iter(loader)`."
        )
    layout = dataclasses.replace(pipeline.layout, lanes=workers, joined=1)
    position = _position(state, layout, pipeline)
    if pipeline.would_be_elastic(layout) and layout.shard[1] == 1:
        # One number says it, and then any number of processes can go on from there.
        assert position.cursor is not None
        position = Position(base=position.cursor[0])
    return layout, position


def _position(state: Mapping[str, Any], layout: Layout, pipeline: Pipeline) -> Position:
    seen = state["last_seen_indices"]
    if (
        not isinstance(seen, Mapping)
        or len(seen) != layout.lanes
        or set(seen) != {str(w) for w in range(layout.lanes)}
    ):
        raise errors.StateError(
            f"field 'last_seen_indices' of Grain's state is {cursors.brief(seen)}, expected one "
            f"index for each of {layout.lanes} workers."
        )
    turn = states.number(state, "last_worker_index", minimum=-1, below=layout.lanes) + 1
    done = iter([_records(seen[str(w)], w, layout) for w in range(layout.lanes)])
    form = pipeline.form(Position(), layout)
    return Position(cursor=forms.begun(form, done, turn % layout.lanes))


def _records(seen: Any, worker: int, layout: Layout) -> int:
    """Returns how many records of a worker are behind it."""
    index, count = layout.sampler_shard if layout.sampler_shard[1] > 1 else layout.shard
    if type(seen) is not int or abs(seen) >= cursors.LARGEST:
        raise errors.StateError(
            f"field 'last_seen_indices' of Grain's state holds {cursors.brief(seen)}"
        )
    before, off = divmod(seen - index - count * worker, count * layout.lanes)
    if off or before < -1:
        raise errors.StateError(
            f"Grain's state says that worker {worker} of {layout.lanes} saw index {seen}, which is "
            f"not one that it takes on shard {index} of {count}. Restore it on the shard that "
            "wrote it, with the same shard_options."
        )
    records = layout.lane(worker, 0, None).records
    if records is not None and before >= records:
        raise errors.StateError(
            f"Grain's state says that worker {worker} of {layout.lanes} saw index {seen}, which is "
            "beyond the end of this stream. Build it with as many epochs as before, or more."
        )
    return before + 1


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
