"""Globals of a script that its code looks up as it runs: in a worker it finds them, or an error.

Functions of a script travel by value with the globals that they name. Code that has `globals()`,
`sys.modules`, `import __main__`, `eval` and their like names others as it runs; then all of them
travel, and a worker has a module of the script's name. What does not travel (an open file, much
data, what libraries have made that workers do not import) has something in its place that says so
as it is used.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.machinery
import itertools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle

from grain_jax._algebra import reach
from grain_jax._algebra.mentions import Mentions, mentions
from grain_jax._values.errors import DriftError

__all__ = ["Sent", "install", "is_script", "module_of", "named", "of", "searched", "sent"]

# How code gets at globals by name: calls of built-ins, attributes, and modules that pickle by name.
_CALLS = frozenset(("eval", "exec"))
_BY_VALUE = (globals, eval, exec, sys.modules)
_ATTRIBUTES = frozenset(
    ("globals", "__globals__", "f_globals", "get_type_hints", "getmodule", "__main__")
)
_IMPORTS = frozenset(("import_module", "__import__"))
_PICKLERS = frozenset(("pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve"))

_HEAD = ("__name__", "__package__", "__path__", "__file__")
_OF_MODULE = {*_HEAD, "__builtins__", "__cached__", "__loader__", "__spec__"}
TryOut = Callable[[Any], tuple[str, list[str]]]

# Modules that each worker has, or that cost nothing.
_LIGHT = frozenset(("numpy", "grain_jax._values", "grain_jax._algebra"))


class Namespace(dict[str, Any]):
    """The globals of functions that travel by value; in a worker, those of a module."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (dict(self),)


def of(scope: dict[str, Any]) -> dict[str, Any]:
    """Returns what stands for the globals of functions on their way, with the names of a module."""
    head = {name: scope[name] for name in _HEAD if name in scope}
    return Namespace(head) if isinstance(scope.get("__name__"), str) else head


def _travels(scope: dict[str, Any]) -> bool:
    """Whether a worker has these globals by no import."""
    name = scope.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if type(module) is not types.ModuleType or vars(module) is not scope or is_script(module):
        return True
    above = itertools.accumulate(module.__name__.split("."), "{}.{}".format)
    return not cloudpickle.list_registry_pickle_by_value().isdisjoint(above)


def is_script(module: types.ModuleType) -> bool:
    """Whether a module is the program itself."""
    return module.__name__ in ("__main__", "__mp_main__")


