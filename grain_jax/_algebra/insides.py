"""What objects hold, and whose a module is, told without running code of the user's."""

from __future__ import annotations

import functools
import gc
import importlib
import operator
import os
import sys
import sysconfig
import threading
import types
import weakref
from typing import Any

import numpy as np

__all__ = [
    "attributes",
    "content",
    "functions_of",
    "has_library_base",
    "held_in_c",
    "is_a",
    "is_users",
    "names_for",
    "unweak",
]

# Bases that call special methods only, which count as called anyway, or what is known to be called.
_PLAIN_BASES = frozenset(
    {"builtins", "abc", "typing", "typing_extensions", "collections.abc", "enum", "grain_jax"}
)
_LOOKING_UP = (getattr, hasattr, setattr, importlib.import_module)
_WEAK = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet)

_LIBRARIES = tuple(
    os.path.normpath(path) + os.sep
    for path in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        os.path.dirname(os.path.dirname(__file__)),
    }
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


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


def has_library_base(kind: type) -> bool:
    """Whether a class derives from one of a library, which may call and read what it defines."""
    return any(
        base.__module__ not in _PLAIN_BASES
        and base.__module__.partition(".")[0] != "grain_jax"
        and not is_users(base.__module__)
        for base in kind.__mro__
    )


def names_for(value: Any) -> list[str]:
    """Returns the names that an object in C has to look up, such as `operator.attrgetter`."""
    given: tuple[Any, ...] = ()
    if type(value) in (operator.attrgetter, operator.methodcaller):
        made, given = value.__reduce__()
        given = (*made.args, *given) if is_a(made, functools.partial) else given
    elif is_a(value, functools.partial) and value.func in _LOOKING_UP:
        given = (*value.args, *value.keywords.values())
    texts = [text for text in given if type(text) is str]
    return [name for text in texts for name in text.split(".")]


def held_in_c(value: Any) -> list[Any]:
    """Returns what is the user's of that which an object in C holds: functions above all."""
    weak = unweak(value)
    if weak is not None:
        return [weak]
    if not _is_in_c(value):
        return []
    return [part for part in gc.get_referents(value) if _may_be_users(part)]


def _may_be_users(part: Any) -> bool:
    """Whether it is code or an object of the user's, or may lead to one."""
    if is_a(part, type):
        return is_users(part.__module__)
    if is_a(part, (types.FunctionType, types.MethodType)):
        return True
    if type(part) is tuple:
        return len(part) < 9
    return is_users(type(part).__module__) or _is_in_c(part)


def _is_in_c(value: Any) -> bool:
    """Whether an object has no attributes of its own, and so holds what it does in C."""
    if is_a(value, (types.ModuleType, types.CodeType, dict, list, set, frozenset, type)):
        return False
    kind = type(value)
    if is_a(value, np.ndarray) or kind.__module__.startswith("numpy.random"):
        return False
    return kind.__dictoffset__ == 0 or not getattr(value, "__dict__", None)


def unweak(value: Any) -> Any:
    """Returns what a weak container or reference leads to now; None for others."""
    if is_a(value, weakref.ref):
        return (weakref.ref.__call__(value),)
    if not is_a(value, _WEAK):
        return None
    held = list(value.data) if is_a(value, weakref.WeakSet) else list(value.data.items())
    if is_a(value, weakref.WeakSet):
        return {one for ref in held if (one := ref()) is not None}
    if is_a(value, weakref.WeakKeyDictionary):
        return {one: part for ref, part in held if (one := ref()) is not None}
    return {key: one for key, ref in held if (one := ref()) is not None}
