"""Random generators with a state of their own that the pipeline's code draws from.

Each worker process would begin with a copy of such a generator, and go on with it: numbers repeat
between workers, and depend on how many there are. In one process they depend on what was read
before, so that a restored stream has others.
"""

from __future__ import annotations

import dis
import functools
import itertools
import os
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra import reach
from grain_jax._algebra.mentions import mentions
from grain_jax._datasets.plan import Root, Upstream, has_positions
from grain_jax._datasets.stages import Stage
from grain_jax._execution.keeping import MAKERS, advanced, drawn_at_once, returns_generator
from grain_jax._values import errors

__all__ = ["check"]

_KINDS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
)

_MOST_TOLD = 5

_REMEDY = """Draw from the generator that a RandomMap gets, which depends on the seed and the \
record's position alone:

    class Augment(grain_jax.transforms.RandomMap):
        def random_map(self, element, rng):
            return element + rng.normal()

A source returns records as they are, and a RandomMap behind it draws. A key of JAX comes from \
that generator, too: `jax.random.fold_in(key, rng.integers(2**32, dtype="uint32"))`."""


def check(
    roots: Sequence[Root | Upstream],
    stages: Sequence[Stage],
    is_away: bool,
    ignored: Sequence[str],
) -> None:
    """Looks for generators that a pipeline's functions hold.

    Args:
      roots: what it reads.
      stages: what it does.
      is_away: whether worker processes do that, but for stages that are local.
      ignored: names of generators, or of their modules or classes, that are left alone.

    Raises:
      InvalidValueError: naming them, if worker processes would have copies. A warning names those
        that are in this process only.
    """
    away: list[Callable[..., Any]] = []
    here: list[Callable[..., Any]] = []
    for stage in stages:
        held = away if is_away and not stage.local else here
        own = (*stage.steps, *stage.measures)
        held += [step.function for step in own if step.function is not None]
    for root in roots:
        if has_positions(root):
            (away if is_away else here).extend(root.functions())
    hashing: list[str] = []
    if names := _names(away, ignored, hashing):
        raise errors.InvalidValueError(
            f"{_told(names)}. Each worker process would begin with a copy, so that numbers repeat "
            f"and depend on how many workers there are. {_REMEDY} {_ignoring(names)}"
        )
    if hashing and not os.environ.get("PYTHONHASHSEED", "").isdigit():
        warnings.warn(
            f"{', '.join(hashing[:_MOST_TOLD])} calls hash(), which for text is another number in "
            "each process (so is the order of a set of text). Take zlib.crc32(text.encode()), or "
            "start Python with PYTHONHASHSEED=0. Where it is not for text, write "
            f"ignore_globals={tuple(hashing)!r}.",
            stacklevel=2,
        )
    if names := _names(here, ignored):
        warnings.warn(
            f"{_told(names)}. Its numbers depend on what was read before, and are others after a "
            f"restore; with worker processes this is an error. {_REMEDY} {_ignoring(names)}",
            stacklevel=2,
        )


def _ignoring(names: dict[str, str]) -> str:
    return (
        "Where it is set anew for each record, or nothing is drawn from it, write "
        f"ignore_globals={tuple(names)!r}."
    )


def _told(names: dict[str, str]) -> str:
    texts = [f"{name} is a {kind}" for name, kind in list(names.items())[:_MOST_TOLD]]
    if len(names) > _MOST_TOLD:
        texts.append(f"{len(names) - _MOST_TOLD} more are like it")
    return f"{', '.join(texts)} with a state of its own, and the pipeline's code can draw from it"


