"""States: a pipeline's position as a JSON value, and back, with every check a file deserves."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from grain_jax._datasets.plan import Segment, Upstream
from grain_jax._datasets.schedule import Lane
from grain_jax._execution import fingerprint, joining, lending
from grain_jax._execution.items import Cursor
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._values import errors, files

__all__ = ["LARGEST", "brief", "decode", "encode", "number"]

_VERSION = 1

LARGEST = 1 << 50
"""Beyond any count that a run can reach; products of two such numbers are never made."""


def encode(pipeline: Pipeline, exact: Position | None = None) -> dict[str, Any]:
    """Returns the position of a pipeline as a JSON value, without its fingerprint.

    Args:
      pipeline: whose position.
      exact: another position of it, for which one number for all shards does not do; None for its
        own.

    Raises:
      InvalidTypeError: if it begins with an iterator of the user's that has no state.
    """
    layout, position = pipeline.layout, exact or pipeline.position
    root = pipeline.plan.root
    if isinstance(root, Upstream):
        lending.require_state(
            root.dataset,
            all(cursor is None or cursor[1] is not None for cursor in position.cursors),
        )
    where: dict[str, Any]
    if exact is None and pipeline.is_elastic:
        where = {"elastic": True, "position": layout.global_position(position, pipeline.segments)}
    else:
        where = layout.to_json(position, pipeline.segments if exact is None else None)
    return {"grain_jax": _VERSION, **where, "lanes": layout.lanes}


def decode(
    state: Any, pipeline: Pipeline, mark: Mapping[str, Any], *, lanes: int | None, strict: bool
) -> tuple[Layout, Position]:
    """Returns layout and position that a state stands for.

    Args:
      state: what `encode` returned, read from JSON, with the fingerprint as "pipeline"; or, as
        "processes", a list of what it returned on all of them.
      pipeline: which shall go there.
      mark: its fingerprint.
      lanes: the number of lanes the user asked for; None takes that of the state.
      strict: whether a state of a different pipeline is refused.

    Raises:
      StateError: for anything that is no state, or one that does not fit.
    """
    try:
        state = copy.deepcopy(state)
    except RecursionError:
        raise errors.StateError(
            "this is no state of grain_jax: it is nested too deep. Give what get_state() returned."
        ) from None
    if files.is_joint(state):
        state = joining.share(state, pipeline.layout.shard)
    if not isinstance(state, Mapping) or "grain_jax" not in state:
        raise errors.StateError(
            f"this is no state of grain_jax: {brief(state)}. Give what get_state() returned."
        )
    if state["grain_jax"] != _VERSION or type(state["grain_jax"]) is not int:
        raise errors.StateError(
            f"the state has version {brief(state['grain_jax'])}, and this release reads version "
            f"{_VERSION}. Restore it with the release that wrote it."
        )
    saved_mark = _get(state, "pipeline", dict)
    is_elastic = _get(state, "elastic", bool)
    saved_lanes = number(state, "lanes", minimum=1)
    if lanes is not None and lanes != saved_lanes:
        raise errors.StateError(
            f"the state has lanes={saved_lanes}, and this pipeline was built with lanes={lanes}. "
            f"Write lanes={saved_lanes}, or leave lanes out."
        )
    fingerprint.compare(saved_mark, mark, strict=strict)
    layout = dataclasses.replace(pipeline.layout, lanes=saved_lanes, joined=1)
    if is_elastic:
        return layout, _elastic(state, layout, pipeline, strict)
    if state.get("joined") is not None:
        layout = dataclasses.replace(layout, joined=number(state, "joined", minimum=1))
    return layout, _exact(state, layout, pipeline, strict)


def _elastic(
    state: Mapping[str, Any], layout: Layout, pipeline: Pipeline, strict: bool
) -> Position:
    position = number(state, "position")
    _check_within(position, layout)
    if layout.lanes != 1:
        raise errors.StateError(f"one number for all shards cannot stand for {layout.lanes} lanes")
    # Any stream can begin at a position; whether it is the same one is for the user to say.
    may_begin = pipeline.plan.skips or not strict
    if pipeline.would_be_elastic(layout) or (may_begin and layout.sampler_shard[1] == 1):
        return Position(base=position)
    raise errors.StateError(
        "the state is one number for all shards, and this pipeline counts its elements as it "
        "runs (a filter, flat_map or operation comes before a batch, or the sampler shards). "
        "Build it as it was."
    )


def _check_within(position: int, layout: Layout) -> None:
    if position < layout.start:
        raise errors.StateError(
            f"the state stands at position {position}, and this epoch begins at {layout.start}. "
            "Restore it in the epoch that it was saved in: `loader.epochs(start=...)`."
        )
    if layout.length is not None and position > layout.length:
        raise errors.StateError(
            f"the state stands at position {position}, and this stream ends at {layout.length}. "
            "Build it with as many epochs as before, or more; a state of one of "
            "`loader.epochs()` belongs to that epoch."
        )


def _exact(state: Mapping[str, Any], layout: Layout, pipeline: Pipeline, strict: bool) -> Position:
    _check_shard("shard", "the loader", state, layout)
    _check_shard("sampler_shard", "the sampler", state, layout)
    given = _get(state, "cursors", list)
    if len(given) != layout.streams:
        raise errors.StateError(
            f"field 'cursors' has {len(given)} entries for {layout.lanes} lanes"
            + (f" of {layout.joined} shards" if layout.joined > 1 else "")
        )
    base = number(state, "base")
    _check_within(base, layout)
    position = Position(
        base=base,
        next_lane=number(state, "next_lane", below=layout.lanes),
        sparse=_get(state, "sparse", bool),
        skipped=number(state, "skipped"),
        batches=number(state, "batches") if "batches" in state else 0,
    )
    _check_joined(layout, pipeline.segments_of(position))
    tail = _get(state, "tail", list)
    own = sum(segment.local for segment in pipeline.segments_of(position))
    size = pipeline.cursor_size(position)
    return dataclasses.replace(
        position,
        cursors=tuple(
            _cursor(cursor, size, layout.lane(index, base, None), pipeline, strict)
            for index, cursor in enumerate(given)
        ),
        tail=_counts(tail, 2 * own if tail else 0, strict),
    )


def _check_shard(key: str, name: str, state: Mapping[str, Any], layout: Layout) -> None:
    saved, mine = _get(state, key, list), getattr(layout, key)
    if saved == list(mine):
        return
    if len(saved) != 2:
        raise errors.StateError(f"field {key!r} of the state is {brief(saved)}")
    message = (
        f"the state is that of shard {saved[0]} of {saved[1]} given to {name}, and this is "
        f"shard {mine[0]} of {mine[1]}. Each shard of such a stream counts for itself: "
    )
    if key == "shard" and state.get("joined") is not None and type(saved[1]) is int:
        works = joining.counts_that_work(layout.joined * saved[1])
        raise errors.OtherShardError(
            f"{message}restore it on {works}, from the states of all. CheckpointRestore reads "
            f"these, and set_state takes them as {{{files.JOINT!r}: [...]}}."
        )
    whole = "1 process, from its" if saved[1] == 1 else f"{saved[1]} processes, each from its"
    raise errors.StateError(f"{message}restore it on {whole} own file.")


def _check_joined(layout: Layout, segments: list[Segment]) -> None:
    """Refuses to join shards where one batch cannot be made of theirs."""
    if layout.joined == 1:
        return
    if not layout.is_joinable(segments):
        raise errors.StateError(
            f"the state is that of {layout.joined} shards that run as one, and this pipeline does "
            "not make its batches of single records that it counts. Build it as it was."
        )
    size = segments[-1].unit
    if size % layout.joined:
        raise errors.StateError(
            f"a batch of {size} cannot be made of equal shares of {layout.joined} shards: the "
            f"stream was begun with {layout.shards}, and this process is one of {layout.shard[1]}. "
            f"Give a batch size that {layout.joined} divides; {layout.joined} times that of then "
            "keeps the steps as they were."
        )


def _cursor(cursor: Any, size: int, lane: Lane, pipeline: Pipeline, strict: bool) -> Cursor | None:
    if cursor is None:
        return None
    if not isinstance(cursor, list) or len(cursor) < 2:
        raise errors.StateError(f"field 'cursors' has {brief(cursor)} where a list belongs")
    root = pipeline.plan.root
    if isinstance(root, Upstream):
        # The second entry is the state of the user's own iterator.
        if cursor[1] is None:
            raise errors.StateError(
                f"the state does not say where the iterator of {type(root.dataset).__name__} "
                "stood, since that had no get_state. Give it get_state and set_state."
            )
        first, *rest = _counts(cursor[:1] + cursor[2:], size - 1, strict)
        return (first, cursor[1], *rest)
    counts = _counts(cursor, size, strict)
    behind = counts[0] - lane.before
    if behind < 0 or (lane.records is not None and behind > lane.records):
        raise errors.StateError(
            f"the state stands behind {counts[0]} records of its shard or lane, and this stream "
            f"has {lane.records} there, after {lane.before} before it. Build it with as many "
            "epochs as before, or more; a state of one of `loader.epochs()` belongs to that epoch."
        )
    return counts


def _counts(numbers: list[Any], size: int, strict: bool) -> tuple[int, ...]:
    for one in numbers:
        if type(one) is not int or not 0 <= one < LARGEST:
            raise errors.StateError(f"the state has {brief(one)} where a count belongs")
    if len(numbers) != size and (strict or not numbers):
        raise errors.StateError(
            f"the state has {len(numbers)} counts where this pipeline has {size}. Build it as it "
            "was when the state was saved."
        )
    # With other steps than before, only the place in the source is left to go by.
    return tuple(numbers) if len(numbers) == size else (*numbers[:1], *(0,) * (size - 1))


def _get(state: Mapping[str, Any], key: str, kind: type) -> Any:
    value = state.get(key)
    if not isinstance(value, kind):
        raise errors.StateError(
            f"field {key!r} of the state is {brief(value)}, expected {kind.__name__}"
        )
    return value


def number(state: Mapping[str, Any], key: str, *, minimum: int = 0, below: int = LARGEST) -> int:
    """Returns a whole number of a state.

    Raises:
      StateError: if it is none, or out of its range.
    """
    value = state.get(key)
    if type(value) is not int or not minimum <= value < below:
        raise errors.StateError(
            f"field {key!r} of the state is {brief(value)}, expected a whole number from {minimum} "
            f"to {below - 1}"
        )
    return value


def brief(value: Any) -> str:
    """Returns a value as a short text."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
