"""The transformations that a pipeline is written with."""

from grain_jax._algebra.transforms import (
    Batch,
    DatasetSelectionMap,
    Filter,
    FlatMap,
    Map,
    MapWithIndex,
    RandomMap,
    TfRandomMap,
    Transformation,
    Transformations,
)

__all__ = [
    "Batch",
    "DatasetSelectionMap",
    "Filter",
    "FlatMap",
    "Map",
    "MapWithIndex",
    "RandomMap",
    "TfRandomMap",
    "Transformation",
    "Transformations",
]
