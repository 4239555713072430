"""Modules that a worker would not find by their names: loaded from a file by hand, or never in one.

A worker loads the first kind from the file that the trainer has loaded them from. What the second
kind defines travels by value, as what the script defines does.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle

from grain_jax._values import forks

__all__ = ["by_value", "find", "install"]

# The file and, for a package, where its modules lie.
Location = tuple[str, list[str] | None]

_MAIN = ("__main__", "__mp_main__")
_lock = threading.RLock()
_checked: dict[str, int] = {}  # modules that are found by their names, in this search path:
_checked_for: tuple[str, ...] = ()


@forks.call_in_child
def _renew() -> None:
    global _lock
    _lock = threading.RLock()


def find() -> dict[str, Location]:
    """Returns the files of the modules that the search path does not lead to."""
    with _lock:
        _forget_other_path()
        found = {}
        listings: dict[str, frozenset[str]] = {}
        for name, module in list(sys.modules.items()):
            if _checked.get(name) == id(module):
                continue
            location = _location(name, module)
            if location is None or _leads_to(name, location[0], listings):
                _checked[name] = id(module)
            elif os.path.isfile(location[0]):
                found[name] = location
        return found


def _forget_other_path() -> None:
    global _checked_for
    entries = tuple(os.path.abspath(entry) for entry in sys.path if isinstance(entry, str))
    if entries != _checked_for:
        _checked.clear()
        _checked_for = entries


def _location(name: str, module: Any) -> Location | None:
    if type(module) is not types.ModuleType or module.__name__ != name or name in _MAIN:
        return None
    spec = module.__spec__
    if spec is None or not spec.has_location or not isinstance(spec.origin, str):
        return None
    places = spec.submodule_search_locations
    return os.path.abspath(spec.origin), None if places is None else list(places)


def _leads_to(name: str, path: str, listings: dict[str, frozenset[str]]) -> bool:
    """Whether the file lies where the import system looks for a module of this name."""
    above, _, last = name.rpartition(".")
    places: Sequence[str] = _checked_for
    if above:
        package = sys.modules.get(above)
        places = [os.path.abspath(place) for place in getattr(package, "__path__", ())]
    folder, base = os.path.split(path)
    if base.startswith("__init__."):
        folder, base = os.path.split(folder)
    if base.partition(".")[0] != last or folder not in places:
        return False
    # Another file of the same name may come first.
    earlier = () if above else places[: places.index(folder)]
    return not any(_holds(place, last, listings) for place in earlier)


def _holds(place: str, name: str, listings: dict[str, frozenset[str]]) -> bool:
    names = listings.get(place)
    if names is None:
        names = frozenset()
        with contextlib.suppress(OSError):
            names = frozenset(os.listdir(place))
        listings[place] = names
    package = os.path.join(place, name, "__init__.py")
    return f"{name}.py" in names or (name in names and os.path.isfile(package))


class _Finder:
    """Finds modules where the trainer has loaded them from; packages above them may be empty."""

    def __init__(self, locations: dict[str, Location]) -> None:
        self._locations = locations

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of a module that has a location, or of a package above one."""
        if name in self._locations:
            file, places = self._locations[name]
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=places
            )
        return None


class _Parents(_Finder):
    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns an empty package above a module that has a location."""
        if any(one.startswith(f"{name}.") for one in self._locations):
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = []
            return spec
        return None


def install(locations: dict[str, Location]) -> None:
    """Makes the import system of this process find modules in these files."""
    if locations:
        sys.meta_path.insert(0, _Finder(locations))
        sys.meta_path.append(_Parents(locations))


@contextlib.contextmanager
def by_value() -> Iterator[None]:
    """Lets cloudpickle write what modules without a file define by value, within the block."""
    with _lock:
        made = [module for module in list(sys.modules.values()) if _is_made(module)]
        with contextlib.ExitStack() as undo:
            for module in made:
                if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                    cloudpickle.register_pickle_by_value(module)
                    undo.callback(cloudpickle.unregister_pickle_by_value, module)
            yield


def _is_made(module: Any) -> bool:
    if type(module) is not types.ModuleType or sys.modules.get(module.__name__) is not module:
        return False
    name = module.__name__
    if name in _MAIN:
        return name == "__mp_main__"
    # What lies inside a package with a file, made by an extension module say, comes with that.
    top = sys.modules.get(name.partition(".")[0])
    for one in (module, top):
        if one is None or one.__spec__ is not None or getattr(one, "__file__", None):
            return False
    return any(
        isinstance(value, types.FunctionType | type) and value.__module__ == name
        for value in list(vars(module).values())
    )
