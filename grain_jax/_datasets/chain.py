"""What code of the user's a chain of nodes runs, from one node down to its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from grain_jax._algebra import access
from grain_jax._datasets import nodes

__all__ = ["drawing", "functions"]

_STEPPED = (nodes.StepNode, nodes.BatchNode, nodes.FlatMapNode)


def drawing(node: nodes.Node) -> str:
    """Returns what may use the process-wide generators as a node is read; empty if nothing."""
    below: nodes.Node | None = node
    while below is not None:
        if isinstance(below, _STEPPED) and below.draws is not None:
            return below.step.title
        if isinstance(below, nodes.CustomNode):
            return f"{type(below.dataset).__name__}.__getitem__"
        if isinstance(below, nodes.SourceNode) and below.source.may_draw():
            return f"the source {access.describe(below.source.given)}"
        below = getattr(below, "parent", None)
    return ""


def functions(node: nodes.Node) -> Iterator[Callable[..., Any]]:
    """Yields the functions of the user's that read a node."""
    below: nodes.Node | None = node
    while below is not None:
        if isinstance(below, _STEPPED) and below.step.function:
            yield below.step.function
        if isinstance(below, nodes.CustomNode):
            yield below.dataset.__getitem__
        if isinstance(below, nodes.SourceNode) and not below.source.in_memory:
            yield from below.source.code()
        below = getattr(below, "parent", None)
