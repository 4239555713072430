"""Functions that functools has wrapped, on their way to the workers: caches and dispatchers.

By itself pickle writes a cache by name only, and cloudpickle the weak references of a dispatcher.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

__all__ = ["reduce"]

_CACHE = type(functools.cache(len))
_MAIN = ("__main__", "__mp_main__")
# What the wrapper takes over from what it wraps, when it is made again.
_GIVEN = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"}
_OF_DISPATCHERS = {"register", "dispatch", "registry", "_clear_cache"}


def reduce(obj: Any) -> tuple[Any, ...] | None:
    """How to pickle what functools has made of a function that is not imported by its name.

    A cache is empty where it arrives; a dispatcher has all that is registered with it.

    Returns:
      What `__reduce__` returns; None for all other objects.

    Raises:
      TypeError: a cache does not say which function it calls.
    """
    if type(obj) is _CACHE:
        return None if _is_importable(obj) else _reduce_cache(obj)
    if type(obj) is functools.cached_property:
        state = {name: part for name, part in vars(obj).items() if name != "lock"}
        return functools.cached_property, (obj.func,), state
    if type(obj) is functools.singledispatchmethod:
        registry = obj.dispatcher.registry
        # The caches that later versions of Python keep beside these are for this process.
        return functools.singledispatchmethod, (obj.func,), dict(registry), None, None, _register
    if _is_dispatcher(obj) and not _is_importable(obj):
        found = dict(obj.registry), _others(obj, _GIVEN | _OF_DISPATCHERS)
        return functools.singledispatch, (obj.__wrapped__,), found, None, None, _fill
    return None


def _reduce_cache(cache: Any) -> tuple[Any, ...]:
    called = vars(cache).get("__wrapped__")
    if not any(one is called for one in gc.get_referents(cache)):
        name = getattr(cache, "__qualname__", "a cache")
        raise TypeError(
            f"the __wrapped__ of {name} has been set to another function than the one that "
            "functools.lru_cache was given; put functools.lru_cache around what functools.wraps "
            "returns, not the other way round"
        )
    parameters = cache.cache_parameters()
    return _cached, (called, parameters["maxsize"], parameters["typed"]), _others(cache, _GIVEN)


def _is_dispatcher(obj: Any) -> bool:
    is_made_there = type(obj) is types.FunctionType and obj.__globals__ is vars(functools)
    return is_made_there and {"registry", "__wrapped__"} <= vars(obj).keys()


def _is_importable(wrapper: Any) -> bool:
    """Whether a worker has it where its name leads to."""
    name, path = getattr(wrapper, "__module__", None), getattr(wrapper, "__qualname__", None)
    if not isinstance(name, str) or not isinstance(path, str) or name in _MAIN:
        return False
    copied = cloudpickle.list_registry_pickle_by_value()
    if any(name == one or name.startswith(f"{one}.") for one in copied):
        return False
    try:
        return bool(operator.attrgetter(path)(sys.modules[name]) is wrapper)
    except (AttributeError, KeyError):
        return False


def _others(wrapper: Any, known: set[str]) -> dict[str, Any]:
    """The attributes that have been set by hand."""
    return {name: value for name, value in vars(wrapper).items() if name not in known}


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _register(method: Any, registry: Mapping[type, Any]) -> None:
    for kind, function in registry.items():
        method.dispatcher.register(kind, function)


def _fill(dispatcher: Any, state: tuple[Mapping[type, Any], dict[str, Any]]) -> None:
    registry, attributes = state
    for kind, function in registry.items():
        dispatcher.register(kind, function)
    vars(dispatcher).update(attributes)
