"""Streams in turn, against plain Python."""

from __future__ import annotations

import random
from typing import Any

import pytest

from grain_jax._algebra.groupings.turns import Turns
from grain_jax.errors import StateError


def expected(lengths: list[int], turn: int) -> list[tuple[int, int]]:
    order = [*range(turn, len(lengths)), *range(turn)]
    return [(p, n) for n in range(max(lengths)) for p in order if n < lengths[p]]


def scheduled(turn: int, lengths: list[int], rng: random.Random) -> list[tuple[int, Any]]:
    """The parent of each element and the numbers behind it, taken a few at a time."""
    schedule, left, found = Turns().schedule((turn,), len(lengths)), list(lengths), []
    while True:
        parents, kept = schedule.next(rng.randint(1, 9))
        assert len(parents) == len(kept)
        if not parents:
            return found
        if not left[parents[0]]:
            schedule.end(parents[0])
            continue
        taken = 0
        for parent, numbers in zip(parents, kept, strict=True):
            if not left[parent] or (taken and rng.random() < 0.2):
                break
            left[parent] -= 1
            taken += 1
            found.append((parent, numbers))
        schedule.take(taken)


@pytest.mark.parametrize("seed", range(40))
def test_one_of_each_until_it_has_ended(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(0, 6) for _ in range(rng.randint(1, 5))]
    turn = rng.randrange(len(lengths))
    found = scheduled(turn, lengths, rng)
    assert [parent for parent, _ in found] == [parent for parent, _ in expected(lengths, turn)]
    left = list(lengths)
    for number, (parent, (after,)) in enumerate(found, 1):
        left[parent] -= 1
        rest = scheduled(after, left, rng)
        assert [one for one, _ in rest] == [one for one, _ in found[number:]]


def test_a_turn_that_nobody_has_is_refused() -> None:
    assert Turns().first(3) == (0,)
    with pytest.raises(StateError, match="lane 3 of 3"):
        Turns().read((3,), 3, joined=False)
