"""The process-wide generators `random` and `np.random`, made a function of the element.

User code, or a library it calls, may draw from them. Seeding them for every element makes such
draws independent of which process works, and of what it did before. Seeding costs some 30 µs in the
trainer's process (where the user's own state is put back afterwards), so code that provably never
draws from them is left alone.
"""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["may_draw", "preserved", "seed_for"]

# NumPy documents both; its type stubs leave them out.
_get_bits = np.random.get_bit_generator  # type: ignore[attr-defined]
_set_bits = np.random.set_bit_generator  # type: ignore[attr-defined]

_DATA = (bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic, np.dtype)
_UNSAFE_BUILTINS = frozenset({"__import__", "eval", "exec", "getattr", "globals", "vars"})


def seed_for(seed: int, position: int, output: int, part: int) -> None:
    """Seeds both process-wide generators for one element."""
    counter = np.array([0, 0, output, part], np.uint64)
    key = np.array([seed, position], np.uint64)
    _set_bits(np.random.Philox(counter=counter, key=key))
    random.seed((((part << 32) + output) << 96) + (position << 32) + seed)


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Puts both process-wide generators back at the end."""
    state, bits = random.getstate(), _get_bits()
    try:
        yield
    finally:
        random.setstate(state)
        _set_bits(bits)


def may_draw(function: Callable[..., Any]) -> bool:
    """Returns False only for Python code that certainly cannot reach `random` or `np.random`."""
    owner = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        return True
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    if not all(isinstance(value, _DATA) for value in cells):
        return True
    return _code_may_draw(function.__code__, function.__globals__, owner)


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return NotImplemented


def _code_may_draw(code: types.CodeType, scope: Mapping[str, Any], owner: Any) -> bool:
    """Checks every name that the code mentions, be it a global or an attribute."""
    if any(isinstance(constant, types.CodeType) for constant in code.co_consts):
        return True
    for name in code.co_names:
        if name == "random" or (owner is not None and callable(getattr(owner, name, None))):
            return True
        if name in scope:
            value = scope[name]
            if value is not np and not isinstance(value, _DATA):
                return True
        elif name in _UNSAFE_BUILTINS:
            return True
    return False
