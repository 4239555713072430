"""Batches of counted elements, however these come: against plain slices of lists."""

from __future__ import annotations

import random
from typing import Any

import pytest

from grain_jax._algebra.groupings.base import Grouper
from grain_jax._algebra.groupings.batch import Batch
from grain_jax.errors import StateError


def expected(lengths: list[int], share: int, drop: bool) -> list[list[tuple[int, int]]]:
    """Each batch as pairs of parent and number: an equal share of all that have not ended."""
    found = []
    begin = 0
    while any(length > begin for length in lengths):
        shares = [range(begin, min(begin + share, length)) for length in lengths]
        rows = [
            (parent, number)
            for parent, numbers in enumerate(shares)
            if not drop or len(numbers) == share
            for number in numbers
        ]
        if rows:
            found.append(rows)
        begin += share
    return found


def driven(
    grouper: Grouper, lengths: list[int], rng: random.Random
) -> list[tuple[list[tuple[int, int]], Any]]:
    """The groups of parents of such lengths, which give as many at once as they like."""
    given = [0] * len(lengths)
    found = []
    while (wanted := grouper.wants()) is not None:
        parent, most = wanted
        left = lengths[parent] - given[parent]
        if not left:
            grouper.end(parent)
        else:
            count = rng.randint(1, min(most, left))
            given[parent] += count
            grouper.take(parent, count)
        for group in grouper.made():
            rows = [(p, n) for p, begin, end in group.members for n in range(begin, end)]
            found.append((rows, group.restart))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_an_equal_share_of_each(seed: int) -> None:
    rng = random.Random(seed)
    parents, share, drop = rng.randint(1, 4), rng.randint(1, 4), rng.random() < 0.5
    lengths = [rng.randint(0, 17) for _ in range(parents)]
    grouping = Batch(((share * parents, drop),))
    assert grouping.size == share * parents
    found = driven(grouping.begin(grouping.first(parents), parents), lengths, rng)
    assert [rows for rows, _ in found] == expected(lengths, share, drop)
    for number, (_, restart) in enumerate(found, 1):
        assert restart is not None
        rest = [length - begin for length, begin in zip(lengths, restart.delivered, strict=True)]
        again = driven(grouping.begin(restart.kept, parents), rest, rng)
        moved = [[(p, n + restart.delivered[p]) for p, n in rows] for rows, _ in again]
        assert moved == expected(lengths, share, drop)[number:]


@pytest.mark.parametrize(
    ("batches", "length", "sizes"),
    [
        (((2, False), (3, False)), 13, [6, 6, 1]),
        (((2, False), (3, True)), 11, [6, 5]),  # three inner batches, the last of them short
        (((2, True), (3, False)), 11, [6, 4]),
        (((2, True), (3, True)), 17, [6, 6]),
    ],
)
def test_batches_of_batches(batches: Any, length: int, sizes: list[int]) -> None:
    grouper = Batch(batches).begin((0, 0), 1)
    found = driven(grouper, [length], random.Random(0))
    assert [len(rows) for rows, _ in found] == sizes
    assert grouper.dropped(0) == length - sum(sizes)


def test_shards_that_stand_at_different_steps_are_refused() -> None:
    grouping = Batch(((4, False),))
    grouper = grouping.begin((3, 3, 2), 2)
    grouper.take(0, 2)
    with pytest.raises(StateError, match=r"2 batches, and another one to 3.*different steps"):
        grouper.take(1, 2)
    ended = grouping.begin((3, 3, 2), 2)  # one that has ended was part of fewer
    ended.take(0, 2)
    ended.end(1)
    (group,) = ended.made()
    assert group.members == [(0, 0, 2)]
    assert group.restart is not None
    assert group.restart.kept == (4, 4, 2)
