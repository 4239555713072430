"""What objects of libraries hold that is compared: of mappings, sequences, tables, and the like."""

from __future__ import annotations

import abc
import array
import collections
import contextvars
import functools
import gc
import operator
import struct
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from grain_jax._algebra import reach

__all__ = [
    "behind",
    "cached",
    "defaults",
    "inside",
    "is_cache",
    "is_masked",
    "is_named",
    "registered",
    "returned",
    "stored",
]

_MOST_BYTES = 1 << 20  # of an array of JAX
_MOST_ROWS = 100_000  # of a table; what lies beyond is not looked at

# By their attributes, with what classes of the user's own derive from them.
_HELD: tuple[tuple[type, tuple[str, ...]], ...] = (
    (functools.partial, ("func", "args", "keywords")),
    (functools.partialmethod, ("func", "args", "keywords")),
    (functools.singledispatchmethod, ("dispatcher",)),
    (collections.UserDict, ("data",)),
    (collections.UserList, ("data",)),
    (collections.UserString, ("data",)),
    (collections.ChainMap, ("maps",)),
)

# By the name of their class or of one that it derives from, so that no library is imported.
_HELD_BY_NAME = {
    ("configparser", "RawConfigParser"): ("_sections", "_defaults"),
    ("configparser", "SectionProxy"): ("_name", "_parser"),
    ("immutabledict", "immutabledict"): ("_dict",),
    ("omegaconf", "BaseContainer"): ("_content",),
    ("omegaconf", "ValueNode"): ("_val",),
    ("flax", "FrozenDict"): ("_dict",),
    ("ml_collections", "ConfigDict"): ("_fields",),
    ("numpy", "vectorize"): ("pyfunc", "otypes", "signature", "excluded"),
    ("logging", "LoggerAdapter"): ("extra",),
    ("string", "Template"): ("template",),
    ("ml_collections", "FrozenConfigDict"): ("_fields",),
    ("numpy", "poly1d"): ("coeffs", "_variable"),
    ("numpy", "Polynomial"): ("coef", "domain", "window"),
}

_UNSET = object()
_VIEWS = frozenset({type({}.keys()), type({}.values()), type({}.items())})
_CONTAINERS = (dict, list, set, collections.deque, bytearray)
_PLAIN = frozenset({bool, int, float, complex, str, bytes})
_CACHE = type(functools.cache(len))
_CALLS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


def inside(value: Any) -> dict[str, Any] | None:
    """Returns what is compared of an object of a library, by what messages call it.

    Returns:
      None for objects that are not compared.
    """
    kind = type(value)
    for base, names in _HELD:
        if reach.is_a(value, base):
            held = reach.attributes(value)
            return {f".{name}": held[name] for name in names if name in held}
    if reach.is_a(value, BaseException):
        return {".args": vars(BaseException)["args"].__get__(value)}
    if kind is struct.Struct:
        return {".format": value.format}
    if kind in _CALLS:
        return _arguments(*value.__reduce__())
    if kind is contextvars.ContextVar:
        current = value.get(_UNSET)
        try:
            return {".get()": value.get() if current is _UNSET else current}
        except LookupError:  # neither set, nor with a default
            return {}
    if kind in (array.array, memoryview):
        return {"": np.asarray(value)}
    if (weak := reach.unweak(value)) is not None:
        return {"()": weak[0]} if type(weak) is tuple else {"": weak}
    for known in _names(kind):
        if known in _HELD_BY_NAME:
            held = reach.attributes(value)
            return {f".{name}": held[name] for name in _HELD_BY_NAME[known] if name in held}
    read = _TABLES.get(_name(kind))
    return read(value) if read is not None else None


def is_named(kind: type, names: frozenset[tuple[str, str]]) -> bool:
    """Whether a type is one of these, or derives from one: (top module, name of the class)."""
    return not names.isdisjoint(_names(kind))


def _names(kind: type) -> list[tuple[str, str]]:
    return list(map(_name, kind.__mro__))


def _name(kind: type) -> tuple[str, str]:
    return kind.__module__.partition(".")[0], kind.__name__


def cached(kind: type) -> set[str]:
    """Returns the attributes of a class's objects that are made when they are first asked for."""
    return {
        name
        for base in kind.__mro__
        for name, value in vars(base).items()
        if reach.is_a(value, functools.cached_property)
    }


