"""Classes that the user has registered as nodes of trees with JAX, on their way to the workers.

A module that a worker imports registers its own classes there. What a script defines, and what it
registers of other modules, has to be registered anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import operator
import sys
import types
from collections.abc import Iterable
from typing import Any

from grain_jax._execution.engine import culprit
from grain_jax._values import faults
from grain_jax._values.errors import InvalidTypeError

__all__ = ["Registration", "apply", "read"]


@dataclasses.dataclass(frozen=True)
class Registration:
    """How to register a class.

    Attributes:
      kind: the class.
      function: of `jax.tree_util`.
      arguments: after the class.
    """

    kind: type
    function: str
    arguments: tuple[Any, ...]


def read(by_value: Iterable[Any], named: Iterable[Any]) -> list[Registration]:
    """Returns what workers have to register: of classes that travel by value, and by name.

    Raises:
      InvalidTypeError: the registration of a class that travels by value cannot be read.
    """
    tree_util = sys.modules.get("jax.tree_util")
    if tree_util is None:
        return []
    is_node = _is_node(tree_util)
    found = [_of(kind) for kind in by_value if _is_registered(kind, is_node)]
    for kind in named:
        if _is_registered(kind, is_node) and not _is_installed(kind):
            # Its own module may register it; then nothing of this is needed.
            with contextlib.suppress(InvalidTypeError):
                one = _of(kind)
                found += [one] if culprit.pickles(one) else []
    return found


def _is_registered(kind: Any, is_node: Any) -> bool:
    """Whether it is a class that somebody has registered: every named tuple is a node by itself."""
    if not isinstance(kind, type) or not is_node(kind):
        return False
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return kind in _entries() or not is_named_tuple


def _is_installed(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or faults.is_installed(file)


def _is_node(tree_util: Any) -> Any:
    registry = getattr(tree_util, "default_registry", None)
    return getattr(registry, "is_node", lambda kind: kind in _entries())


def _entries() -> dict[type, Any]:
    # JAX has no public way to ask how a class was registered.
    entries: dict[type, Any] = getattr(sys.modules.get("jax._src.tree_util"), "_registry", {})
    return entries


def _of(kind: type) -> Registration:
    entry = _entries().get(kind)
    flatten = getattr(entry, "to_iter", None)
    unflatten = getattr(entry, "from_iter", None)
    if flatten is None or unflatten is None:
        raise InvalidTypeError(
            f"{kind.__qualname__} is registered as a node of trees in a way that JAX does not "
            "tell, so workers cannot register it. Register it with "
            "jax.tree_util.register_pytree_node, or define and register it in a module that "
            "workers import."
        )
    inside = inspect.getclosurevars(flatten).nonlocals if _is_closure(flatten) else {}
    if {"data_fields", "meta_fields"} <= set(inside) and _is_jax(flatten):
        data, meta = inside["data_fields"], inside["meta_fields"]
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        dropped = [one.name for one in fields if one.init and one.name not in (*data, *meta)]
        return Registration(kind, "register_dataclass", (list(data), list(meta), dropped))
    if "flatten_with_keys" in inside and _is_jax(flatten):
        arguments = inside["flatten_with_keys"], unflatten
        return Registration(kind, "register_pytree_with_keys", arguments)
    if isinstance(flatten, operator.methodcaller) and hasattr(kind, "tree_flatten_with_keys"):
        return Registration(kind, "register_pytree_with_keys_class", ())
    return Registration(kind, "register_pytree_node", (flatten, unflatten))


def _is_closure(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__closure__ is not None


def _is_jax(function: Any) -> bool:
    return str(function.__module__).partition(".")[0] == "jax"


def apply(registrations: Iterable[Registration]) -> None:
    """Registers classes that are not registered yet in this process."""
    todo = list(registrations)
    if not todo:
        return
    import jax.tree_util

    is_node = _is_node(jax.tree_util)
    for one in todo:
        if not _is_registered(one.kind, is_node):
            getattr(jax.tree_util, one.function)(one.kind, *one.arguments)
