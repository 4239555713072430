"""Fingerprint: what of a pipeline fixes its stream, to tell its states from another one's."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grain_jax._algebra import index_maps, samplers, selections, steps
from grain_jax._datasets import lineage, merges, nodes, roots, sampled, subsets
from grain_jax._datasets.plan import Grouped, Plan
from grain_jax._execution.layout import Layout
from grain_jax._values import errors

__all__ = ["Declared", "compare", "declared", "fingerprint"]

_NAMES = {
    "records": "the source's length",
    "order": "the order of records (sampler, seed, shuffle, slices)",
    "sharding": "the kind of sharding",
    "counting": "the steps that change counts or order",
}
_NAMED = "by name"
_SOFT = {"source": "type of source", "sampler": "type of sampler", "maps": "steps on elements"}


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a pipeline says of its stream, to compare it with those of other processes.

    Attributes:
      order: what fixes which records each step has, by name, as JSON values.
      names: what is there to warn of, in the same way.
      shard: index and count, if it is one of several shards.
    """

    order: dict[str, Any]
    names: dict[str, Any]
    shard: tuple[int, int] | None


def declared(
    mark: Mapping[str, Any], plan: Plan, layout: Layout, tail: Sequence[Any] = ()
) -> Declared:
    """Returns what a pipeline says of its stream.

    Args:
      mark: its fingerprint.
      plan: the pipeline.
      layout: shards and lanes.
      tail: as `fingerprint` takes them.
    """
    batches = [step.batching for step in [*plan.steps, *tail] if step.batching is not None]
    order = {
        **{text: mark[key] for key, text in _NAMES.items()},
        "sizes of batches": [step.size for step in batches],
        "drop_remainder of batches": [step.drop for step in batches],
        "lanes": layout.lanes,
        "number of shards": max(layout.shards, layout.sampler_shard[1]),
        "exceptions that are skipped": [kind.__name__ for kind in plan.skips],
    }
    if layout.sampler_shard[1] == 1:
        # The shards of a sampler have lengths of their own.
        order["where the stream begins"] = layout.start
        order["where it ends (records times epochs)"] = layout.length
        order["drop_remainder of the shards"] = layout.even
    names = {text: mark[key] for key, text in _SOFT.items()}
    shards = [shard for shard in (layout.shard, layout.sampler_shard) if shard[1] > 1]
    return Declared(order, names, shards[0] if shards else None)


def fingerprint(
    plan: Plan, layout: Layout, sampler: str = "", tail: Sequence[Any] = ()
) -> dict[str, Any]:
    """Returns, as a JSON value, what has to be equal for a state to mean the same records.

    Type names and `maps` are there to warn of, not to refuse.

    Args:
      plan: the pipeline.
      layout: shards and lanes.
      sampler: the type of a loader's sampler.
      tail: operations of the user's own behind the plan, and the steps after them.
    """
    known = _of_plan(plan)
    done = [*known.steps, *tail]
    node = plan.root.node if isinstance(plan.root, roots.NodeRoot) else None
    times = None if node is None else subsets.times_sliced(node)
    sharding = "sampler" if layout.sampler_shard[1] > 1 else "loader" if layout.shard[1] > 1 else ""
    return {
        "source": known.source,
        "sampler": sampler,
        "records": known.records,
        "order": known.order,
        "sharding": sharding or "none",
        "counting": [_kind(step) for step in done if _counts(step)],
        "maps": [_short(step) for step in done if _kind(step) != "batch"],
        **({} if times is None else {"sliced": times}),
    }


@dataclasses.dataclass
class _Known:
    """What a node is made of, from its source on.

    Attributes:
      source: type of the source; of several parts those of all.
      records: its length; of several parts a list.
      order: what reorders; of several parts, what merges them and the lists of all.
      steps: on elements, and on batches of them.
    """

    source: Any
    records: Any = None
    order: list[Any] = dataclasses.field(default_factory=list)
    steps: list[steps.Step] = dataclasses.field(default_factory=list)


def _of_plan(plan: Plan) -> _Known:
    root = plan.root
    if isinstance(root, Grouped):
        parts = [_of_plan(parent) for parent in root.parents]
        names = getattr(root.grouping, "names", None)
        if names is None:
            known = _merged(root.grouping.identity(), parts)
        else:
            known = _by_name(root.grouping.identity(), dict(zip(names, parts, strict=True)))
    else:
        node = root.node if isinstance(root, roots.NodeRoot) else None
        known = _Known(type(root).__name__) if node is None else _known(node)
        if isinstance(root, sampled.SampledRoot):
            known.order.append("a sampler of one's own")
    known.steps += plan.steps
    return known


def _merged(what: str, parts: Sequence[_Known]) -> _Known:
    return _Known(
        [part.source for part in parts],
        [part.records for part in parts],
        [[what, *(part.order for part in parts)]],
        [step for part in parts for step in part.steps],
    )


def _by_name(what: str, parts: Mapping[str, _Known]) -> _Known:
    """Returns what is known of parts with names: only those are compared that a state has, too."""

    def each(value: Callable[[_Known], Any]) -> dict[str, Any]:
        return {_NAMED: {name: value(part) for name, part in parts.items()}}

    def counting(part: _Known) -> list[str]:
        return [_kind(step) for step in part.steps if _counts(step)]

    return _Known(
        each(lambda part: part.source),
        each(lambda part: part.records),
        [[what, each(lambda part: [part.order, counting(part)])]],
    )


