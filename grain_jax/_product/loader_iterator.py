"""DataLoaderIterator: the loader's iterator, whose state is bytes."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from grain_jax._algebra import steps
from grain_jax._datasets import iterators, roots
from grain_jax._datasets.plan import Plan
from grain_jax._execution import fingerprint, lending, states
from grain_jax._execution.layout import Layout
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.serial import Serial
from grain_jax._execution.streams import Item
from grain_jax._product import grain_states
from grain_jax._values import checkpointable, errors, randomness, records

if TYPE_CHECKING:
    from grain_jax._product.data_loader import DataLoader

__all__ = ["DataLoaderIterator", "Description"]


@dataclasses.dataclass(frozen=True)
class Description:
    """What an iterator needs to know of its loader.

    Attributes:
      plan: the pipeline up to the first operation of the user's own.
      setup: worker processes and buffers.
      layout: shards and lanes.
      stages: operations of the user's own, and the steps after them.
      seed: the sampler's.
      sampler_text: its repr, for a state of Grain; None for a sampler of the user's own.
    """

    plan: Plan
    setup: iterators.Setup
    layout: Layout
    stages: list[Any]
    seed: int | None
    sampler_text: str | None


class DataLoaderIterator(checkpointable.StatefulCheckpointable, Iterator[Any]):
    """Iterates over a loader's stream; its state is the position of the last element you received.

    Args:
      data_loader: whose stream.
      state: where to begin, as `get_state` returned it, read from JSON; None for the start.
      validate_state: whether a state of another pipeline is refused; otherwise it is warned of.
    """

    def __init__(
        self, data_loader: DataLoader, state: dict[str, Any] | None, validate_state: bool = True
    ) -> None:
        about = data_loader._describe(self)
        self._about = about
        self._strict = about.setup.options.strict and validate_state
        self._pipeline = Pipeline(about.plan, about.setup, about.layout)
        self._serial = (
            Serial(self._pipeline, about.stages, self._metadata) if about.stages else None
        )
        self._mark = fingerprint.fingerprint(about.plan, about.layout)
        self._mark["counting"] += [_stage_name(stage) for stage in about.stages]
        self._owner: lending.Owner | None = None
        weakref.finalize(self, self._pipeline.close)
        if state is not None:
            self._go_to(state)

    def __iter__(self) -> DataLoaderIterator:
        return self

    def __next__(self) -> Any:
        lending.refuse_lent(self, self._owner)
        return self._next()

    def get_state(self) -> bytes:
        """Returns the position after the last element you received: JSON, of constant size."""
        if self._owner is not None:
            state: bytes = self._owner.get_state()
            return state
        return self._state()

    def set_state(self, state: bytes) -> None:
        """Goes to a position that `get_state` returned, also one of Grain's `DataLoader`.

        Raises:
          StateError: for bytes that are no state, or one of another pipeline; it shows the
            difference.
        """
        if self._owner is not None:
            self._owner.set_state(state)
        else:
            self._go_to(_parsed(state))

    def start_prefetch(self) -> None:
        """Starts workers, if there are any, ahead of the first `next`."""
        if self._owner is not None:
            self._owner.start_prefetch()
        else:
            self._pipeline.advance()

    def close(self) -> None:
        """Ends workers and threads; idempotent, from any thread."""
        self._pipeline.close()

    def __enter__(self) -> DataLoaderIterator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DataLoaderIterator(state={self._state().decode()})"

    def _batch_rows(self) -> tuple[int, int | None] | None:
        pipeline = self._pipeline
        return None if self._serial else pipeline.layout.batch_rows(pipeline.plan, pipeline.first)

    def _next(self) -> Any:
        return (self._serial or self._pipeline).next()

    def _state(self) -> bytes:
        state = states.encode(self._pipeline, self._mark, elastic=self._serial is None)
        if self._serial is not None:
            state["serial"] = self._serial.state()
        return json.dumps(state).encode()

    def _go_to(self, state: Any) -> None:
        if grain_states.is_grain(state):
            layout, position = grain_states.decode(
                state, self._pipeline, self._about.sampler_text, self._about.setup.options.lanes
            )
        else:
            layout, position = states.decode(
                state,
                self._pipeline,
                self._mark,
                lanes=self._about.setup.options.lanes,
                strict=self._strict,
            )
        self._pipeline.layout = layout
        if self._serial is None:
            self._pipeline.go_to(position)
        else:
            self._serial.go_to(self._pipeline.start(), position, _serial_part(state))

    def _narrow(self, layout: Layout, base: int) -> None:
        """Restricts the iterator to one epoch."""
        self._pipeline.layout = layout
        self._pipeline.first = base
        self._pipeline.go_to(self._pipeline.start())

    def _metadata(self, item: Item) -> records.RecordMetadata:
        """Returns the metadata of a record on its way into an operation."""
        is_batch = any(isinstance(step, steps.BatchStep) for step in self._about.plan.steps)
        root = self._about.plan.root
        key = None
        if not is_batch and isinstance(root, roots.NodeRoot):
            key = root.node.key(item.position)
        rng = None
        if self._about.seed is not None:
            rng = randomness.generator(self._about.seed, item.position, item.output)
        return records.RecordMetadata(item.position, key, rng)

    def _lend(self, owner: lending.Owner) -> _Loan:
        lending.refuse_lent(self, self._owner)
        self._owner = owner
        return _Loan(self)


class _Loan:
    """The iterator in the hands of whoever reads it ahead."""

    has_state = True

    def __init__(self, iterator: DataLoaderIterator) -> None:
        self._iterator = iterator
        self.next = iterator._next

    def state(self) -> bytes:
        return self._iterator._state()

    def set_state(self, state: bytes) -> None:
        self._iterator._go_to(_parsed(state))

    def close(self) -> None:
        self._iterator.close()


def _stage_name(stage: Any) -> str:
    return f"operation {getattr(stage, 'title', type(stage).__name__)}"


def _parsed(state: Any) -> Any:
    if not isinstance(state, (bytes, bytearray, str)):
        raise errors.StateError(
            f"a loader's state is bytes, got {type(state).__name__}. Give what get_state() "
            "returned."
        )
    try:
        return json.loads(state)
    except ValueError as error:
        raise errors.StateError(
            f"these {len(state)} bytes are no state: {error}. Give what get_state() returned."
        ) from None


def _serial_part(state: dict[str, Any]) -> dict[str, Any]:
    part = state.get("serial")
    if not isinstance(part, dict):
        raise errors.StateError(
            "the state knows of no operation of your own, and this pipeline has one. Build the "
            "pipeline as it was when the state was saved."
        )
    return part
