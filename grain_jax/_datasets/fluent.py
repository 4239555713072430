"""What both kinds of dataset offer: applying transformation objects, and calling functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar

from grain_jax._algebra import kinds, transforms
from grain_jax._values import notices

__all__ = ["Fluent", "apply_transformations"]

Self = TypeVar("Self", bound="Fluent")
R = TypeVar("R")

_constructs = notices.constructing("dataset")


class Fluent:
    """Chains of transformations, written as objects or as functions.

    Where a method of ours cannot make its dataset, the other processes of the job learn of it.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
            for name, member in list(vars(cls).items()):
                if name in ("__init__", "__iter__") or not name.startswith("_"):
                    setattr(cls, name, _told_of(member))

    def pipe(self, func: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Returns `func(self, *args, **kwargs)`, so that functions chain like methods."""
        return func(self, *args, **kwargs)

    @_constructs
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


def _told_of(member: Any) -> Any:
    """A method, failures of which are told to the other processes; anything else as it is."""
    if isinstance(member, staticmethod):
        return staticmethod(_told_of(member.__func__))
    return _constructs(member) if isinstance(member, FunctionType) else member


def apply_transformations(
    ds: Self, transformations: transforms.Transformation | transforms.Transformations
) -> Self:
    """Returns `ds.apply(transformations)`; the older way to write it.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(4)
      >>> [batch.tolist() for batch in apply_transformations(ds, [grain.transforms.Batch(2)])]
      [[0, 1], [2, 3]]
    """
    return ds.apply(transformations)
