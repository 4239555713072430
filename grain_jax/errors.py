"""The errors that grain_jax raises itself; each is also the built-in that Grain would raise."""

from grain_jax._values.errors import (
    ClosedError,
    CorruptFileError,
    DriftError,
    GrainError,
    InvalidTypeError,
    InvalidValueError,
    MemoryLimitError,
    MissingDependencyError,
    NoElementsError,
    OutOfRangeError,
    StackError,
    StateError,
    TooManyErrors,
    TransformError,
    WorkerError,
)

__all__ = [
    "ClosedError",
    "CorruptFileError",
    "DriftError",
    "GrainError",
    "InvalidTypeError",
    "InvalidValueError",
    "MemoryLimitError",
    "MissingDependencyError",
    "NoElementsError",
    "OutOfRangeError",
    "StackError",
    "StateError",
    "TooManyErrors",
    "TransformError",
    "WorkerError",
]
