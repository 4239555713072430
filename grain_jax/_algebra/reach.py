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
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from grain_jax._algebra import outlines
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
from grain_jax._algebra.mentions import EVALUATING, absolute, mentions, names_in_text

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

FUNCTION, VARIABLE, ATTRIBUTE, PART, NAME = "function", "variable", "attribute", "part", "name"

# Bounds, for objects of libraries above all: a generator lies near the object that uses it.
_DEEPEST = 8
_MOST_PARTS = 1_000
_MOST = 50_000
_MOST_TEXTS = 64  # that may be names of modules which are not loaded

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


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Something that code can reach.

    Attributes:
      kind: FUNCTION for a function of the user's; VARIABLE for a variable of a module that code
        names; ATTRIBUTE for what an object, a class, a closure or a default holds; PART for an
        element of a container that is one of these; NAME for the name of an attribute that an
        object in C has and looks up, such as `operator.attrgetter`.
      path: what messages call it, such as `module.rng`, `Augment.rng`.
      value: itself.
      module: of a VARIABLE or FUNCTION, the name of its module.
      name: of a VARIABLE, ATTRIBUTE or FUNCTION, its name there.
      owner: of an ATTRIBUTE of a class, that class.
      is_hook: whether it is of a class of the user's, and a base of a library may use it.
      is_named: whether code of the user's names it, or the container that it is part of.
    """

    kind: str
    path: str
    value: Any
    module: str = ""
    name: str = ""
    owner: type | None = None
    is_named: bool = True
    is_hook: bool = False


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
                if is_a(value, _DESCRIPTORS) or name in SAVING or name in OF_CLASSES:
                    continue
                if issubclass(base, type) and name in MAKING:  # these, too, run as one is made
                    continue
                if is_special and not hasattr(value, "__get__"):
                    continue  # the name of its module, say
                for inner in functions_of(value):
                    path = f"{base.__qualname__}.{name}"
                    found = Found(ATTRIBUTE, path, inner, name=name, owner=base, is_hook=is_hook)
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
    texts = _texts_of(function)
    return names.union(texts, *(text.split(".") for text in texts if _is_dotted(text)))


def _texts_of(function: types.FunctionType) -> frozenset[str]:
    """Returns the texts that may be names, of a function that looks names up as it runs."""
    found = mentions(function.__code__)
    scope = function.__globals__
    held = [scope.get(name) for name, *_ in found.chains]
    modules = [one for one in held if isinstance(one, types.ModuleType) and is_users(one.__name__)]
    held += [vars(one).get(name) for one in modules for name in found.names]
    held += [content(cell) for cell in function.__closure__ or ()]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    texts = found.texts.union(*map(_texts_in, held))
    if found.calls.isdisjoint(EVALUATING):
        return texts
    return texts.union(*map(names_in_text, found.expressions.union(*map(_texts_in, held))))


def _is_dotted(text: str) -> bool:
    return "." in text and all(part.isidentifier() for part in text.lstrip(".").split("."))


def _is_library(value: Any) -> bool:
    return is_a(value, types.ModuleType) and not is_users(value.__name__)


def _texts_in(value: Any) -> set[str]:
    """Returns a text, or those in a container, but for the names that a module has."""
    if type(value) is dict:
        is_scope = value is sys.modules or "__name__" in value
        parts: list[Any] = [] if is_scope else [*value, *value.values()]
    else:
        parts = [*value] if type(value) in (list, tuple, set, frozenset) else [value]
    texts = {part for part in parts[:_MOST_PARTS] if type(part) is str}
    return {text.replace(":", ".") for text in texts}  # as `module:name`


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
    if not found.calls.isdisjoint(("globals", "vars", "locals", *EVALUATING)):
        spaces.append((scope, scope.get("__name__") or ""))
    ends = [_follow(scope, scope.get("__name__") or "", chain) for chain in found.chains]
    for name, *rest in found.imports:
        full = absolute(name, package)
        if rest and rest[0] not in vars(outlines.module(full) or types):
            ends += _loaded_by(f"{full}.{rest[0]}")  # if that is a module
        ends += _loaded_by(full)
        source = outlines.module(full)
        if source is not None:
            # What a module only takes from another is followed where code names it.
            taken = () if function.__name__ == outlines.BODY else rest
            end = _follow(vars(source), source.__name__, taken)
            ends += [end] if isinstance(end, tuple) else [end, (vars(source), source.__name__)]
    if not found.calls.isdisjoint(("import_module", "__import__", "modules")):
        texts = sorted(text for text in _texts_of(function) if _is_dotted(f".{text}"))
        for name in texts[:_MOST_TEXTS]:
            full = absolute(name, package)
            ends += _loaded_by(full)
            source = outlines.module(full)
            if source is not None and is_users(full):  # handed on, and named elsewhere
                ends.append(Found(PART, full, source, full))
        sources = [sys.modules.get(absolute(name, package)) for name in sorted(names)]
        spaces += [(vars(one), one.__name__) for one in sources if one and is_users(one.__name__)]
    spaces += [end for end in ends if isinstance(end, tuple)]  # handed on, or looked into by text
    for space, module in spaces:
        known = sorted(names & space.keys())
        if "__getattr__" in space and is_users(module):
            known.append("__getattr__")
        ends += [_follow(space, module, [name]) for name in known]
    yield from (end for end in ends if isinstance(end, Found))


def _loaded_by(name: str) -> Iterator[Found | tuple[dict[str, Any], str]]:
    """Yields the modules of the user's that importing a name gives; of new ones their code, too."""
    for each in itertools.accumulate(name.split("."), "{}.{}".format):
        source = outlines.module(each)
        if source is not None and is_users(each):
            scope = vars(source)
            if isinstance(source, outlines.Outline):
                body = outlines.BODY
                yield Found(VARIABLE, f"{each}.{body}", scope[body], each, body)
            yield scope, each


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
        source, name = scope.get(outlines.ORIGINS, {}).get(name, (None, name))
        if source is not None:
            return _follow(vars(source), source.__name__, [name])
        value = scope[name]
        if not is_a(value, types.ModuleType):
            return Found(VARIABLE, f"{module}.{name}", value, module, name)
        scope, module = vars(value), value.__name__
    return scope, module


def _is_users_function(function: types.FunctionType) -> bool:
    scope = function.__globals__
    return is_users(scope.get("__name__") or "", scope.get("__file__"))
