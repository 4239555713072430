"""Subsets: a slice has the records of its first epoch in every epoch.

The indices of a slice's later epochs go on counting below it, so that random steps draw anew. What
reorders below must not: there, orders come again with each epoch of the slice.
"""

from __future__ import annotations

import dataclasses

from grain_jax._algebra import index_maps
from grain_jax._datasets import merges, nodes

__all__ = ["closed", "times_sliced"]

_SHUFFLES = (index_maps.Shuffle, index_maps.WindowShuffle)


def closed(node: nodes.Node, epochs: int = 1) -> nodes.Node:
    """Returns a node whose epochs `e` and `e + epochs` have the same records in the same order.

    The first `epochs` epochs are those of `node`. Of a dataset without an end nothing changes.
    """
    if node.length == index_maps.ENDLESS:
        return node
    if isinstance(node, nodes.CustomNode):
        return dataclasses.replace(node, closed=epochs)
    if isinstance(node, merges.SelectedNode) and _fits(epochs, node.length):
        return dataclasses.replace(node, closed=epochs)
    if isinstance(node, merges.ZippedNode):
        return merges.ZippedNode(tuple(closed(parent, epochs) for parent in node.parents))
    if isinstance(node, nodes.IndexNode):
        index_map = node.index_map
        if isinstance(index_map, index_maps.Slice):
            return node  # what is below it is closed already
        if isinstance(index_map, index_maps.Repeat):
            if not index_map.reseed:
                return node
            epochs *= index_map.epochs or 1
        elif isinstance(index_map, _SHUFFLES) and _fits(epochs, index_map.length):
            index_map = dataclasses.replace(index_map, closed=epochs)
        return nodes.IndexNode(closed(node.parent, epochs), index_map)
    if isinstance(node, (nodes.StepNode, nodes.BatchNode, nodes.FlatMapNode)):
        return dataclasses.replace(node, parent=closed(node.parent, epochs))
    return node


def _fits(epochs: int, length: int) -> bool:
    """Whether there are indices beyond so many epochs at all."""
    return epochs * length <= index_maps.ENDLESS


def times_sliced(node: nodes.Node) -> int | None:
    """Returns how often a slice is gone through whose records are others if it is not closed.

    That is one of a shuffled dataset, of one without an end, or of a class of the user's own; 0 is
    an endless number of times, and None says that there is no such slice behind a `repeat`.
    """
    above: int | None = None  # how often what is below is gone through, if anything says so
    sliced: int | None = None
    below: nodes.Node | None = node
    while below is not None:
        index_map = below.index_map if isinstance(below, nodes.IndexNode) else None
        if isinstance(index_map, index_maps.Repeat):
            if not index_map.reseed:
                above = sliced = None
            else:
                above = (1 if above is None else above) * (index_map.epochs or 0)
        elif isinstance(index_map, index_maps.Slice):
            sliced = above if sliced is None else sliced
            if sliced is not None and index_map.below == index_maps.ENDLESS:
                return sliced
        elif sliced is not None and (
            isinstance(index_map, _SHUFFLES) or isinstance(below, nodes.CustomNode)
        ):
            return sliced
        below = getattr(below, "parent", None)
    return None
