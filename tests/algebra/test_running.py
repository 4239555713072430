"""A block of elements run together: as if each had been run by itself, and stopped at a failure."""

from __future__ import annotations

import random
from typing import Any

import pytest

from grain_jax._algebra import running, steps
from grain_jax._algebra.blocks import Block
from grain_jax._values import faults


class LeftOutError(ValueError):
    """Of an element that is left out."""


def function_for(kind: str, rng: random.Random) -> Any:
    """A function that fails for some numbers, in one way or the other."""
    bad = {number: rng.choice([LeftOutError, LeftOutError, KeyError]) for number in range(60)}
    bad = {n: error for n, error in bad.items() if rng.random() < 0.08}
    add = rng.randrange(1, 5)

    def value(x: int) -> int:
        if x % 60 in bad:
            raise bad[x % 60](x)
        return x + add

    if kind == "map_with_index":
        return lambda index, x: value(x) + 100 * index
    if kind == "random_map":
        return lambda x, draws: value(x) + int(draws.integers(50))
    if kind == "filter":
        return lambda x: value(x) % 3
    if kind == "flat_map":
        return lambda x: [value(x) + k for k in range(x % 3)]
    return value


def one_by_one(todo: list[steps.Step], data: list[Any]) -> tuple[list[Any], list[int], Any]:
    """What each element gives by itself, whom that left out, and where and how it ended."""
    out: list[Any] = []
    left_out = []
    for row, element in enumerate(data):
        block = Block([element], [row])
        try:
            for step in todo:
                block = step(block)
        except LeftOutError:
            left_out.append(row)
        except KeyError as error:
            return out, left_out, (row, error.args, faults.notes_of(error))
        else:
            numbers = block.outputs or [0] * len(block)
            out += zip(block.data, [row] * len(block), numbers, strict=True)
    return out, left_out, None


@pytest.mark.parametrize("seed", range(200))
def test_a_block_is_its_elements_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    names = ["map", "map_with_index", "random_map", "filter", "flat_map"]
    todo = [
        steps.step_for(kind, function_for(kind, rng), number=number, random_number=number, seed=3)
        for number, kind in enumerate(rng.choices(names, k=rng.randint(1, 5)), 1)
    ]
    data = [rng.randrange(60) for _ in range(rng.randint(0, 30))]
    expected, left_out, end = one_by_one(todo, data)
    failures = running.Failures((), (LeftOutError,))
    block = Block(list(data), list(range(len(data))))
    for step in todo:
        block = step(block, failures)
    rows = list(range(len(block))) if block.rows is None else block.rows
    numbers = block.outputs or [0] * len(block)
    assert list(zip(block.data, rows, numbers, strict=True)) == expected
    assert block.positions == rows
    assert [row for row, _ in failures.skipped] == left_out
    assert all(skip.kind == "LeftOutError" for _, skip in failures.skipped)
    if end is None:
        assert failures.stop is None
    else:
        assert failures.error is not None
        found = failures.stop, failures.error.args, faults.notes_of(failures.error)
        assert found == end


def test_what_is_no_failure_of_an_element_is_raised_at_once() -> None:
    def interrupted(x: int) -> int:
        if x == 2:
            raise KeyboardInterrupt
        return x

    step = steps.step_for("map", interrupted, number=1)
    failures = running.Failures((KeyboardInterrupt,), ())
    with pytest.raises(KeyboardInterrupt):
        step(Block([1, 2, 3], [0, 1, 2]), failures)
    assert failures.stop is None
    caught = running.Failures((), ())
    assert step(Block([1, 2, 3], [0, 1, 2]), caught).data == [1]
    assert caught.stop == 1
    with pytest.raises(KeyboardInterrupt):
        caught.throw()


def test_a_failure_behind_another_one_does_not_count() -> None:
    """The second step fails at an earlier element than the first one did."""
    first = steps.step_for("map", lambda x: 12 // (x - 3), number=1)
    second = steps.step_for("map", lambda x: 12 // (x + 12), number=2)
    failures = running.Failures((), ())
    block = second(first(Block([0, 2, 1, 3, 0], list(range(5))), failures), failures)
    assert (block.data, block.rows, failures.stop) == ([1], [0], 1)
    assert isinstance(failures.error, ZeroDivisionError)
    assert "step 2" in faults.notes_of(failures.error)[0]
