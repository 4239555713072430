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
import functools
import itertools
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from grain_jax._algebra.mentions import absolute, mentions

__all__ = [
    "ATTRIBUTE",
    "FUNCTION",
    "MAKING",
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
    "variables",
]

FUNCTION, VARIABLE, ATTRIBUTE, PART = "function", "variable", "attribute", "part"

# Bounds, for objects of libraries above all: a generator lies near the object that uses it.
_DEEPEST = 8
_MOST_PARTS = 1_000
_MOST = 50_000

_ATOMS = frozenset({bool, int, float, complex, str, bytes, bytearray, range, type(None), type(...)})

_CONTAINERS = (list, tuple, set, frozenset, collections.deque)

# Special methods run without being named in code. Those that make an object have run for one that
# is there, and those that show or save it run for nobody's records.
MAKING = frozenset({"__init__", "__new__", "__post_init__"})
# Those that run as a class is made have run before.
SAVING = frozenset({"__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__"})
OF_CLASSES = frozenset({"__init_subclass__", "__set_name__", "__prepare__", "__class_getitem__"})

_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)

_LIBRARIES = tuple(
    os.path.normpath(path) + os.sep
    for path in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        os.path.dirname(os.path.dirname(__file__)),
    }
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Something that code can reach.

    Attributes:
      kind: FUNCTION for a function of the user's; VARIABLE for a variable of a module that code
        names; ATTRIBUTE for what an object, a class, a closure or a default holds; PART for an
        element of a container that is one of these.
      path: what messages call it, such as `module.rng`, `Augment.rng`.
      value: itself.
      module: of a VARIABLE or FUNCTION, the name of its module.
      name: of a VARIABLE, ATTRIBUTE or FUNCTION, its name there.
      owner: of an ATTRIBUTE of a class, that class.
      is_named: whether code of the user's names it, or the container that it is part of.
    """

    kind: str
    path: str
    value: Any
    module: str = ""
    name: str = ""
    owner: type | None = None
    is_named: bool = True


def is_a(value: Any, kinds: Any) -> bool:
    """Whether a value's type is one of these; `isinstance` may call the value's code."""
    return issubclass(type(value), kinds)


def is_users(module: str, file: str | None = None) -> bool:
    """Whether a module is code of the user's, and no library's.

    Args:
      module: its name.
      file: where it lies; None looks it up among the modules that are loaded.
    """
    if file is None:
        file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        # A notebook has no file, nor has a module that was made by hand.
        top = module.partition(".")[0]
        return top not in sys.stdlib_module_names and not top.startswith("_cython_")
    return _is_users_file(file)


@functools.lru_cache(maxsize=4096)
def _is_users_file(file: str) -> bool:
    path = os.path.abspath(file)
    is_package = any(part in path for part in _PACKAGES)
    return not is_package and not path.startswith(_LIBRARIES)


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
        if kind in _ATOMS or is_a(value, (np.ndarray, np.generic)):
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
            if is_a(value, dict):
                self._add_parts(found, dict.values(value), depth)
            elif is_a(value, _CONTAINERS):
                self._add_parts(found, value, depth)
            if not is_a(value, (dict, *_CONTAINERS)) or is_users(kind.__module__):
                self._look_into_object(value, depth)

    def _add(self, found: Found, depth: int, is_named: bool = True) -> None:
        """Takes something up, at once or when code mentions its name."""
        if is_named or found.name in self._named:
            self._ready.append((found, depth))
        else:
            self._waiting.setdefault(found.name, []).append((found, depth))

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
        for base in (*kind.__mro__, *metas):
            if base is object or base.__module__ in ("abc", "typing", "collections.abc"):
                continue
            for name, value in vars(base).items():
                is_special = name[:2] == "__" and name not in MAKING
                if is_a(value, _DESCRIPTORS) or name in SAVING or name in OF_CLASSES:
                    continue
                if base in metas and name in MAKING:
                    continue
                if is_special and not hasattr(value, "__get__"):
                    continue  # the name of its module, say
                for inner in functions_of(value):
                    path = f"{base.__qualname__}.{name}"
                    found = Found(ATTRIBUTE, path, inner, name=name, owner=base)
                    self._add(found, depth, is_named=is_special)

    def _look_into_object(self, value: Any, depth: int) -> None:
        if is_a(value, (types.BuiltinFunctionType, types.MethodWrapperType)):  # of a generator?
            owner = getattr(value, "__self__", None)
            if owner is not None:
                self._add(Found(PART, f"{type(owner).__qualname__}.{value.__name__}", owner), depth)
            return
        kind = type(value)
        # The code of a library is not read, so nobody knows what it names.
        knows = any(is_users(base.__module__) for base in kind.__mro__ if base is not object)
        for name, held in attributes(value).items():
            path = f"{kind.__qualname__}.{name}"
            found = Found(ATTRIBUTE, path, held, name=name, is_named=knows)
            if type(held) not in _ATOMS:
                self._add(found, depth, is_named=not knows)
        if knows and id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            self._look_into_class(kind, depth)


def names_in(function: types.FunctionType, is_read: bool = False) -> frozenset[str]:
    """Returns the attributes that a function's code names, also by texts in its variables.

    Args:
      function: of the user's.
      is_read: leaves out those that it only assigns, or takes of modules of libraries.
    """
    found = mentions(function.__code__)
    names = found.names
    if is_read:
        globals_ = function.__globals__
        chains = (chain for chain in found.chains if not _is_library(globals_.get(chain[0])))
        names = found.read.union(*(rest for _, *rest in chains))
    if not found.is_dynamic:
        return names
    scope = function.__globals__
    held = [scope.get(name) for name, *_ in found.chains]
    modules = [one for one in held if isinstance(one, types.ModuleType) and is_users(one.__name__)]
    held += [vars(one).get(name) for one in modules for name in found.names]
    held += [content(cell) for cell in function.__closure__ or ()]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return names.union(found.texts, *map(_texts_in, held))


def _is_library(value: Any) -> bool:
    return is_a(value, types.ModuleType) and not is_users(value.__name__)


def _texts_in(value: Any) -> set[str]:
    """Returns a text, or those in a container, but for the names that a module has."""
    if type(value) is dict:
        is_scope = value is sys.modules or "__name__" in value
        parts: list[Any] = [] if is_scope else [*value, *value.values()]
    else:
        parts = [*value] if type(value) in (list, tuple, set, frozenset) else [value]
    return {part for part in parts[:_MOST_PARTS] if type(part) is str}


def variables(
    function: types.FunctionType, held: Iterable[types.ModuleType] = ()
) -> Iterator[Found]:
    """Yields the variables of modules that the code of a function names.

    Args:
      function: of the user's.
      held: modules that it reaches by other ways than its globals.
    """
    scope, found = function.__globals__, mentions(function.__code__)
    package, names = scope.get("__package__") or "", names_in(function)
    spaces = [(vars(one), one.__name__) for one in held]  # whose variables are meant by name
    if not found.calls.isdisjoint(("globals", "vars", "locals")):
        spaces.append((scope, scope.get("__name__") or ""))
    ends = [_follow(scope, scope.get("__name__") or "", chain) for chain in found.chains]
    for name, *rest in found.imports:
        source = sys.modules.get(absolute(name, package))
        if source is not None:
            end = _follow(vars(source), source.__name__, rest)
            ends += [end] if isinstance(end, tuple) else [end, (vars(source), source.__name__)]
    if not found.calls.isdisjoint(("import_module", "__import__", "modules")):
        sources = [sys.modules.get(absolute(name, package)) for name in sorted(names)]
        spaces += [(vars(one), one.__name__) for one in sources if one and is_users(one.__name__)]
    spaces += [end for end in ends if isinstance(end, tuple)]  # handed on, or looked into by text
    for space, module in spaces:
        known = sorted(names & space.keys())
        if "__getattr__" in space and is_users(module):
            known.append("__getattr__")
        ends += [_follow(space, module, [name]) for name in known]
    yield from (end for end in ends if isinstance(end, Found))


def _follow(
    scope: dict[str, Any], module: str, chain: Iterable[str]
) -> Found | tuple[dict[str, Any], str] | None:
    """Returns the variable that names lead to, or the globals and name of a module."""
    for name in chain:
        if name == "__dict__":
            break
        if name not in scope and is_users(module):
            name = "__getattr__"  # of the module, which answers in its place
        if name not in scope:
            return None
        value = scope[name]
        if not is_a(value, types.ModuleType):
            return Found(VARIABLE, f"{module}.{name}", value, module, name)
        scope, module = vars(value), value.__name__
    return scope, module


def _is_users_function(function: types.FunctionType) -> bool:
    scope = function.__globals__
    return is_users(scope.get("__name__") or "", scope.get("__file__"))


def content(cell: types.CellType) -> Any:
    """Returns what a variable of an enclosing function holds; None where it is not bound yet."""
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def functions_of(value: Any) -> list[Any]:
    """Returns the functions of a descriptor, or the value itself."""
    if is_a(value, (staticmethod, classmethod)):
        return [value.__func__]
    if is_a(value, property):
        return [function for function in (value.fget, value.fset) if function is not None]
    if is_a(value, functools.cached_property):
        return [value.func]
    return [value]


def attributes(value: Any) -> dict[str, Any]:
    """Returns what an object holds, without calling code of its class."""
    held: dict[str, Any] = {}
    if is_a(value, functools.partial):
        held |= {"func": value.func, "args": value.args, "keywords": value.keywords}
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if is_a(member, types.MemberDescriptorType):  # a slot
                try:
                    held[name] = member.__get__(value)
                except AttributeError:
                    continue
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        if type(value) is not threading.local:
            return held
        own = value.__dict__  # that of this thread
    return {**held, **own} if is_a(own, dict) else held
