"""States: a pipeline's position as a JSON value, and back, with every check a file deserves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from grain_jax._execution import fingerprint
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._values import errors

__all__ = ["decode", "encode"]

_VERSION = 1


def encode(pipeline: Pipeline, mark: Mapping[str, Any], *, elastic: bool = True) -> dict[str, Any]:
    """Returns the position of a pipeline as a JSON value.

    Args:
      pipeline: whose position.
      mark: its fingerprint.
      elastic: whether one number for all shards may do, where it says everything.
    """
    layout, position, segments = pipeline.layout, pipeline.position, pipeline.segments
    if elastic and layout.is_elastic(segments, position.sparse):
        where = {"elastic": True, "position": layout.global_position(position, segments)}
    else:
        where = layout.to_json(position)
    return {
        "grain_jax": _VERSION,
        **where,
        "lanes": layout.lanes,
        "pipeline": dict(mark),
    }


def decode(
    state: Any, pipeline: Pipeline, mark: Mapping[str, Any], *, lanes: int | None, strict: bool
) -> tuple[Layout, Position]:
    """Returns layout and position that a state stands for.

    Args:
      state: what `encode` returned, read from JSON.
      pipeline: which shall go there.
      mark: its fingerprint.
      lanes: the number of lanes the user asked for; None takes that of the state.
      strict: whether a state of a different pipeline is refused.

    Raises:
      StateError: for anything that is no state, or one that does not fit.
    """
    if not isinstance(state, Mapping) or "grain_jax" not in state:
        raise errors.StateError(
            f"this is no state of grain_jax: {_brief(state)}. Give what get_state() returned."
        )
    if state["grain_jax"] != _VERSION:
        raise errors.StateError(
            f"the state has version {state['grain_jax']!r}, and this release reads version "
            f"{_VERSION}. Restore it with the release that wrote it."
        )
    saved_mark = _get(state, "pipeline", dict)
    saved_lanes = _number(state, "lanes", minimum=1)
    if lanes is not None and lanes != saved_lanes:
        raise errors.StateError(
            f"the state has lanes={saved_lanes}, and this pipeline was built with lanes={lanes}. "
            f"Write lanes={saved_lanes}, or leave lanes out."
        )
    fingerprint.compare(saved_mark, mark, strict=strict)
    layout = dataclasses.replace(pipeline.layout, lanes=saved_lanes)
    if _get(state, "elastic", bool):
        return layout, _elastic(state, layout, pipeline)
    return layout, _exact(state, layout)


def _elastic(state: Mapping[str, Any], layout: Layout, pipeline: Pipeline) -> Position:
    position = _number(state, "position")
    if layout.length is not None and position > layout.length:
        raise errors.StateError(
            f"the state stands at position {position}, and this stream has {layout.length} "
            f"positions. Build it with as many epochs as before, or more."
        )
    if position < pipeline.first:
        raise errors.StateError(
            f"the state stands at position {position}, and this epoch begins at {pipeline.first}. "
            "Restore it in the epoch that it was saved in: `loader.epochs(start=...)`."
        )
    if not layout.is_elastic(pipeline.start_segments, sparse=False):
        raise errors.StateError(
            "the state is one number for all shards, and this pipeline counts its elements as it "
            "runs (a filter, flat_map or operation comes before a batch). Build it as it was."
        )
    return Position(base=position)


def _exact(state: Mapping[str, Any], layout: Layout) -> Position:
    for key, name in (("shard", "the loader"), ("sampler_shard", "the sampler")):
        saved = tuple(_get(state, key, list))
        mine = getattr(layout, key)
        if saved != mine:
            raise errors.StateError(
                f"the state is that of shard {saved[0]} of {saved[1]} given to {name}, and this is "
                f"shard {mine[0]} of {mine[1]}. Each shard of such a stream counts for itself: "
                f"restore it on {saved[1]} processes, each from its own file."
            )
    cursors = _get(state, "cursors", list)
    if len(cursors) != layout.lanes:
        raise errors.StateError(
            f"field 'cursors' has {len(cursors)} entries for {layout.lanes} lanes"
        )
    return Position(
        base=_number(state, "base"),
        cursors=tuple(_cursor(cursor) for cursor in cursors),
        next_lane=_number(state, "next_lane", below=layout.lanes),
        tail=_counts(_get(state, "tail", list)),
        sparse=_get(state, "sparse", bool),
    )


def _cursor(cursor: Any) -> tuple[Any, ...] | None:
    if cursor is None:
        return None
    if not isinstance(cursor, list) or len(cursor) < 2:
        raise errors.StateError(
            f"field 'cursors' has {_brief(cursor)} where a list of numbers stood"
        )
    numbers = cursor if not isinstance(cursor[1], dict) else [cursor[0], *cursor[2:]]
    _counts([number for number in numbers if number is not None])
    return tuple(cursor)


def _counts(numbers: list[Any]) -> tuple[int, ...]:
    for number in numbers:
        if type(number) is not int or number < 0:
            raise errors.StateError(f"the state has {_brief(number)} where a count belongs")
    return tuple(numbers)


def _get(state: Mapping[str, Any], key: str, kind: type) -> Any:
    value = state.get(key)
    if not isinstance(value, kind):
        raise errors.StateError(
            f"field {key!r} of the state is {_brief(value)}, expected {kind.__name__}"
        )
    return value


def _number(
    state: Mapping[str, Any], key: str, *, minimum: int = 0, below: int | None = None
) -> int:
    value = state.get(key)
    if type(value) is not int or value < minimum or (below is not None and value >= below):
        limit = "" if below is None else f" and below {below}"
        raise errors.StateError(
            f"field {key!r} of the state is {_brief(value)}, expected a whole number of at least "
            f"{minimum}{limit}"
        )
    return value


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
