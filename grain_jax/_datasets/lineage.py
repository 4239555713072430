"""Lineage: what is known of a node and all that it is made of, down to its sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grain_jax._algebra import access, index_maps
from grain_jax._datasets import nodes
from grain_jax._values import errors

__all__ = [
    "batched",
    "drawing",
    "dropping",
    "epoch",
    "epochs",
    "functions",
    "is_fresh",
    "is_plain",
    "parents",
    "reads_at_once",
    "sources",
    "stacks",
    "stacks_by_user",
    "steps",
]

_STEPPED = (nodes.StepNode, nodes.BatchNode, nodes.FlatMapNode)


def drawing(node: nodes.Node) -> str:
    """Returns what may use the process-wide generators as a node is read; empty if nothing."""
    for below in _down(node):
        if isinstance(below, _STEPPED) and below.draws is not None:
            return below.step.title
        if isinstance(below, nodes.CustomNode):
            return f"{type(below.dataset).__name__}.__getitem__"
        if isinstance(below, nodes.SourceNode) and below.source.may_draw():
            return f"the source {access.describe(below.source.given)}"
    return ""


def functions(node: nodes.Node) -> Iterator[Callable[..., Any]]:
    """Yields the functions of the user's that read a node."""
    for below in _down(node):
        if isinstance(below, _STEPPED) and below.step.function:
            yield below.step.function
        if isinstance(below, nodes.CustomNode):
            yield below.dataset.__getitem__
        if isinstance(below, nodes.SourceNode) and not below.source.in_memory:
            yield from below.source.code()


def dropping(node: nodes.Node) -> list[str]:
    """Returns what may make elements of a node absent, but for the records of a source."""
    found: list[str] = []
    for below in _down(node):
        if isinstance(below, nodes.FlatMapNode) or (
            isinstance(below, nodes.StepNode) and below.step.counts != "same"
        ):
            found.append(below.step.title)
        if isinstance(below, nodes.CustomNode):
            found.append(f"{type(below.dataset).__name__}.__getitem__, if it returns None")
    return found[::-1]


def batched(node: nodes.Node) -> bool:
    """Whether elements are made of several records."""
    return any(isinstance(below, nodes.BatchNode) for below in _down(node))


def epoch(node: nodes.Node) -> int:
    """Returns after how many elements all records have had their turn, so that they come again."""
    below = parents(node)
    if len(below) != 1:
        return node.length
    size = epoch(below[0])
    if isinstance(node, nodes.BatchNode):
        size = -(-size // node.step.size)
    elif isinstance(node, nodes.FlatMapNode):
        size *= node.fan_out
    elif isinstance(node, nodes.IndexNode):
        if isinstance(node.index_map, index_maps.Sample):
            size = node.index_map.epoch
        elif isinstance(node.index_map, (index_maps.Shuffle, index_maps.WindowShuffle)):
            # It may mix several epochs of what is below.
            size = node.length
    return min(size, node.length)


def epochs(node: nodes.Node) -> tuple[int, int | None]:
    """Returns how many elements an epoch has, and how many epochs there are; None without an end.

    Raises:
      InvalidValueError: where epochs cannot be told apart.
    """
    size, below = 1, node
    while isinstance(below, (nodes.StepNode, nodes.FlatMapNode)):
        size *= below.fan_out if isinstance(below, nodes.FlatMapNode) else 1
        below = below.parent
    if isinstance(below, nodes.IndexNode) and isinstance(below.index_map, index_maps.Repeat):
        return size * below.index_map.below, below.index_map.epochs
    repeats = any(
        isinstance(one, nodes.IndexNode) and isinstance(one.index_map, index_maps.Repeat)
        for one in _down(below)
    )
    if repeats or node.length == index_maps.ENDLESS:
        raise errors.InvalidValueError(
            "epochs() does not know where an epoch ends: shuffles, slices, batches or mixtures "
            "come behind the repeat() of a MapDataset. Write repeat() last of them, and batch the "
            "stream."
        )
    return node.length, 1


def is_plain(node: nodes.Node) -> bool:
    """Whether each element is made of the one record that its key says."""
    while isinstance(node, (nodes.IndexNode, nodes.StepNode)):
        node = node.parent
    return isinstance(node, nodes.SourceNode)


def stacks(node: nodes.Node) -> bool:
    """Whether only index maps stand before a source that stacks."""
    while isinstance(node, nodes.IndexNode):
        node = node.parent
    return isinstance(node, nodes.SourceNode) and node.source.has_batches


def stacks_by_user(node: nodes.Node) -> bool:
    """Whether such a source stacks with code of the user's, which may keep what it returns."""
    while isinstance(node, nodes.IndexNode):
        node = node.parent
    return isinstance(node, nodes.SourceNode) and type(node.source) is access.Source


def is_fresh(node: nodes.Node) -> bool:
    """Whether each element is a batch that the library has just stacked."""
    while isinstance(node, nodes.IndexNode):
        node = node.parent
    return isinstance(node, nodes.BatchNode) and node.step.function is None


def reads_at_once(node: nodes.Node) -> bool:
    """Whether a source answers for many records in one call."""
    return any(source.get_many is not None for source in sources(node))


def parents(node: nodes.Node) -> Sequence[nodes.Node]:
    """Returns the nodes that one is made of; none where it begins."""
    one = getattr(node, "parent", None)
    several: Sequence[nodes.Node] = getattr(node, "parents", ()) if one is None else (one,)
    return several


def steps(node: nodes.Node) -> list[Any]:
    """Returns the steps by which a node is read, those of its sources first."""
    found = [step for parent in parents(node) for step in steps(parent)]
    return [*found, node.step] if isinstance(node, _STEPPED) else found


def sources(node: nodes.Node) -> list[access.Source]:
    """Returns the sources that a node reads."""
    return [below.source for below in _down(node) if isinstance(below, nodes.SourceNode)]


def _down(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for below in parents(node):
        yield from _down(below)
