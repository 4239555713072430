"""The rule of equal steps, with threads for processes: nobody waits for one that does not come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grain_jax._product import lockstep
from grain_jax._values.errors import InvalidValueError

pytestmark = pytest.mark.timeout(120)

FACTS = {"rows": "4", "leaves": {}, "scalars": {}}


class Messages:
    """An exchange between threads; one that waits for another in vain is an error in seconds."""

    def __init__(self, count: int) -> None:
        self.rounds = 0
        self._count = count
        self._barrier = threading.Barrier(count, timeout=5)
        self._sent: dict[int, bytes] = {}
        self.me = threading.local()

    def __call__(self, devices: list[Any], message: bytes) -> dict[int, bytes]:
        self._sent[self.me.index] = message
        self._barrier.wait()
        got = {process: self._sent[process] for process in range(self._count)}
        if self._barrier.wait() == 0:
            self.rounds += 1
        return got


def play(count: int, program: Callable[[int], Any]) -> tuple[list[Any], int]:
    """What the program of each process returns or raises, and how often they met."""
    messages, results = Messages(count), [None] * count

    def run(index: int) -> None:
        messages.me.index = index
        try:
            results[index] = program(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockstep, "exchange", messages)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results, messages.rounds


def steps(rule: str, has: int, sure: Callable[[int], int]) -> int:
    """How many steps a process takes that has so many batches and knows of some ahead."""
    mine, taken = lockstep.Lockstep([], rule), 0
    while True:
        left = has - taken
        if left > 0:
            verdict = mine.batch(FACTS, sure(left - 1))
            if verdict == lockstep.TAKE and mine.others_ended:
                mine.send(lambda: {"like": "this"})
        else:
            verdict = mine.end()
            if verdict == lockstep.TAKE:
                assert mine.send(None) == {"like": "this"}
        if verdict == lockstep.STOP:
            return taken
        taken += 1


@given(
    rule=st.sampled_from(["error", "drop", "pad"]),
    have=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    looks=st.lists(st.integers(0, 7), min_size=4, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_all_take_the_same_number_of_steps(rule: str, have: list[int], looks: list[int]) -> None:
    results, _ = play(
        len(have), lambda index: steps(rule, have[index], lambda left: min(left, looks[index]))
    )
    if rule == "pad" or len(set(have)) == 1:
        assert results == [max(have)] * len(have)
    elif rule == "drop" and min(have):
        assert results == [min(have)] * len(have)
    else:
        assert {type(result) for result in results} == {InvalidValueError}
        assert len({str(result) for result in results}) == 1


@pytest.mark.parametrize("rule", ["drop", "pad"])
def test_what_is_known_ahead_needs_no_message(rule: str) -> None:
    results, rounds = play(3, lambda index: steps(rule, 1000, lambda left: left))
    assert results == [1000] * 3
    assert rounds == 2  # at the first batch and at the end
    results, rounds = play(3, lambda index: steps(rule, 1000, lambda left: min(left, 2 + index)))
    assert results == [1000] * 3
    assert rounds == 1000 // 3 + 2


def test_an_error_reaches_all_and_can_be_tried_again() -> None:
    def program(index: int) -> list[str]:
        mine, seen = lockstep.Lockstep([], "error"), []
        for attempt in range(3):
            try:
                if index == 1 and attempt == 1:
                    mine.failed(OSError("not now"))
                    raise OSError("not now")
                seen.append(mine.batch(FACTS, 0))
            except (OSError, InvalidValueError) as error:
                seen.append(str(error))
        return seen

    results, _ = play(2, program)
    assert results == [
        ["take", "process 1 failed at batch 1: OSError: not now", "take"],
        ["take", "not now", "take"],
    ]


def test_moving_forgets_what_was_certain() -> None:
    def program(index: int) -> str:
        mine = lockstep.Lockstep([], "drop")
        mine.batch(FACTS, 10)
        mine.moved()
        return mine.batch(FACTS, 0) if index else mine.end()

    results, _ = play(2, program)
    assert results == [lockstep.STOP] * 2


def test_less_than_was_promised_is_an_error() -> None:
    mine = lockstep.Lockstep([], "drop")
    play(1, lambda index: mine.batch(FACTS, 3))
    with pytest.raises(InvalidValueError, match="said that it had 3 batches more, and has none"):
        mine.end()


def test_without_a_rule_first_batches_are_compared_and_no_more() -> None:
    def program(index: int) -> list[str]:
        mine = lockstep.Lockstep([], None)
        return [mine.batch(FACTS, 0) for _ in range(index + 2)] + [mine.end()]

    results, rounds = play(2, program)
    assert results == [["take", "take", "stop"], ["take", "take", "take", "stop"]]
    assert rounds == 1


def test_what_cannot_be_sent_is_an_error_on_all() -> None:
    def make() -> dict[str, Any]:
        raise InvalidValueError("too large")

    results, _ = play(2, lambda index: lockstep.Lockstep([], "pad").send(make if index else None))
    assert [str(result) for result in results] == ["too large"] * 2
