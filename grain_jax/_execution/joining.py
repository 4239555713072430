"""Joining: the states of all shards, as that of one shard of a run with fewer or more of them.

The shards of the run that began a stream are numbered 0 to L - 1. Where S shards run, shard s is
made of L / S neighbouring ones, from s * L / S on: so rows keep their order in the global batch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from grain_jax._execution import version1
from grain_jax._values import errors
from grain_jax._values.files import JOINT

__all__ = ["counts_that_work", "share"]

# Beyond any number of shards, and of batches.
_MOST, _MOST_BATCHES = 1 << 20, 1 << 50


def share(state: Mapping[str, Any], shard: tuple[int, int]) -> dict[str, Any]:
    """Returns what the states of all processes say for one shard of another number of them.

    Fields that are not about shards are left for others to check, once they are found equal.

    Raises:
      StateError: if states are missing or contradict each other, or the shards of the run that
        began the stream cannot be dealt out over so many.
    """
    index, count = shard
    pieces = _by_shard(state[JOINT])
    one = next(iter(pieces.values()))
    (_, saved), joined = one["shard"], one["joined"]
    missing = [number for number in range(saved) if number not in pieces]
    if missing:
        raise errors.StateError(
            f"the state of shard {missing[0]} of {saved} is missing, and all are needed where"
            " shards are joined or dealt out anew. Restore another step of the checkpoint."
        )
    total = saved * joined
    if total % count:
        raise errors.StateError(
            f"the stream was begun with {_shards(total)}, each of which counts for itself, and"
            f" these cannot be dealt out over {count}. Restore it on {counts_that_work(total)}."
        )
    size = total // count
    mine = slice(index * size, (index + 1) * size)
    found = [_shared(pieces[number]["cursor"]) for number in range(saved)]
    places = [place for place, _ in found]
    cursors = [cursor for place in places for cursor in place[0]]
    made = [number for place in places for number in place[1][1:]]
    most = max(number for place in places for number in place[1])
    skipped = [n for number in range(saved) for n in _dealt(pieces[number]["skipped"], joined)]
    return {
        **one,
        "shard": [index, count],
        "joined": size,
        "cursor": _behind([[cursors[mine], [most, *made[mine]], 0], 0], [at for _, at in found]),
        "skipped": sum(skipped[mine]),
    }


def _dealt(number: int, shards: int) -> list[int]:
    """Deals a count of several shards out over them."""
    return [number // shards + (shard < number % shards) for shard in range(shards)]


def counts_that_work(total: int) -> str:
    """Says on which numbers of shards a stream restores that was begun with `total`."""
    # The number may come from a file that was edited.
    divisors = [str(n) for n in range(1, min(total, _MOST) + 1) if total % n == 0]
    if len(divisors) > 8 or not 0 < total < _MOST:
        return f"a number of shards that divides {total}"
    *most, last = divisors
    return f"{', '.join(most)} or {last} shards" if most else "1 shard"


def _by_shard(states: Any) -> dict[int, dict[str, Any]]:
    """Returns the states by the number of their shard; several may hold the same one."""
    if not isinstance(states, Sequence) or isinstance(states, str) or not states:
        raise errors.StateError(f"field {JOINT!r} of the state is no list of states")
    pieces: dict[int, dict[str, Any]] = {}
    for place, state in enumerate(states):
        piece = _checked(state, place)
        number = piece["shard"][0]
        if pieces:
            _check_equal(_common(piece), _common(next(iter(pieces.values()))), place)
        if number in pieces:
            _check_equal(piece, pieces[number], place)
        pieces[number] = piece
    return dict(sorted(pieces.items()))


def _checked(state: Any, place: int) -> dict[str, Any]:
    """Returns the state of a process, whose fields about shards are what they should be."""
    if isinstance(state, (bytes, str)):
        with contextlib.suppress(ValueError, RecursionError):
            state = json.loads(state)
    problem = ""
    if isinstance(state, dict):
        state = version1.as_version_2(state)
    if not isinstance(state, dict) or "grain_jax" not in state:
        problem = "is no state"
    elif ("joined" in state and state["joined"] is None) or state.get("elastic") is True:
        raise errors.StateError(
            f"the state of process {place} is not one that is joined with others."
            " An elastic state is the same for all processes, and any one is enough; another one is"
            " tied to its process: restore with as many processes as saved it, each from its own."
        )
    elif not _is_count(state.get("joined"), 1):
        problem = f"has joined={state.get('joined')!r}"
    elif not (
        isinstance(state.get("shard"), list)
        and len(state["shard"]) == 2
        and _is_count(state["shard"][1], 1)
        and _is_count(state["shard"][0], 0, state["shard"][1])
    ):
        problem = f"has shard={state.get('shard')!r}"
    elif not _is_place(state.get("cursor"), state["joined"]):
        problem = f"does not have one entry in 'cursor' for each of {state['joined']} shards"
    elif not _is_count(state.get("skipped"), 0, _MOST_BATCHES):
        problem = f"has skipped={state.get('skipped')!r}"
    if problem:
        raise errors.StateError(
            f"the state of process {place} {problem}. Restore another step of the checkpoint."
        )
    checked: dict[str, Any] = state
    return checked


def _shared(cursor: Any) -> tuple[Any, list[int]]:
    """Returns where the batches stand that shards have shares of, in a cursor of what is behind.

    With it come the numbers of the stages behind them, outermost first: how many batches each has
    had. A place of another form is returned as it is.
    """
    numbers: list[int] = []
    while isinstance(cursor, list) and len(cursor) == 2 and cursor[1] == 0:
        place = cursor[0]
        if not isinstance(place, list) or [len(part) for part in _lists(place)] != [1, 1]:
            return place, numbers
        ((cursor,), (number,), _) = place
        numbers.append(number)
    return None, numbers


def _lists(place: list[Any]) -> list[list[Any]]:
    return [part for part in place[:2] if isinstance(part, list)]


def _behind(cursor: list[Any], numbers: Sequence[Sequence[int]]) -> list[Any]:
    """Returns the cursor of stages behind batches; who has run out has had fewer."""
    for had in zip(*map(reversed, numbers), strict=True):
        cursor = [[[cursor], [max(had)], 0], 0]
    return cursor


def _is_place(cursor: Any, joined: int) -> bool:
    """Whether it is the cursor of batches that so many shards have an equal share in."""
    place, numbers = _shared(cursor)
    return (
        all(_is_count(number, 0, _MOST_BATCHES) for number in numbers)
        and isinstance(place, list)
        and len(place) == 3
        and all(isinstance(part, list) for part in place[:2])
        and len(place[0]) == joined == len(place[1]) - 1
        and all(_is_count(made, 0, _MOST_BATCHES) for made in place[1])
        and place[2] == 0
    )


def _is_count(value: Any, least: int, below: int = _MOST) -> bool:
    return type(value) is int and least <= value < below


def _common(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what all processes have alike; of the shard, the number of shards."""
    own = ("cursor", "skipped")
    return {**{k: v for k, v in state.items() if k not in own}, "shard": state["shard"][1]}


def _check_equal(one: dict[str, Any], other: dict[str, Any], place: int) -> None:
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            raise errors.StateError(
                f"the state of process {place} has {str(one.get(key))[:80]} in {key!r}, and that of"
                f" a process before it has {str(other.get(key))[:80]}. They were saved at different"
                " steps, or by different programs: restore another step of the checkpoint."
            )


def _shards(total: int) -> str:
    return f"{total} shard" if total == 1 else f"{total} shards"
