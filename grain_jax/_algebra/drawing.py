"""Whether code can reach the process-wide generators, decided without running it.

The answer is no only for short, plain functions: all that they can reach are data, NumPy's
functions, harmless built-ins, and methods that arrays, generators and Python's containers have. All
else may draw. Elements count as data: a class of the user's among them whose operators, or whose
methods named like an array's, draw from a process-wide generator, is not seen.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import reprlib
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["may_draw"]

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None), type(...), np.dtype})

_BUILTINS = frozenset(
    """
    abs all any bool bytes complex dict divmod enumerate float frozenset int isinstance len list
    max min pow range reversed round set slice sorted str sum tuple zip Ellipsis NotImplemented
    ArithmeticError AssertionError Exception IndexError KeyError RuntimeError TypeError ValueError
    """.split()  # noqa: SIM905 - forty lines as a list
)

_QUIET_FUNCTIONS = frozenset(id(getattr(builtins, name)) for name in _BUILTINS)

_NOT_OF_NUMPY = frozenset({"random", "load", "frompyfunc", "vectorize", "test", "who"})
_NOT_OF_DATA = frozenset({"base", "ctypes", "metadata", "bit_generator", "spawn"})


def _public(*owners: type) -> frozenset[str]:
    return frozenset(name for owner in owners for name in dir(owner) if name[:1] != "_")


_OF_NUMPY = (
    frozenset(
        name
        for name in np.__dict__
        if name[:1] != "_" and not isinstance(np.__dict__[name], types.ModuleType)
    )
    - _NOT_OF_NUMPY
)
_OF_DATA = (
    _public(np.ndarray, np.dtype, np.random.Generator)
    | _public(str, bytes, dict, list, tuple, set, int, float, complex, slice)
) - _NOT_OF_DATA

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"})

# What a class may define without acting when its object is used as an operand.
_QUIET = frozenset(
    """
    __init__ __post_init__ __init_subclass__ __module__ __qualname__ __doc__ __dict__ __weakref__
    __slots__ __annotations__ __abstractmethods__ __parameters__ __orig_bases__ __match_args__
    __dataclass_fields__ __dataclass_params__ __static_attributes__ __firstlineno__ __annotate__
    __annotate_func__ __annotations_cache__ __replace__ __getstate__ __setstate__ __reduce__
    __reduce_ex__ __slotnames__ __type_params__
    """.split()  # noqa: SIM905
)

_MADE_BY_DATACLASS = ("<string>", dataclasses.__file__, reprlib.__file__)


def may_draw(function: Callable[..., Any]) -> bool:
    """Returns False only for code that certainly cannot reach `random` or `np.random`."""
    if id(function) in _QUIET_FUNCTIONS:
        return False
    if type(function) is np.ufunc:
        return getattr(np, function.__name__, None) is not function
    owner = None
    if type(function) is types.MethodType:
        owner = function.__self__
        function = function.__func__
        if not _is_quiet(owner):
            return True
    if type(function) is not types.FunctionType:
        return True
    values = [
        *(_cell(cell) for cell in function.__closure__ or ()),
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
    ]
    if not all(map(_is_data, values)) or _builtins_of(function) is not vars(builtins):
        return True
    return _code_may_draw(function.__code__, function.__globals__, owner)


def _builtins_of(function: types.FunctionType) -> Any:
    found = function.__globals__.get("__builtins__", builtins)
    return vars(found) if isinstance(found, types.ModuleType) else found


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return NotImplemented


def _is_data(value: Any) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is np.ndarray:
        return not value.dtype.hasobject
    if kind is tuple:
        return all(map(_is_data, value))
    if not isinstance(value, np.generic) or getattr(np, kind.__name__, None) is not kind:
        return False
    return not value.dtype.hasobject


def _is_quiet(owner: Any) -> bool:
    """Whether the object does nothing of its own when it is called, indexed or added."""
    for kind in type(owner).__mro__:
        if kind is object or kind.__module__ in ("abc", "typing", "grain_jax._algebra.transforms"):
            continue
        for name, value in vars(kind).items():
            if name[:2] != "__" or name in _QUIET or value is None:
                continue
            code = getattr(value, "__code__", None)
            if code is None or code.co_filename not in _MADE_BY_DATACLASS:
                return False
    return type(type(owner)).__module__ in ("builtins", "abc")


def _code_may_draw(code: types.CodeType, scope: Mapping[str, Any], owner: Any) -> bool:
    """Checks every name that the code mentions, be it a global or an attribute."""
    if any(isinstance(constant, types.CodeType) for constant in code.co_consts):
        return True
    from_numpy = False  # whether the instruction before has put the NumPy module on the stack
    for instruction in dis.get_instructions(code):
        kind, name = instruction.opname, instruction.argval
        if kind == "EXTENDED_ARG":
            continue
        if from_numpy and (kind not in ("LOAD_ATTR", "LOAD_METHOD") or name not in _OF_NUMPY):
            return True
        was_from_numpy, from_numpy = from_numpy, False
        if instruction.opcode not in dis.hasname or was_from_numpy:
            continue
        if kind in _GLOBALS:
            if name not in scope:
                if name not in _BUILTINS:
                    return True
            elif scope[name] is np:
                from_numpy = True
            elif not _is_data(scope[name]):
                return True
        elif kind not in _ATTRIBUTES or not _is_quiet_attribute(name, owner):
            return True
    return from_numpy


def _is_quiet_attribute(name: str, owner: Any) -> bool:
    """Whether the name leads to data, on the object whose method this is as well as on an array."""
    found = False
    for space in (getattr(owner, "__dict__", {}), *map(vars, type(owner).__mro__)):
        if name in space and owner is not None:
            found = True
            if not _is_data(space[name]):
                return False
    return found or name in _OF_DATA