def _in_common(one: Any, other: Any) -> tuple[Any, Any]:
    """Returns two values without those parts with names that only one of them has."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [_in_common(*pair) for pair in zip(one, other, strict=True)]
        return [first for first, _ in pairs], [second for _, second in pairs]
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one, other
    if not one.keys() == other.keys() == {_NAMED}:
        return one, other
    mine, yours = one[_NAMED], other[_NAMED]
    if not (isinstance(mine, dict) and isinstance(yours, dict)):
        return one, other
    both = {name: _in_common(mine[name], yours[name]) for name in mine if name in yours}
    return {name: pair[0] for name, pair in both.items()}, {
        name: pair[1] for name, pair in both.items()
    }


def _known(node: nodes.Node) -> _Known:
    if isinstance(node, nodes.SourceNode):
        source = node.source
        return _Known(type(source.given).__name__, source.length, list(source.order))
    if isinstance(node, nodes.CustomNode):
        return _Known(type(node.dataset).__name__, node.length)
    parts = [_known(parent) for parent in lineage.parents(node)]
    if isinstance(node, (merges.SelectedNode, merges.ZippedNode)):
        what = _selection(node.selection) if isinstance(node, merges.SelectedNode) else "zip"
        return _merged(what, parts)
    (known,) = parts
    if isinstance(node, nodes.IndexNode):
        known.order.append(_order(node.index_map))
        return known
    assert isinstance(node, (nodes.StepNode, nodes.BatchNode, nodes.FlatMapNode))
    known.steps.append(node.step)
    if isinstance(node, nodes.BatchNode):
        known.order.append(f"batch({node.step.size})")
    elif isinstance(node, nodes.FlatMapNode):
        known.order.append(f"flat_map({node.fan_out})")
    return known


def _selection(selection: selections.Selection) -> str:
    """Says which part is chosen; lengths of parts are said elsewhere."""
    if isinstance(selection, selections.Mixture):
        return f"mix(weights={list(selection.weights)})"
    if isinstance(selection, selections.Exhaustion):
        return f"mix(weights={list(selection.weights)}, stop='all')"
    if isinstance(selection, selections.Given):
        return f"select({type(selection.chooser).__name__})"
    return "concatenate"


def _order(index_map: index_maps.IndexMap) -> str:
    """Says what an index map does to the order; how often it repeats does not matter."""
    if isinstance(index_map, index_maps.Sample):
        sampler = index_map.sampler
        if isinstance(sampler, samplers.IndexSampler) and sampler.shuffle:
            return f"shuffle(records={sampler.num_records}, seed={sampler.seed})"
        return f"in order(records={sampler.num_records}, seed={sampler.seed})"
    if isinstance(index_map, index_maps.Shuffle):
        return f"shuffle(seed={index_map.seed})"
    if isinstance(index_map, index_maps.WindowShuffle):
        return f"window_shuffle(window_size={index_map.window}, seed={index_map.seed})"
    if isinstance(index_map, index_maps.Repeat):
        return f"repeat(reseed={index_map.reseed})"
    return str(index_map)


def _counts(stage: Any) -> bool:
    return getattr(stage, "counts", "any") != "same"


def _short(stage: Any) -> str:
    title: str = stage.title
    return title.partition(": ")[2]


def _kind(stage: Any) -> str:
    return _short(stage).partition("(")[0]


def compare(saved: Mapping[str, Any], now: Mapping[str, Any], *, strict: bool) -> None:
    """Checks that a state belongs to this pipeline.

    Args:
      saved: the fingerprint in the state.
      now: that of this pipeline.
      strict: whether a difference that changes the stream is an error, or only a warning.

    Raises:
      StateError: naming what differs.
    """
    pairs = {key: _in_common(saved.get(key), now.get(key)) for key in (*_NAMES, *_SOFT)}
    saved = {**saved, **{key: pair[0] for key, pair in pairs.items() if key in saved}}
    now = {**now, **{key: pair[1] for key, pair in pairs.items()}}
    differing = [
        f"{text}: the state says {saved.get(key)!r}, this pipeline says {now[key]!r}"
        for key, text in _NAMES.items()
        if saved.get(key) != now[key] and not _only_unsharded(key, saved, now)
    ]
    # A state without this field is of a slice that had other records in each epoch.
    if "sliced" not in saved and now.get("sliced", 1) != 1:
        differing.append(
            "a slice that is repeated: in the run that saved the state, later epochs had other "
            "records than the first; in this pipeline every epoch has the same ones"
        )
    if differing:
        message = "the state is of another pipeline. " + "; ".join(differing) + "."
        if strict:
            raise errors.StateError(
                message + " Build the pipeline as it was, or write strict=False to go on anyway."
            )
        warnings.warn(message, stacklevel=3)
    for key, text in _SOFT.items():
        if saved.get(key) != now.get(key):
            warnings.warn(
                f"the {text} differs: the state says {saved.get(key)!r}, this pipeline says "
                f"{now.get(key)!r}. The position is the same; the elements may differ.",
                stacklevel=3,
            )


def _only_unsharded(key: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Sharding by the loader on one process is no sharding."""
    plain = ("none", "loader")
    return key == "sharding" and saved.get(key) in plain and now[key] in plain
