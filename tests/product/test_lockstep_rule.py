"""The rule of equal steps, with threads for processes: nobody waits for one that does not come."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grain_jax._product import lockstep
from grain_jax._values.errors import InvalidValueError

FACTS = {"rows": "4", "leaves": {}, "scalars": {}}


class Messages:
    """Channels between threads; one that waits for another in vain is an error in seconds."""

    def __init__(self, count: int) -> None:
        self.said: dict[Any, dict[int, bytes]] = defaultdict(dict)
        self._count = count
        self._changed = threading.Condition()
        self.me = threading.local()

    def channel(self, devices: list[Any]) -> Messages:
        return self

    @property
    def rounds(self) -> int:
        return len(self.said)

    def has_said(self, name: Any) -> bool:
        return any(self.me.index in by and known >= name for known, by in self.said.items())

    def say(self, name: Any, message: bytes) -> bool:
        with self._changed:
            self.said[name].setdefault(self.me.index, message)
            self._changed.notify_all()
        return True

    def exchange(self, name: Any, message: bytes) -> dict[int, bytes]:
        self.say(name, message)
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.said[name]) == self._count, 5)
            return {process: self.said[name][process] for process in range(self._count)}


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
        patch.setattr(lockstep, "Channel", messages.channel)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results, messages.rounds


def take(mine: lockstep.Lockstep, facts: Any = FACTS, sure: int = 0, **more: Any) -> Any:
    """What becomes of a new batch: "take", or what is made of it."""
    return mine.batch(object(), facts, sure, finish=lambda verdict: "take", **more)


def steps(rule: str, has: int, sure: Callable[[int], int]) -> int:
    """How many steps a process takes that has so many batches and knows of some ahead."""
    mine, taken = lockstep.Lockstep([], rule), 0
    while True:
        left = has - taken
        if left > 0:
            got = take(mine, sure=sure(left - 1), skeleton=lambda verdict: "bones")
        else:
            got = mine.end(lambda bones, verdict: [bones])
            if got is not lockstep.STOP:
                assert got == ["bones"]
                mine.padded(got)
        if got is lockstep.STOP:
            return taken
        taken += 1


@given(
    rule=st.sampled_from(["error", "drop", "pad"]),
    have=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    looks=st.lists(st.integers(0, 7), min_size=4, max_size=4),
)
@settings(max_examples=150)
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
                seen.append(take(mine))
            except (OSError, InvalidValueError) as error:
                seen.append(str(error))
        return seen

    results, _ = play(2, program)
    assert results == [
        ["take", "process 1 failed at batch 1: OSError: not now", "take"],
        ["take", "not now", "take"],
    ]


def test_moving_forgets_what_was_certain() -> None:
    def program(index: int) -> Any:
        mine = lockstep.Lockstep([], "drop")
        take(mine, sure=10)
        mine.moved()
        return take(mine) if index else mine.end()

    results, _ = play(2, program)
    assert results == [lockstep.STOP] * 2


def test_a_position_that_is_set_once_more_before_the_next_batch_counts_once() -> None:
    def program(index: int) -> list[Any]:
        mine, seen = lockstep.Lockstep([], "drop"), []
        for moves in (0, 1, 0, 1, 2):
            for _ in range(moves + (moves and index)):
                mine.moved()
            seen.append(take(mine, sure=moves))
        return seen

    assert play(2, program)[0] == [["take"] * 5] * 2


def test_less_than_was_promised_is_an_error() -> None:
    def program(index: int) -> Any:
        mine = lockstep.Lockstep([], "drop")
        take(mine, sure=3)
        return mine.end()

    ((error,), _) = play(1, program)
    assert "said that it had 3 batches more, and has none" in str(error)


def test_without_a_rule_all_need_as_many_elements() -> None:
    def program(index: int) -> list[str]:
        mine, seen = lockstep.Lockstep([], None), []
        try:
            for _ in range(index + 2):
                seen.append(take(mine))
            mine.end()
        except InvalidValueError as error:
            seen.append(str(error))
        return seen

    results, _ = play(2, program)
    assert [seen[:-1] for seen in results] == [["take"] * 2] * 2
    for seen in results:
        assert "process 0 has no batch after 2, and process 1 has one" in seen[-1]
        assert seen[-1].endswith("Give all of them as many elements.")


def raising(error: BaseException) -> Callable[..., Any]:
    def make(*arguments: Any) -> Any:
        raise error

    return make


class Odd(BaseException):
    """Has no text."""

    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("error", [InvalidValueError("too large"), MemoryError("much"), Odd()])
def test_what_cannot_be_sent_is_an_error_on_all(error: BaseException) -> None:
    def program(index: int) -> Any:
        mine = lockstep.Lockstep([], "pad")
        return take(mine, skeleton=raising(error)) if index else mine.end()

    results, _ = play(2, program)
    text = "(an exception whose text cannot be made)" if isinstance(error, Odd) else str(error)
    wanted = f"process 1 failed at its first batch: {type(error).__name__}: {text}"
    assert [str(result) for result in results] == [wanted] * 2


def test_padding_that_cannot_be_made_is_an_error_on_all_and_may_be_tried_again() -> None:
    def program(index: int) -> Any:
        mine, seen = lockstep.Lockstep([], "pad"), []
        for make in (raising(MemoryError("much")), lambda bones, verdict: "padding"):
            try:
                seen.append(take(mine) if index else mine.end(make))
            except (MemoryError, InvalidValueError) as error:
                seen.append(str(error))
        return seen

    results, _ = play(2, program)
    failed = "process 0 failed at its first batch: MemoryError: much"
    assert results == [["much", "padding"], [failed, "take"]]


@given(data=st.data())
@settings(max_examples=60)
def test_an_interrupt_between_any_two_messages_changes_nothing(data: st.DataObject) -> None:
    have = data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=3))
    cuts = [data.draw(st.sets(st.integers(0, 40), max_size=12)) for _ in have]

    class Interrupted(Messages):
        """Interrupts before a message is said, or once all have been heard."""

        def exchange(self, name: Any, message: bytes) -> dict[int, bytes]:
            counter, cut = self.me.counter, cuts[self.me.index]
            if next(counter) in cut:
                raise KeyboardInterrupt
            heard = super().exchange(name, message)
            if next(counter) in cut:
                raise KeyboardInterrupt
            return heard

    def program(index: int) -> int:
        mine, taken = lockstep.Lockstep([], "pad"), 0
        messages.me.counter = itertools.count()
        pending: Any = None
        while True:
            try:
                if taken < have[index]:
                    pending = pending or ["batch"]
                    got = mine.batch(
                        pending, FACTS, 0, skeleton=lambda v: "bones", finish=lambda v: "take"
                    )
                else:
                    got = mine.end(lambda bones, verdict: [bones])
                    if got is not lockstep.STOP:
                        mine.padded(got)
                        mine.padded(got)
            except KeyboardInterrupt:
                continue
            if got is lockstep.STOP:
                return taken
            pending, taken = None, taken + 1

    messages = Interrupted(len(have))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.Messages", lambda count: messages)
        results, _ = play(len(have), program)
    assert results == [max(have)] * len(have)


def test_shapes_are_compared_at_every_meeting() -> None:
    def facts(length: int) -> Any:
        return {**FACTS, "leaves": {"x": ["int32", [length], True]}}

    lengths = [[3, 3, 4], [3, 3, 5]]

    def program(index: int, pads_rows: bool) -> list[Any]:
        mine, seen = lockstep.Lockstep([], "error", pads_rows=pads_rows), []
        for length in lengths[index]:
            try:
                seen.append(mine.batch(object(), facts(length), 0, finish=lambda v: v.shapes))
            except InvalidValueError as error:
                seen.append(str(error))
        return seen

    results, _ = play(2, lambda index: program(index, False))
    assert results[0] == results[1]
    *before, refused = results[0]
    assert before == [None, None]
    assert "x is int32 with rows of shape (4,) on process 0 and int32 with rows of shape (5,)" in (
        refused
    )
    results, _ = play(2, lambda index: program(index, True))
    assert results == [[None, None, {"x": [5]}]] * 2


def test_a_shape_that_changes_where_nobody_asks_is_an_error_here() -> None:
    def program(index: int) -> str:
        mine = lockstep.Lockstep([], "error")
        take(mine, sure=5)
        with pytest.raises(InvalidValueError, match="x is int32 with rows") as refused:
            take(mine, facts={**FACTS, "leaves": {"x": ["int32", [3], True]}})
        return str(refused.value)

    for text in play(2, program)[0]:
        assert text.startswith(
            "at batch 1, x is int32 with rows of shape (3,), and was nothing for"
        )
