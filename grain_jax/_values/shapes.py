"""Shapes: what is known of an array before it is there."""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import numpy.typing as npt

__all__ = ["ShapeDtypeStruct", "ShapeDtypeStructProtocol"]


@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Whatever has a shape and a dtype, such as arrays of NumPy and JAX.

    Example:
      >>> import numpy as np
      >>> isinstance(np.zeros(3), ShapeDtypeStructProtocol)
      True
    """

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its axes; None for one whose length is not fixed."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """Its dtype."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShapeDtypeStruct:
    """The shape and dtype of an array.

    Example:
      >>> ShapeDtypeStruct((None, 3), "float32").shape
      (None, 3)

    Attributes:
      shape: its axes; None for one whose length is not fixed.
      dtype: its dtype, as it was given.
    """

    shape: tuple[int | None, ...]
    dtype: npt.DTypeLike