def _names(
    functions: Iterable[Callable[..., Any]],
    ignored: Sequence[str],
    hashing: list[str] | None = None,
) -> dict[str, str]:
    """Returns where generators are held, and of which kind they are.

    Names of functions that call `hash` are added to `hashing`.
    """
    held: dict[str, str] = {}
    kept: dict[str, str] = {}
    made: set[str] = set()
    keys: list[reach.Found] = []
    seeds: list[reach.Found] = []
    moved: set[str] = set()
    named: set[str] = set()
    for one in reach.reach(functions):
        if one.kind == reach.FUNCTION:
            named |= mentions(one.value.__code__).names
            if hashing is not None and _hashes(one.value) and one.path not in ignored:
                hashing.append(one.path)
            if one.value.__name__ not in ("__init__", "__setstate__"):
                moved |= advanced(one.value.__code__)
            for name, is_kept in _made_by(one.value):
                if is_kept:
                    kept[name] = "generator"
                else:
                    made.add(name)
        elif _is_generator(one.value):
            held.setdefault(one.path, type(one.value).__name__)
        elif one.is_named and (kind := _kind_of_state(one)):
            held.setdefault(one.path, kind)
        elif isinstance(one.value, np.random.SeedSequence):
            seeds.append(one)
        elif one.is_named and _is_key(one.value):
            keys.append(one)
    if "spawn" in named:
        held |= {one.path: "SeedSequence" for one in seeds}
    if not named.isdisjoint(("split", "fold_in")):
        held |= {one.path: "JAX key" for one in keys if one.path.rpartition(".")[2] in moved}
    found = {**kept, **{name: kind for name, kind in held.items() if name not in made}}
    return {
        name: kind
        for name, kind in found.items()
        if not any(name == other or name.startswith(f"{other}.") for other in ignored)
    }


def _hashes(function: types.FunctionType) -> bool:
    """Whether a function calls Python's own `hash`, but for what makes keys of dicts and sets."""
    is_own = "hash" in function.__globals__
    calls = ("hash",) in mentions(function.__code__).chains
    return calls and not is_own and function.__name__ != "__hash__"


def _is_generator(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Generator", ())):
        return value is not getattr(torch, "default_generator", None)
    return isinstance(value, _KINDS) and not any(value is one for one in _of_the_process())


def _kind_of_state(found: reach.Found) -> str:
    """Returns what keeps a state from one record to the next, which code names, else nothing."""
    value = found.value
    kind = type(value)
    if isinstance(value, types.GeneratorType | itertools.count | itertools.cycle):
        name = f"{kind.__name__} of itertools"
        return "Python generator" if kind is types.GeneratorType else name
    if kind.__module__.startswith("flax.nnx") and kind.__name__ in ("Rngs", "RngStream"):
        return f"nnx.{kind.__name__}"
    maker: object = None
    if kind.__name__ == "_lru_cache_wrapper":
        maker = getattr(value, "__wrapped__", None)
    elif found.owner is not None:
        held = vars(found.owner).get(found.name)
        maker = held.func if isinstance(held, functools.cached_property) else None
    is_maker = isinstance(maker, types.FunctionType) and returns_generator(maker.__code__)
    return "cached generator" if is_maker else ""


def _is_key(value: Any) -> bool:
    """Whether it is a key of `jax.random`, or the two numbers of one."""
    # Only then: another library's array may be closed, and raise.
    if type(value).__module__.partition(".")[0] not in ("numpy", "jax", "jaxlib"):
        return False
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    return str(dtype).startswith("key<") or (str(dtype) == "uint32" and shape == (2,))


def _of_the_process() -> Iterator[Any]:
    """Yields the generators behind `random` and `np.random`, which are seeded for each record."""
    yield random.seed.__self__  # type: ignore[attr-defined]
    yield np.random.rand.__self__  # type: ignore[attr-defined]
    yield np.random.get_bit_generator()  # type: ignore[attr-defined]


def _made_by(function: types.FunctionType) -> Iterator[tuple[str, bool]]:
    """Yields the attributes and globals that a function makes generators for.

    With each comes whether it is kept from one record to the next: a function that looks whether it
    is there makes it at its first use only, any other one makes it anew.
    """
    if function.__name__ == "__init__":
        return
    owner = function.__qualname__.rpartition(".")[0]
    looked: set[Any] = set()
    makes = False
    lines = list(dis.get_instructions(function.__code__))
    drawn = drawn_at_once(lines)
    for at, instruction in enumerate(lines):
        kind, name = instruction.opname, instruction.argval
        if kind.startswith("STORE_"):
            if makes and kind in ("STORE_ATTR", "STORE_GLOBAL"):
                place = owner if kind == "STORE_ATTR" else function.__module__
                yield f"{place}.{name}", name in looked
            makes = False
        elif kind.startswith("LOAD_"):
            makes = makes or (name in MAKERS and at not in drawn)
            if isinstance(name, str):
                looked.add(name)
