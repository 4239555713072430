"""What the trainer's code reads from modules that workers import by themselves."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cloudpickle

from grain_jax._algebra import reach
from grain_jax._algebra.mentions import mentions
from grain_jax._execution.engine import contents, namesakes
from grain_jax._execution.engine.called import reached
from grain_jax._execution.engine.changed import (
    INSIDE,
    Changed,
    Once,
    Rules,
    assigned_by,
    lent_by,
    place_of,
)
from grain_jax._execution.engine.changes import LOCAL, RESULT, changes
from grain_jax._execution.engine.describer import Describer
from grain_jax._execution.engine.drift import (
    EQUAL,
    GROWS,
    KEPT,
    MADE,
    Observation,
    Observed,
    find,
    time_of,
)
from grain_jax._execution.engine.growths import Growth, growths
from grain_jax._execution.engine.likeness import (
    ONCE,
    TRUTH,
    growing,
    leaving,
    without,
    without_own,
)

__all__ = ["observe"]

_MOST = 5_000  # variables and functions
_times: dict[str, int] = {}  # of files, as they were first looked at


def observe(
    named: Iterable[Any], by_value: Iterable[Any], init: Iterable[Any], ignored: Sequence[str] = ()
) -> tuple[Observed | None, list[types.FunctionType]]:
    """Returns what code reads from modules that workers import by themselves.

    Args:
      named: functions, classes and modules that workers import.
      by_value: functions that travel with the globals they name.
      init: those of both that run first in each worker: what they assign is theirs to decide.
      ignored: modules and variables to leave alone, as `module`, `module.NAME`.

    Returns:
      None where there is nothing to compare, or where this fails, which must not end a run; and
      the functions of the user's that the code can call, as far as is known.

    Raises:
      InvalidValueError: code names a module that its name does not lead to in workers.
    """
    observer = _Observer(ignored)
    observed = None
    with contextlib.suppress(Exception):
        observed = observer.observe(list(named), list(by_value), list(init))
    functions = list(observer.functions.values())
    namesakes.check_functions(functions)
    return observed if observed is not None and observed.observations else None, functions


class _Observer:
    def __init__(self, ignored: Sequence[str]) -> None:
        self._ignored = ignored
        self._values: dict[tuple[str, ...], Any] = {}
        self.functions: dict[int, types.FunctionType] = {}
        self._called: set[int] = set()  # functions that code calls by their names
        self._hooks: set[int] = set()  # functions that a library may call
        self._names: set[str] = set()  # that a library looks up
        self._is_open: dict[str, bool] = {}

    def observe(self, named: list[Any], by_value: list[Any], init: list[Any]) -> Observed:
        mentioned = self._find(named, by_value) | self._names
        functions = reached(self.functions.values(), self._hooks, self._names)
        for function in functions:
            for module, name, value, _ in _modules_in(function):
                if reach.is_users(module) and _name_of(value) != f"{module}.{name}":
                    self._note(module, name, value=value)
        mentioned |= _names_of(self.functions.values())
        code = _Code(functions, list(self.functions.values()), self._called)
        theirs = assigned_by(init)
        names = frozenset(mentioned - code.kept.attributes)
        containers = frozenset(names & code.grown.attributes)
        made = code.once.attributes
        describer = Describer(names, frozenset(code.cells), containers, made)
        found_growths: list[Growth] = []
        observations = []
        for path, value in self._values.items():
            if theirs.has(path) or code.leaves_alone(path, value):
                continue
            if not code.kept.has(path) or code.made.has(path):
                with contextlib.suppress(Exception):
                    found_growths += growths(path, value, code.rules.of, describer)
            found = _observation(path, value, code, describer)
            if found is not None:
                observations.append(found)
        observed = tuple(observations)
        cells = frozenset(code.cells)
        return Observed(names, cells, containers, observed, tuple(found_growths), made)

    def _find(self, named: list[Any], by_value: list[Any]) -> set[str]:
        """Takes all that code can reach; returns the names in functions that travel."""
        roots: list[Any] = []
        for one in named:
            if isinstance(one, type):
                roots += [one, *self._methods(one)]
            elif isinstance(one, types.FunctionType):
                roots.append(one)
                self._called.add(id(one))
        held = _held_modules(named, by_value)
        roots.append(held)
        mentioned: set[str] = set()
        for one in by_value:
            self.functions[id(one)] = one
            mentioned |= reach.names_in(one)
            # Its own globals travel; those of modules that it names do not.
            for found in reach.variables(one, held):
                if found.module != one.__globals__.get("__name__"):
                    self._take([found])
                    roots.append(found.value)
        self._follow(roots, mentioned)
        return mentioned

    def _methods(self, kind: type) -> Iterator[Any]:
        """Takes the methods of a class and its bases, all of which may be called."""
        for base in kind.__mro__:
            if not self._is_compared(base.__module__) or not _is_importable(base):
                continue
            for name, value in vars(base).items():
                functions = reach.functions_of(value)
                if name in reach.OF_CLASSES:
                    continue
                if functions != [value] or reach.is_a(value, types.FunctionType):
                    self._note(base.__module__, *base.__qualname__.split("."), name, value=value)
                    yield from functions

    def _follow(self, roots: list[Any], names: Iterable[str]) -> None:
        # Where an object does not let itself be looked at, what was found before it counts.
        with contextlib.suppress(Exception):
            self._take(reach.reach(roots, names))

    def _take(self, reached: Iterable[reach.Found]) -> None:
        for found in reached:
            if len(self._values) >= _MOST:
                return
            if found.kind == reach.FUNCTION:
                self.functions[id(found.value)] = found.value
                if _is_importable(found.value):
                    function = found.value  # a wrapper has the name of what it wraps
                    path = function.__module__, *function.__qualname__.split(".")
                    self._note(*path, value=function)
            elif found.kind == reach.VARIABLE:
                self._note(found.module, found.name, value=found.value)
                self._called.add(id(found.value))
                self._note_behind(found)
            elif found.kind == reach.NAME:
                self._names.add(found.name)
            elif found.owner is not None and _is_importable(found.owner):
                owner = found.owner
                if found.is_hook:
                    self._hooks.add(id(found.value))
                    self._names.add(found.name)
                value = vars(owner).get(found.name)
                self._note(
                    owner.__module__, *owner.__qualname__.split("."), found.name, value=value
                )

    def _note_behind(self, found: reach.Found) -> None:
        """Takes the variable whose container a method or a view belongs to: `get = TABLE.get`."""
        container = contents.behind(found.value)
        variables = vars(sys.modules.get(found.module, types)) if container is not None else {}
        for name, value in list(variables.items()):
            if value is container:
                self._note(found.module, name, value=value)

    def _note(self, *path: str, value: Any) -> None:
        is_special = path[-1].startswith("__") and not callable(reach.functions_of(value)[0])
        # What no source code can name (`@py_assert`) comes from hooks that rewrite code as it is
        # imported, as pytest does; workers import without them.
        is_special = is_special or not path[-1].isidentifier()
        if not is_special and self._is_compared(path[0]) and not self._is_ignored(".".join(path)):
            self._values.setdefault(path, value)
            function = reach.functions_of(value)[0]
            if contents.is_cache(function) and not self._is_ignored(".".join(path) + RESULT):
                self._values.setdefault((*path, RESULT), contents.returned(function))

    def _is_ignored(self, name: str) -> bool:
        return any(name == one or name.startswith(f"{one}.") for one in self._ignored)

    def _is_compared(self, module: str) -> bool:
        """Whether it is a module of the user's, which workers import by its name."""
        known = self._is_open.get(module)
        if known is None:
            found = sys.modules.get(module)
            known = self._is_open[module] = (
                found is not None
                and module not in ("__main__", "__mp_main__")
                and getattr(found, "__file__", None) is not None
                and reach.is_users(module)
                and not _travels(module)
            )
        return known


