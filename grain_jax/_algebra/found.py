"""What code can reach, one thing after the other: see `reach`."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["ATTRIBUTE", "FUNCTION", "NAME", "PART", "VARIABLE", "Found"]

FUNCTION, VARIABLE, ATTRIBUTE, PART, NAME = "function", "variable", "attribute", "part", "name"


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Something that code can reach.

    Attributes:
      kind: FUNCTION for a function of the user's; VARIABLE for a variable of a module that code
        names; ATTRIBUTE for what an object, a class, a closure or a default holds; PART for an
        element of a container that is one of these; NAME for the name of an attribute that an
        object in C has and looks up, such as `operator.attrgetter`.
      path: what messages call it, such as `module.rng`, `Augment.rng`.
      value: itself.
      module: of a VARIABLE or FUNCTION, the name of its module.
      name: of a VARIABLE, ATTRIBUTE or FUNCTION, its name there.
      owner: of an ATTRIBUTE of a class, that class.
      is_hook: whether it is of a class of the user's, and a base of a library may use it.
      is_named: whether code of the user's names it, or the container that it is part of.
    """

    kind: str
    path: str
    value: Any
    module: str = ""
    name: str = ""
    owner: type | None = None
    is_named: bool = True
    is_hook: bool = False
