"""Modules of one name: a worker imports modules by name, and so has only one of them."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

from grain_jax._algebra import reach
from grain_jax._algebra.mentions import mentions
from grain_jax._values.errors import InvalidValueError

__all__ = ["NamesakeError", "check", "check_functions"]


class NamesakeError(InvalidValueError):
    """A module that its name does not lead to in workers."""


def check(module: types.ModuleType) -> None:
    """Refuses a module of the user's that is not the one that importing its name gives here.

    Raises:
      NamesakeError: naming the module and both files.
    """
    name, file = vars(module).get("__name__"), vars(module).get("__file__")
    if not isinstance(name, str) or name not in sys.modules or sys.modules[name] is module:
        return
    if not reach.is_users(name, file):
        return
    other = getattr(sys.modules[name], "__file__", None)
    raise NamesakeError(
        f"the pipeline's code has a module {name!r} ({_place(file)}) that is another one than "
        f"`import {name}` gives now ({_place(other)}). Worker processes import modules by their "
        "names, and would have the second in place of the first. Give each a name of its own: "
        "rename one, or load it with importlib.util.spec_from_file_location(another_name, file); "
        "or hand on what is needed of it instead of the module: `scale = module.SCALE` outside "
        "the function. If the module was imported again on purpose, do so wherever it is used."
    )


def check_functions(functions: Iterable[types.FunctionType]) -> None:
    """Refuses such modules where the code of functions names them.

    Raises:
      NamesakeError: naming the module and both files.
    """
    for function in functions:
        scope = function.__globals__
        for cell in function.__closure__ or ():
            _check_if_module(reach.content(cell))
        for chain in mentions(function.__code__).chains:
            at: dict[str, Any] = scope
            for name in chain:
                value = at.get(name)
                if not _check_if_module(value):
                    break
                at = vars(value)


def _check_if_module(value: Any) -> bool:
    if type(value) is not types.ModuleType:
        return False
    check(value)
    return True


def _place(file: Any) -> str:
    return file if isinstance(file, str) else "not of a file"
