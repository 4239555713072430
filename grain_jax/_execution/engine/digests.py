"""Digests: equal where values and code are, in any process."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from typing import Any

__all__ = ["code_digest", "digest"]

_LOADS = frozenset(dis.opmap[n] for n in ("LOAD_CONST", "RETURN_CONST") if n in dis.opmap)


def digest(*parts: str | bytes) -> str:
    """Returns a short text that is another one for other parts."""
    summed = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        summed.update(len(data).to_bytes(8, "little"))
        summed.update(data)
    return summed.hexdigest()


def code_digest(code: types.CodeType) -> str:
    """Returns what two pieces of code have equal that do the same, wherever their lines are."""
    return digest(*_code_parts(code))


@functools.lru_cache(maxsize=4096)
def _code_parts(code: types.CodeType) -> tuple[str, ...]:
    arguments = code.co_argcount + code.co_kwonlyargcount
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    return (
        code.co_code.hex(),
        repr(counts),
        repr((code.co_names, code.co_varnames[:arguments], code.co_freevars)),
        code.co_exceptiontable.hex(),
        *(_constant(value) for value in _used_constants(code)),
    )


def _used_constants(code: types.CodeType) -> tuple[Any, ...]:
    # The first one may be a docstring, which no instruction loads.
    raw = code.co_code
    is_used = any(raw[at] in _LOADS and not raw[at + 1] for at in range(0, len(raw), 2))
    return code.co_consts if is_used else code.co_consts[1:]


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return code_digest(value)
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant, value))})"
    if isinstance(value, tuple):
        return f"({[_constant(part) for part in value]})"
    return f"{type(value).__name__} {value!r}"
