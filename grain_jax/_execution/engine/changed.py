"""What the pipeline's code changes itself, and how containers are compared that it adds to."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from grain_jax._algebra import reach
from grain_jax._algebra.mentions import absolute, mentions
from grain_jax._execution.engine.changes import ANY, CELL, IMPORT, LOCAL, RESULT, Changes, changes
from grain_jax._execution.engine.growths import Rule

__all__ = ["INSIDE", "Changed", "Rules", "assigned_by", "lent_by", "place_of"]

INSIDE = (LOCAL, ANY, CELL)
"""What chains begin with whose end is an attribute of some object."""

# Where code names one of these, numbers that it notes are times.
_CLOCKS = frozenset(
    """
    time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time now utcnow
    """.split()  # noqa: SIM905
)
# And with these, what it keeps is another one in each process.
_OWN = frozenset(
    "getpid get_ident gethostname mkdtemp mkstemp uuid1 uuid4 token_hex urandom".split()  # noqa: SIM905
)


class Changed:
    """Variables that code changes: of modules by path, of objects and classes by name alone."""

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self._variables: set[tuple[str, ...]] = set()

    def add(self, function: types.FunctionType, chains: Iterable[tuple[str, ...]]) -> None:
        """Takes chains of names, as the function's code has them."""
        for chain in chains:
            place = place_of(function, chain)
            if len(place) == 2 or place[-1:] == (RESULT,):
                self._variables.add(place)
            else:
                self.attributes.update(place)

    def has(self, path: tuple[str, ...]) -> bool:
        """Whether code changes what lies there."""
        if path[-1] == RESULT:
            return path in self._variables or path[-2:] in self._variables
        return path in self._variables or (len(path) > 2 and path[-1] in self.attributes)

    def has_result(self, function: types.FunctionType) -> bool:
        """Whether code changes what a function returns."""
        name = function.__name__
        return not self._variables.isdisjoint(((function.__module__, name, RESULT), (name, RESULT)))


def place_of(function: types.FunctionType, chain: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a module and a variable of it, the name of an attribute, or nothing."""
    if chain[-1:] == (RESULT,):
        called = place_of(function, chain[:-1])
        return (*called, RESULT) if called else ()
    if not chain:
        return ()
    first, *rest = chain
    at: dict[str, Any] | None = function.__globals__
    module = function.__globals__.get("__name__") or ""
    names = [first, *rest]
    if first in INSIDE:
        at, names = None, rest[first == CELL :]
    elif first == IMPORT:
        module = absolute(rest[0], function.__globals__.get("__package__") or "")
        at, names = getattr(sys.modules.get(module), "__dict__", None), rest[1:]
    for name in names[:-1]:
        value: Any = at.get(name) if at is not None else None
        at, module = None, ""
        if reach.is_a(value, types.ModuleType):
            at, module = vars(value), value.__name__
    if not names:
        return ()
    return (module, names[-1]) if at is not None else (names[-1],)


class Rules:
    """How containers are compared that code adds to."""

    def __init__(
        self,
        functions: list[types.FunctionType],
        grown: Changed,
        entries: dict[tuple[str, ...], set[str]],
        growing: set[tuple[str, ...]],
    ) -> None:
        self._grown, self._entries, self._growing = grown, entries, growing
        self._used, self._moved, self._counted = Changed(), Changed(), Changed()
        self._timed, self._own = Changed(), Changed()
        for function in functions:
            found = changes(function.__code__)
            if found == Changes():  # all that it names it may read
                self._used.add(function, _beginnings(mentions(function.__code__).chains))
                self._used.attributes |= reach.names_in(function)
            self._used.add(function, found.used)
            self._moved.add(function, found.moved)
            self._counted.add(function, found.counted)
            for known, changed in ((_CLOCKS, self._timed), (_OWN, self._own)):
                if not known.isdisjoint(reach.names_in(function)):
                    changed.add(function, found.grown)

    def of(self, path: tuple[str, ...], value: Any, variable: tuple[str, ...]) -> Rule | None:
        """Returns how a container is compared: see `growths`."""
        # What code assigns by an object of the user's, it assigns in what the object holds.
        places = [one if len(one) == 2 else one[-1:] for one in (path, variable)]
        labels = set().union(*(self._entries.get(place, ()) for place in places))
        kind = type(value)
        if (kind.__module__, kind.__qualname__) in self._growing:
            labels |= self._entries.get((), set())
            return Rule(frozenset(labels), "" not in labels)
        if not self._grown.has(path) or not self._used.has(path) or self._own.has(path):
            return None
        has_numbers = "" not in labels and not self._timed.has(path)
        is_moved = self._moved.has(path)
        return Rule(frozenset(labels), has_numbers, is_moved, self._counted.has(path))


def _beginnings(chains: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    return (chain[:end] for chain in chains for end in range(1, len(chain) + 1))


def lent_by(functions: list[types.FunctionType], grown: Changed) -> Changed:
    """Returns what functions name whose results code adds to: they may return any of that.

    Args:
      functions: those that code calls.
      grown: what it adds to.
    """
    lent = Changed()
    waiting = functions
    while True:
        now = [one for one in waiting if grown.has_result(one) or lent.has_result(one)]
        if not now:
            return lent
        for function in now:
            names = reach.names_in(function)
            chains = [*_beginnings(mentions(function.__code__).chains)]
            lent.add(function, chains)
            lent.add(function, [(*chain, RESULT) for chain in chains])
            lent.add(function, [(LOCAL, name, RESULT) for name in names])
            lent.attributes |= names
        waiting = [one for one in waiting if one not in now]


def assigned_by(init: list[Any]) -> Changed:
    assigned = Changed()
    for found in reach.reach([one for one in init if isinstance(one, types.FunctionType)]):
        if found.kind == reach.FUNCTION:
            found_changes = changes(found.value.__code__)
            assigned.add(found.value, found_changes.assigned | found_changes.grown)
    return assigned
