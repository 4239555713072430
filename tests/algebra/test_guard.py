"""Code that draws as it reads is found out, and read again with seeds of its own."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from grain_jax._algebra import global_random
from grain_jax._algebra.guard import DREW, Guard

DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "np.random": np.random.rand,
    "normal": np.random.randn,
    "gauss": lambda: random.gauss(0, 1),
    "many": lambda: float(np.random.rand(624 * 2)[-1]),
}


@pytest.fixture(autouse=True)
def keeps_the_generators() -> Iterator[None]:
    """The state after a test is the state before it."""
    random.seed(1)
    np.random.seed(1)
    np.random.randn()  # another one waits
    python, numpy = random.getstate(), np.random.get_state()
    yield
    assert random.getstate() == python
    assert all(map(np.array_equal, np.random.get_state(), numpy))


def read(guard: Guard, one: Callable[[int], Any], *positions: int, seed: int = 0) -> list[Any]:
    def together() -> list[Any]:
        return [one(row) for row in range(len(positions))]

    found: list[Any] = guard.read(together, one, np.array(positions), seed)
    return found


@pytest.mark.parametrize("name", DRAWS)
def test_draws_depend_on_seed_and_position_alone(name: str) -> None:
    draw = DRAWS[name]
    whole = read(Guard(), lambda row: draw(), *range(10))
    assert len(set(whole)) == 10
    guard = Guard()
    parts = [read(guard, lambda row: draw(), p)[0] for p in (3, 9, 3, 0)]
    assert parts == [whole[3], whole[9], whole[3], whole[0]]
    assert not set(read(Guard(), lambda row: draw(), *range(10), seed=1)) & set(whole)


@pytest.mark.parametrize("draw", [*DRAWS.values(), lambda: np.random.seed(5), random.seed])
def test_each_way_to_draw_is_seen(draw: Callable[[], Any]) -> None:
    guard = Guard()
    assert guard.run(list, 0) == []
    assert guard.run(draw, 0) is DREW


def test_a_normal_number_that_waits_is_a_draw_too() -> None:
    guard = Guard()
    guard.run(list, 0)
    with global_random.preserved():
        np.random.seed(3)
        np.random.randn()
        expected = np.random.get_state()
        assert guard.run(np.random.randn, 0) is DREW
        assert all(map(np.array_equal, np.random.get_state(), expected))


def test_what_does_not_draw_is_read_once() -> None:
    rows: list[int] = []
    guard = Guard()
    for _ in range(3):
        assert read(guard, lambda row: rows.append(row) or row, 5, 6) == [0, 1]
    assert rows == [0, 1] * 3
    assert not guard.draws


def test_a_block_is_read_twice_once() -> None:
    rows: list[int] = []
    guard = Guard()
    for _ in range(3):
        read(guard, lambda row: rows.append(row) or random.random(), 5, 6)
    assert rows == [0, 1] * 4
    assert guard.draws


def test_records_that_draw_now_and_then() -> None:
    def one(position: int) -> float:
        return random.random() if position % 3 == 0 else -position

    def parts(*sizes: int) -> list[float]:
        guard, found, begin = Guard(), [], 0
        for size in sizes:
            at = range(begin, begin + size)
            found += read(guard, lambda row, at=at: one(at[row]), *at)  # type: ignore[misc]
            begin += size
        return found

    whole = parts(12)
    assert [x for x in whole if x < 0] == [-p for p in range(12) if p % 3]
    assert parts(1, 1, 2, 3, 5) == parts(*[1] * 12) == whole


def test_what_is_drawn_once_and_kept_is_the_same_everywhere() -> None:
    def table(*positions: int) -> Any:
        kept: list[Any] = []

        def one(row: int) -> Any:
            if not kept:
                kept.append(np.random.permutation(100))
            return kept[0]

        guard = Guard()
        found = read(guard, one, *positions)[0]
        assert not guard.draws  # and so goes on being read in threads
        return found.tolist()

    assert table(0, 1) == table(7) == table(3, 9, 4)


def test_errors_that_draws_decide_on() -> None:
    def one(row: int) -> float:
        drawn = np.random.rand()
        if drawn < 0.3:
            raise OSError(str(drawn))
        return drawn

    def results() -> list[str]:
        found = []
        for position in range(20):
            try:
                found.append(str(read(Guard(), one, position)[0]))
            except OSError as error:
                found.append(str(error))
        return found

    expected = results()
    np.random.seed(77)
    assert results() == expected
    assert {float(text) < 0.3 for text in expected} == {True, False}
    np.random.seed(1)
    np.random.randn()


def test_errors_without_draws_are_raised_at_once() -> None:
    calls = 0

    def fails(row: int) -> None:
        nonlocal calls
        calls += 1
        raise LookupError("no")

    with pytest.raises(LookupError):
        read(Guard(), fails, 0)
    assert calls == 1


def test_an_interrupt_goes_through() -> None:
    def interrupted() -> None:
        random.random()
        raise KeyboardInterrupt

    guard = Guard()
    guard.run(list, 0)
    with pytest.raises(KeyboardInterrupt):
        guard.run(interrupted, 0)


def test_a_guard_travels_without_what_it_has_seen() -> None:
    guard = Guard()
    read(guard, lambda row: random.random(), 0)
    copied = pickle.loads(pickle.dumps(guard))
    assert (guard.draws, copied.draws, copied.may_draw) == (True, False, True)


def test_nothing_is_watched_that_cannot_draw() -> None:
    guard = Guard(may_draw=False)
    assert guard.run(lambda: 3, 0) == 3
