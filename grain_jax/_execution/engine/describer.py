"""Describer: says what is compared of a value, in bounded time and size.

Two processes describe equal values equally, whatever the order of their sets, the numbers of their
objects, and the lines that their code stands in. What cannot be compared without running code of
the user's is described by its type, and counts as equal.
"""

from __future__ import annotations

import abc
import collections
import enum
import functools
import itertools
import marshal
import re
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from grain_jax._algebra import reach
from grain_jax._execution.engine import changes, contents
from grain_jax._execution.engine.digests import code_digest, digest
from grain_jax._execution.engine.likeness import ONCE, TRUTH, WIDTH, Description, cut, fixed

__all__ = ["FLAT", "Describer"]

_MOST_PARTS = 2_000  # of one value; what lies beyond is not looked at
_MOST_FLAT = 100_000  # of one container of numbers and text, which are quicker to look at
_MOST_TEXT = 1 << 22  # characters of such a container
_MOST_SENT = 200  # of one value; more are sent as one digest
_MOST_BYTES = 1 << 20  # of one array; of a larger one, as many are looked at
_DEEPEST = 20

_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, type(...)})
FLAT = frozenset({type(None), bool, int, float, complex, str, bytes})
_TEXT = frozenset({str, bytes})
_BY_TEXT = (range, slice, np.dtype, types.UnionType, types.GenericAlias)
# By their names: a value of such a type has imported the module, and each worker would pay for it.
_BY_TEXT_NAMES = frozenset(
    {
        ("pathlib", "PurePath"),
        ("datetime", "date"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("uuid", "UUID"),
        ("ipaddress", "_IPAddressBase"),
        ("typing", "_GenericAlias"),
        ("zoneinfo", "ZoneInfo"),
    }
)
_LISTS: tuple[Any, ...] = (list, tuple, collections.deque)
_BUILT_IN = frozenset({*FLAT, bytearray, type(...), list, tuple, dict, set, frozenset, np.ndarray})
_SETTINGS = ((collections.defaultdict, "default_factory"), (collections.deque, "maxlen"))
_SETS: tuple[Any, ...] = (set, frozenset)
_CHANGING = (list, dict, set, bytearray, collections.deque, np.ndarray)
_RECORDS = (types.SimpleNamespace, threading.local)
_RECORD_NAMES = frozenset({("argparse", "Namespace")})


def _type_name(kind: type) -> str:
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


class Describer:
    """Describes values of one process.

    Args:
      names: the attributes that are compared of an object; code mentions no others.
      cells: variables of enclosing functions that code changes, which are not compared.
      growing: those of the names that code adds to; of mappings what both have is compared.
      made: attributes that code makes where they are absent, each with whether what is false is.
    """

    def __init__(
        self,
        names: frozenset[str],
        cells: frozenset[str] = frozenset(),
        growing: frozenset[str] = frozenset(),
        made: Mapping[str, bool] = types.MappingProxyType({}),
    ) -> None:
        self.names = names
        self._made = made
        self._growing = growing
        self._cells = cells
        self._left = 0
        self._open: dict[int, int] = {}  # what is being described, and how deep it lies

    def describe(self, value: Any) -> Description:
        """Returns the description of a value; never raises, and calls no code of its class."""
        self._left, self._open = _MOST_PARTS, {}
        try:
            described = self._describe(value)
        except Exception:
            return Description("opaque", _type_name(type(value)))
        used = _MOST_PARTS - self._left
        return described if used <= _MOST_SENT else _condensed(described)

    def label(self, key: Any) -> str:
        """Returns what messages call the entry of a key."""
        self._left, self._open = _MOST_PARTS, {}
        return f"[{self._key(key)}]"

    def _describe(self, value: Any) -> Description:
        kind = type(value)
        name = _type_name(kind)
        self._left -= 1
        single = _single(value, kind, name)
        if single is not None:
            return self._with_own(single, value, kind)
        depth = len(self._open)
        if id(value) in self._open:  # a ring
            up = depth - self._open[id(value)]
            return Description("ring", name, f"the same {name} again, {up} up", str(up))
        if depth > _DEEPEST:
            return Description("opaque", name)
        self._open[id(value)] = depth
        try:
            return self._with_own(self._describe_parts(value, kind, name), value, kind)
        finally:
            del self._open[id(value)]

    def _describe_parts(self, value: Any, kind: type, name: str) -> Description:
        if _is_of_process(value):
            return Description("opaque", name)
        if type(value) is np.ndarray and value.dtype == object:
            parts = ((f"[{i}]", part) for i, part in enumerate(_copied(value.flat)))
            return Description("list", f"{name} of shape {value.shape}", parts=self._each(parts))
        flat = _flat(value)
        if flat is not None:
            return Description("large", name, f"{name} of {len(value)}", digest(flat))
        if reach.is_a(value, (dict, types.MappingProxyType)):
            # An ordered one has an order of its own.
            kinds: tuple[Any, ...] = (collections.OrderedDict, dict, types.MappingProxyType)
            items = next(one for one in kinds if reach.is_a(value, one)).items(value)
            parts = ((f"[{self._key(key)}]", part) for key, part in _copied(items))
            return Description("mapping", name, parts=self._each(parts))
        for base in _LISTS:
            if reach.is_a(value, base):
                parts = ((f"[{i}]", part) for i, part in enumerate(_copied(base.__iter__(value))))
                return Description("list", name, parts=self._each(parts))
        for base in _SETS:
            if reach.is_a(value, base):
                count = base.__len__(value)
                if count > self._left:  # which come first is not the same everywhere
                    return Description("large", name, f"{name} of {count}", str(count))
                each = self._each(("", part) for part in _copied(base.__iter__(value)))
                found = [(label, fixed(part)) for label, part in each]
                ordered = sorted(
                    found, key=lambda pair: (pair[1].type, pair[1].text, pair[1].digest)
                )
                return Description("set", name, parts=tuple(ordered))
        return self._function(value) or self._describe_object(value, kind, name)

    def _describe_object(self, value: Any, kind: type, name: str) -> Description:
        """Describes an object of the user's by attributes, and of a library's if it is known."""
        inside = contents.inside(value)
        is_users = reach.is_users(kind.__module__)
        is_record = reach.is_a(value, _RECORDS) or contents.is_named(kind, _RECORD_NAMES)
        if inside is None and not is_users and not is_record:
            return Description("opaque", name)
        parts = self._each((inside or {}).items())
        if is_users or inside is None:
            parts += self._own(value, kind)
        origin = kind.__module__ if is_users else ""
        return Description("object", name, origin=origin, parts=parts)

    def _own(self, value: Any, kind: type) -> tuple[tuple[str, Description], ...]:
        """Describes the attributes of an object that code mentions."""
        held = contents.defaults(kind, self.names) | reach.attributes(value)
        names = (self.names | contents.stored(kind, self.names)) - contents.cached(kind)
        names = (names & held.keys()) - self._made.keys()
        chosen = [(f".{key}", held[key]) for key in sorted(names - self._growing)]
        growing = [(f".{key}", self._grown(held[key])) for key in sorted(names & self._growing)]
        made = () if reach.is_a(value, threading.local) else self._once(held)
        return (*self._each(chosen), *growing, *made)

    def _once(self, held: dict[str, Any]) -> tuple[tuple[str, Description], ...]:
        """Describes the attributes that code makes where they are absent."""
        found = []
        for key in sorted(held.keys() & self._made.keys()):
            left, self._left = self._left, _MOST_PARTS
            described = self._describe(held[key])
            described = (
                described if self._left >= _MOST_PARTS - _MOST_SENT else _condensed(described)
            )
            self._left = left
            made = TRUTH if self._made[key] else ONCE
            found.append((f".{key}", described._replace(made=made)))
        return tuple(found)

    def _with_own(self, described: Description, value: Any, kind: type) -> Description:
        """Adds what a container, array, number or text has besides what such things have."""
        if kind in _BUILT_IN or described.kind in ("object", "code", "opaque", "ring"):
            return described
        parts = self._each(
            (f".{name}", getattr(value, name))
            for base, name in _SETTINGS
            if reach.is_a(value, base)
        )
        if reach.is_users(kind.__module__):
            parts += self._own(value, kind)
        return described._replace(parts=(*described.parts, *parts)) if parts else described

    def _grown(self, value: Any) -> Description:
        """Describes a container that code adds to, whose size is not to count elsewhere."""
        left, described = self._left, Description("opaque", "", grows=True)
        if reach.is_a(value, dict) and len(value) <= _MOST_SENT:
            self._left = _MOST_SENT
            found = self._describe(value)
            described = found._replace(grows=True) if self._left > 0 else described
        self._left = left
        return described

    def _key(self, key: Any) -> str:
        described = fixed(self._describe(key))
        return described.text or f"{described} {described.digest}".strip()

    def _each(self, parts: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Description], ...]:
        found = []
        for label, part in parts:
            if self._left <= 0:
                found.append(("…", Description("opaque", "more")))
                break
            found.append((label, self._describe(part)))
        return tuple(found)

    def _function(self, value: Any) -> Description | None:
        """Describes code by the name it was defined with, and what it does."""
        wrapped: Any = getattr(value, "__wrapped__", None) if contents.is_cache(value) else value
        if reach.is_a(wrapped, (staticmethod, classmethod)):
            wrapped = wrapped.__func__
        if reach.is_a(wrapped, property):
            held = {f".{n}": getattr(wrapped, n) for n in ("fget", "fset", "fdel")}
            return Description("object", "property", parts=self._each(held.items()))
        if reach.is_a(wrapped, functools.cached_property):
            return self._describe(wrapped.func)
        if reach.is_a(wrapped, types.MethodType):
            held = {".__func__": wrapped.__func__, ".__self__": wrapped.__self__}
            return Description("object", "method", parts=self._each(held.items()))
        if reach.is_a(wrapped, types.FunctionType):
            return self._user_function(wrapped)
        if reach.is_a(wrapped, type):
            text, origin = f"class {_type_name(wrapped)}", wrapped.__module__
            sets: list[tuple[str, Any]] = []
            if reach.is_users(origin):
                sets.append((".__bases__", [_type_name(base) for base in wrapped.__bases__]))
            if "__subclasses__" in self.names and reach.is_users(origin):
                derived = type.__subclasses__(wrapped)
                known = {(one.__module__, one.__qualname__): one for one in derived}
                sets.append((".__subclasses__()", set(known.values())))
            if reach.is_a(wrapped, abc.ABCMeta) and reach.is_users(origin):
                sets.append((".register()", contents.registered(wrapped)))
            return Description("code", "", text, origin=origin, parts=self._each(sets))
        elif reach.is_a(wrapped, types.ModuleType):
            text, origin = f"module {wrapped.__name__}", wrapped.__name__
        elif reach.is_a(wrapped, (types.BuiltinFunctionType, np.ufunc)):
            origin = getattr(wrapped, "__module__", None) or ""
            text = f"function {origin}.{wrapped.__name__}"
        else:
            return None
        return Description("code", "", text, origin=origin)

    def _user_function(self, function: types.FunctionType) -> Description:
        text, origin = f"function {function.__module__}.{function.__qualname__}", ""
        scope = function.__globals__
        origin = scope.get("__name__") or ""
        if not reach.is_users(origin) or not _is_own_loader(scope):
            registry = _registry(function)
            parts = self._each([(".registry", registry)] if registry is not None else [])
            return Description("code", "", text, origin=origin, parts=parts)
        code = function.__code__
        cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
        counted = changes.changes(code).cells | self._cells
        held = {f" with {key}": reach.content(cell) for key, cell in cells if key not in counted}
        names = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        given |= function.__kwdefaults__ or {}
        # A default that can be changed in place is memory of the function's own.
        fixed = {key: part for key, part in given.items() if not reach.is_a(part, _CHANGING)}
        held |= {f"({key}=)": part for key, part in fixed.items()}
        own = vars(function)
        named = (own.keys() & self.names) - self._made.keys()
        held |= {f".{key}": own[key] for key in sorted(named)}
        parts = (*self._each(held.items()), *self._once(own))
        return Description("code", "", text, code_digest(code), origin, parts)


