"""Kinds: which operator a transformation object stands for, and with which function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grain_jax._algebra import transforms
from grain_jax._values import errors

__all__ = ["METHODS", "function_of", "kind_of", "methods_of"]

METHODS = (
    (transforms.Map, "map", "map"),
    (transforms.RandomMap, "random_map", "random_map"),
    (transforms.TfRandomMap, "random_map", "np_random_map"),
    (transforms.MapWithIndex, "map_with_index", "map_with_index"),
    (transforms.Filter, "filter", "filter"),
    (transforms.FlatMap, "flat_map", "flat_map"),
)
"""Classes of transformations, the operators that they stand for, and their methods."""


def methods_of(transform: Any) -> dict[str, Callable[..., Any]]:
    """Returns for each operator that a transformation object stands for its function."""
    return {
        operator: getattr(transform, method)
        for kind, operator, method in METHODS
        if isinstance(transform, kind)
    }


def kind_of(transform: Any) -> str:
    """Returns which operator a transformation object is.

    Raises:
      InvalidTypeError: for an object that is no transformation, or more than one.
    """
    if isinstance(transform, transforms.Batch):
        return "batch"
    found = list(methods_of(transform))
    if len(found) == 1:
        return found[0]
    if found:
        raise errors.InvalidTypeError(
            f"{type(transform).__name__} is {' and '.join(found)} at once. Derive from one kind of "
            f"transformation, or write one of {', '.join(f'.{name}(...)' for name in found)}."
        )
    _refuse_class(transform)
    names = ", ".join(sorted({"Batch", *(kind.__name__ for kind, _, _ in METHODS)}))
    remedy = (
        "Write its operator, as in `ds.map(function)`, or derive"
        if callable(transform)
        else "Derive"
    )
    raise errors.InvalidTypeError(
        f"{transform!r} of type {type(transform).__name__} is no transformation. "
        f"{remedy} from one of transforms.{{{names}}}."
    )


def _refuse_class(transform: Any) -> None:
    if isinstance(transform, type) and issubclass(
        transform, (transforms.Batch, *(kind for kind, _, _ in METHODS))
    ):
        raise errors.InvalidTypeError(
            f"{transform.__name__} is a class, and a transformation is an object of it. Write "
            f"{transform.__name__}(...)."
        )


def function_of(kind: str, transform: Any) -> Callable[..., Any]:
    """Returns the user's function for an operator.

    Args:
      kind: the operator, as in `steps.step_for`.
      transform: a transformation object of this kind, or a callable.

    Raises:
      InvalidTypeError: for an object of another kind.
    """
    _refuse_class(transform)
    found = methods_of(transform)
    if kind in found:
        return found[kind]
    if not found and callable(transform):
        function: Callable[..., Any] = transform
        return function
    text = f"got {transform!r} of type {type(transform).__name__}."
    other = "batch" if isinstance(transform, transforms.Batch) else next(iter(found), None)
    if other is not None:
        text += f" Write .{other}(...), or .apply(...), for this one."
    name = "".join(word.capitalize() for word in kind.split("_"))
    raise errors.InvalidTypeError(f"{kind} takes a function or a transforms.{name}, {text}")
