"""Explaining: a pipeline as a tree: what each step makes, where it runs, what a state holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import access
from grain_jax._datasets import iterators, lineage, merges, nodes, specs
from grain_jax._datasets.iter_dataset import plan_of
from grain_jax._datasets.plan import Branch, Grouped, Plan, Upstream
from grain_jax._datasets.roots import NodeRoot
from grain_jax._execution import iterator
from grain_jax._execution.layout import Layout
from grain_jax._execution.meter import named
from grain_jax._execution.pipeline import Pipeline

__all__ = ["Explanation", "explain", "of_dataset"]


class Explanation(str):
    r"""Text that a notebook shows as it is.

    Example:
      >>> Explanation("two\nlines")
      two
      lines
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def of_dataset(dataset: Any, *, sample: bool) -> Explanation:
    """Returns what `IterDataset.explain` does."""
    plan, setup = plan_of(dataset), dataset._description.whole_setup(None)
    return explain(plan, setup, iterator.layout_of(plan, setup), name="IterDataset", sample=sample)


def explain(
    plan: Plan,
    setup: iterators.Setup,
    layout: Layout,
    *,
    name: str,
    sample: bool,
    tail: Sequence[Any] = (),
) -> Explanation:
    """Returns a pipeline as a tree, what is done last on top.

    Args:
      plan: the pipeline.
      setup: how it is run.
      layout: how it is dealt out.
      name: of what it is.
      sample: whether a first element is made where nothing says what elements are.
      tail: operations of the user's own behind it, and the steps after them.
    """
    pipeline = Pipeline(plan, setup, layout)
    try:
        writer = _Writer(pipeline, setup, sample)
        lines = [f"{name}: {_count(layout, pipeline, tail)}"]
        behind = [f"{one.title}  [trainer, over the ordered stream]" for one in reversed(tail)]
        lines += _nested(behind, writer.branch(pipeline.cuts.dense))
        lines += [f"sharding: {_sharding(layout)}", f"state: {_state(pipeline, tail)}"]
        return Explanation("\n".join(lines))
    finally:
        pipeline.close()


def _nested(titles: Sequence[str], inside: list[str]) -> list[str]:
    """Returns titles, each below the one before, and lines below the last."""
    for title in reversed(titles):
        inside = [title, *_below(inside)]
    return _below(inside)


def _below(*parts: list[str]) -> list[str]:
    """Returns the lines of parts, as branches of what stands above."""
    lines: list[str] = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        lines += [("└─ " if last else "├─ ") + part[0]]
        lines += [("   " if last else "│  ") + line for line in part[1:]]
    return lines


class _Writer:
    """Writes the lines of a tree."""

    def __init__(self, pipeline: Pipeline, setup: iterators.Setup, sample: bool) -> None:
        self._sample = sample
        count = setup.options.num_workers
        self._away = f"{count} workers" if pipeline.cuts.is_away else ""
        self._names = {id(branch): name for name, branch in named(pipeline.cuts.dense)}

    def branch(self, branch: Branch) -> list[str]:
        """Returns the lines of a part of the pipeline, its last step first."""
        plan = branch.plan
        where = {
            step.title: "trainer" if stage.local or not self._away else self._away
            for stage in branch.stages
            for step in stage.steps
        }
        first = branch.first
        at_root = "trainer" if first is None or first.local or not self._away else self._away
        lines = self._root(branch, at_root)
        for place, step in enumerate(plan.steps):
            done = dataclasses.replace(plan, steps=plan.steps[: place + 1])
            title = f"{step.title} → {self._spec(done)}  [{where.get(step.title, at_root)}]"
            lines = [title, *_below(lines)]
        return lines

    def _root(self, branch: Branch, where: str) -> list[str]:
        root = branch.plan.root
        bare = dataclasses.replace(branch.plan, steps=[])
        if isinstance(root, Grouped):
            parts = []
            for parent in branch.parents:
                part = self.branch(parent)
                if len(branch.parents) > 1:
                    name = self._names[id(parent)].rpartition("/")[2]
                    part = [f"{name}: {part[0]}", *part[1:]]
                parts.append(part)
            counted = "trainer counts" if where != "trainer" else "trainer"
            where = f"{counted}, {where}" if root.step is not None and self._away else "trainer"
            return [f"{root.title} → {self._spec(bare)}  [{where}]", *_below(*parts)]
        if isinstance(root, Upstream):
            where = "trainer, in a thread" if self._away else "trainer"
            return [f"source: {root.title} → {self._spec(bare)}  [{where}]"]
        if isinstance(root, NodeRoot):
            return self._node(root.node, where)
        return [f"source: {type(root).__name__} → {self._spec(bare)}  [{where}]"]

    def _node(self, node: nodes.Node, where: str) -> list[str]:
        parts = [self._node(parent, where) for parent in lineage.parents(node)]
        if isinstance(node, nodes.IndexNode):
            return [f"order: {_order(node.index_map)}", *_below(*parts)]
        if isinstance(node, nodes.SourceNode):
            given = node.source.given
            title = f"source: {access.describe(given)}, {node.length} records"
        elif isinstance(node, nodes.CustomNode):
            title = f"source: {type(node.dataset).__name__}, {node.length} elements"
        elif isinstance(node, merges.SelectedNode):
            parts = [[f"{number}: {part[0]}", *part[1:]] for number, part in enumerate(parts)]
            title = node.title
        else:
            title = getattr(getattr(node, "step", None), "title", type(node).__name__)
        return [f"{title} → {self._node_spec(node)}  [{where}]", *_below(*parts)]

    def _spec(self, plan: Plan) -> str:
        spec = specs.known(plan)
        if spec is None and self._sample:
            with iterators.run(dataclasses.replace(plan, local_from=None), iterators.Setup()) as it:
                spec = next(it, None)
        return _described(spec)

    def _node_spec(self, node: nodes.Node) -> str:
        spec = specs.known_of_node(node)
        if spec is None and self._sample and node.length:
            spec = nodes.element(node, 0)
        return _described(spec)


