"""What a worker takes over from the trainer besides the pipeline: one list of settings.

Each is read in the trainer as plain values, so that nothing of the user's is imported to read them,
and applied in the helper and in every worker, before anything is loaded there.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import decimal
import functools
import importlib
import locale
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

__all__ = ["FORCED", "SETTINGS", "apply", "environment", "load", "read", "search_path"]

T = TypeVar("T")

loading = False  # whether this process, one of the engine, loads the pipeline or what it names

# Workers see no accelerator, whatever the trainer's environment says, and use one thread each.
FORCED = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "TPU_VISIBLE_DEVICES": "",
    "TPU_VISIBLE_CHIPS": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}

# Flags that change what jax computes; workers get them as environment variables.
_JAX_FLAGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_enable_custom_prng",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_random_seed_offset",
    "jax_softmax_custom_jvp",
    "jax_threefry_partitionable",
)

_CATEGORIES = (
    locale.LC_CTYPE,
    locale.LC_COLLATE,
    locale.LC_TIME,
    locale.LC_NUMERIC,
    locale.LC_MONETARY,
    *([locale.LC_MESSAGES] if hasattr(locale, "LC_MESSAGES") else []),
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One part of the state of a process.

    Attributes:
      read: returns it as plain values.
      apply: makes it so.
      inner: whether it is a state of the interpreter, which importing a module may change: then
        what holds before a worker loads the pipeline holds again afterwards.
    """

    read: Callable[[], Any]
    apply: Callable[[Any], Any]
    inner: bool = True


def search_path() -> list[str]:
    """Returns the module search path, with the place of this package in it."""
    home = os.path.abspath(__file__)
    for _ in range(4):
        home = os.path.dirname(home)
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return path if home in path else [*path, home]


def _apply_search_path(path: list[str]) -> None:
    sys.path[:] = path


def _apply_arguments(arguments: list[str]) -> None:
    sys.argv[:] = arguments


def environment() -> dict[str, str]:
    """Returns the environment of workers: the trainer's, its jax flags, and no accelerator."""
    values = dict(os.environ)
    jax = sys.modules.get("jax")
    for name in _JAX_FLAGS if jax is not None else ():
        value = getattr(getattr(jax, "config", None), name, None)
        value = getattr(value, "value", value)  # some are enumerations
        if isinstance(value, bool):
            values[name.upper()] = str(int(value))
        elif isinstance(value, str | int):
            values[name.upper()] = str(value)
    values.update(FORCED)
    return values


def _apply_environment(values: dict[str, str]) -> None:
    for name in set(os.environ) - set(values):
        del os.environ[name]
    os.environ.update(values)
    os.environ.update(FORCED)


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return "/"


