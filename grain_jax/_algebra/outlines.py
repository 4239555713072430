"""Outlines: modules that code imports as it runs, and that this process has not loaded yet.

A worker loads them in the middle of a run, and they read what other modules hold then. Their
code is taken from their files, and nothing of it runs.
"""

from __future__ import annotations

import contextlib
import dis
import importlib.machinery
import itertools
import sys
import types
from typing import Any

from grain_jax._algebra.insides import is_users
from grain_jax._algebra.mentions import absolute

__all__ = ["BODY", "ORIGINS", "Outline", "module"]

BODY = "<module>"
"""The name in an outline of the code that runs as the module is imported."""

ORIGINS = "<origins>"

_IS_FUNCTION = 0x1  # code whose names are local variables

_known: dict[str, Outline | None] = {}
_made_with = 0  # modules were loaded


class Outline(types.ModuleType):
    """What a module of the user's will have: functions, classes with methods, modules.

    `ORIGINS` has, of names that it takes from other modules, those modules.
    """


def module(name: str) -> types.ModuleType | None:
    """Returns a module: itself where it is loaded, and else an outline if it is the user's.

    Args:
      name: absolute.
    """
    found = sys.modules.get(name)
    return found if found is not None else _outline(name)


def _outline(name: str) -> Outline | None:
    global _made_with
    if len(sys.modules) != _made_with:
        _known.clear()
        _made_with = len(sys.modules)
    parent = name.rpartition(".")[0]
    if parent:
        module(parent)  # which may import this one
    if name not in _known:
        _known[name] = None
        with contextlib.suppress(Exception):
            _read(name)
    return _known[name]


def _read(name: str) -> None:
    parent, _, _ = name.rpartition(".")
    above = module(parent) if parent else None
    if parent and above is None:
        return
    places = None if above is None else vars(above).get("__path__")
    if parent and places is None:
        return
    specs = (
        finder.find_spec(name, places) for finder in sys.meta_path if hasattr(finder, "find_spec")
    )
    spec = next((one for one in specs if one is not None), None)
    if spec is None or not isinstance(spec.origin, str) or not is_users(name, spec.origin):
        return
    loader: Any = spec.loader
    if not hasattr(loader, "get_code") and spec.origin.endswith(".py"):  # an import hook
        loader = importlib.machinery.SourceFileLoader(name, spec.origin)
    code = loader.get_code(name)
    if code is None:
        return
    made = _known[name] = Outline(name)
    scope = vars(made)
    scope["__file__"] = spec.origin
    scope["__package__"] = name if spec.submodule_search_locations is not None else parent
    if spec.submodule_search_locations is not None:
        scope["__path__"] = list(spec.submodule_search_locations)
    scope[ORIGINS] = {}
    scope |= _defined(code, scope)
    _bind_imports(code, scope)
    scope[BODY] = _function(_outer(code), scope)


def _is_named(code: Any) -> bool:
    """Whether it is the code of a function or a class with a name of its own."""
    return isinstance(code, types.CodeType) and code.co_name[:1] != "<"


def _defined(code: types.CodeType, scope: dict[str, Any]) -> dict[str, Any]:
    """Returns functions and classes that code defines."""
    found: dict[str, Any] = {}
    for one in filter(_is_named, code.co_consts):
        if one.co_flags & _IS_FUNCTION:
            found[one.co_name] = _function(one, scope)
        else:
            inner = {"__module__": scope["__name__"], **_defined(one, scope)}
            found[one.co_name] = type(one.co_name, (), inner)
    return found


def _outer(code: types.CodeType) -> types.CodeType:
    """Returns the code that runs as a module is imported, with that of classes."""
    constants: list[Any] = []
    for one in code.co_consts:
        is_body = _is_named(one) and not one.co_flags & _IS_FUNCTION
        constants.append(_outer(one) if is_body else None if _is_named(one) else one)
    return code.replace(co_consts=tuple(constants))


def _function(code: types.CodeType, scope: dict[str, Any]) -> types.FunctionType:
    cells = tuple(types.CellType() for _ in code.co_freevars)
    return types.FunctionType(code, scope, closure=cells)


def _bind_imports(code: types.CodeType, scope: dict[str, Any]) -> None:
    """Adds the modules that a module imports, and what it imports from them."""
    recent: tuple[Any, ...] = (None, None)
    source: types.ModuleType | None = None
    value: Any = None
    origin: tuple[types.ModuleType, str] | None = None
    for instruction in dis.get_instructions(code):
        kind, name = instruction.opname, instruction.argval
        if kind == "IMPORT_NAME":
            level, taken = recent
            full = absolute("." * (level or 0) + name, scope["__package__"])
            for each in itertools.accumulate(full.split("."), "{}.{}".format):
                module(each)
            source = module(full if taken else full.partition(".")[0])
            value = source
            if taken == ("*",) and source is not None:
                public = {key: one for key, one in vars(source).items() if key[:1] not in "_<"}
                scope |= public
                scope[ORIGINS] |= {key: (source, key) for key in public}
        elif kind == "IMPORT_FROM" and source is not None:
            value, origin = vars(source).get(name), (source, name)
            if value is None:
                value = module(f"{source.__name__}.{name}")
            if isinstance(value, types.ModuleType) and not taken:
                source = value  # of `import a.b as c`
        elif kind == "STORE_NAME" and value is not None:
            scope[name] = value
            if origin is not None and not isinstance(value, types.ModuleType):
                scope[ORIGINS][name] = origin
            value = origin = None
        if kind not in ("EXTENDED_ARG", "CACHE"):
            recent = (recent[1], name)
