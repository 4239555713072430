"""Layouts: which positions a shard takes, and the one number that stands for all shards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grain_jax._algebra import steps, transforms
from grain_jax._datasets.plan import Plan, Upstream
from grain_jax._datasets.stages import cut
from grain_jax._execution.layout import Layout, Position


def batch(size: int, drop: bool = False) -> steps.Step:
    return steps.step_for("batch", transforms.Batch(size, drop), number=1)


def keep() -> steps.Step:
    return steps.step_for("filter", lambda x: True, number=1)


def taken(layout: Layout, base: int = 0, *todo: steps.Step) -> list[int]:
    """All positions that a shard takes, lane after lane."""
    found = []
    for index in range(layout.lanes):
        lane = layout.lane(index, base, cut(list(todo))[0])
        span = lane.span(lane.before, 10**6)
        found += [] if span is None else span.positions().tolist()
    return found


@settings(max_examples=200)
@given(
    length=st.integers(0, 40),
    start=st.integers(0, 20),
    shards=st.integers(1, 5),
    lanes=st.integers(1, 3),
    even=st.booleans(),
)
def test_shards_and_lanes_share_the_stream(
    length: int, start: int, shards: int, lanes: int, even: bool
) -> None:
    all_taken = [
        taken(Layout(start + length, (index, shards), lanes=lanes, start=start, even=even), start)
        for index in range(shards)
    ]
    wanted = length - length % shards if even else length
    assert sorted(itertools.chain(*all_taken)) == list(range(start, start + wanted))
    for index, mine in enumerate(all_taken):
        assert all((position - start) % shards == index for position in mine)
    if even:
        assert len({len(mine) for mine in all_taken}) == 1


def test_a_sampler_that_shards_gives_each_its_own_positions() -> None:
    assert taken(Layout(4, sampler_shard=(1, 3))) == [1, 4, 7, 10]


@settings(max_examples=200)
@given(
    length=st.integers(0, 40),
    base=st.integers(0, 20),
    shards=st.integers(1, 5),
    size=st.integers(1, 4),
    drop=st.booleans(),
)
def test_one_number_for_all_shards_at_every_step(
    length: int, base: int, shards: int, size: int, drop: bool
) -> None:
    stages = cut([batch(size, drop)])
    steps_of = []
    for index in range(shards):
        layout = Layout(base + length, (index, shards))
        lane = layout.lane(0, base, stages[0])
        assert lane.units is not None
        position = Position(base)
        numbers = [layout.global_position(position, stages)]
        ordinal = lane.before
        for _ in range(lane.units):
            span = lane.span(ordinal, 1)
            assert span is not None
            ordinal += span.count
            position = Position(base, (ordinal, 0))
            numbers.append(layout.global_position(position, stages))
        ended = layout.ended(stages, position)
        steps_of.append((numbers, layout.global_position(ended, stages)))
    expected = [base]
    longest = max(len(numbers) for numbers, _ in steps_of)
    for _ in range(1, longest):
        expected.append(min(expected[-1] + size * shards, base + length))
    for numbers, at_end in steps_of:
        assert numbers == expected[: len(numbers)]
        assert at_end == expected[-1]


def test_what_is_elastic() -> None:
    counted, filtered = cut([batch(2)]), cut([keep(), batch(2)])
    assert Layout(9).is_elastic(counted)
    assert Layout(9, (1, 3)).is_elastic(counted)
    assert not Layout(9, (1, 3)).is_elastic(filtered)
    assert not Layout(9, lanes=2).is_elastic(counted)
    assert not Layout(9, sampler_shard=(0, 2)).is_elastic(counted)
    assert not Layout(9).is_elastic(cut([keep()]))


@pytest.mark.parametrize(("drop", "rest"), [(False, 1), (True, None)])
def test_rows_of_batches(drop: bool, rest: int | None) -> None:
    plan = Plan(Upstream(None), [batch(2, drop)])
    # 10 records on 2 shards: two steps of 2 each, and 1 each in the last.
    assert Layout(10, (0, 2)).batch_rows(plan, 0) == ((2,), rest)
    assert Layout(10, (0, 2)).batch_rows(plan, 2) == ((2,), None)
    assert Layout(None).batch_rows(plan, 0) == ((2,), None)


def test_rows_of_batches_of_batches() -> None:
    plan = Plan(Upstream(None), [batch(4), batch(2)])
    assert Layout(22).batch_rows(plan, 0) == ((2, 4), 6)
    assert Layout(24).batch_rows(plan, 0) == ((2, 4), None)
    assert Layout(22, (1, 2)).batch_rows(plan, 0) == ((2, 4), 3)
    assert Layout(17, (1, 2)).batch_rows(plan, 0) == ((2, 4), 0)
    whole = Plan(Upstream(None), [batch(4, True), batch(2)])
    assert Layout(22).batch_rows(whole, 0) == ((2, 4), 4)
    filtered = Plan(Upstream(None), [keep(), batch(4), batch(2)])
    assert Layout(22).batch_rows(filtered, 0) == ((2, 4), None)


@pytest.mark.parametrize(
    "todo",
    [
        [],
        [batch(2), steps.step_for("map", lambda x: x, number=1), batch(2)],
        [batch(2), keep()],
        [steps.step_for("batch", transforms.Batch(2, False, np.array), number=1)],
    ],
)
def test_rows_that_nobody_knows(todo: list[steps.Step]) -> None:
    assert Layout(10).batch_rows(Plan(Upstream(None), todo), 0) is None
    assert Layout(10, lanes=2).batch_rows(Plan(Upstream(None), [batch(2)]), 0) is None


def test_behind_a_filter_a_full_batch_is_all_that_is_known_of_rows() -> None:
    plan = Plan(Upstream(None), [keep(), batch(2)])
    assert Layout(10, (0, 2)).batch_rows(plan, 0) == ((2,), None)


def test_elements() -> None:
    assert Layout(11).elements(cut([batch(3)])) == 4
    assert Layout(11, (1, 2)).elements(cut([batch(3)])) == 2
    assert Layout(11, lanes=3).elements(cut([batch(3)])) == 2 + 2 + 1
    assert Layout(22, start=11).elements(cut([batch(3, True)])) == 3
    assert Layout(None).elements(cut([batch(3)])) is None


@settings(max_examples=200)
@given(
    length=st.integers(0, 40),
    base=st.integers(0, 20),
    shards=st.integers(1, 4),
    size=st.integers(1, 4),
    drop=st.booleans(),
)
def test_every_shard_knows_which_steps_are_full_on_all(
    length: int, base: int, shards: int, size: int, drop: bool
) -> None:
    stages = cut([batch(size, drop)])
    full, rest = divmod(max(0, length - base), shards * size)
    plan = Plan(Upstream(None), [batch(size, drop)])
    for index in range(shards):
        layout = Layout(length, (index, shards))
        own = 0 if drop else len(range(index, rest, shards))
        expected = ((size,), None if drop or not rest else own)
        assert layout.batch_rows(plan, base) == expected
        lane = layout.lane(0, base, stages[0])
        for step in range(full + bool(own)):
            done = lane.before + min((step + 1) * size, full * size + own)
            position = Position(base, (done, 0))
            assert layout.outlook(position, stages) == (step >= full, max(0, full - step - 1))


def test_outlooks_that_nobody_has() -> None:
    at = Position(0, (2, 0))
    assert Layout(9).outlook(Position(), cut([batch(2)])) is None
    assert Layout(9, lanes=2).outlook(at, cut([batch(2)])) is None
    assert Layout(9).outlook(at, cut([keep(), batch(2)])) is None
    endless = Layout(None).outlook(at, cut([batch(2)]))
    assert endless is not None
    assert not endless[0]
    assert endless[1] > 10**12
