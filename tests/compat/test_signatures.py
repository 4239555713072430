"""What Grain's names can be called with, those here can be called with, too."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tests.compat.test_names import MODULES, names_of


def parameters(value: Any) -> list[inspect.Parameter] | None:
    """The parameters that have names; None where nobody says them."""
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = {parameter.kind for parameter in found}
    if inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD in kinds:
        return None
    return [parameter for parameter in found if not parameter.name.startswith("_")]


def unlike(ours: Any, theirs: Any) -> str:
    """What a call in Grain's way would fail with here; empty if nothing."""
    wanted, given = parameters(theirs), parameters(ours)
    if wanted is None or given is None:
        return ""
    names = [parameter.name for parameter in given]
    for place, parameter in enumerate(wanted):
        if parameter.name not in names:
            return f"no {parameter.name} in {names}"
        one = given[names.index(parameter.name)]
        by_place = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if by_place and (one.kind is not parameter.kind or names.index(one.name) != place):
            return f"{parameter.name} is not at place {place} of {names}"
        # That of a field which a protocol declares as a property, too, is an accident.
        is_optional = parameter.default is not parameter.empty
        is_meant = is_optional and not isinstance(parameter.default, property)
        if is_meant and one.default is one.empty:
            return f"{parameter.name} has no default"
    wanted_names = {parameter.name for parameter in wanted}
    more = [
        parameter.name
        for parameter in given
        if parameter.name not in wanted_names
        and parameter.default is parameter.empty
        and parameter.kind
        in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    return f"{more} have no defaults" if more else ""


def differences(theirs: str) -> Iterator[str]:
    for module in MODULES:
        path = f".{module}" if module else ""
        grain, ours = (importlib.import_module(name + path) for name in (theirs, "grain_jax"))
        for name in names_of(grain):
            one, other = getattr(grain, name), getattr(ours, name, None)
            if other is None or not getattr(one, "__module__", "").startswith(theirs):
                continue
            pairs = [(name, other, one)]
            if isinstance(one, type):
                pairs += [
                    (f"{name}.{part}", getattr(other, part), getattr(one, part))
                    for part in names_of(one)
                    if callable(getattr(one, part)) and hasattr(other, part)
                ]
            for label, mine, its in pairs:
                if text := callable(its) and unlike(mine, its):
                    yield f"{module}.{label}: {text}"


def test_calls_written_for_grain_fit(reference_grain: ModuleType) -> None:
    assert sorted(differences(reference_grain.__name__)) == []
