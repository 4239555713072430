"""What both kinds of dataset offer: applying transformation objects, and calling functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from grain_jax._algebra import kinds, transforms

__all__ = ["Fluent"]

Self = TypeVar("Self", bound="Fluent")
R = TypeVar("R")


class Fluent:
    """Chains of transformations, written as objects or as functions."""

    def pipe(self, func: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Returns `func(self, *args, **kwargs)`, so that functions chain like methods."""
        return func(self, *args, **kwargs)

    def apply(
        self: Self, transformations: transforms.Transformation | transforms.Transformations
    ) -> Self:
        """Returns the dataset with transformation objects applied, in order.

        Raises:
          InvalidTypeError: for an object that is no transformation.
        """
        if not isinstance(transformations, Sequence):
            transformations = [transformations]
        result = self
        for transformation in transformations:
            kind = kinds.kind_of(transformation)
            if isinstance(transformation, transforms.Batch):
                result = result.batch(  # type: ignore[attr-defined]
                    transformation.batch_size,
                    drop_remainder=transformation.drop_remainder,
                    batch_fn=transformation.batch_fn,
                )
            else:
                result = getattr(result, kind)(transformation)
        return result
