"""Names that are imported when they are first used (PEP 562).

Importing `grain_jax` has to stay cheap, and workers must not pay for what only the trainer needs.
So a facade lists where each of its names lives, and this module fetches it on first access.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["facade", "fetch"]

# A dataset is only a description; the second package registers how to run it.
_LOADED_WITH = {"grain_jax._datasets": "grain_jax._execution.iterator"}


def facade(
    module: str, homes: Mapping[str, str], submodules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` for `module`.

    Args:
        module: The facade's `__name__`.
        homes: Public name to `"package.module:name"`.
        submodules: Names that are modules inside `module`.
    """

    def getattr_(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{module}.{name}")
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, attribute = homes[name].partition(":")
        companion = _LOADED_WITH.get(home.rpartition(".")[0])
        if companion is not None:
            importlib.import_module(companion)
        with _generators_kept():
            value = getattr(importlib.import_module(home), attribute)
        setattr(sys.modules[module], name, value)  # the next access does not come here
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes, *submodules})

    return getattr_, dir_, sorted([*homes, *submodules])


def fetch(home: str) -> Any:
    """Returns what `"package.module:name"` names, for who cannot import the module before."""
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(module), name)


def _generators_kept() -> AbstractContextManager[object]:
    """Importing jax draws from `np.random`; a training loop's own numbers must not depend on it."""
    if "jax" in sys.modules:
        return contextlib.nullcontext()
    generators = importlib.import_module("grain_jax._algebra.global_random")
    return generators.preserved(waits=False)  # type: ignore[no-any-return]  # imports have locks
