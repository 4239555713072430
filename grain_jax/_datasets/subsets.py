"""Subsets: a slice has the records of its first epoch in every epoch.

The indices of a slice's later epochs go on counting below it, so that random steps draw anew. What
reorders below must not: there, orders come again with each epoch of the slice.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import index_maps
from grain_jax._datasets import merges, methods, nodes
from grain_jax._values import errors

__all__ = ["closed", "index_map_of", "times_sliced"]

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
        if isinstance(index_map, (index_maps.Slice, index_maps.Picks)):
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


def index_map_of(given: Any, length: int) -> tuple[index_maps.IndexMap, str]:
    """Returns the index map of what a user gave for a slice, and what messages call the slice.

    Args:
      given: a `slice`, or a list, an array or a dataset of indices.
      length: of the dataset that is sliced.

    Raises:
      InvalidTypeError: for anything else.
      OutOfRangeError: for an index of no element.
    """
    if isinstance(given, slice):
        chosen = range(length)[given]
        text = f"slice({chosen.start}, {chosen.stop}, {chosen.step})"
        return index_maps.Slice(chosen, length), text
    is_list = isinstance(given, (Sequence, np.ndarray, methods.MapMethods))
    if not is_list or isinstance(given, str | bytes):
        raise errors.InvalidTypeError(
            f"slice takes a slice or a list of indices, got {given!r}. Write "
            "ds.slice(slice(start, stop)), ds[start:stop] or ds.slice([3, 1])."
        )
    picks = _picked(given, length)
    return picks, f"slice({picks.length} indices)"


def _picked(given: Any, length: int) -> index_maps.Picks:
    """Returns the index map of a list of indices; negative ones count from the end."""
    if len(given) == index_maps.ENDLESS:
        raise errors.InvalidValueError(
            f"slice takes a dataset of indices that has an end, got {given!r}. Write repeat() "
            "behind the slice."
        )
    if not isinstance(given, np.ndarray):
        given = list(given)
    array = np.asarray(given) if len(given) else np.zeros(0, np.int64)
    if array.dtype == bool and array.ndim == 1:
        raise errors.InvalidTypeError(
            "slice takes indices, and got a mask of True and False. Write "
            "ds.slice(np.flatnonzero(mask))."
        )
    if array.dtype.kind not in "iu" or array.ndim != 1:
        place, wrong = _no_index(given)
        raise errors.InvalidTypeError(
            f"slice takes a list of indices, and index {place} of it is {wrong!r}, which is no "
            "whole number."
        )
    if array.dtype == np.uint64:
        array = np.minimum(array, index_maps.ENDLESS)  # which is the index of no element
    array = array.astype(np.int64)
    outside = np.flatnonzero((array < -length) | (array >= length))
    if len(outside):
        raise errors.OutOfRangeError(
            f"slice got the index {int(array[outside[0]])} (place {int(outside[0])} of the list), "
            f"and the dataset has {length} elements."
        )
    array[array < 0] += length
    array.flags.writeable = False
    return index_maps.Picks(array, length)


def _no_index(given: Any) -> tuple[int, Any]:
    """Returns the first of some values that is no whole number, and its place."""
    for place, value in enumerate(given):
        try:
            operator.index(value)
        except TypeError:
            return place, value
    return 0, given[0]  # too large for 64 bits


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