def _enter(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(directory)


def _umask() -> int:
    # To read it by setting it would change what other threads create meanwhile.
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _locales() -> dict[int, str]:
    return {category: locale.setlocale(category) for category in _CATEGORIES}


def _apply_locales(values: dict[int, str]) -> None:
    for category, name in values.items():
        with contextlib.suppress(locale.Error):
            locale.setlocale(category, name)


def _apply_time_zone(name: str | None) -> None:
    if name is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = name
    if hasattr(time, "tzset"):
        time.tzset()


def _limits() -> dict[str, Any]:
    csv = sys.modules.get("_csv")
    return {
        "recursion": sys.getrecursionlimit(),
        "digits": sys.get_int_max_str_digits(),
        "field": None if csv is None else csv.field_size_limit(),
    }


def _apply_limits(values: dict[str, Any]) -> None:
    sys.setrecursionlimit(values["recursion"])
    sys.set_int_max_str_digits(values["digits"])
    if values["field"] is not None:
        importlib.import_module("_csv").field_size_limit(values["field"])


def _all_loggers() -> list[logging.Logger]:
    named = list(logging.root.manager.loggerDict.values())
    return [logging.root, *(one for one in named if isinstance(one, logging.Logger))]


def _loggers() -> dict[str, Any]:
    found = {
        one.name: (one.level, one.disabled, one.propagate)
        for one in _all_loggers()
        if (one.level, one.disabled, one.propagate) != (logging.NOTSET, False, True)
    }
    return {
        "loggers": found,
        "handled": [one.name for one in _all_loggers() if one.handlers],
        "disable": logging.root.manager.disable,
        "names": logging.getLevelNamesMapping(),
        "raise": logging.raiseExceptions,
        "capture": getattr(logging, "_warnings_showwarning", None) is not None,
    }


def _apply_loggers(values: dict[str, Any]) -> None:
    known = logging.getLevelNamesMapping()
    for name, level in values["names"].items():
        if known.get(name) != level:
            logging.addLevelName(level, name)
    # What has been set here and not there goes back to what is set nowhere.
    for name in {one.name for one in _all_loggers()} | set(values["loggers"]):
        level, disabled, propagate = values["loggers"].get(name, (logging.NOTSET, False, True))
        one = logging.getLogger(name)
        one.setLevel(level)
        one.disabled, one.propagate = disabled, propagate
    logging.disable(values["disable"])
    logging.raiseExceptions = values["raise"]
    logging.captureWarnings(values["capture"])


def _filters() -> list[tuple[Any, ...]]:
    return [
        (action, _pattern(message), _name(category), _pattern(module), line)
        for action, message, category, module, line in warnings.filters
    ]


def _pattern(given: Any) -> str:
    if isinstance(given, str):  # the interpreter's own filters: the very text
        return re.escape(given) + r"\Z"
    return "" if given is None else str(given.pattern)


def _name(category: Any) -> str:
    if isinstance(category, _ByName):
        return str(category.__doc__)
    return f"{category.__module__}:{category.__qualname__}"


def _apply_filters(values: list[tuple[Any, ...]]) -> None:
    warnings.resetwarnings()
    for action, message, category, module, line in values:
        kind = _category(category)
        warnings.filterwarnings(action, message, kind, module, line, append=True)


class _ByName(type):
    """A warning's class, known by name: nothing has to be imported to filter it."""

    def __subclasscheck__(cls, other: type) -> bool:
        return any(_name(one) == cls.__doc__ for one in getattr(other, "__mro__", ()))


@functools.cache
def _category(name: str) -> type[Warning]:
    module, _, kind = name.partition(":")
    if module == "builtins":
        return getattr(__import__(module), kind)  # type: ignore[no-any-return]
    by_name: Any = _ByName(kind, (Warning,), {"__doc__": name})
    return by_name  # type: ignore[no-any-return]


def _decimal() -> tuple[Any, Any]:
    return _context_values(decimal.getcontext()), _context_values(decimal.DefaultContext)


def _context_values(context: decimal.Context) -> dict[str, Any]:
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    values = {name: getattr(context, name) for name in names}
    values["traps"] = [signal.__name__ for signal, on in context.traps.items() if on]
    return values


def _apply_decimal(values: tuple[Any, Any]) -> None:
    contexts = decimal.getcontext(), decimal.DefaultContext
    for context, given in zip(contexts, values, strict=True):
        for name, value in given.items():
            if name != "traps":
                setattr(context, name, value)
        for signal in context.traps:
            context.traps[signal] = signal.__name__ in given["traps"]


def _numpy() -> tuple[dict[str, str], dict[str, Any]]:
    # A function that is called, or an object that logs, cannot travel as a plain value.
    handling = {
        kind: "warn" if how in ("call", "log") else str(how) for kind, how in np.geterr().items()
    }
    printing = {
        name: value
        for name, value in np.get_printoptions().items()
        if isinstance(value, str | int | float | bool | None)
        and name not in ("formatter", "override_repr")
    }
    return handling, printing


def _apply_numpy(values: tuple[dict[str, Any], dict[str, Any]]) -> None:
    handling, printing = values
    np.seterr(**handling)
    np.set_printoptions(**printing)


# In the order in which they are applied.
SETTINGS = {
    "directory": Setting(_directory, _enter, inner=False),
    "search path": Setting(search_path, _apply_search_path, inner=False),
    "arguments": Setting(lambda: list(sys.argv), _apply_arguments, inner=False),
    "environment": Setting(environment, _apply_environment, inner=False),
    "umask": Setting(_umask, os.umask),
    "time zone": Setting(lambda: os.environ.get("TZ"), _apply_time_zone),
    "locale": Setting(_locales, _apply_locales),
    "limits": Setting(_limits, _apply_limits),
    "logging": Setting(_loggers, _apply_loggers),
    "warnings": Setting(_filters, _apply_filters),
    "decimal": Setting(_decimal, _apply_decimal),
    "numpy": Setting(_numpy, _apply_numpy),
}


def read() -> dict[str, Any]:
    """Returns the settings of this process."""
    return {name: setting.read() for name, setting in SETTINGS.items()}


def apply(values: dict[str, Any]) -> None:
    """Makes the settings of another process this one's."""
    for name, value in values.items():
        SETTINGS[name].apply(value)


def load(function: Callable[[], T]) -> T:
    """Calls a function that imports or unpickles; the inner settings are afterwards as before.

    The trainer has imported the same modules, mostly before it made its settings: what these turn
    into errors is none there. An import that changes them has changed them in the trainer, too.
    """
    global loading
    before = {name: one.read() for name, one in SETTINGS.items() if one.inner}
    loading = True
    _apply_filters([("ignore" if how == "error" else how, *rest) for how, *rest in _filters()])
    try:
        return contextvars.Context().run(function)
    finally:
        loading = False
        apply(before)
