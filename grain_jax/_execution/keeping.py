"""Generators that code keeps from one record to the next, told by its instructions."""

from __future__ import annotations

import dis
import itertools
import random
import sys
import types
from collections.abc import Iterator

import numpy as np

from grain_jax._algebra.mentions import NO_EFFECT, nested

__all__ = ["MAKERS", "advanced", "drawn_at_once", "returns_generator"]

MAKERS = frozenset(
    """
    Random SystemRandom default_rng Generator RandomState MT19937 PCG64 PCG64DXSM Philox SFC64
    Rngs
    """.split()  # noqa: SIM905
)

# Methods of generators that return what they draw; `spawn` and `manual_seed` return generators.
_DRAWS = {
    *(*dir(np.random.Generator), *dir(np.random.RandomState), *dir(random.Random)),
    "random_raw",
} - {"spawn", "bit_generator"}

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
_PLACES = ("_ATTR", "_GLOBAL", "_DEREF")


def returns_generator(code: types.CodeType) -> bool:
    """Whether a function returns a generator that it has made, and not only what one has drawn."""
    lines = [one for one in dis.get_instructions(code) if one.opname not in NO_EFFECT]
    named: set[str] = set()
    for _, at in _made_at(lines):
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


def drawn_at_once(lines: list[dis.Instruction]) -> set[int]:
    """Returns where makers of generators are named that only draw: `default_rng(5).random(8)`."""
    found: set[int] = set()
    for begin, at in _made_at(lines):
        after = next((one for one in lines[at + 1 :] if one.opname not in NO_EFFECT), None)
        if after is not None and _is_method_call(after) and after.argval in _DRAWS:
            found.update(range(begin, at))
    return found


def _is_method_call(one: dis.Instruction) -> bool:
    """Whether a method is taken to be called; a method that is kept holds its object."""
    is_marked = sys.version_info >= (3, 12) and bool((one.arg or 0) & 1)
    return one.opname == "LOAD_METHOD" or (one.opname == "LOAD_ATTR" and is_marked)


def _made_at(lines: list[dis.Instruction]) -> Iterator[tuple[int, int]]:
    """Yields where makers of generators are named, and where their calls end."""
    for begin, first in enumerate(lines):
        name = first.argval
        if not (first.opname.startswith("LOAD_") and isinstance(name, str) and name in MAKERS):
            continue
        height = 0  # of the stack, above what it is with the maker on it
        for at in range(begin + 1, len(lines)):
            one = lines[at]
            height += dis.stack_effect(one.opcode, one.arg, jump=False)
            if one.opname in _CALLS and height <= 0:
                yield begin, at
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
