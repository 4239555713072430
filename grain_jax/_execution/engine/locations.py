"""Modules that a worker would not find by their names: loaded from a file by hand, or no modules.

A worker loads the first kind from the file that the trainer has loaded them from. The second kind
was never in a file, or its file is gone, or it is a script under another name, as `runpy` and
`multiprocessing` run it, which would do its work in a worker again. What it defines travels by
value.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
import zipimport
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle

from grain_jax._algebra import reach
from grain_jax._values import forks

__all__ = ["by_value", "find", "install"]

# The file and, for a package, where its modules lie.
Location = tuple[str, list[str] | None]

_lock = threading.RLock()
_checked: dict[str, int] = {}  # modules that are found by their names, in this search path:
_checked_for: tuple[str, ...] = ()
_files: dict[str, str] = {}  # of modules of the user's, which may be removed


@forks.call_in_child
def _renew() -> None:
    global _lock
    _lock = threading.RLock()


def find() -> dict[str, Location]:
    """Returns the files of the modules that the search path does not lead to."""
    with _lock:
        _forget_other_path()
        return {name: way for name, way in _ways() if isinstance(way, tuple)}


def _ways() -> Iterator[tuple[str, Location | None]]:
    """Yields the modules that workers do not find by name: a file, or None where none will do."""
    _forget_other_path()
    listings: dict[str, frozenset[str]] = {}
    for name in list(sys.modules):  # not items: to make these may run code that imports
        module = sys.modules.get(name)
        if _checked.get(name) == id(module) and not _is_gone(name):
            continue
        if _is_found(name, module, listings):
            _checked[name] = id(module)
        else:
            yield name, _location(name, getattr(module, "__spec__", None))


def _forget_other_path() -> None:
    global _checked_for
    entries = tuple(os.path.abspath(entry) for entry in sys.path if isinstance(entry, str))
    if entries != _checked_for:
        _checked.clear()
        _checked_for = entries


def _is_found(name: str, module: Any, listings: dict[str, frozenset[str]]) -> bool:
    """Whether a worker finds a module by its name, or need not."""
    if type(module) is not types.ModuleType or module.__name__ != name or name == "__main__":
        return True  # it is there by another name, or is no module
    spec, file = module.__spec__, getattr(module, "__file__", None)
    if spec is None and file is None:
        # What lies inside a package, made by an extension module say, comes with that.
        top = sys.modules.get(name.partition(".")[0], module)
        return top is not module and _is_found(top.__name__, top, listings)
    if spec is None or spec.name != name:
        if spec is not None and spec.name in sys.stdlib_module_names:
            return True  # `collections.abc`, say, is a private module under another name
        return isinstance(file, str) and _leads_to(name, os.path.abspath(file), listings)
    if not spec.has_location or not isinstance(spec.origin, str):
        return spec.loader is not None or spec.submodule_search_locations is not None
    if isinstance(spec.loader, zipimport.zipimporter):
        # By a path that was relative to another directory, workers do not find it either.
        return os.path.isfile(spec.loader.archive)
    path = os.path.abspath(spec.origin)
    if isinstance(spec.loader, importlib.machinery.SourceFileLoader) and reach.is_users(name, path):
        _files[name] = path
    return _leads_to(name, path, listings) and not _is_gone(name)


def _is_gone(name: str) -> bool:
    """Whether the file of a module of the user's is there no more."""
    return name in _files and not os.path.isfile(_files[name])


def _location(name: str, spec: importlib.machinery.ModuleSpec | None) -> Location | None:
    """Returns the file that a module was loaded from, if it is one to load modules from."""
    if spec is None or spec.name != name or not isinstance(spec.origin, str):
        return None
    if not spec.has_location or not os.path.isfile(spec.origin):
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
    """Lets cloudpickle write by value, within the block, what no import in a worker would give."""
    with _lock:
        made = [name for name, way in _ways() if way is None and _defines(sys.modules[name])]
        with contextlib.ExitStack() as undo:
            for name in made:
                if name not in cloudpickle.list_registry_pickle_by_value():
                    module = sys.modules[name]
                    cloudpickle.register_pickle_by_value(module)
                    undo.callback(cloudpickle.unregister_pickle_by_value, module)
            yield


def _defines(module: types.ModuleType) -> bool:
    return any(
        isinstance(value, types.FunctionType | type) and value.__module__ == module.__name__
        for value in list(vars(module).values())
    )
