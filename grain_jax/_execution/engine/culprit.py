"""Which part of a value does not pickle."""

from __future__ import annotations

import functools
import io
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

__all__ = ["describe", "pickles"]

_DEEPEST = 30

Reduce = Callable[[Any], Any]


def _as_usual(obj: Any) -> None:
    return None


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    def __init__(self, refused: tuple[type, ...], reduce: Reduce) -> None:
        super().__init__(io.BytesIO(), 5, lambda _: None)
        self._refused, self._reduce = refused, reduce

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, self._refused):
            raise TypeError
        reduced = self._reduce(obj)
        if reduced is not None:
            return reduced
        return super().reducer_override(obj)


def describe(value: Any, refused: tuple[type, ...] = (), reduce: Reduce = _as_usual) -> str:
    """Returns which part of a value does not pickle, with its place and type, as a sentence.

    Args:
      value: what does not pickle.
      refused: further types that must not be in it.
      reduce: returns how an object is pickled in another way than usual, or None.
    """
    path: list[tuple[str, Any]] = []
    seen: set[int] = set()
    part = value
    while len(path) < _DEEPEST:
        seen.add(id(part))
        found = next(
            (
                p
                for p in _parts(part)
                if id(p[1]) not in seen and not pickles(p[1], refused, reduce)
            ),
            None,
        )
        if found is None:
            break
        path.append(found)
        part = found[1]
    kind = type(part)
    where = path[-1][0] if path else "it"
    if where.startswith((".", "[")):
        holder = path[-2][1] if len(path) > 1 else value
        where = f"{where.lstrip('.')} of {_name(holder)}"
    steps = [_name(step) for _, step in path[:-1] if callable(step)]
    inside = f" (inside {steps[-1]})" if steps and steps[-1] not in where else ""
    return f"{where} is a {kind.__module__}.{kind.__qualname__}, which does not pickle{inside}"


def pickles(value: Any, refused: tuple[type, ...] = (), reduce: Reduce = _as_usual) -> bool:
    """Whether a value pickles."""
    try:
        _Pickler(refused, reduce).dump(value)
    except Exception:
        return False
    return True


def _name(part: Any) -> str:
    name = getattr(part, "__qualname__", None)
    return str(name) if name else f"a {type(part).__qualname__}"


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"the variable `{name}` of {function.__qualname__}", cell.cell_contents
        except ValueError:
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield f"the global `{name}` of {function.__qualname__}", function.__globals__[name]
    for default in function.__defaults__ or ():
        yield f"a default argument of {function.__qualname__}", default


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"[{key!r}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            yield f"[{number}]", item
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield "the object of the method", value.__self__
        yield "its function", value.__func__
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield "a part of the partial", part
    elif isinstance(value, type):
        for name, item in vars(value).items():
            yield f"{value.__name__}.{name}", item
    else:
        for name, item in getattr(value, "__dict__", {}).items():
            yield f".{name}", item
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    yield f".{name}", getattr(value, name)