def searched(
    by_value: Iterable[types.FunctionType], named: Iterable[types.FunctionType]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns globals that code looks up as it runs: of any name, and classes that it pickles.

    Args:
      by_value: functions that travel with the globals that they name.
      named: functions of modules that workers import.
    """
    main = vars(sys.modules["__main__"])
    anything: dict[int, dict[str, Any]] = {}
    pickled: dict[int, dict[str, Any]] = {}
    for function in by_value:
        scope, found = function.__globals__, mentions(function.__code__)
        if _looks_up(scope, found):
            anything[id(scope)] = scope
            if not _names(found).isdisjoint(("__main__", "modules")):
                anything[id(main)] = main
        elif any(_is_pickler(scope.get(chain[0])) for chain in found.chains) or any(
            name.partition(".")[0] in _PICKLERS for name, *_ in found.imports
        ):
            pickled[id(scope)] = scope
    for function in named:
        found = mentions(function.__code__)
        names = _names(found)
        if "__main__" in names or "f_globals" in names or {"modules", "__module__"} <= names:
            anything[id(main)] = main
    return list(anything.values()), [one for key, one in pickled.items() if key not in anything]


def _names(found: Mentions) -> set[str]:
    return {*found.names, *found.texts}.union(*found.chains, *found.imports)


def _looks_up(scope: dict[str, Any], found: Mentions) -> bool:
    heads = {chain[0] for chain in found.chains}
    names = _names(found)
    if not _CALLS.isdisjoint(heads) or not _ATTRIBUTES.isdisjoint(names):
        return True
    is_own = "__name__" in heads or "__module__" in names
    if is_own and not _IMPORTS.isdisjoint(names):
        return True
    if "modules" in names:  # unless it asks for another module, by a constant
        return is_own or not any(text in sys.modules for text in found.texts)
    for value in map(scope.get, heads):
        if any(value is one for one in _BY_VALUE):
            return True
        if type(value) is types.ModuleType and vars(value) is scope:
            return True
    return False


def _is_pickler(value: Any) -> bool:
    if type(value) is types.ModuleType:
        return value.__name__.partition(".")[0] in _PICKLERS
    is_code = isinstance(value, types.FunctionType | types.BuiltinFunctionType | type)
    return is_code and str(value.__module__).partition(".")[0] in _PICKLERS


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a worker adds to the globals of functions.

    Attributes:
      scope: the globals.
      values: more of them, by name; None for those that importing their module gives.
    """

    scope: dict[str, Any]
    values: dict[str, Any] | None


def named(scope: dict[str, Any], known: Iterable[Any]) -> dict[str, Any]:
    """Returns those globals that are one of the objects that travel anyway."""
    numbers = set(map(id, known))
    return {name: value for name, value in list(scope.items()) if id(value) in numbers}


def sent(scope: dict[str, Any], there: Iterable[str], try_out: TryOut) -> dict[str, Any] | None:
    """Returns what travels of the globals of a module, with something in the place of the rest.

    Args:
      scope: the globals.
      there: names that a worker has already.
      try_out: says of a value why it cannot travel, or "", and which modules it imports.

    Returns:
      None where the worker has them by an import.
    """
    if not _travels(scope):
        return None
    known = {*there, *_OF_MODULE}
    values: dict[str, Any] = {}
    for name, value in list(scope.items()):
        if name not in known and isinstance(name, str):
            values[name] = _sent(f"{scope.get('__name__')}.{name}", value, try_out)
    return values


def _sent(name: str, value: Any, try_out: TryOut) -> Any:
    if type(value) is types.ModuleType:
        return value if _is_light(value.__name__) else _LeftModule(value.__name__)
    kind = type(value)
    is_code = isinstance(value, type | types.FunctionType)
    if kind.__module__.partition(".")[0] == "grain_jax" and not is_code:
        why, imported = "it is a part of a pipeline", list[str]()
    else:
        why, imported = try_out(value)
    heavy = [one for one in imported if not _is_light(one)]
    if heavy and not why:
        why = f"it needs the module {heavy[0]}, which the pipeline does not name"
    if not why:
        return value
    bases = value.__mro__ if isinstance(value, type) else ()
    known = tuple(base for base in bases if _nearest(base, try_out) is base)
    return _Left(name, why, _nearest(kind, try_out), known, callable(value))


def _nearest(kind: type, try_out: TryOut) -> type | None:
    """Returns the first base of a class that workers can have; None if a class is the user's."""
    for base in kind.__mro__:
        problem, needed = try_out(base)
        if not problem and all(map(_is_light, needed)):
            return base
        if reach.is_users(base.__module__):
            break
    return None


def _is_light(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in _LIGHT:
        return True
    return any(module == one or module.startswith(f"{one}.") for one in _LIGHT)


@dataclasses.dataclass(frozen=True)
class _LeftModule:
    """A module that need not be imported, in the trainer."""

    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _later, (self.name,)


class _Later(types.ModuleType):
    """A module that is imported when something of it is needed."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__path__", "__file__", "__wrapped__") and self.__name__ not in sys.modules:
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def _later(name: str) -> types.ModuleType:
    return sys.modules.get(name) or _Later(name)


@dataclasses.dataclass(frozen=True)
class _Left:
    """A global that does not travel, in the trainer.

    Attributes:
      name: with its module.
      why: does it not.
      kind: its class, where workers can have that.
      bases: of a class, those that workers can have.
      is_called: whether it can be called.
    """

    name: str
    why: str
    kind: type | None
    bases: tuple[type, ...]
    is_called: bool

    def __reduce__(self) -> tuple[Any, ...]:
        holder = _AbsentCall if self.is_called else _Absent
        return holder, (self.name, self.why, self.kind, self.bases)


class _Absent:
    """Stands for a global that did not travel: any use is an error that names it."""

    def __init__(self, name: str, why: str, kind: type | None, bases: tuple[type, ...]) -> None:
        held = object.__getattribute__(self, "__dict__")
        held.update(name=name, why=why, kind=kind, bases=bases)

    def __getattribute__(self, name: str) -> Any:
        held = object.__getattribute__(self, "__dict__")
        if name == "__class__" and held["kind"] is not None:
            return held["kind"]  # so that `isinstance` is right, and
        if name == "__bases__" and held["bases"]:
            return held["bases"]  # `issubclass`
        raise DriftError(
            f"{held['name']} was looked up by its name in a worker process, and is not there: "
            f"{held['why']}. Name it in the code of the step (as a global variable, without "
            "globals() and its like), or hand it to the step, so that it travels with that."
        )


class _AbsentCall(_Absent):
    """Stands for one that can be called."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.used


def _use(self: _Absent, *_: Any) -> Any:
    return self.used


# What operators and functions of Python call by the class.
for _name in """
    add and bool bytes complex contains delattr delitem dir divmod enter eq exit float floordiv
    format ge getitem gt hash index int invert iter le len lshift lt matmul mod mul ne neg next or
    pos pow radd rand rdivmod repr reversed rfloordiv rlshift rmatmul rmod rmul ror round rpow
    rrshift rshift rsub rtruediv rxor setattr setitem str sub truediv trunc xor
    """.split():  # noqa: SIM905
    setattr(_Absent, f"__{_name}__", _use)


_made_here: dict[int, types.ModuleType] = {}  # by their globals


def _made(head: dict[str, Any]) -> dict[str, Any]:
    """Makes globals that are those of a module, which nobody finds before `install`."""
    module = types.ModuleType(head["__name__"])
    vars(module).update(head)
    package = head.get("__package__")
    # What a step starts by multiprocessing would else run the script.
    name = f"{package}.__main__" if package else "__main__"
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    _made_here[id(vars(module))] = module
    return vars(module)


def module_of(scope: dict[str, Any]) -> types.ModuleType:
    """Returns the module of globals that have arrived."""
    return _made_here[id(scope)]


def install(parts: Iterable[Sent]) -> None:
    """Completes globals, and makes those that no import gives the ones of their module's name."""
    for part in parts:
        values = part.values
        if values is None:
            values = vars(importlib.import_module(part.scope["__name__"]))
        for name, value in values.items():
            if name not in part.scope or type(part.scope[name]) in (_Absent, _AbsentCall):
                part.scope[name] = value
        module = _made_here.get(id(part.scope))
        if module is not None and part.values is not None:
            sys.modules[module.__name__] = module
