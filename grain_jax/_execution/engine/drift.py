"""What the pipeline's code reads from modules, compared between the trainer and each worker.

A worker imports modules afresh. What the program has set in them, or what differs at each import,
does not arrive there, and a file may have changed since the trainer imported it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grain_jax._algebra import reach
from grain_jax._execution.engine import contents
from grain_jax._execution.engine.changes import RESULT
from grain_jax._execution.engine.describer import Describer
from grain_jax._execution.engine.growths import Growing, Growth
from grain_jax._execution.engine.likeness import (
    Description,
    difference,
    difference_of_made,
    lacks,
)
from grain_jax._values.errors import DriftError

__all__ = [
    "ABSENT",
    "EQUAL",
    "GROWS",
    "KEPT",
    "MADE",
    "Observation",
    "Observed",
    "Watch",
    "find",
    "time_of",
]

_MOST_TOLD = 5
_MISSING = Description("opaque", "missing", "missing")
ABSENT = object()

# How a variable is compared: KEPT is one that a function both reads and assigns, which is a counter
# or made at its first use; MADE what is certainly the latter; GROWS one that code adds to.
EQUAL, KEPT, MADE, GROWS = "equal", "kept", "made", "grows"


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One variable or function of a module, as it is in the trainer.

    Attributes:
      path: the module, and names from there.
      described: the value.
      how: `EQUAL`; `KEPT` and `MADE` for what code assigns itself, `GROWS` for what it adds to.
      grows: whether code may add to it, so that only what both have is compared.
      file: that of the module.
      changed: when it was last changed, as the trainer first looked, in nanoseconds.
    """

    path: tuple[str, ...]
    described: Description
    how: str
    grows: bool
    file: str
    changed: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return name_of(self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """What the trainer's code reads.

    Attributes:
      names: the attributes that code mentions, and does not assign itself.
      cells: variables of enclosing functions that code changes.
      growing: those of the names that code adds to.
      observations: variables and functions.
      growths: containers in them that code adds to and reads.
      made: attributes that code makes where they are absent, each with whether what is false is.
    """

    names: frozenset[str]
    cells: frozenset[str]
    growing: frozenset[str]
    observations: tuple[Observation, ...]
    growths: tuple[Growth, ...] = ()
    made: Mapping[str, bool] = dataclasses.field(default_factory=dict)


def find(path: Sequence[str]) -> Any:
    """Returns what lies at a path of an imported module, without calling code; else `ABSENT`."""
    at: Any = sys.modules.get(path[0], ABSENT)
    for name in path[1:]:
        if reach.is_a(at, types.ModuleType):
            at = vars(at).get(name, ABSENT)
        elif reach.is_a(at, type):
            spaces = [vars(base) for base in at.__mro__]
            at = next((space[name] for space in spaces if name in space), ABSENT)
        elif name == RESULT:
            at = contents.returned(reach.functions_of(at)[0])
        else:
            return ABSENT
    return at


def name_of(path: Sequence[str]) -> str:
    """Returns what messages call what lies at a path."""
    return ".".join(path).replace(f".{RESULT}", RESULT)


class Watch:
    """Compares, in a worker, what it reads with what the trainer does.

    Args:
      observed: that of the trainer.
    """

    def __init__(self, observed: Observed) -> None:
        self._describer = Describer(observed.names, observed.cells, observed.growing, observed.made)
        self._open: Sequence[Observation] = observed.observations
        self._growing = [Growing(one, self._describer) for one in observed.growths]
        self._unmade: set[tuple[str, ...]] = set()
        self._lacking: set[tuple[str, ...]] = set()  # of what code makes, and nothing else
        self._told: list[tuple[str, str]] = []  # names, and what differs

    def look(self) -> bool:
        """Compares what is there by now; whether there is more to compare later.

        Raises:
          DriftError: something differs.
        """
        self._open = [one for one in self._open if not self._tried(one)]
        for one in self._growing if not self._told else ():
            self._look_at(one)
        self._growing = [one for one in self._growing if one.is_open]
        if self._told:
            raise DriftError(_message(self._told))
        return bool(self._open or self._growing)

    def _look_at(self, one: Growing) -> None:
        path = one.growth.path
        # Another thread may change the container meanwhile.
        with contextlib.suppress(Exception):
            found = one.look(find(path))
            if found is not None:
                where, here, there = found
                name = name_of(path)
                text = f"{name}{where} is {here} here, and {there} in a worker"
                self._told.append((name, text))

    def _tried(self, one: Observation) -> bool:
        try:
            return self._compare(one)
        except Exception:
            return True  # what cannot be compared must not end a run

    def _compare(self, one: Observation) -> bool:
        """Whether it has been compared, and need not be again."""
        module = sys.modules.get(one.path[0])
        if module is None:
            return False  # code imports it where it needs it
        value = find(one.path)
        if value is ABSENT and "__getattr__" in vars(module):
            return False  # made when code asks for it
        if one.how == MADE and value is None:
            return False
        if one.how == KEPT:
            if value is None or value is ABSENT:
                self._unmade.add(one.path)
                return False
            if one.path not in self._unmade:
                return True  # a counter
        for name in _origins(one.described):
            if name not in sys.modules:
                _import(name)
        there = _MISSING if value is ABSENT else self._describer.describe(value)
        is_again = one.path in self._lacking
        found = difference_of_made(one.described, there) if is_again else _compared(one, there)
        if found is not None:
            self._told.append((one.name, _told(one, *found)))
            return True
        if lacks(one.described, there):
            self._lacking.add(one.path)
            return False
        return one.how != GROWS or _instances(one.described) <= _instances(there)


def _compared(one: Observation, there: Description) -> tuple[str, str, str] | None:
    here = one.described
    if there is _MISSING and here.made:
        return None  # code makes it
    if there is _MISSING:
        return "", str(here), str(there)
    is_open = here.kind == "mapping" or any(part.made for _, part in here.parts)
    if one.how == GROWS and not is_open:
        return None
    return difference(here, there, grows=one.grows)


def _instances(described: Description) -> set[str]:
    """Returns the classes by which a mapping has objects: singletons, made at their first use."""
    parts = described.parts if described.kind == "mapping" else ()
    return {name for name, part in parts if name.startswith("[class ") and part.kind == "object"}


def _origins(described: Description) -> Iterator[str]:
    """Yields the modules that have filled a container with functions or objects: a registry."""
    is_code = described.kind == "code"
    for _, part in described.parts if described.kind in ("mapping", "list", "set", "code") else ():
        if is_code:  # what is registered with it
            yield from _origins(part)
        elif part.origin not in ("", "__main__", "__mp_main__"):
            yield part.origin


def _import(name: str) -> None:
    with contextlib.suppress(Exception, SystemExit):
        importlib.import_module(name)


def _told(one: Observation, where: str, here: str, there: str) -> str:
    name, file = one.name + where, one.file
    is_changed = time_of(file) != one.changed
    if not here and not there:
        reason = f"{file} has changed since it was imported here"
        if not is_changed:
            reason += ", or the program has replaced the function"
        return f"the code of {name} differs: {reason}"
    note = f" ({file} has changed meanwhile)" if is_changed else ""
    return f"{name} is {here} here, and {there} in a worker{note}"


def time_of(file: str) -> int:
    """Returns when a file was last changed, in nanoseconds; 0 if it is not there."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _message(told: list[tuple[str, str]]) -> str:
    lines = [line for _, line in told[:_MOST_TOLD]]
    if len(told) > _MOST_TOLD:
        lines.append(f"and {len(told) - _MOST_TOLD} more")
    names = tuple(dict.fromkeys(name for name, _ in told[:_MOST_TOLD]))
    return "\n".join(
        [
            "what the pipeline's code reads is not the same in worker processes as here:",
            *(f"  {line}" for line in lines),
            "Workers import modules afresh: they do not see what a program has set in them, nor "
            "what comes out differently at each import; and they see files as they are now. Pass "
            "the value to the transformation, or set it in worker_init_fn; after a file has "
            "changed, start the program again. Where the difference does not matter, write "
            f"ignore_globals={names!r}.",
        ]
    )
