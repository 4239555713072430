"""What the pipeline's code changes itself, and how containers are compared that it adds to."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from grain_jax._algebra import reach
from grain_jax._algebra.mentions import absolute, mentions
from grain_jax._execution.engine.changes import (
    ANY,
    CELL,
    IMPORT,
    LOCAL,
    RESULT,
    Changes,
    asked,
    changes,
)
from grain_jax._execution.engine.growths import Rule

__all__ = ["INSIDE", "Changed", "Once", "Rules", "assigned_by", "lent_by", "place_of"]

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
    """
    getpid get_ident gethostname mkdtemp mkstemp TemporaryDirectory NamedTemporaryFile uuid1 uuid4
    token_hex urandom id hash fileno dup memfd_create eventfd pipe CDLL addressof data_ptr
    """.split()  # noqa: SIM905
)
# And with these it is memory to write to, whose content does not count.
_SCRATCH = frozenset({"empty", "empty_like", "zeros", "zeros_like", "bytearray"})


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


class Once:
    """What code makes where it is absent, and never changes then: see `guards`.

    Args:
      functions: those that code calls.
      lent: what it may change by what functions return.

    Attributes:
      entries: labels of entries that it makes, by their containers, each with whether what is false
        counts as absent.
      own: those of entries that are another thing in each process, or memory to write to.
    """

    def __init__(self, functions: list[types.FunctionType], lent: Changed) -> None:
        self._lent = lent
        self._once, self._loose, self._truths = Changed(), Changed(), Changed()
        self._own = Changed()
        self.entries: dict[tuple[str, ...], dict[str, bool]] = {}
        self.own: dict[tuple[str, ...], set[str]] = {}
        self._deep = Changed()
        filling = {one.__name__ for one in functions if changes(one.__code__).loose}
        asked_for = set()  # functions that are called where something is absent, and what that is
        for function in functions:
            if filling.isdisjoint(reach.names_in(function).union(*_chains(function))):
                continue
            for chain, called, is_truth in asked(function.__code__):
                target = _called(function, called)
                if target is not None:
                    self._truths.add(function, [chain] * is_truth)
                    asked_for.add((id(target), place_of(function, chain)))
        for function in functions:
            self._add(function, asked_for)

    def _add(self, function: types.FunctionType, asked: set[tuple[int, tuple[str, ...]]]) -> None:
        found = changes(function.__code__)
        if not found.once and not found.loose:
            return
        called = {one for one in found.loose if (id(function), place_of(function, one)) in asked}
        once = found.once | called
        self._once.add(function, once)
        self._truths.add(function, found.truths)
        self._deep.add(function, found.deep)
        if function.__name__ not in reach.MAKING:  # which have made what is there
            self._loose.add(function, found.loose - called)
        names = reach.names_in(function).union(*_chains(function))
        is_own = not names.isdisjoint(_CLOCKS | _OWN | _SCRATCH)
        is_own = is_own or ("os", "open") in _chains(function)
        if is_own:
            self._own.add(function, once)
        for chain, label in found.once_entries:
            place = place_of(function, chain)
            if is_own:
                self.own.setdefault(place, set()).add(label)
            else:
                is_truth = (*chain, label) in found.truths
                self.entries.setdefault(place, {})[label] = is_truth

    def has(self, path: tuple[str, ...]) -> bool:
        """Whether what lies there is made once, and the same in each process."""
        others = (self._loose, self._own, self._lent)
        return self._once.has(path) and not any(one.has(path) for one in others)

    def is_deep(self, path: tuple[str, ...]) -> bool:
        """Whether code may change what is in entries, too."""
        return self._deep.has(path)

    def may_begin(self, path: tuple[str, ...]) -> bool:
        """Whether code fills what lies there where it is empty, and adds to it else, too."""
        return self._once.has(path)

    def is_truth(self, path: tuple[str, ...]) -> bool:
        """Whether what is false counts as absent."""
        return self._truths.has(path)

    @property
    def attributes(self) -> dict[str, bool]:
        """The names of attributes that are made once, and whether what is false is absent."""
        others = (self._loose, self._own, self._lent)
        names = self._once.attributes.difference(*(one.attributes for one in others))
        return {name: name in self._truths.attributes for name in names}


def _chains(function: types.FunctionType) -> tuple[tuple[str, ...], ...]:
    return mentions(function.__code__).chains


def _called(function: types.FunctionType, chain: tuple[str, ...]) -> types.FunctionType | None:
    """Returns the function of the user's that a chain of names leads to."""
    value: Any = function.__globals__.get(chain[0])
    for name in chain[1:]:
        value = vars(value).get(name) if reach.is_a(value, (types.ModuleType, type)) else None
        value = reach.functions_of(value)[0]
    return value if reach.is_a(value, types.FunctionType) else None


class Rules:
    """How containers are compared that code adds to."""

    def __init__(
        self,
        functions: list[types.FunctionType],
        grown: Changed,
        entries: dict[tuple[str, ...], set[str]],
        growing: set[tuple[str, ...]],
        once: Once,
    ) -> None:
        self._grown, self._entries, self._growing = grown, entries, growing
        self._once = once
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
        if self._once.has(path):
            return None  # compared as a whole
        if path == variable:  # which are compared once they are there: see `Once`
            labels |= self._once.entries.get(places[0], {}).keys()
        has_numbers = "" not in labels and not self._timed.has(path)
        is_moved = self._moved.has(path)
        is_counted, is_filled = self._counted.has(path), self._once.may_begin(path)
        return Rule(frozenset(labels), has_numbers, is_moved, is_counted, is_filled)


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
