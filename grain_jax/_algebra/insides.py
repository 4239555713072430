"""What objects hold, and whose a module is, told without running code of the user's."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
import types
from typing import Any

__all__ = ["attributes", "content", "functions_of", "is_a", "is_users"]

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