def defaults(kind: type, names: frozenset[str]) -> dict[str, Any]:
    """Returns numbers and texts of these names that objects have from classes of the user's."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if reach.is_users(base.__module__):
            for name in vars(base).keys() & names:
                found[name] = vars(base)[name]
    return {name: value for name, value in found.items() if type(value) in _PLAIN}


def is_cache(function: Any) -> bool:
    """Whether it is a function with a cache of `functools`."""
    return type(function) is _CACHE


def behind(value: Any) -> Any:
    """Returns the container that a built-in method or a view belongs to; None for anything else."""
    if type(value) in _VIEWS:
        return next((one for one in gc.get_referents(value) if reach.is_a(one, dict)), None)
    if type(value) is types.BuiltinMethodType and reach.is_a(value.__self__, _CONTAINERS):
        return value.__self__
    return None


def returned(function: Any) -> Any:
    """Returns what a function with a cache has given without arguments; None if it has not."""
    held = (one for one in gc.get_referents(function) if type(one) is dict and () in one)
    return None if next(held, None) is None else function()  # from the cache: nothing runs


def stored(kind: type, names: frozenset[str]) -> set[str]:
    """Returns the names under which descriptors of the user's keep attributes of these names."""
    found: set[str] = set()
    for base in kind.__mro__:
        for name in vars(base).keys() & names:
            value = vars(base)[name]
            if reach.is_users(type(value).__module__) and hasattr(type(value), "__get__"):
                held = reach.attributes(value).values()
                found |= {text for text in held if type(text) is str}
    return found


def is_masked(kind: type) -> bool:
    """Whether it is the class of arrays with a mask."""
    return _name(kind) == ("numpy", "MaskedArray")


def registered(kind: Any) -> set[type]:
    """Returns the classes that an abstract class counts as its own by `register`."""
    found: set[type] = set()
    for one in (kind, *type.__subclasses__(kind)):
        if reach.is_a(one, abc.ABCMeta):
            registry, *_ = abc._get_dump(one)  # type: ignore[attr-defined]
            found.update(there for ref in registry if (there := ref()) is not None)
    return found


def _of_jax(value: Any) -> dict[str, Any] | None:
    """Returns an array of JAX that is small, and equal on all devices."""
    if not value.is_fully_addressable or value.nbytes > _MOST_BYTES or "key<" in str(value.dtype):
        return None
    is_alike = all(device.platform == "cpu" for device in value.devices())
    is_exact = is_alike or np.dtype(value.dtype).kind in "iub"
    return {"": np.asarray(value)} if is_exact else None


def _arguments(made: Any, given: tuple[Any, ...]) -> dict[str, Any]:
    """Returns the arguments of what makes an object again."""
    keywords = made.keywords if isinstance(made, functools.partial) else {}
    by_place = {f"({at})": part for at, part in enumerate(given)}
    return by_place | {f"({key}=)": part for key, part in keywords.items()}


def _frame_of_pandas(table: Any) -> dict[str, Any]:
    few = table.iloc[:_MOST_ROWS]
    columns = {f"[{name!r}]": _column(few.iloc[:, at]) for at, name in enumerate(few.columns)}
    return {".columns": list(table.columns), ".shape": table.shape, **columns, **_index(few)}


def _series_of_pandas(column: Any) -> dict[str, Any]:
    few = column.iloc[:_MOST_ROWS]
    return {".shape": column.shape, ".values": _column(few), **_index(few)}


def _index(table: Any) -> dict[str, Any]:
    return {".index": _column(table.index.to_series())}


def _frame_of_polars(table: Any) -> dict[str, Any]:
    few = table.head(_MOST_ROWS)
    columns = {f"[{one.name!r}]": _column(one) for one in few.get_columns()}
    return {".columns": list(table.columns), ".shape": table.shape, **columns}


def _series_of_polars(column: Any) -> dict[str, Any]:
    return {".shape": column.shape, ".values": _column(column.head(_MOST_ROWS))}


def _masked(array: Any) -> dict[str, Any]:
    mask = np.broadcast_to(np.asarray(array.mask), array.shape)
    data = np.array(array.data)
    if mask.dtype == bool:
        data[mask] = 0  # what is there does not count
    return {"": data, ".mask": np.array(mask), ".fill_value": array.fill_value}


def _column(column: Any) -> Any:
    """Returns a column as an array, or as a list of what it holds."""
    found = column.to_numpy()
    return [str(column.dtype), column.to_list()] if found.dtype.hasobject else found


_TABLES: dict[tuple[str, str], Callable[[Any], dict[str, Any] | None]] = {
    ("jaxlib", "ArrayImpl"): _of_jax,
    ("numpy", "MaskedArray"): _masked,
    ("pandas", "DataFrame"): _frame_of_pandas,
    ("pandas", "Series"): _series_of_pandas,
    ("polars", "DataFrame"): _frame_of_polars,
    ("polars", "Series"): _series_of_polars,
}
