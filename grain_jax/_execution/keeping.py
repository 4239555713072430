"""Generators that code keeps from one record to the next, told by its instructions."""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Iterator

from grain_jax._algebra.mentions import NO_EFFECT, nested

__all__ = ["MAKERS", "advanced", "returns_generator"]

MAKERS = frozenset(
    """
    Random SystemRandom default_rng Generator RandomState MT19937 PCG64 PCG64DXSM Philox SFC64
    Rngs
    """.split()  # noqa: SIM905
)

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
_PLACES = ("_ATTR", "_GLOBAL", "_DEREF")


def returns_generator(code: types.CodeType) -> bool:
    """Whether a function returns a generator that it has made, and not only what one has drawn."""
    lines = [one for one in dis.get_instructions(code) if one.opname not in NO_EFFECT]
    named: set[str] = set()
    for at in _made_at(lines):
        after = lines[at + 1] if at + 1 < len(lines) else None
        if after is not None and after.opname == "RETURN_VALUE":
            return True
        if after is not None and after.opname.startswith("STORE_FAST"):
            named.add(after.argval[0] if isinstance(after.argval, tuple) else after.argval)
    pairs = itertools.pairwise(lines)
    return any(
        "LOAD_FAST" in one.opname
        and (one.argval[-1] if isinstance(one.argval, tuple) else one.argval) in named
        and then.opname == "RETURN_VALUE"
        for one, then in pairs
    )


def _made_at(lines: list[dis.Instruction]) -> Iterator[int]:
    """Yields where the calls end that make generators."""
    for begin, first in enumerate(lines):
        name = first.argval
        if not (first.opname.startswith("LOAD_") and isinstance(name, str) and name in MAKERS):
            continue
        height = 0  # of the stack, above what it is with the maker on it
        for at in range(begin + 1, len(lines)):
            one = lines[at]
            height += dis.stack_effect(one.opcode, one.arg, jump=False)
            if one.opname in _CALLS and height <= 0:
                yield at
                break


def advanced(code: types.CodeType) -> set[str]:
    """Returns the attributes and variables that a function reads, and then assigns."""
    found: set[str] = set()
    for each in nested(code):
        read: set[str] = set()
        for one in dis.get_instructions(each):
            kind, _, place = one.opname.partition("_")
            if f"_{place}" in _PLACES:
                if kind == "LOAD":
                    read.add(one.argval)
                elif kind == "STORE" and one.argval in read:
                    found.add(one.argval)
    return found
