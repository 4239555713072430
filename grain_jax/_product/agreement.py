"""Do the processes feed the same program? What each says of a batch, and how it differs."""

from __future__ import annotations

from typing import Any

__all__ = ["Facts", "change", "difference", "largest", "uneven"]

# What a process says of a batch: "rows"; "leaves", name to dtype, and shape of a row, whole shape
# of a leaf without rows, or None without axes, and whether it has rows; "scalars", name to value.
Facts = dict[str, Any]


def difference(facts: dict[int, Facts]) -> str:
    """Returns in words how the batches of processes differ."""
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
                    f" a row.{_hint(mine, theirs)}"
                )
        for name in sorted(one["scalars"]):
            mine, theirs = one["scalars"][name], other["scalars"].get(name)
            if mine != theirs:
                return (
                    f"{name} is {mine} on process {first} and {theirs} on process {process}: a leaf"
                    " without axes is replicated, so that it must be the same on every process."
                    " Give it one row for each example, or leave it out."
                )
    return "the processes disagree about their batches"


def largest(facts: dict[int, Facts]) -> dict[str, list[int]] | None:
    """Returns the shape of a row of each leaf that holds those of all processes.

    None where more than the lengths of rows differs.
    """
    shapes: dict[str, list[int]] = {}
    one = next(iter(facts.values()))
    for name, (_, shape, has_rows) in one["leaves"].items():
        if has_rows:
            shapes[name] = list(shape)
    for other in facts.values():
        if {**other, "leaves": _without_lengths(other)} != {**one, "leaves": _without_lengths(one)}:
            return None
        for name, shape in shapes.items():
            shapes[name] = list(map(max, shape, other["leaves"][name][1]))
    return shapes


def change(before: Facts, now: Facts) -> str:
    """Returns in words how a batch differs from those that the processes have agreed on."""
    for name in sorted({*before["leaves"], *now["leaves"]}):
        old, new = before["leaves"].get(name), now["leaves"].get(name)
        if old != new:
            return (
                f"{name} is {_describe(new)}, and was {_describe(old)} in the batches before. The"
                " processes compare shapes where a pipeline may change them, and none of these"
                " steps was one: its last step stacks records. Pass ragged='pad' where rows differ"
                " in length: shapes are compared at every step then, and padded where they differ."
            )
    return "the batch differs from those before it"


def uneven(dry: int, having: int, after: int | None, *, knows_rules: bool) -> str:
    """Returns in words that only some processes have come to their end.

    Args:
      dry: a process that has.
      having: one that has not.
      after: how many batches; None where there was none at all.
      knows_rules: whether the user can say what becomes of the others.
    """
    if after is None:
        return (
            f"process {dry} has no batch at all, and process {having} has one: the steps of the"
            " processes would not match. Give each process its share of the records"
            " (ShardBySharding), and no more processes than there are batches."
        )
    works = (
        "Use remainder='drop' to stop on all of them there, or remainder='pad' to go on,"
        " with batches of padding, until none has one."
        if knows_rules
        else "Give all of them as many elements."
    )
    return (
        f"process {dry} has no batch after {after}, and process {having} has one: the"
        f" steps of the processes would not match. {works}"
    )


def _without_lengths(facts: Facts) -> Facts:
    return {
        name: [dtype, len(shape) if has_rows else shape, has_rows]
        for name, (dtype, shape, has_rows) in facts["leaves"].items()
    }


def _hint(mine: Any, theirs: Any) -> str:
    if not mine or not theirs or not (mine[2] and theirs[2]) or mine[0] != theirs[0]:
        return ""
    same_rank = len(mine[1]) == len(theirs[1])
    return " Pass ragged='pad' to have them padded to the larger one." if same_rank else ""


def _describe(leaf: Any) -> str:
    if leaf is None:
        return "nothing for devices (absent, or text or objects, which stay on the host)"
    dtype, shape, has_rows = leaf
    if shape is None:
        return f"{dtype} without axes"
    return f"{dtype} {'with rows' if has_rows else 'without rows,'} of shape {tuple(shape)}"
