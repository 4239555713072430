"""Do the processes feed the same program? What each says of its first batch, and how it differs."""

from __future__ import annotations

from typing import Any

__all__ = ["Facts", "difference"]

# What a process says of its first batch: "rows"; "leaves", name to dtype and shape of a row, None
# without axes; "scalars", name to value.
Facts = dict[str, Any]


def difference(facts: dict[int, Facts]) -> str:
    """Returns in words how the first batches of processes differ."""
    first, one = next(iter(facts.items()))
    for process, other in facts.items():
        if other["rows"] != one["rows"]:
            return (
                f"the batches have {one['rows']} rows on process {first} and {other['rows']} on"
                f" process {process}, so that the processes would build arrays of different global"
                " shapes. Use the same batch size per process on each."
            )
        for name in sorted({*one["leaves"], *other["leaves"]}):
            mine, theirs = one["leaves"].get(name), other["leaves"].get(name)
            if mine != theirs:
                return (
                    f"{name} is {_describe(mine)} on process {first} and {_describe(theirs)} on"
                    f" process {process}: all processes need the same leaves, dtypes and shapes of"
                    " a row."
                )
        for name in sorted(one["scalars"]):
            mine, theirs = one["scalars"][name], other["scalars"].get(name)
            if mine != theirs:
                return (
                    f"{name} is {mine} on process {first} and {theirs} on process {process}: a leaf"
                    " without axes is replicated, so that it must be the same on every process."
                    " Give it one row for each example, or leave it out."
                )
    return "the processes disagree about their first batch"


def _describe(leaf: Any) -> str:
    if leaf is None:
        return "absent"
    dtype, row = leaf
    return f"{dtype} without axes" if row is None else f"{dtype} with rows of shape {tuple(row)}"
