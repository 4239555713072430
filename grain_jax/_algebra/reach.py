"""What a pipeline's code can reach: functions, variables of modules, and what objects hold.

Code is followed where it is the user's: outside the standard library, site-packages and this
package. Of it all is read that it names: globals, attributes of modules, closures, defaults, the
methods and attributes of objects. What an object holds is reached where some code that is reached
mentions the name, so that what only a constructor used is not; of objects of libraries, whose code
is not read, everything is reached.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from grain_jax._algebra.found import ATTRIBUTE, FUNCTION, NAME, PART, VARIABLE, Found
from grain_jax._algebra.insides import (
    attributes,
    content,
    functions_of,
    has_library_base,
    held_in_c,
    is_a,
    is_users,
    names_for,
    unweak,
)
from grain_jax._algebra.mentions import absolute, makes_classes, mentions
from grain_jax._algebra.variables import names_in, variables

__all__ = [
    "ATTRIBUTE",
    "FUNCTION",
    "MAKING",
    "NAME",
    "OF_CLASSES",
    "SAVING",
    "VARIABLE",
    "Found",
    "attributes",
    "content",
    "functions_of",
    "is_a",
    "is_users",
    "names_in",
    "reach",
    "unweak",
    "variables",
]

# Bounds, for objects of libraries above all: a generator lies near the object that uses it.
_DEEPEST = 8
_MOST_PARTS = 1_000
_MOST = 50_000

_ATOMS = frozenset({bool, int, float, complex, str, bytes, bytearray, range, type(None), type(...)})

_CONTAINERS = (list, tuple, set, frozenset, collections.deque)

# Special methods run without being named in code. Those that make an object have run for one that
# is there, and those that show or save it run for nobody's records.
MAKING = frozenset({"__init__", "__new__", "__post_init__"})
SAVING = frozenset({"__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__"})
# Those that run as a class is made have run before, but for classes that code makes as it runs, or
# a module that it imports only then.
OF_CLASSES = frozenset({"__init_subclass__", "__set_name__", "__prepare__"})

_MAKES_CLASSES = "<class>"  # counts as a name of such code

_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


def reach(roots: Iterable[Any], names: Iterable[str] = ()) -> Iterator[Found]:
    """Yields what functions and objects can reach, each once.

    Args:
      roots: functions that are called, bound methods among them.
      names: attributes that code mentions which is not among them.
    """
    return _Walk(names).run(roots)


class _Walk:
    """One walk: what was met, what is still to be looked at, and which names code has mentioned."""

    def __init__(self, names: Iterable[str]) -> None:
        self._ready: collections.deque[tuple[Found, int]] = collections.deque()
        self._seen: dict[int, Any] = {}  # with the object, whose number another could get
        self._variables: set[tuple[str, str]] = set()
        self._named: set[str] = set(names)
        self._waiting: dict[str, list[tuple[Found, int]]] = {}

    def run(self, roots: Iterable[Any]) -> Iterator[Found]:
        for root in roots:
            name = getattr(root, "__qualname__", None) or type(root).__qualname__
            self._look(Found(PART, name, root), 0)
        while self._ready:
            found, depth = self._ready.popleft()
            yield found
            is_open = found.kind != VARIABLE or is_users(found.module)
            if is_open and len(self._seen) < _MOST:
                self._look(found, depth + 1)

    def _look(self, found: Found, depth: int) -> None:
        """Looks into a value."""
        value = found.value
        kind = type(value)
        is_array = is_a(value, (np.ndarray, np.generic))
        if kind in _ATOMS or (is_array and (kind is not np.ndarray or not value.dtype.hasobject)):
            return
        if id(value) in self._seen or depth > _DEEPEST:
            return
        self._seen[id(value)] = value
        if is_a(value, types.ModuleType):
            self._look_into_module(value)
        elif is_a(value, types.FunctionType):
            self._look_into_function(value, depth)
        elif is_a(value, types.MethodType):
            self._look(dataclasses.replace(found, value=value.__func__), depth)
            self._add(Found(PART, found.path, value.__self__), depth)
        elif is_a(value, type):
            if is_users(value.__module__):
                self._look_into_class(value, depth)
                self._mention(MAKING)  # code that names a class makes objects of it
        else:
            if is_array:
                self._add_parts(found, value.flat, depth)
                return
            if is_a(value, dict):
                self._add_parts(found, dict.values(value), depth)
            elif is_a(value, _CONTAINERS):
                self._add_parts(found, value, depth)
            if not is_a(value, (dict, *_CONTAINERS)) or is_users(kind.__module__):
                self._look_into_object(found, depth)

    def _add(
        self, found: Found, depth: int, is_named: bool = True, awaited: str | None = None
    ) -> None:
        """Takes something up, at once or when code mentions its name, or another one."""
        awaited = found.name if awaited is None else awaited
        if is_named or awaited in self._named:
            self._ready.append((found, depth))
        else:
            self._waiting.setdefault(awaited, []).append((found, depth))

    def _mention(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._named:
                self._named.add(name)
                self._ready.extend(self._waiting.pop(name, ()))

    def _add_parts(self, found: Found, parts: Iterable[Any], depth: int) -> None:
        for part in list(itertools.islice(parts, _MOST_PARTS)):
            if type(part) not in _ATOMS:
                self._add(Found(PART, found.path, part, is_named=found.is_named), depth)

    def _look_into_function(self, function: types.FunctionType, depth: int) -> None:
        scope, code = function.__globals__, function.__code__
        module = scope.get("__name__") or ""
        held = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
        cells = {name: content(cell) for name, cell in held.items()}
        names = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        cells |= dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        cells |= function.__kwdefaults__ or {}
        for name, value in [*cells.items(), *vars(function).items()]:
            path = f"{function.__qualname__}.{name}"
            # Of a module that a closure has, the function's own names are meant.
            at = _DEEPEST if is_a(value, types.ModuleType) else depth
            self._add(Found(ATTRIBUTE, path, value, name=name), at)
        if not _is_users_function(function):
            self._mention(mentions(code).names)
            return
        where = f"{module}.{function.__qualname__}"
        self._ready.append((Found(FUNCTION, where, function, module, function.__qualname__), depth))
        self._mention(names_in(function))
        # A module that is imported here has made classes before, and makes them later in a worker.
        package = scope.get("__package__") or ""
        imported = (absolute(name, package) for name, *_ in mentions(code).imports)
        if makes_classes(code) or any(map(is_users, imported)):
            self._mention([_MAKES_CLASSES])
        held_modules = [value for value in cells.values() if is_a(value, types.ModuleType)]
        for found in variables(function, held_modules):
            key = (found.module, found.name)
            if key not in self._variables:
                self._variables.add(key)
                self._add(found, 0)  # however deep code is that names it

    def _look_into_module(self, module: types.ModuleType) -> None:
        """Takes up what code may name of a module that an object or a container holds."""
        scope = types.ModuleType.__getattribute__(module, "__dict__")
        where = str(scope.get("__name__"))
        for name, value in list(scope.items()) if is_users(where) else ():
            if name[:2] != "__":
                self._add(Found(VARIABLE, f"{where}.{name}", value, where, name), 0, False)

    def _look_into_class(self, kind: type, depth: int) -> None:
        """Takes up the methods and attributes of a class and its bases that code may name."""
        metas = [base for base in type.mro(type(kind)) if is_users(base.__module__)]
        is_of_library = has_library_base(kind)
        for base in (*kind.__mro__, *metas):
            if base is object or base.__module__ in ("abc", "typing", "collections.abc"):
                continue
            for name, value in vars(base).items():
                is_special = name[:2] == "__" and name not in MAKING
                is_hook = is_of_library and base not in metas and is_users(base.__module__)
                is_hook = is_hook and name not in MAKING
                if _is_of_enums(name) and is_a(kind, enum.EnumMeta):
                    is_hook = is_a(functions_of(value)[0], types.FunctionType)
                    if not is_hook:
                        continue  # a table of its members: it adds to that itself
                if is_a(value, _DESCRIPTORS) or name in SAVING:
                    continue
                if is_special and not hasattr(value, "__get__"):
                    continue  # the name of its module, say
                is_of_class = name in OF_CLASSES or (issubclass(base, type) and name in MAKING)
                for inner in functions_of(value):
                    path = f"{base.__qualname__}.{name}"
                    found = Found(ATTRIBUTE, path, inner, name=name, owner=base, is_hook=is_hook)
                    if is_of_class:
                        self._add(found, depth, is_named=False, awaited=_MAKES_CLASSES)
                    else:
                        self._add(found, depth, is_named=is_special or is_hook)
                if is_hook:
                    self._mention([name])

    def _look_into_object(self, found: Found, depth: int) -> None:
        value = found.value
        if is_a(value, (types.BuiltinFunctionType, types.MethodWrapperType)):  # of a generator?
            owner = getattr(value, "__self__", None)
            if owner is not None:
                self._add(Found(PART, f"{type(owner).__qualname__}.{value.__name__}", owner), depth)
            return
        kind = type(value)
        for name in names_for(value):
            path = f"{kind.__qualname__}({name!r})"
            self._ready.append((Found(NAME, path, name, name=name), depth))
            self._mention([name])
        # The code of a library is not read, so nobody knows what it names.
        knows = any(is_users(base.__module__) for base in kind.__mro__ if base is not object)
        for name, held in attributes(value).items():
            path = f"{kind.__qualname__}.{name}"
            part = Found(ATTRIBUTE, path, held, name=name, is_named=knows)
            if type(held) not in _ATOMS:
                self._add(part, depth, is_named=not knows)
        if not knows or unweak(value) is not None:
            self._add_parts(found, held_in_c(value), depth)
        if knows and id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            self._look_into_class(kind, depth)


def _is_of_enums(name: str) -> bool:
    """Whether it is a name such as `_missing_`, which enums look up and define."""
    return len(name) > 2 and name[0] == name[-1] == "_" and name[1] != "_"


def _is_users_function(function: types.FunctionType) -> bool:
    scope = function.__globals__
    return is_users(scope.get("__name__") or "", scope.get("__file__"))
