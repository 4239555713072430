"""Fingerprint: what of a pipeline fixes its stream, to tell its states from another one's."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from grain_jax._algebra import index_maps, samplers, steps
from grain_jax._datasets import nodes, roots, sampled, subsets
from grain_jax._datasets.plan import Plan
from grain_jax._execution.layout import Layout
from grain_jax._values import errors

__all__ = ["Declared", "compare", "declared", "fingerprint"]

_NAMES = {
    "records": "the source's length",
    "order": "the order of records (sampler, seed, shuffle, slices)",
    "sharding": "the kind of sharding",
    "counting": "the steps that change counts or order",
}
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
    mark: Mapping[str, Any], plan: Plan, layout: Layout, stages: Sequence[Any] = ()
) -> Declared:
    """Returns what a pipeline says of its stream.

    Args:
      mark: its fingerprint.
      plan: the pipeline.
      layout: shards and lanes.
      stages: as `fingerprint` takes them.
    """
    batches = [step for step in [*plan.steps, *stages] if isinstance(step, steps.BatchStep)]
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
    plan: Plan, layout: Layout, sampler: str = "", stages: Sequence[Any] = ()
) -> dict[str, Any]:
    """Returns, as a JSON value, what has to be equal for a state to mean the same records.

    Type names and `maps` are there to warn of, not to refuse.

    Args:
      plan: the pipeline.
      layout: shards and lanes.
      sampler: the type of a loader's sampler.
      stages: operations of the user's own behind the plan, and the steps after them.
    """
    order: list[str] = []
    done: list[Any] = []
    records: int | None = None
    kind = type(plan.root).__name__
    node = root_node = plan.root.node if isinstance(plan.root, roots.NodeRoot) else None
    if isinstance(plan.root, sampled.SampledRoot):
        order.append("a sampler of one's own")
    while node is not None:
        if isinstance(node, nodes.IndexNode):
            order.append(_order(node.index_map))
        elif isinstance(node, nodes.SourceNode):
            records, kind = node.source.length, type(node.source.given).__name__
        elif isinstance(node, nodes.CustomNode):
            records, kind = node.length, type(node.dataset).__name__
        else:
            done.insert(0, node.step)  # type: ignore[attr-defined]
            if isinstance(node, nodes.BatchNode):
                order.append(f"batch({node.step.size})")
            elif isinstance(node, nodes.FlatMapNode):
                order.append(f"flat_map({node.fan_out})")
        node = getattr(node, "parent", None)
    done += [*plan.steps, *stages]
    times = None if root_node is None else subsets.times_sliced(root_node)
    sharding = "sampler" if layout.sampler_shard[1] > 1 else "loader" if layout.shard[1] > 1 else ""
    return {
        "source": kind,
        "sampler": sampler,
        "records": records,
        "order": order[::-1],
        "sharding": sharding or "none",
        "counting": [_kind(step) for step in done if _counts(step)],
        "maps": [_short(step) for step in done if _kind(step) != "batch"],
        **({} if times is None else {"sliced": times}),
    }


def _order(index_map: index_maps.IndexMap) -> str:
    """Says what an index map does to the order; how often it repeats does not matter."""
    if isinstance(index_map, index_maps.Sample):
        sampler = index_map.sampler
        if isinstance(sampler, samplers.IndexSampler) and sampler.shuffle:
            return f"shuffle(records={sampler.num_records}, seed={sampler.seed})"
        return f"in order(records={sampler.num_records}, seed={sampler.seed})"
    if isinstance(index_map, index_maps.Shuffle):
        return f"shuffle(seed={index_map.seed})"
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