class _Code:
    """What the pipeline's functions change.

    Args:
      functions: those that are called, as far as names tell.
      every: all that are known.
      called: the `id`s of those that code calls by their names.
    """

    def __init__(
        self,
        functions: list[types.FunctionType],
        every: list[types.FunctionType],
        called: set[int],
    ) -> None:
        self.kept, self.grown, self.made = Changed(), Changed(), Changed()
        self.cells: set[str] = set()
        self.entries: dict[tuple[str, ...], set[str]] = {}
        # Classes of containers that add to themselves.
        self.growing: set[tuple[str, ...]] = set()
        self._elsewhere = Changed()  # what methods make that are not called
        self._followed = _names_of(functions)
        known = set(map(id, functions))
        for function in every:
            if id(function) not in known:
                self._elsewhere.add(function, changes(function.__code__).made)
        for function in functions:
            self._add(function, id(function) in called)
        self.kept.attributes |= _only_assigned(functions)
        self._lent = lent_by(functions, self.grown)
        self.once = Once(functions, self._lent)
        for place, labels in self.once.own.items():
            self.entries.setdefault(place, set()).update(labels)
        self.rules = Rules(functions, self.grown, self.entries, self.growing, self.once)

    def _add(self, function: types.FunctionType, is_called: bool) -> None:
        found = changes(function.__code__)
        self.kept.add(function, found.kept)
        self.cells |= found.cells
        if is_called:  # what one function reads, and another one assigns
            self.kept.add(function, (one for one in found.assigned if one[0] not in INSIDE))
        self.grown.add(function, found.grown)
        self.made.add(function, found.made)
        for chain, label in found.entries:
            self.entries.setdefault(place_of(function, chain), set()).add(label)
        if _changes_itself(function):
            self.growing.add((function.__module__, function.__qualname__.rpartition(".")[0]))

    def adds_to(self, path: tuple[str, ...]) -> bool:
        """Whether code adds to what lies there, also by what a function returns."""
        return self.grown.has(path) or self._lent.has(path)

    def leaves_alone(self, path: tuple[str, ...], value: Any) -> bool:
        """Whether what lies there is not compared."""
        if self.kept.has(path) and value is None:
            return True
        return self._elsewhere.has(path) and path[-1] not in self._followed


