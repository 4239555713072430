"""Which shard of the data each process loads, from who holds which rows of the global batch.

Plain arithmetic on intervals of rows, devices and processes; nothing here knows JAX.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from grain_jax._values.errors import InvalidValueError

__all__ = ["Interval", "row_shards"]

Device = TypeVar("Device", bound=Hashable)

Interval = tuple[int, int]
"""Rows `start` to `stop - 1` of the global batch."""


def row_shards(
    rows: Mapping[Device, Interval], processes: Mapping[Device, int]
) -> dict[int, tuple[int, int]]:
    """Returns (shard index, shard count) of each process.

    Processes that hold the same rows have the same shard, and all shards together are the batch.
    Shards are numbered in the order of their first rows.

    >>> rows = {"a": (0, 4), "b": (4, 8), "c": (0, 4), "d": (4, 8)}
    >>> row_shards(rows, {"a": 0, "b": 0, "c": 1, "d": 1})
    {0: (0, 1), 1: (0, 1)}
    >>> row_shards(rows, {"a": 0, "b": 1, "c": 0, "d": 1})
    {0: (0, 2), 1: (1, 2)}

    Args:
      rows: of the global batch, for each device.
      processes: the process that each of these devices belongs to.

    Raises:
      InvalidValueError: if shards of equal size that do not overlap cannot give each process its
        rows.
    """
    held: defaultdict[int, set[Interval]] = defaultdict(set)
    for device, interval in rows.items():
        held[processes[device]].add(interval)
    # The first process with these rows speaks for all that have the same.
    first_of: dict[frozenset[Interval], int] = {}
    for process in sorted(held):
        first_of.setdefault(frozenset(held[process]), process)
    _check_disjoint(first_of)
    _check_equal(first_of)
    ordered = sorted(first_of, key=min)
    index = {intervals: number for number, intervals in enumerate(ordered)}
    return {p: (index[frozenset(held[p])], len(ordered)) for p in sorted(held)}


def _check_disjoint(first_of: Mapping[frozenset[Interval], int]) -> None:
    whose: dict[Interval, tuple[int, frozenset[Interval]]] = {}
    for intervals, process in first_of.items():
        for interval in intervals:
            if interval in whose:
                other, others = whose[interval]
                _refuse_overlap(other, others, process, intervals)
            whose[interval] = (process, intervals)
    ordered = sorted(whose)
    for left, right in itertools.pairwise(ordered):
        if right[0] < left[1] and whose[left] != whose[right]:
            (one, ones), (other, others) = sorted([whose[left], whose[right]], key=lambda w: w[0])
            _refuse_overlap(one, ones, other, others)


def _refuse_overlap(
    one: int, ones: Iterable[Interval], other: int, others: Iterable[Interval]
) -> None:
    raise InvalidValueError(
        f"process {one} holds rows {_text(ones)} of the global batch and process {other} rows"
        f" {_text(others)}: they share some and not all, and shards of the data either are the same"
        " or have no record in common. Arrange the devices of the mesh so that processes hold the"
        " same rows or different ones (jax.make_mesh does), or load the whole global batch on every"
        " process: NoSharding()."
    )


def _check_equal(first_of: Mapping[frozenset[Interval], int]) -> None:
    sizes = {
        process: sum(stop - start for start, stop in intervals)
        for intervals, process in first_of.items()
    }
    least, most = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[least] == sizes[most]:
        return
    of = {process: intervals for intervals, process in first_of.items()}
    raise InvalidValueError(
        f"process {least} holds {sizes[least]} rows of the global batch ({_text(of[least])}) and"
        f" process {most} holds {sizes[most]} ({_text(of[most])}), counted in the smallest batch"
        " that the sharding cuts; and all shards of the data have the same size. Use a mesh that"
        " has as many devices along the batch's axes on every process."
    )


def _text(intervals: Iterable[Interval]) -> str:
    """Rows as ranges, neighbouring intervals together: `0-3, 8-11`."""
    merged: list[list[int]] = []
    for start, stop in sorted(intervals):
        if merged and merged[-1][1] == start:
            merged[-1][1] = stop
        else:
            merged.append([start, stop])
    shown = [f"{start}-{stop - 1}" if stop - start > 1 else f"{start}" for start, stop in merged]
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")
