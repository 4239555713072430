"""Refills: which records lie in one memory, and whether reading has changed them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grain_jax._algebra.refills import Refills, copied


class Reads:
    """Reads arrays of three numbers, into one memory or into one for each key."""

    def __init__(self, refills: bool, same: int = 0) -> None:
        self.refills, self.same = refills, same
        self.row = np.zeros(3)
        self.asked: list[int] = []

    def __call__(self, key: int) -> Any:
        self.asked.append(key)
        if not self.refills:
            return np.full(3, float(key))
        self.row[:] = max(0, key - self.same)
        return self.row


def look(refills: Refills, read: Reads, keys: list[int]) -> bool:
    return refills.look([read(key) for key in keys], keys, 1000, read)


def test_one_memory_for_all_records_is_seen_in_a_block() -> None:
    refills, read = Refills(), Reads(True)
    assert look(refills, read, [4, 5, 6])
    assert refills.seen


def test_one_memory_is_seen_at_the_first_record() -> None:
    refills, read = Refills(), Reads(True)
    assert look(refills, read, [4])
    assert read.asked == [4, 5]


def test_records_of_their_own_are_read_once() -> None:
    refills, read = Refills(), Reads(False)
    for keys in ([1], [2, 3, 4], [5, 5]):
        assert not look(refills, read, keys)
    assert read.asked == [1, 2, 3, 4, 5, 5]


def test_one_key_twice_is_one_record() -> None:
    refills, read = Refills(), Reads(True)
    refills.look([read(7)], [7], 1, read)
    assert not look(refills, read, [7, 7])


def test_records_that_begin_alike_are_looked_at_again() -> None:
    refills, read = Refills(), Reads(True, same=12)
    assert not look(refills, read, [1, 2, 3])
    assert look(refills, read, [13, 14, 15])


def test_one_that_nobody_changes_is_compared_less_and_less() -> None:
    shared = np.zeros(3)
    asked: list[int] = []

    def again(key: int) -> Any:
        asked.append(key)
        return shared

    refills = Refills()
    for first in range(0, 40_000, 40):
        keys = list(range(first, first + 40))
        assert not refills.look([shared] * 40, keys, 40_000, again)
    assert 256 <= len(asked) <= 256 + 40 + 39 * 1000 // 16


@pytest.mark.parametrize("form", ["d", "B", "i"])
def test_a_copy_of_a_view_has_its_form(form: str) -> None:
    view = memoryview(np.arange(6).astype(form)).cast("B").cast(form, (2, 3))
    made = copied({"view": view, "list": [1]}, "Source", 0)
    view[0, 0] = 9
    assert made["view"].format == form
    assert made["view"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_bad_records_are_for_whoever_wants_them() -> None:
    class Bad(Reads):
        def __call__(self, key: int) -> Any:
            if key == 5:
                raise ValueError("bad")
            return super().__call__(key)

    refills, read = Refills(), Bad(True)
    assert look(refills, read, [4])
    assert read.asked == [4, 6]
    refills, read = Refills(), Bad(False)
    held = read(4)
    assert not refills.look([held], [4], 6, read)