def _names_of(functions: Iterable[types.FunctionType]) -> set[str]:
    return set().union(*map(reach.names_in, functions))


def _observation(
    path: tuple[str, ...], value: Any, code: _Code, describer: Describer
) -> Observation | None:
    """Returns what a worker compares with what it has there; None where nothing is."""
    kind = type(value)
    is_kept, is_once = code.kept.has(path), code.once.has(path)
    described = without_own(describer.describe(value), code.entries)
    grows = code.grown.has(path)
    if (kind.__module__, kind.__qualname__) in code.growing and not grows:
        grows = described.kind != "object"
        described = growing(described, contents.inside(value) or ())
    how = KEPT if is_kept else GROWS if grows else EQUAL
    if path[-1] == RESULT:
        if value is None or grows:
            return None
        how = MADE
    elif is_once and how in (KEPT, GROWS):
        how = MADE
        described = described._replace(made=TRUTH if code.once.is_truth(path) else ONCE)
    elif how == KEPT and code.made.has(path):
        how = MADE
    place = path if len(path) == 2 or path[-1] == RESULT else path[-1:]
    if described.kind in ("mapping", "list"):
        made = code.once.entries.get(place, {})
        if described.kind == "mapping" or made:
            described = without(described, code.entries.get(place, set()))
        if not is_once:
            described = leaving(described, made, code.once.is_deep(path))
    # A time, a process, memory to write to: made at the first use to differ.
    is_own = described.type in ("int", "float") or (described.kind == "value" and grows)
    if how in (KEPT, MADE) and (described.kind == "opaque" or (is_own and not is_once)):
        return None
    file = getattr(sys.modules[path[0]], "__file__", None) or ""
    changed = _times.setdefault(file, time_of(file))
    adds = how == GROWS or (how != EQUAL and not is_once and code.adds_to(path))
    return Observation(path, described, how, adds, file, changed)


def _travels(module: str) -> bool:
    parts = module.split(".")
    registered = cloudpickle.list_registry_pickle_by_value()
    return any(".".join(parts[:count]) in registered for count in range(1, len(parts) + 1))


def _only_assigned(functions: list[types.FunctionType]) -> set[str]:
    """Returns the attributes that code assigns as it runs, and never reads: nothing follows."""
    assigned = Changed()
    read: set[str] = set()
    for function in functions:
        read |= reach.names_in(function, is_read=True)
        if function.__name__ not in reach.MAKING:
            assigned.add(function, changes(function.__code__).assigned)
    return assigned.attributes - read


def _is_importable(value: Any) -> bool:
    """Whether a function or class is what its name leads to."""
    path = (value.__module__ or "", *value.__qualname__.split("."))
    found = find(path)
    return reach.functions_of(found)[0] is value


def _held_modules(named: list[Any], by_value: list[Any]) -> list[types.ModuleType]:
    """Returns the modules of the user's that objects and containers hold."""
    modules = [one for one in named if reach.is_a(one, types.ModuleType)]
    found = [one for function in by_value for one in _modules_in(function)]
    handed = {id(value) for *_, value, rest in found if not rest}
    # What code names of the others at once is known without them.
    known = {id(value) for *_, value, rest in found if rest} - handed
    return [one for one in modules if reach.is_users(_name_of(one)) and id(one) not in known]


def _modules_in(
    function: types.FunctionType,
) -> Iterator[tuple[str, str, types.ModuleType, Sequence[str]]]:
    """Yields the variables by which code names modules, these, and what it names of them."""
    for chain in mentions(function.__code__).chains:
        scope, module = function.__globals__, function.__globals__.get("__name__") or ""
        for at, name in enumerate(chain):
            value: Any = scope.get(name)
            if not reach.is_a(value, types.ModuleType):
                break
            yield module, name, value, chain[at + 1 :]
            scope, module = vars(value), _name_of(value)


def _name_of(module: types.ModuleType) -> str:
    name = vars(module).get("__name__")
    return name if type(name) is str else ""


def _changes_itself(function: types.FunctionType) -> bool:
    """Whether a method of a container adds to it."""
    return (LOCAL,) in changes(function.__code__).grown
