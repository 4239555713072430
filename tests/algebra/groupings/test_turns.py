"""Streams in turn, against plain Python."""

from __future__ import annotations

import random

import pytest

from grain_jax._algebra.groupings.turns import Turns
from grain_jax.errors import StateError
from tests.algebra.groupings.test_batch import driven


def expected(lengths: list[int], turn: int) -> list[tuple[int, int]]:
    order = [*range(turn, len(lengths)), *range(turn)]
    return [(p, n) for n in range(max(lengths)) for p in order if n < lengths[p]]


@pytest.mark.parametrize("seed", range(40))
def test_one_of_each_until_it_has_ended(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(0, 6) for _ in range(rng.randint(1, 5))]
    turn = rng.randrange(len(lengths))
    found = driven(Turns().begin((turn,), len(lengths)), lengths, rng)
    assert [rows for rows, _ in found] == [[pair] for pair in expected(lengths, turn)]
    for number, (_, restart) in enumerate(found, 1):
        assert restart is not None
        rest = [length - begin for length, begin in zip(lengths, restart.delivered, strict=True)]
        again = driven(Turns().begin(restart.kept, len(lengths)), rest, rng)
        moved = [[(p, n + restart.delivered[p]) for p, n in rows] for rows, _ in again]
        assert moved == [[pair] for pair in expected(lengths, turn)[number:]]


def test_a_turn_that_nobody_has_is_refused() -> None:
    assert Turns().first(3) == (0,)
    with pytest.raises(StateError, match="lane 3 of 3"):
        Turns().read((3,), 3, joined=False)