def _registry(function: types.FunctionType) -> Any:
    """Returns the functions by class of what `functools.singledispatch` has made, else None."""
    is_made_there = function.__globals__ is vars(functools)
    return getattr(function, "registry", None) if is_made_there else None


def _is_own_loader(scope: dict[str, Any]) -> bool:
    """Whether a module's code is that of its file, and no import hook has rewritten it."""
    loader = scope.get("__loader__")
    return loader is None or type(loader).__module__.partition(".")[0] in (
        "_frozen_importlib_external",
        "_frozen_importlib",
        "importlib",
        "zipimport",
    )


def _copied(parts: Iterable[Any]) -> list[Any]:
    # Another thread may change the container meanwhile.
    return list(_first(parts, _MOST_PARTS + 1))


def _is_of_process(value: Any) -> bool:
    """Whether it is the modules of this process, or the globals of one of them."""
    if value is sys.modules:
        return True
    if type(value) is not dict or type(value.get("__name__")) is not str:
        return False
    return value is getattr(sys.modules.get(value["__name__"]), "__dict__", None)


def _first(parts: Iterable[Any], count: int) -> Iterator[Any]:
    return itertools.islice(parts, count)


def _single(value: Any, kind: type, name: str) -> Description | None:
    """Describes a value that has no parts; None for others."""
    if kind in _SCALARS:
        text = hex(value) if kind is int and abs(value) >= 1 << 256 else repr(value)
        return Description("value", name, cut(text), digest(text) if len(text) > WIDTH else text)
    if reach.is_a(value, enum.Enum):
        own = object.__getattribute__(value, "__dict__")
        text = f"{kind.__qualname__}.{own.get('_name_')}"
        return Description("value", name, text, f"{text} {own.get('_value_')!r:.1000}")
    if type(value) is np.ndarray and value.dtype == object:
        return None
    if contents.is_masked(kind):
        return None
    if reach.is_a(value, (np.generic, np.ndarray)):
        return _array(value, name)
    if reach.is_a(value, re.Pattern):
        return Description("value", name, cut(repr(value)), f"{value.pattern!r} {value.flags}")
    for base in (bool, int, float, complex, str, bytes):
        if reach.is_a(value, base):  # of a subclass
            text = base.__repr__(value)
            return Description("value", name, cut(text), digest(text))
    is_by_text = reach.is_a(value, _BY_TEXT) or contents.is_named(kind, _BY_TEXT_NAMES)
    if is_by_text and kind.__module__ != "__main__" and not reach.is_users(kind.__module__):
        text = repr(value)
        return Description("value", name, cut(text), digest(text) if len(text) > WIDTH else text)
    return None


