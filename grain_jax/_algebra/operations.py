"""Legacy operations: objects that are called on an iterator of records.

The four built-in ones are another way to write a transformation, and are treated as such. A user's
own is a serial stage: it and what follows run in the trainer's process, over the ordered stream.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from grain_jax._algebra import global_random, kinds, steps, transforms
from grain_jax._algebra.blocks import Block
from grain_jax._values import errors, records

__all__ = [
    "BatchOperation",
    "FilterOperation",
    "MapOperation",
    "Operation",
    "RandomMapOperation",
    "run_step",
    "step_of",
]

# Above the parts of a pipeline that seed in other places; see `guard`.
_PART = 5 << 32


@runtime_checkable
class Operation(Protocol):
    """Turns an iterator of records into another one."""

    def __call__(self, input_iterator: Iterator[records.Record[Any]]) -> Iterator[Any]:
        """Yields records."""


class _BuiltIn:
    """An operation that stands for a step."""

    def __call__(
        self, input_iterator: Iterator[records.Record[Any]]
    ) -> Iterator[records.Record[Any]]:
        step = step_of(self, number=1)
        assert step is not None
        return run_step(input_iterator, step)


@dataclasses.dataclass
class BatchOperation(_BuiltIn):
    """Groups consecutive records; see `transforms.Batch`."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self) -> None:
        transforms.Batch(self.batch_size, self.drop_remainder, self.batch_fn)

    def disable_deprecation_message(self) -> None:
        """Accepted for compatibility: there is no such message."""


@dataclasses.dataclass
class MapOperation(_BuiltIn):
    """Applies a function to every record's data."""

    map_function: Callable[[Any], Any]


@dataclasses.dataclass
class RandomMapOperation(_BuiltIn):
    """Applies a function of data and generator to every record."""

    random_map_function: Callable[[Any, np.random.Generator], Any]


@dataclasses.dataclass
class FilterOperation(_BuiltIn):
    """Keeps the records for whose data a function is true."""

    condition_function: Callable[[Any], bool]


def step_of(operation: Any, **settings: Any) -> steps.Step | None:
    """Returns the step that an operation or a transformation stands for; None for a user's own.

    Args:
      operation: what the user gave.
      **settings: see `steps.step_for`.

    Raises:
      InvalidTypeError: for an object that is neither an operation nor a transformation.
    """
    found = _lowered(operation)
    if found is None:
        return None
    # As in Grain, no record behind a legacy operation has a key.
    return steps.step_for(*found, **settings, keeps_key=not isinstance(operation, _BuiltIn))


def _lowered(operation: Any) -> tuple[str, Any] | None:
    """Returns kind and transformation that an operation stands for; None for a user's own."""
    if isinstance(operation, BatchOperation):
        return "batch", transforms.Batch(
            operation.batch_size, operation.drop_remainder, operation.batch_fn
        )
    if isinstance(operation, MapOperation):
        return "map", operation.map_function
    if isinstance(operation, RandomMapOperation):
        return "random_map", operation.random_map_function
    if isinstance(operation, FilterOperation):
        return "filter", operation.condition_function
    is_transform = isinstance(operation, transforms.Batch) or kinds.methods_of(operation)
    if not is_transform and callable(operation) and not isinstance(operation, type):
        return None
    return kinds.kind_of(operation), operation


def run_step(
    stream: Iterator[records.Record[Any]], step: steps.Step, seed: int = 0, number: int = 0
) -> Iterator[records.Record[Any]]:
    """Yields the records that a step makes of a stream of records.

    Args:
      stream: the records.
      step: what is done with each of them, or with groups.
      seed: for the process-wide generators, where the step may draw from them.
      number: which step this is among those that run so.

    Raises:
      InvalidTypeError: where the stream holds anything but records.
    """
    call: Callable[[Block], Block] = step
    if step.function is not None and global_random.may_draw(step.function):
        call = functools.partial(_seeded, step, seed, _PART + number)
    run = _run_batch if step.counts == "groups" else _run
    return run(stream, step, call)


def _seeded(step: steps.Step, seed: int, part: int, block: Block) -> Block:
    position, output = block.positions[-1], block.outputs[-1] if block.outputs else 0
    if not isinstance(position, int | np.integer):
        position = block.ordinal  # an operation of the user's says what it likes
    with global_random.preserved():
        global_random.seed_for(seed, int(position), output, part)
        return step(block)


@dataclasses.dataclass(slots=True)
class _Output(records.Record[Any]):
    """A record that knows which output of a flat-map it is."""

    output: int = 0


def _run(
    stream: Iterator[records.Record[Any]], step: steps.Step, call: Callable[[Block], Block]
) -> Iterator[records.Record[Any]]:
    for number, record in enumerate(stream):
        block = call(_block([record], number, step))
        outputs = block.outputs or [0] * len(block)
        metadata = record.metadata if step.keeps_key else record.metadata.remove_record_key()
        for element, output in zip(block.data, outputs, strict=True):
            yield _Output(metadata, element, output)


def _run_batch(
    stream: Iterator[records.Record[Any]], step: Any, call: Callable[[Block], Block]
) -> Iterator[records.Record[Any]]:
    group: list[records.Record[Any]] = []
    for record in stream:
        group.append(record)
        if len(group) == step.size:
            yield _batch(group, step, call)
            group = []
    if group and not step.drop:
        yield _batch(group, step, call)


def _batch(
    group: list[records.Record[Any]], step: steps.Step, call: Callable[[Block], Block]
) -> records.Record[Any]:
    block = call(_block(group, 0, step))
    metadata = group[-1].metadata.remove_record_key()
    return _Output(metadata, block.data[0], block.outputs[0] if block.outputs else 0)


def _block(group: list[records.Record[Any]], ordinal: int, step: steps.Step) -> Block:
    for record in group:
        if not isinstance(record, records.Record):
            raise errors.InvalidTypeError(
                f"the operation before {step.title} yields {type(record).__name__}, and steps work "
                "on records. Yield grain_jax.Record(metadata, data)."
            )
    keys = {record.metadata.index: record.metadata.record_key for record in group}

    def describe(position: int) -> str:
        key = keys.get(position)
        return f"position {position}" + ("" if key is None else f" (record key {key})")

    outputs = [record.output if isinstance(record, _Output) else 0 for record in group]
    return Block(
        [record.data for record in group],
        [record.metadata.index for record in group],
        outputs if any(outputs) else None,
        [record.metadata.rng for record in group],
        ordinal=ordinal,
        describe=describe,
    )
