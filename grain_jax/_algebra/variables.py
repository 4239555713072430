"""What the code of one function names: attributes, and variables of modules."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from grain_jax._algebra import outlines
from grain_jax._algebra.found import PART, VARIABLE, Found
from grain_jax._algebra.insides import attributes, content, is_a, is_users
from grain_jax._algebra.mentions import (
    EVALUATING,
    Mentions,
    absolute,
    mentions,
    names_in_text,
    writes,
)

__all__ = ["names_in", "variables"]

_LISTING = frozenset({"dir", "vars"})
_MOST_PARTS = 1_000
_MOST_TEXTS = 64  # that may be names of modules which are not loaded


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
    lists = not _LISTING.isdisjoint([one for one, *_ in found.chains])
    if not found.is_dynamic and not lists:
        return names
    names = names.union(_listed(function, found, lists))
    texts = _texts_of(function)
    return names.union(texts, *(text.split(".") for text in texts if _is_dotted(text)))


def _listed(function: types.FunctionType, found: Mentions, lists: bool) -> set[str]:
    """Returns the names that code finds in lists of them, by a beginning, or all of an object's."""
    scope = function.__globals__
    beginnings = tuple(text for text in found.names if text[-1:] == "_" and text.strip("_"))
    names: set[str] = set()
    if beginnings:
        spaces: list[Mapping[str, Any]] = [scope]
        for value in list(scope.values()):
            kind = value if is_a(value, type) else type(value)
            if is_users(kind.__module__):
                spaces += [vars(base) for base in kind.__mro__ if is_users(base.__module__)]
        names.update(name for one in spaces for name in list(one) if name.startswith(beginnings))
    # Code that writes there, too, may have made these itself.
    is_open = (lists or "__dict__" in found.names) and not writes(function.__code__)
    for chain in found.chains if is_open else ():
        value = scope.get(chain[0])
        if is_users(type(value).__module__):
            names.update(name for name in attributes(value) if type(name) is str)
    return names


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
