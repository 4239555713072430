"""Terms: what the processes of one iterator need alike before they go on from a position.

Their stages have the same arguments. Processes with the same rows, and those that load the shards
of an order, have pipelines of one order, and stand at the same place in it. Streams that say
nothing of each other may be of whatever length and order; but positions that are set are of one
step. All this travels with a message that is sent anyway, what may be long as a digest of it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grain_jax._execution.fingerprint import Declared
from grain_jax._product.placement import held_rows
from grain_jax._values.row_shards import Interval

__all__ = ["Terms"]

Told = Mapping[int, dict[str, Any]]
"""What each process says, by process index."""

_LONGEST = 300
_BY_SHARDING = "Shard by what each of them holds: shard_options=ShardBySharding(sharding)."


@dataclasses.dataclass(frozen=True)
class Terms:
    """What this process says of its stage and its source.

    Attributes:
      stage: arguments, and what they are; JSON values.
      sharding: that of the rows.
      axis: along which they are.
      source: says what is declared of the stream, if anything is, and where it stands.
    """

    stage: dict[str, Any]
    sharding: Any
    axis: int
    source: Callable[[], tuple[Declared | None, dict[str, int]]]

    def brief(self) -> dict[str, Any]:
        """Returns what is to be said first, a JSON value."""
        declared, standing = self.source()
        return {
            "stage": _digest(self.stage),
            "order": declared and _digest(declared.order),
            "names": declared and _digest(declared.names),
            "shard": declared and declared.shard,
            "standing": standing,
        }

    def whole(self) -> dict[str, Any]:
        """Returns what is to be said where the others say something else, a JSON value."""
        declared, _ = self.source()
        return {
            "stage": self.stage,
            "order": declared and declared.order,
            "names": declared and declared.names,
        }

    def settle(
        self, told: Told, having: Iterable[int], *, is_set: bool, ask: Callable[[], Told]
    ) -> str:
        """Returns in words why the processes cannot go on together; no text if they can.

        Args:
          told: what each has said first.
          having: those that have a batch.
          is_set: whether the position was set.
          ask: returns what all have to say on top of that.
        """
        orders = self._orders(told)
        compared = [("stage", list(told))]
        compared += [(key, group) for group in orders for key in ("order", "names")]
        if any(len({told[p][key] for p in group}) > 1 for key, group in compared):
            problem = _difference(ask(), orders)
            if problem:
                return problem
        problem = next(filter(None, (self._of_shards(told, group) for group in orders)), "")
        return problem or _of_places(told, orders, set(having), is_set)

    def unlike_rows(self, said: Told, rule: str | None) -> str:
        """Returns in words why the rows of processes that hold the same ones are not the same.

        Args:
          said: what each process has said of its batch.
          rule: for the remainder.
        """
        for one, *others in _by(list(said), self._held.get):
            for other in others:
                problem = _unlike_rows(said[one], said[other], rule)
                if problem:
                    return (
                        f"process {one} and process {other} hold the same rows of the batch, and"
                        f" theirs would differ: {problem}"
                    )
        return ""

    @functools.cached_property
    def _held(self) -> dict[int, frozenset[Interval]]:
        return held_rows(self.sharding, self.axis)

    def _orders(self, told: Told) -> list[list[int]]:
        """Returns sets of processes whose streams have to be of one order."""
        known = [process for process, one in told.items() if one["order"] is not None]
        orders = _by(known, lambda process: told[process]["order"])
        if not any(told[process]["shard"] for process in known):
            orders = []
        elif not all(_is_whole([told[process]["shard"] for process in group]) for group in orders):
            # Where an order lacks shards, those who would have them are in another one.
            orders = [known]
        return orders + _by(known, self._held.get)

    def _of_shards(self, told: Told, group: list[int]) -> str:
        """Compares who loads which shard with who holds which rows."""
        first_with: dict[Any, int] = {}
        for process in group:
            one = told[process]
            shard, rows = one["shard"], self._held.get(process, frozenset())
            if not shard:
                continue
            other = first_with.setdefault(rows, process)
            if told[other]["shard"] != shard:
                return (
                    f"process {other} loads {_shard(told[other])} and process {process}"
                    f" {_shard(one)}, and both hold the same rows of the batch. {_BY_SHARDING}"
                )
            other = first_with.setdefault(tuple(shard), process)
            if not _overlap(rows, self._held.get(other, frozenset())):
                return (
                    f"process {other} and process {process} both load {_shard(one)}, and hold"
                    f" different rows of the batch: its records would come twice. {_BY_SHARDING}"
                )
        return ""


def _unlike_rows(mine: Mapping[str, Any], theirs: Mapping[str, Any], rule: str | None) -> str:
    if mine["kind"] != theirs["kind"]:
        if rule != "pad":
            return ""  # nobody gets a batch then
        return "one has a batch, and the other none. Load the same records on both."
    kept, others = mine.get("kept"), theirs.get("kept")
    if not kept or not others:
        return ""
    if kept["left out"] != others["left out"] or (
        kept["content"] and others["content"] and kept["content"] != others["content"]
    ):
        return (
            f"{kept['left out']} and {others['left out']} records were left out so far, by an"
            " ErrorPolicy, and not the same ones. Where a read may fail on one process alone, use"
            " on_error='raise', or read again inside the source."
        )
    if kept["rows"] != others["rows"]:
        return (
            f"{kept['rows']} and {others['rows']} rows of the batch are real. Load the same records"
            " on both."
        )
    return ""


def _shard(told: Mapping[str, Any]) -> str:
    index, count = told["shard"]
    return f"shard {index} of {count}"


def _overlap(rows: Iterable[Interval], others: Iterable[Interval]) -> bool:
    return any(a < d and c < b for a, b in rows for c, d in others)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _by(processes: list[int], key: Callable[[int], Any]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for process in processes:
        groups.setdefault(key(process), []).append(process)
    return list(groups.values())


def _is_whole(shards: list[Any]) -> bool:
    """Whether these are all shards of an order, or there is nothing but one."""
    known = {tuple(shard or (0, 1)) for shard in shards}
    return {count for _, count in known} == {len(known)}


def _difference(whole: Told, orders: list[list[int]]) -> str:
    """Says what differs that has to be equal, and warns of what may differ."""
    problem = _unlike(whole, "stage", list(whole))
    if problem:
        return (
            f"the arguments of the device stage differ: {problem}. All processes build the same"
            " global arrays: call prefetch_to_device or device_put with the same ones on each."
        )
    for group in orders:
        problem = _unlike(whole, "order", group)
        if problem:
            return (
                f"the processes do not load one order: {problem}, so that some records would come"
                " twice and others never. Build the pipeline of all processes alike, but for the"
                " index of the shard. Where each has rows of its own, and nothing shards, each may"
                " have a source of its own."
            )
    for group in orders:
        problem = _unlike(whole, "names", group)
        if problem:
            warnings.warn(
                f"the pipelines of the processes differ: {problem}. They load one order; the"
                " elements may differ.",
                stacklevel=2,
            )
            break
    return ""


def _unlike(whole: Told, key: str, processes: list[int]) -> str:
    """Names the first thing that differs, with both values and both processes."""
    first = processes[0] if processes else None
    for process in processes:
        mine, theirs = whole[first][key], whole[process][key]  # type: ignore[index]
        for name in {**mine, **theirs}:
            if mine.get(name) != theirs.get(name):
                return (
                    f"{name}: {_text(mine, name)} on process {first} and {_text(theirs, name)} on"
                    f" process {process}"
                )
    return ""


def _text(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "absent"
    text = repr(values[name])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _of_places(told: Told, orders: list[list[int]], having: set[int], is_set: bool) -> str:
    """Compares where the processes stand, in numbers that they have alike at each step."""
    everyone = [list(told)] if is_set else []
    wanted = [
        ("position {} of the order", "records", orders),
        ("batch {}", "batches", everyone or orders),
        ("step {}", "steps", everyone),
    ]
    for words, key, groups in wanted:
        for group in groups:
            at = {p: told[p]["standing"][key] for p in group if key in told[p]["standing"]}
            pair = _apart(at, having if key == "batches" else set(at))
            if pair is not None:
                one, other = pair
                return (
                    f"process {one} stands at {words.format(at[one])} and process {other} at"
                    f" {words.format(at[other])}, so that a batch would mix steps: the states that"
                    " were set are not of one step, or an iterator had given elements before. Set"
                    " the state of the same step on all processes; CheckpointRestore of one step"
                    " does."
                )
    return ""


def _apart(at: Mapping[int, int], having: set[int]) -> tuple[int, int] | None:
    """Returns two processes of which one is elsewhere.

    One that has run out of batches may have had fewer than the others.
    """
    most = max((process for process in at if process in having), key=at.__getitem__, default=None)
    if most is None:
        return None
    for process, place in at.items():
        if place > at[most] or (process in having and place != at[most]):
            return min(process, most), max(process, most)
    return None
