"""Sources that certainly never draw from the process-wide generators, told without reading them.

The answer is yes only where the code of the user's that reading reaches names nothing but data,
other code of the user's, and libraries that are known to leave these generators alone.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import reach
from grain_jax._algebra.mentions import mentions

__all__ = ["is_quiet"]

_LIBRARIES = frozenset(
    """
    builtins abc array base64 binascii bz2 codecs collections contextlib copy copyreg csv
    dataclasses datetime decimal enum errno fractions functools genericpath glob gzip hashlib io
    itertools json logging lzma math mmap operator os pathlib posix posixpath queue re shutil
    sqlite3 stat string struct tarfile thread threading time types typing unicodedata warnings
    weakref zipfile zlib numpy grain_jax array_record cv2 h5py lz4 msgpack PIL pyarrow
    simplejpeg soundfile turbojpeg zarr zstandard
    """.split()  # noqa: SIM905
)
"""Libraries whose code draws from no process-wide generator, unless code that it is given does."""

_GENERATORS = "numpy.random"

_LEAD_ANYWHERE = frozenset({"eval", "exec", "compile", "globals", "vars", "getattr", "__import__"})

# A larger container is not looked through, nor is what reaches more than so much.
_MOST_PARTS, _MOST = 1_000, 10_000

_PARTS = frozenset({bool, int, float, complex, str, bytes, type(None), tuple})


def is_quiet(reads: Sequence[Any]) -> bool:
    """Whether functions that read a source certainly cannot reach `random` or `np.random`."""
    if not all(isinstance(read, types.MethodType) for read in reads):
        return False  # code of another language, or an attribute of the object
    for number, found in enumerate(reach.reach(reads)):
        if number > _MOST or not _is_quiet_value(found.value):
            return False
        if found.kind == reach.FUNCTION and not _names_quiet_things(found.value):
            return False
    return True


def _is_quiet_value(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        # One that is held, or handed on, leads to all that is in it.
        return value is not np and _is_quiet_library(value.__name__)
    if isinstance(value, np.ndarray | np.generic):
        return not value.dtype.hasobject
    owner = getattr(value, "__self__", None)
    if isinstance(value, types.MethodType | types.BuiltinFunctionType) and owner is not None:
        return _is_quiet_value(owner) or isinstance(owner, types.ModuleType)
    if isinstance(value, np.ufunc):
        return True
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return _is_quiet_code(value.__module__)
    if isinstance(value, list | tuple | dict | set) and len(value) > _MOST_PARTS:
        parts = value.values() if isinstance(value, dict) else value
        return set(map(type, parts)) <= _PARTS
    return all(_is_quiet_code(kind.__module__) for kind in type(value).__mro__)


def _is_quiet_code(module: str | None) -> bool:
    """Whether a module is one whose code was looked at, or need not be."""
    if module is None or not reach.is_users(module):
        return module is not None and _is_quiet_library(module)
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or file.endswith(".py")


def _is_quiet_library(module: str) -> bool:
    top = module.partition(".")[0]
    return (top in _LIBRARIES or top.lstrip("_") in _LIBRARIES) and not module.startswith(
        _GENERATORS
    )


def _names_quiet_things(function: types.FunctionType) -> bool:
    """Whether all globals and imports in the code of a function of the user's are quiet."""
    found = mentions(function.__code__)
    return all(_leads_to_quiet(function.__globals__, chain) for chain in found.chains) and all(
        _is_quiet_library(name) and name.partition(".")[0] != "numpy" for name, *_ in found.imports
    )


def _leads_to_quiet(scope: Mapping[str, Any], chain: tuple[str, ...]) -> bool:
    if chain[0] not in scope:
        return hasattr(builtins, chain[0]) and chain[0] not in _LEAD_ANYWHERE
    value: Any = None
    for name in chain:
        if name not in scope:
            return False
        value = scope[name]
        if not isinstance(value, types.ModuleType):
            break
        scope = vars(value)
    return _is_quiet_value(value)