def _order(index_map: Any) -> str:
    """Says what reorders, in one line."""
    sampler = getattr(index_map, "sampler", None)
    if sampler is not None:
        return repr(sampler)
    text = type(index_map).__name__
    fields = getattr(index_map, "__dataclass_fields__", {})
    shown = [
        f"{name}={value!r}"
        for name in fields
        if isinstance(value := getattr(index_map, name), (int, str, bool))
    ]
    return f"{text}({', '.join(shown)})"


def _described(spec: Any) -> str:
    """Returns a tree of arrays in short: `{image: uint8[28,28], label: int64[]}`."""
    if spec is None:
        return "?"
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{key}: {_described(one)}" for key, one in spec.items()) + "}"
    if isinstance(spec, (list, tuple)) and type(spec) in (list, tuple):
        inner = ", ".join(_described(one) for one in spec[:4])
        more = ", …" if len(spec) > 4 else ""
        return f"[{inner}{more}]" if isinstance(spec, list) else f"({inner}{more})"
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if shape is None or dtype is None:
        return type(spec).__name__
    axes = ",".join("?" if axis is None else str(axis) for axis in shape)
    return f"{np.dtype(dtype) if isinstance(dtype, (str, type)) else dtype}[{axes}]"


def _count(layout: Layout, pipeline: Pipeline, tail: Sequence[Any]) -> str:
    count = None if tail else layout.elements(pipeline.stages)
    return "elements are counted as they come" if count is None else f"{count} elements"


def _sharding(layout: Layout) -> str:
    (index, count), (own, owns) = layout.shard, layout.sampler_shard
    lanes = f"; {layout.lanes} lanes fix the order" if layout.lanes > 1 else ""
    if owns > 1:
        return f"the sampler gives shard {own} of {owns}: a block of the records{lanes}"
    if count == 1 and layout.virtual is None:
        return f"none: each process that runs this has all of it{lanes}"
    text = f"shard {index} of {count}: positions {index}, {index + count}, … of the whole order"
    if layout.joined > 1:
        text += f", as {layout.joined} of {layout.shards} virtual shards, each counting for itself"
    return text + lanes


def _state(pipeline: Pipeline, tail: Sequence[Any]) -> str:
    layout = pipeline.layout
    if tail:
        saves = all(hasattr(getattr(one, "operation", one), "get_state") for one in tail)
        kept = "what the operations say of themselves" if saves else "how many outputs there were"
        return f"the place in the stream, and {kept}; any number of workers"
    if pipeline.is_elastic:
        return (
            "one number, the position in the whole order: restores with any number of workers and "
            "processes, and another batch size"
        )
    grouped = any(isinstance(plan.root, Grouped) for plan in pipeline.plan.walk())
    text = "a place in each part" if grouped else "a place in the stream"
    if any(isinstance(root, Upstream) for root in pipeline.plan.leaves()):
        text += ", with what iterables say of their own"
    if layout.is_joinable(pipeline.branch):
        return f"{text}; any number of workers, and of processes that divides {layout.shards}"
    return f"{text}; any number of workers, the same number of processes"
