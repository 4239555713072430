"""What a function changes is read from its code."""

from __future__ import annotations

import textwrap
import types
from typing import Any

import pytest

from grain_jax._execution.engine.changes import ANY, IMPORT, LOCAL, RESULT, Changes, changes


def of(text: str) -> Changes:
    scope: dict[str, Any] = {}
    exec(textwrap.dedent(text), scope)
    (function,) = (one for one in scope.values() if isinstance(one, types.FunctionType))
    return changes(function.__code__)


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("global X; X += 1", ("X",)),
        ("global X\n    if X is None: X = load()\n    return X", ("X",)),
        ("config.X += 1", ("config", "X")),
        ("x.n += 1", (LOCAL, "n")),
        ("def inner():\n        global X\n        X = X + 1\n    inner()", ("X",)),
    ],
)
def test_what_is_read_and_assigned(body: str, kept: tuple[str, ...]) -> None:
    assert kept in of(f"def f(x):\n    {body}").kept


@pytest.mark.parametrize(
    ("body", "assigned"),
    [
        ("global X; X = x", ("X",)),
        ("config.X = x; return other.X", ("config", "X")),
        ("x.scale = config.SCALE", (LOCAL, "scale")),
        ("import config; config.X = x", (IMPORT, "config", "X")),
        ("import a.b; a.b.X = x", (IMPORT, "a", "b", "X")),
        ("import a.b as c; c.X = x", (IMPORT, "a", "b", "X")),
        ("from a import b; b.X = x", (IMPORT, "a", "b", "X")),
        ("from ..a import b; b.X = x", (IMPORT, "..a", "b", "X")),
        ("make().X = x", (ANY, "X")),
    ],
)
def test_what_is_only_assigned_is_not_kept(body: str, assigned: tuple[str, ...]) -> None:
    found = of(f"def f(x):\n    {body}")
    assert assigned in found.assigned
    assert not found.kept


@pytest.mark.parametrize(
    ("body", "grown"),
    [
        ("X[x] = x", ("X",)),
        ("X()[x] = x", ("X", RESULT)),
        ("X()[x] += x", ("X", RESULT)),
        ("X().append(x)", ("X", RESULT)),
        ("a.X()['k']['l'] = x", ("a", "X", RESULT)),
        ("held = a.X(); held[x] = x", ("a", "X", RESULT)),
        ("X[x.key(3)] = x", ("X",)),
        ("X[make(x)[0], 3] = x", ("X",)),
        ("X[x] += 1", ("X",)),
        ("X['a'][x] = 3", ("X",)),
        ("X[1:2] = x", ("X",)),
        ("del X[x]", ("X",)),
        ("X.append(x)", ("X",)),
        ("X[x].append(x)", ("X",)),
        ("return X.setdefault(x, [])", ("X",)),
        ("config.X.update(x)", ("config", "X")),
        ("x.cache[x] = 1", (LOCAL, "cache")),
        ("found = X\n    found[x] = 2", ("X",)),
    ],
)
def test_containers_that_are_changed_in_place(body: str, grown: tuple[str, ...]) -> None:
    assert of(f"def f(x):\n    {body}").grown == {grown}


@pytest.mark.parametrize(
    "body",
    [
        "return x * X",
        "return X[x]",
        "y = X[x]; z = [0]; z[0] = y; return z",
        "table = dict(); table[x] = X; return table",
        "return [*X, x]",
        "y = {**X}; y[x] = 1; return y",
        "y = X; y = {}; y[x] = 1; return y",
    ],
)
def test_what_is_only_read_counts_as_no_change(body: str) -> None:
    found = of(f"def f(x):\n    {body}")
    assert not {chain for chain in found.grown | found.kept if chain[0] == "X"}
    assert not found.assigned


def test_variables_of_an_enclosing_function() -> None:
    def outer() -> Any:
        n, scale = 0, 3

        def count(x: int) -> int:
            nonlocal n
            n += 1
            return x * scale

        return count

    assert changes(outer().__code__).cells == {"n"}


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("global X\n    if X is None: X = load()\n    return X", {("X",)}),
        ("if x.one is not None: return x.one\n    x.one = load()", {(LOCAL, "one")}),
        ("global X\n    if X == 0: X = load()\n    return X", set()),
    ],
)
def test_what_is_made_where_it_is_none(body: str, made: set[tuple[str, ...]]) -> None:
    assert of(f"def f(x):\n    {body}").made == made


@pytest.mark.parametrize(
    ("body", "is_used"),
    [
        ("if x not in X: X[x] = len(X)\n    return X[x]", True),
        ("return X.setdefault(x, len(X))", True),
        ("X.append(x); return X.index(x)", True),
        ("X.append(x); return [one for one in X]", True),
        ("X.append(x); return sum(X)", True),
        ("held = X\n    if x not in held: held[x] = 1\n    return held[x]", True),
        ("found = X.get(x)\n    if found is None: found = X[x] = len(X)\n    return found", True),
        ("X.append(x)", False),
        ("if len(X) < 10: X.append(x)", False),
        ("if x not in X: X.add(x); warn()", False),
        ("X[x] += 1", False),
        ("X[x % 2].append(x)", False),
        ("X.setdefault(x, []).append(x)", False),
        ("X.setdefault(x, set()).add(x)", False),
        ("if X: X.clear()\n    X[x] = 2", False),
        ("X[x] = 1\n    if len(X) > 3: X.popitem(last=False)", False),
    ],
)
def test_containers_whose_elements_are_read(body: str, is_used: bool) -> None:
    found = of(f"def f(x):\n    {body}")
    assert (("X",) in found.used) == is_used
    assert (("X",) in found.counted) == ("len(X)" in body)


@pytest.mark.parametrize(
    ("body", "is_sum"),
    [
        ("X[x] = X.get(x, 0) + 1", True),
        ("X[x] = max(X.get(x, 0), x)", True),
        ("X[x] = X.get(x, len(X))", False),
        ("X[x] = X.get(x, None)", False),
        ("X[x] = Y.get(x, 0) + 1", False),
    ],
)
def test_numbers_that_are_made_of_those_before(body: str, is_sum: bool) -> None:
    assert ((("X",), "") in of(f"def f(x):\n    {body}").entries) == is_sum
