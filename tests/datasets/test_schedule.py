"""Schedules against plain lists: shards, lanes, units, drop rules and bases."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grain_jax._datasets import schedule

LENGTHS = st.integers(0, 70)
SHARDS = st.integers(1, 5)
LANES = st.integers(1, 4)
BATCHES = st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=3)


def positions(lane: schedule.Lane, units: int = 1) -> list[list[int]]:
    """All units of a lane, or that many together."""
    found: list[list[int]] = []
    ordinal = lane.before
    while (span := lane.span(ordinal, units)) is not None:
        assert span.ordinal == ordinal
        found.append(span.positions().tolist())
        ordinal += span.count
    return found


def flat(lists: list[list[int]]) -> list[int]:
    return [value for part in lists for value in part]


def reference(
    length: int, base: int, shards: int, lanes: int, batches: list[tuple[int, bool]]
) -> dict[tuple[int, int], list[list[int]]]:
    """The units of every shard and lane, from the rules and nothing else."""
    rows = [list(range(i, min(i + shards, length))) for i in range(base, length, shards)]
    unit = math.prod(size for size, _ in batches)
    found: dict[tuple[int, int], list[list[int]]] = {}
    for lane in range(lanes):
        mine = rows[lane::lanes]
        full = sum(len(row) == shards for row in mine) // unit
        rests = []
        for shard in range(shards):
            own = [row[shard] for row in mine if shard < len(row)]
            found[shard, lane] = [own[i * unit : (i + 1) * unit] for i in range(full)]
            rests.append(own[full * unit :])
        size = 1
        for batch, drop in batches:
            if drop:  # a batch that not every shard can fill is dropped everywhere
                elements = min(math.ceil(len(rest) / size) for rest in rests)
                whole = elements // batch * batch * size
                rests = [rest[:whole] for rest in rests]
            size *= batch
        for shard, rest in enumerate(rests):
            found[shard, lane] += [rest] if rest else []
    return found


@given(LENGTHS, st.integers(0, 80), SHARDS, LANES, BATCHES)
def test_equals_the_reference(
    length: int, base: int, shards: int, lanes: int, batches: list[tuple[int, bool]]
) -> None:
    expected = reference(length, base, shards, lanes, batches)
    for (shard, lane), units in expected.items():
        found = schedule.lane(
            length, base=base, shard=(shard, shards), lane_index=lane, lanes=lanes, batches=batches
        )
        assert positions(found) == units
        assert found.units == len(units)
        assert found.records == len(flat(units))
        assert flat(positions(found, 3)) == flat(units)


@given(LENGTHS, st.integers(0, 80), SHARDS, LANES, st.integers(1, 5))
def test_every_position_once(length: int, base: int, shards: int, lanes: int, size: int) -> None:
    found: list[int] = []
    for shard in range(shards):
        for lane in range(lanes):
            one = schedule.lane(
                length,
                base=base,
                shard=(shard, shards),
                lane_index=lane,
                lanes=lanes,
                batches=[(size, False)],
            )
            found += flat(positions(one))
    assert sorted(found) == list(range(base, length))


@given(LENGTHS, st.booleans(), st.sampled_from([12, 24]))
def test_each_step_has_the_same_records_for_every_shard_count(
    length: int, drop: bool, together: int
) -> None:
    whole = length // together
    expected = [set(range(k * together, (k + 1) * together)) for k in range(whole)]
    if length % together and not drop:
        expected.append(set(range(whole * together, length)))
    for shards in (1, 2, 3, 4, 6, 12):
        units = [
            positions(
                schedule.lane(length, shard=(s, shards), batches=[(together // shards, drop)])
            )
            for s in range(shards)
        ]
        # Full units are equally many; only the last, smaller one may be missing on some.
        assert {sum(len(u) == together // shards for u in one[:whole]) for one in units} == {whole}
        steps = [
            set(flat([one[k] for one in units if k < len(one)]))
            for k in range(max(map(len, units)))
        ]
        assert steps == expected


@given(LENGTHS, SHARDS, SHARDS, st.integers(1, 4), st.integers(1, 4), st.integers(0, 5))
def test_going_on_with_other_shards_and_batches(
    length: int, before: int, after: int, size: int, other: int, steps: int
) -> None:
    done: list[int] = []
    for shard in range(before):
        one = schedule.lane(length, shard=(shard, before), batches=[(size, False)])
        done += flat(positions(one)[:steps])
    base = min(steps * size * before, length)
    assert sorted(done) == list(range(base))
    for shard in range(after):
        one = schedule.lane(length, base=base, shard=(shard, after), batches=[(other, False)])
        done += flat(positions(one))
    assert sorted(done) == list(range(length))


@given(st.integers(0, 60), st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=3))
def test_batches_of_batches_are_made_one_after_the_other(
    length: int, batches: list[tuple[int, bool]]
) -> None:
    expected: list[Any] = list(range(length))
    for size, drop in batches:
        cuts = [expected[i : i + size] for i in range(0, len(expected), size)]
        expected = [cut for cut in cuts if len(cut) == size or not drop]
    for _ in batches[1:]:
        expected = [flat(element) for element in expected]
    if not batches:
        expected = [[position] for position in expected]
    assert positions(schedule.lane(length, batches=batches)) == expected


def test_without_an_end() -> None:
    lane = schedule.lane(None, base=6, shard=(1, 2), lane_index=1, lanes=3, batches=[(2, True)])
    assert (lane.units, lane.records) == (None, None)
    span = lane.span(lane.before, 2)
    assert span is not None
    # Rows of two positions from 6 on; every third row, from row 1 on; the second of each.
    assert span.positions().tolist() == [9, 15, 21, 27]
    far = lane.span(lane.before + 2**40, 1)
    assert far is not None
    assert far.positions().tolist() == [9 + 6 * 2**40, 15 + 6 * 2**40]


@given(LENGTHS, SHARDS, st.integers(1, 4))
def test_within_a_samplers_own_shards(length: int, shards: int, size: int) -> None:
    plain = schedule.lane(length, batches=[(size, False)])
    expected = [[2 + 3 * p for p in unit] for unit in positions(plain)]
    assert positions(plain.within(2, 3)) == expected


@given(st.integers(0, 50), st.integers(1, 5), st.integers(1, 30), st.data())
def test_parts_of_a_span(first: int, stride: int, count: int, data: Any) -> None:
    span = schedule.Span(first, stride, count, 100)
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, count))
    part = span.part(begin, end)
    assert part.positions().tolist() == span.positions().tolist()[begin:end]
    assert (part.count, part.ordinal) == (end - begin, 100 + begin)


@pytest.mark.parametrize("shards", [1, 3])
def test_nothing_to_do(shards: int) -> None:
    for shard in range(shards):
        lane = schedule.lane(0, shard=(shard, shards), batches=[(4, False)])
        assert (lane.units, lane.span(0, 1)) == (0, None)
