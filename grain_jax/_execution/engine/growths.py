"""Growths: containers that code adds to and reads, such as a vocabulary that it makes as it goes.

A worker begins with those that its own import has made. What it adds then is compared, entry by
entry, with what the trainer's have: a cache comes to the same, another order of words does not.
"""

from __future__ import annotations

import dataclasses
import itertools
import marshal
import types
from collections.abc import Callable, Iterator
from typing import Any

from grain_jax._algebra import reach
from grain_jax._execution.engine.changes import CELL, changes
from grain_jax._execution.engine.describer import FLAT, Describer
from grain_jax._execution.engine.likeness import Description, difference

__all__ = ["Growing", "Growth", "Rule", "growths"]

_MOST_FLAT = 100_000  # entries of numbers and text
_MOST_TEXT = 1 << 22  # characters of these
_MOST = 1_000  # other entries
_MOST_LOOKED = 200  # objects that lie in one variable
_WIDEST = 64  # elements of a container that are looked into
_MISSING = "missing"
_NUMBERS = (int, float)


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How a container is compared.

    Attributes:
      left: labels of entries that code assigns by themselves.
      has_numbers: whether numbers are compared: not if code counts, or notes times.
      is_moved: whether elements of a list change their places.
      is_counted: whether code takes its length.
      is_filled: whether code fills it where it is empty.
    """

    left: frozenset[str] = frozenset()
    has_numbers: bool = True
    is_moved: bool = False
    is_counted: bool = False
    is_filled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Growth:
    """One container, as it is in the trainer.

    Attributes:
      path: that of a variable.
      labels: the way from there, as messages have it.
      flat: keys and values where all are numbers and text, for `marshal`; of a list, its elements.
      entries: others, by their keys as text.
      is_numbering: whether it numbers its keys: what lacks one will give another number to others.
      is_filled: whether code fills it where it is empty, always with the same.
    """

    path: tuple[str, ...]
    labels: tuple[str, ...]
    flat: bytes | None
    entries: dict[str, Description]
    is_numbering: bool
    is_filled: bool


_Path = tuple[str, ...]
Rules = Callable[[_Path, Any, _Path], Rule | None]


def growths(
    path: tuple[str, ...], value: Any, rules: Rules, describer: Describer
) -> Iterator[Growth]:
    """Yields the containers in a variable that code adds to and reads.

    Args:
      path: of the variable.
      value: in it.
      rules: gives, for a variable or ("", "", attribute), what it holds, and the variable that it
        lies in, how it is compared; None if it is not.
      describer: of the trainer.
    """
    waiting: list[tuple[tuple[str, ...], tuple[str, ...], Any]] = [((), path, value)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_LOOKED:
        labels, place, one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        rule = rules(place, one, path) if place else None
        if labels and labels[-1].startswith(" with "):
            rule = Rule()
        if rule is not None and reach.is_a(one, (dict, list)):
            found = _growth(path, labels, one, rule, describer)
            if found is not None:
                yield found
        for label, part in _parts(one, describer):
            if type(part) not in FLAT:
                name = ("", "", label[1:]) if label[0] == "." else ()
                waiting.append(((*labels, label), name, part))


def _growth(
    path: tuple[str, ...], labels: tuple[str, ...], value: Any, rule: Rule, describer: Describer
) -> Growth | None:
    if not reach.is_a(value, dict):
        if type(value) is not list or rule.is_moved or rule.left or not rule.has_numbers:
            return None
        is_flat = 0 < len(value) <= _MOST_FLAT and _are_flat(value)
        return Growth(path, labels, marshal.dumps(value, 2), {}, False, False) if is_flat else None
    left = rule.left
    items = [
        (key, part)
        for key, part in itertools.islice(dict.items(value), _MOST_FLAT)
        if rule.has_numbers or not _is_number(part)
        if not left or f"[{key!r:.80}]" not in left
    ]
    keys, parts = [key for key, _ in items], [part for _, part in items]
    if not items:
        return None
    if _are_flat(keys) and _are_flat(parts):
        flat = marshal.dumps((keys, parts), 2)
        is_numbering = rule.is_counted and _is_numbering(keys, parts)
        return Growth(path, labels, flat, {}, is_numbering, rule.is_filled)
    plain = [(key, part) for key, part in items if _is_plain(key)][:_MOST]
    entries = {repr(key): describer.describe(part) for key, part in plain}
    return Growth(path, labels, None, entries, False, rule.is_filled) if entries else None


def _are_flat(parts: list[Any]) -> bool:
    if not set(map(type, parts)) <= FLAT:
        return False
    return sum(len(part) for part in parts if type(part) in (str, bytes)) <= _MOST_TEXT


def _is_number(value: Any) -> bool:
    if type(value) in (tuple, list):
        return any(map(_is_number, value[:_WIDEST]))
    return type(value) in _NUMBERS


def _is_numbering(keys: list[Any], parts: list[Any]) -> bool:
    """Whether it gives each key the next number; a function of numbers may do so by chance."""
    is_one = len(parts) > 1 and set(map(type, parts)) == {int} and int not in map(type, keys)
    return is_one and parts == list(range(parts[0], parts[0] + len(parts)))


def _is_plain(key: Any) -> bool:
    """Whether a key is the same in each process."""
    if type(key) is tuple:
        return all(map(_is_plain, key))
    return type(key) in FLAT or type(key) is type


def _parts(value: Any, describer: Describer) -> Iterator[tuple[str, Any]]:
    """Yields what lies in a value, and what messages call it."""
    if type(value) is dict:
        if len(value) <= _WIDEST:
            for key, part in list(value.items()):
                yield describer.label(key), part
    elif type(value) in (list, tuple):
        for at, part in enumerate(value[:_WIDEST]):
            yield f"[{at}]", part
    elif reach.is_a(value, types.FunctionType):
        found, code = changes(value.__code__), value.__code__
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=False):
            if (CELL, name) in found.grown & found.used:
                yield f" with {name}", reach.content(cell)
    elif reach.is_users(type(value).__module__) and not reach.is_a(value, type):
        for name, part in reach.attributes(value).items():
            if name in describer.names:
                yield f".{name}", part


class Growing:
    """One container in a worker, as it grows.

    Args:
      growth: that of the trainer.
      describer: of this worker.
    """

    def __init__(self, growth: Growth, describer: Describer) -> None:
        self.growth = growth
        self._describer = describer
        self._expected: dict[Any, Any] = growth.entries
        self._elements: list[Any] = []
        self._size, self._last = 0, None
        if growth.flat is not None:
            given = marshal.loads(growth.flat)
            if type(given) is tuple:
                self._expected = dict(zip(*given, strict=True))
            else:
                self._elements = given

    @property
    def is_open(self) -> bool:
        """Whether there is more to compare."""
        return bool(self._expected or self._elements)

    def look(self, value: Any) -> tuple[str, str, str] | None:
        """Compares what has been added: returns where it differs, and both; None if it does not.

        Args:
          value: the variable.
        """
        for label in self.growth.labels:
            value = dict(_parts(value, self._describer)).get(label)
        found = None
        if reach.is_a(value, dict) and self._expected:
            found = self._look_at_entries(value)
        elif type(value) is list and self._elements:
            found = self._look_at_elements(value)
        return found and ("".join(self.growth.labels) + found[0], *found[1:])

    def _look_at_elements(self, value: list[Any]) -> tuple[str, str, str] | None:
        end = min(len(value), len(self._elements))
        for at in range(self._size, end):
            if not _is_same(self._elements[at], value[at]):
                return f"[{at}]", *self._told(self._elements[at], value[at])
        self._size = end
        if end == len(self._elements):
            self._elements = []
        return None

    def _look_at_entries(self, value: dict[Any, Any]) -> tuple[str, str, str] | None:
        # What code puts in at first is there where it has, and not where it found others.
        is_begun = self.growth.is_filled and value and not self._size
        if is_begun and not any(self._name(key) in self._expected for key in dict.__iter__(value)):
            key = next(dict.__iter__(value))
            there = str(self._describer.describe(dict.__getitem__(value, key)))
            return self._describer.label(key), _MISSING, there
        size, last = dict.__len__(value), next(dict.__reversed__(value), None)
        if size != self._size or last is not self._last:
            for key, part in list(self._added(value)):
                found = self._compared(key, part)
                if found is not None:
                    return found
            self._size, self._last = size, last
        if self.growth.is_numbering and self._expected:
            key, part = next(iter(self._expected.items()))
            return self._describer.label(key), str(part), _MISSING
        return None

    def _added(self, value: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        for key in dict.__reversed__(value):
            if self._size and key is self._last:
                return
            yield key, dict.__getitem__(value, key)

    def _compared(self, key: Any, part: Any) -> tuple[str, str, str] | None:
        name = self._name(key)
        if self.growth.flat is None:
            if name not in self._expected:
                return None
            found = difference(self._expected.pop(name), self._describer.describe(part))
            return found and (self._describer.label(key) + found[0], *found[1:])
        if name is _MISSING or key not in self._expected:
            return None
        expected = self._expected.pop(key)
        if _is_same(expected, part):
            return None
        return self._describer.label(key), *self._told(expected, part)

    def _name(self, key: Any) -> Any:
        """Returns the name that an entry has among those that are expected."""
        if self.growth.flat is None:
            return repr(key) if _is_plain(key) else _MISSING
        return key if type(key) in FLAT else _MISSING

    def _told(self, here: Any, there: Any) -> tuple[str, str]:
        return str(self._describer.describe(here)), str(self._describer.describe(there))


def _is_same(here: Any, there: Any) -> bool:
    if type(here) is not type(there):
        return False
    return bool(here == there) or marshal.dumps(here, 2) == marshal.dumps(there, 2)  # NaN