def _flat(value: Any) -> bytes | None:
    """Returns a long container of numbers and text as bytes, equal where they are; else None."""
    kind = type(value)
    if kind not in (list, tuple, set, frozenset, dict) or len(value) <= _MOST_SENT:
        return None
    if kind in (set, frozenset) and len(value) > _MOST_FLAT:
        return None
    keys = list(_first(value, _MOST_FLAT))
    parts = [keys, list(_first(value.values(), _MOST_FLAT))] if kind is dict else [keys]
    length = 0
    for part in parts:
        kinds = set(map(type, part))
        if not kinds <= FLAT:
            return None
        if kinds & _TEXT:
            texts = part if kinds <= _TEXT else [one for one in part if type(one) in _TEXT]
            length += sum(map(len, texts))
    if length > _MOST_TEXT:
        return None
    # Version 2 does not tell which texts are the same object; sets are written in a fixed order.
    whole = value if kind in (set, frozenset) else parts
    return marshal.dumps((len(value), whole), 2)


def _array(value: Any, name: str) -> Description:
    dtype = str(value.dtype)
    if value.dtype.hasobject:
        return Description("opaque", name)
    if reach.is_a(value, np.generic) or not value.ndim:
        text = f"{np.ndarray.__str__(np.asarray(value))!s} of dtype {dtype}"
        data = np.asarray(value).tobytes()
        return Description("value", name, cut(text), digest(dtype, data))
    plain = np.asarray(value).flat[: max(1, _MOST_BYTES // max(1, value.itemsize))]
    summed = digest(dtype, repr(value.shape), plain.tobytes())
    few = ", ".join(map(str, plain[:4].tolist()))
    text = f"array([{few}{', …' * (plain.size > 4)}]) of {dtype}, shape {value.shape}"
    return Description("value", name, cut(text), summed)


def _condensed(described: Description) -> Description:
    """Returns a description of one digest."""
    described = fixed(described)
    text = f"{described} ({len(described.parts)} parts)"
    return Description("large", described.type, text, digest(repr(described)))
