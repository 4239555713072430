"""States: a pipeline's position as a JSON value, and back, with every check a file deserves."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from grain_jax._datasets.plan import Branch, Upstream
from grain_jax._execution import fingerprint, joining, mixtures, ownership, version1
from grain_jax._execution.cursors import LARGEST, Reading, Unlike, brief, leaves
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.runs import Cursor
from grain_jax._values import errors, files

__all__ = ["as_json", "decode", "encode", "number"]

_VERSION = 2


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
    if exact is None and pipeline.is_elastic:
        reached = layout.global_position(position, pipeline.stages)
        where: dict[str, Any] = {"elastic": True, "position": reached}
    else:
        # Who meets the next absent record is not known before.
        may_join = exact is None and layout.is_joinable(pipeline.branch)
        may_join = may_join and not position.has_gaps
        cursor = pipeline.cursor(position)
        roots = itertools.chain(pipeline.plan.leaves(), itertools.repeat(None))
        where = {
            "elastic": False,
            "joined": layout.joined if may_join else None,
            "base": position.base,
            "cursor": _as_lists(cursor, roots),
            "sparse": position.has_gaps,
            "skipped": position.skipped,
            "shard": list(layout.shard),
            "sampler_shard": list(layout.sampler_shard),
        }
        if mixtures.has_names(pipeline.plan):
            where["mixtures"] = mixtures.described(pipeline.form(position))
    return {"grain_jax": _VERSION, **where, "lanes": layout.lanes}


def _as_lists(cursor: Cursor, roots: Iterator[Any]) -> list[Any]:
    """Returns a cursor as JSON; `roots` are those of its leaves, as far as they are known."""
    place, since = cursor
    if isinstance(place, int):
        root = next(roots)
        return [place, _state_of(root, place, since) if isinstance(root, Upstream) else since]
    cursors, kept, groups = place
    return [[[_as_lists(one, roots) for one in cursors], list(kept), groups], since]


def _state_of(root: Upstream, count: int, state: Any) -> Any:
    """Returns where an iterable of the user's has said that it stands, as JSON."""
    if state is not None:
        return as_json(f"{root.title}: the iterator's state is", state)
    if not root.rereads:
        ownership.require_state(root.dataset, has_state=not count)
    return None


def as_json(what: str, state: Any) -> Any:
    """Returns a state of the user's as it comes back from a file.

    Args:
      what: whose it is, for error messages: the beginning of a sentence.
      state: of JSON values; numbers of NumPy are taken as numbers.

    Raises:
      InvalidTypeError: if it is none, or would come back as another one.
    """
    try:
        _check_keys(state)
        return json.loads(json.dumps(state, default=_item))
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.InvalidTypeError(
            f"{what} {brief(state)}, which is no JSON ({error}). Return dicts with text as "
            "keys, lists, str, int, float, bool and None."
        ) from None


def _check_keys(state: Any) -> None:
    if isinstance(state, dict):
        for key in state:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} would come back as text")
    if isinstance(state, (dict, list, tuple)):
        for part in state.values() if isinstance(state, dict) else state:
            _check_keys(part)


def _item(value: Any) -> Any:
    """Returns a NumPy scalar as the number that it is: sums of records are such."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON")


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
    is_joint = files.is_joint(state)
    if is_joint:
        state = joining.share(state, pipeline.layout.shard)
    elif isinstance(state, Mapping):
        state = version1.as_version_2(state)
    if not isinstance(state, Mapping) or "grain_jax" not in state:
        raise errors.StateError(
            f"this is no state of grain_jax: {brief(state)}. Give what get_state() returned."
        )
    if state["grain_jax"] != _VERSION or type(state["grain_jax"]) is not int:
        raise errors.StateError(
            f"the state has version {brief(state['grain_jax'])}, and this release reads versions "
            f"{version1.VERSION} and {_VERSION}. Restore it with the release that wrote it."
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
    return layout, _exact(state, layout, pipeline, strict, is_joint)


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


def _exact(
    state: Mapping[str, Any], layout: Layout, pipeline: Pipeline, strict: bool, is_joint: bool
) -> Position:
    _check_shard("shard", "the loader", state, layout)
    _check_shard("sampler_shard", "the sampler", state, layout)
    # The state of another shard says nothing of how many this run makes together.
    if state.get("joined") is not None and layout.virtual not in (None, layout.shards):
        raise errors.StateError(
            f"the stream was begun with {layout.shards} shards, each of which counts for "
            f"itself, and this pipeline has virtual_shards={layout.virtual}. Write "
            f"virtual_shards={layout.shards}, or leave it out."
        )
    base = number(state, "base")
    _check_within(base, layout)
    position = Position(
        base=base, has_gaps=_get(state, "sparse", bool), skipped=number(state, "skipped")
    )
    branch = pipeline.branch_of(position)
    _check_joined(layout, branch)
    if "cursor" not in state:
        raise errors.StateError("the state has no field 'cursor', which says where to go on")
    given, named = state["cursor"], state.get("mixtures")
    _check_leaves(given, pipeline, layout, parts_may_differ=named is not None)
    form = pipeline.form(position, layout)
    if named is not None:
        given = mixtures.fitted(given, form, named)
        _check_leaves(given, pipeline, layout)
    is_old = version1.FROM in state
    if is_old and not state[version1.FROM]:
        # Stages behind the lanes said nothing before their first element.
        for _ in range(sum(stage.local for stage in branch.stages)):
            given = [[[given], [0], 0], 0]
    reading = Reading(is_old, is_joint)
    try:
        cursor = reading.conform(given, form)
    except Unlike as unlike:
        if strict:
            raise errors.StateError(
                f"field 'cursor' of the state has {unlike}. Build the pipeline as it was when the "
                "state was saved."
            ) from None
        cursor = reading.restarted(given, form)
    return dataclasses.replace(position, cursor=cursor)


def _check_leaves(
    given: Any, pipeline: Pipeline, layout: Layout, *, parts_may_differ: bool = False
) -> None:
    """Checks a cursor before anything is made of numbers that a file may hold."""
    found = sum(1 for _ in leaves(given))
    streams = layout.streams * len(pipeline.plan.leaves())
    if found != streams and not (parts_may_differ and layout.streams <= found):
        raise errors.StateError(
            f"field 'cursor' of the state has {found} cursors where this pipeline has "
            f"{streams} streams. Build it with as many lanes and shards as then."
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


def _check_joined(layout: Layout, branch: Branch) -> None:
    """Refuses to join shards where one batch cannot be made of theirs."""
    if layout.joined == 1:
        return
    if branch.shared is None or not layout.is_joinable(branch):
        raise errors.StateError(
            f"the state is that of {layout.joined} shards that run as one, and this pipeline does "
            "not end by a batch of elements that it counts. Build it as it was."
        )
    size = branch.behind[branch.shared].unit
    if size % layout.joined:
        raise errors.StateError(
            f"a batch of {size} cannot be made of equal shares of {layout.joined} shards: the "
            f"stream was begun with {layout.shards}, and this process is one of {layout.shard[1]}. "
            f"Give a batch size that {layout.joined} divides; {layout.joined} times that of then "
            "keeps the steps as they were."
        )


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
