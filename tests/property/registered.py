"""Classes that JAX knows, in a module that imports it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.struct
import jax

__all__ = ["Plain", "Sample", "Sound", "Struct"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Plain:
    """Registered with JAX itself."""

    x: Any
    y: Any
    tag: str = dataclasses.field(default="static", metadata={"static": True})


@flax.struct.dataclass
class Struct:
    """Registered by Flax; frozen."""

    x: Any
    y: Any
    tag: str = flax.struct.field(pytree_node=False, default="static")


@flax.struct.dataclass
class Sample:
    """With a name that is no leaf."""

    x: Any
    name: str = flax.struct.field(pytree_node=False, default="s")


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["rate"])
@dataclasses.dataclass
class Sound:
    """Registered from outside."""

    x: Any
    rate: int
