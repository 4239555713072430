"""Ctrl-C at every instruction of the taker at which Python may raise it: nothing is lost."""

from __future__ import annotations

import bisect
import dis
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from grain_jax._execution import ahead, prefetch_iterator

FILES = {ahead.__file__, prefetch_iterator.__file__}
# Python looks for signals after these.
AFTER = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}
ELEMENTS = 6


class Numbers:
    """0, 1, 2, ... with a state."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.next == ELEMENTS:
            raise StopIteration
        self.next += 1
        return self.next - 1

    def get_state(self) -> int:
        return self.next

    def set_state(self, state: int) -> None:
        self.next = state


class Interrupt:
    """A trace function that raises KeyboardInterrupt once, at the given one of these places."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""
        self._codes: dict[types.CodeType, tuple[list[int], list[str]]] = {}

    def __call__(self, frame: types.FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self._before(frame) in AFTER:
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self

    def _before(self, frame: types.FrameType) -> str:
        code = frame.f_code
        if code not in self._codes:
            found = list(dis.get_instructions(code))
            self._codes[code] = [i.offset for i in found], [i.opname for i in found]
        offsets, names = self._codes[code]
        place = bisect.bisect_left(offsets, frame.f_lasti)
        return names[place - 1] if place else ""


def interrupted(at: int, buffer_size: int) -> tuple[list[int], int, str]:
    """What comes of a stream, how many elements went with their hand-over, and where it was."""
    iterator = prefetch_iterator.PrefetchIterator(Numbers(), lambda x: x, buffer_size)
    interrupt = Interrupt(at)
    got: list[int] = []
    lost = 0
    while True:
        sys.settrace(interrupt if not interrupt.where else None)
        try:
            element = next(iterator)
            sys.settrace(None)
            got.append(element)
        except KeyboardInterrupt:
            sys.settrace(None)
            if iterator.get_state() == len(got) + 1:
                got.append(len(got))
                lost += 1
        except StopIteration:
            sys.settrace(None)
            iterator.close()
            return got, lost, interrupt.where


@pytest.mark.parametrize("buffer_size", [0, 1, 2])
def test_nothing_is_lost_and_nothing_waits_for_ever(buffer_size: int) -> None:
    places: dict[str, int] = {}
    for at in range(1, 10_000):
        got, lost, where = interrupted(at, buffer_size)
        assert got == list(range(ELEMENTS)), where
        if not where:
            break
        places[where] = places.get(where, 0) + lost
    assert len(places) > 15, "the places were not found"
    # Only the return to the caller, which has the state behind it, takes an element along.
    assert {where.partition(":")[0] for where, lost in places.items() if lost} <= {
        "_next",
        "__next__",
    }
