"""Forms: what of a state has to be the same over a whole run."""

from __future__ import annotations

from typing import Any

__all__ = ["form"]


def form(value: Any) -> Any:
    """The keys and lengths of a JSON value, and the types in it."""
    if isinstance(value, dict):
        return tuple((key, form(item)) for key, item in value.items())
    return tuple(map(form, value)) if isinstance(value, list) else type(value)
