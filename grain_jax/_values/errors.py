"""The errors that grain_jax raises itself.

    GrainError                  everything below
    ├── InvalidValueError       (ValueError)    a value that cannot work
    │   ├── CorruptFileError (ValueError)   a file of records that is damaged, or has changed
    │   ├── StackError          (ValueError)    elements that make no batch
    │   └── StateError          (ValueError)    a state that does not fit, or is none
    ├── InvalidTypeError        (TypeError)     an object of the wrong kind
    ├── OutOfRangeError         (IndexError)    a position or key outside its range
    ├── ClosedError             (RuntimeError)  use after `close()`
    ├── TooManyErrors           (RuntimeError)  more records left out than an ErrorPolicy allows
    ├── NoElementsError         (ValueError)    two whole epochs of records that gave no element
    ├── TransformError          (RuntimeError)  an exception that could not travel
    ├── WorkerError             (RuntimeError)  a worker process died or does not answer
    ├── DriftError              (RuntimeError)  a worker reads other values or code from modules
    └── MissingDependencyError  (ImportError)   a package that is not installed

Each derives from the built-in exception that a user of the API would catch today. A user's own
exception is never wrapped: it is raised as itself, with notes that name the step and the record.
"""

from __future__ import annotations

from typing import Any

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


class GrainError(Exception):
    """The root of every error that grain_jax raises itself."""


class InvalidValueError(GrainError, ValueError):
    """A value that cannot work, refused where it is given."""


class CorruptFileError(InvalidValueError):
    """A file of records that is cut off or damaged, or that was written to while it was read."""


class StackError(InvalidValueError):
    """Elements that do not stack; where it is for their types, this is an InvalidTypeError, too.

    Attributes:
      leaf: where in the element's tree, in JAX's notation; empty for an element that is a leaf.
      first: the row of an element that shows the reason.
      second: the row of one that does not go with it; equal to `first` where one is enough.
    """

    def __init__(self, message: str, leaf: str, first: int, second: int) -> None:
        super().__init__(message)
        self.leaf = leaf
        self.first = first
        self.second = second

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.leaf, self.first, self.second)


class StateError(InvalidValueError):
    """A state that does not fit this pipeline, or bytes that are no state."""


class OtherShardError(StateError):
    """A state of another shard, for which this one needs the states of all shards."""


class InvalidTypeError(GrainError, TypeError):
    """An object of the wrong kind, or a length that nobody can know."""


class OutOfRangeError(GrainError, IndexError):
    """A position or a key outside its range."""


class ClosedError(GrainError, RuntimeError):
    """Use of a loader, iterator or stage after `close()`."""


class TooManyErrors(GrainError, RuntimeError):
    """More records were left out than an `ErrorPolicy` allows."""


class NoElementsError(GrainError, ValueError):
    """Two whole epochs of records gave no element, and the stream would go on."""


class TransformError(GrainError, RuntimeError):
    """A user's exception that could not travel between processes: its type name and text."""


class WorkerError(GrainError, RuntimeError):
    """A worker process died or does not answer."""


class MemoryLimitError(GrainError, MemoryError):
    """Elements that wait for others take more memory than they may."""


class DriftError(GrainError, RuntimeError):
    """What the pipeline's code reads from modules is not the same in a worker as in the trainer."""


class MissingDependencyError(GrainError, ImportError):
    """An optional package is needed and is not installed."""
