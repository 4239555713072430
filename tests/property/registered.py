"""Classes that JAX knows, in a module that imports it."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax

__all__ = ["Plain", "Struct"]


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
