"""DataLoaderIterator: the loader's iterator, whose state is bytes."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from grain_jax._datasets import iterators
from grain_jax._datasets.plan import Plan, has_positions
from grain_jax._execution import fingerprint, states
from grain_jax._execution.layout import Layout
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.positioned import Positioned
from grain_jax._execution.serial import Own, Serial
from grain_jax._product import grain_states
from grain_jax._values import errors, randomness, records
from grain_jax._values.stats import StepStats

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
      tail: operations of the user's own, and the steps after them.
      seed: the sampler's.
      sampler: the name of its type.
      sampler_text: its repr, for a state of Grain; None for a sampler of the user's own.
    """

    plan: Plan
    setup: iterators.Setup
    layout: Layout
    tail: list[Any]
    seed: int | None
    sampler: str
    sampler_text: str | None


class DataLoaderIterator(Positioned[Any, bytes]):
    """Iterates over a loader's stream; its state is the position of the last element you received.

    The state is JSON in bytes, of constant size. A state of Grain's `DataLoader` can be set, too.

    Args:
      data_loader: whose stream.
      state: where to begin, as `get_state` returned it, read from JSON; None for the start.
      validate_state: whether a state of another pipeline is refused; otherwise it is warned of.

    Example:
      >>> import grain_jax as grain
      >>> loader = grain.load([1, 2, 3, 4], num_epochs=1, batch_size=2)
      >>> iterator = iter(loader)
      >>> next(iterator).tolist(), len(iterator)
      ([1, 2], 2)
      >>> other = iter(loader)
      >>> other.set_state(iterator.get_state())
      >>> next(other).tolist()
      [3, 4]
    """

    def __init__(
        self, data_loader: DataLoader, state: dict[str, Any] | None, validate_state: bool = True
    ) -> None:
        about = data_loader._describe()
        super().__init__(Pipeline(about.plan, about.setup, about.layout))
        data_loader._remember(self)
        self._about = about
        self._strict = about.setup.options.strict and validate_state
        self._serial = Serial(self._pipeline, about.tail, _Metadata(about)) if about.tail else None
        if self._stage_meter() is not None:
            self._measure_stages()
        self._mark = fingerprint.fingerprint(about.plan, about.layout, about.sampler, about.tail)
        # Taking a state is part of a training step, and this part of it never changes.
        self._mark_text = json.dumps(self._mark)
        if state is not None:
            self._go_to(state)

    def __len__(self) -> int:
        """The number of elements of the whole pass, wherever the iterator stands.

        Raises:
          InvalidTypeError: where nobody can know it.
        """
        stages = [] if self._serial else self._pipeline.stages
        return self._pipeline.layout.length_of("iterator", stages)

    def __bool__(self) -> bool:
        return True  # as any iterator, with or without a length

    def __repr__(self) -> str:
        return f"DataLoaderIterator(state={self._state().decode()})"

    def _next(self) -> Any:
        return self._pipeline.next() if self._serial is None else self._serial.next()

    def _state(self) -> bytes:
        if self._serial is None:
            state = states.encode(self._pipeline)
        else:
            state = states.encode(self._pipeline, self._serial.position)
            state["serial"] = self._serial.state()
        return f'{json.dumps(state)[:-1]}, "pipeline": {self._mark_text}}}'.encode()

    def _go_to(self, state: Any) -> None:
        self._pipeline.check_open()
        if not isinstance(state, dict):
            state = _parsed(state)
        lanes = self._about.setup.options.lanes
        if grain_states.is_grain(state):
            text = self._about.sampler_text
            layout, position = grain_states.decode(state, self._pipeline, text, lanes)
        else:
            layout, position = states.decode(
                state, self._pipeline, self._mark, lanes=lanes, strict=self._strict
            )
        if self._serial is None:
            self._pipeline.go_to(position, layout)
        else:
            self._serial.go_to(position, layout, state.get("serial"))

    def _measure_stages(self) -> None:
        super()._measure_stages()
        if self._serial is not None:
            self._serial.cost = self._serial.cost or [0, 0.0, 0, 0, 0]

    def _stages_behind(self) -> list[StepStats]:
        serial = self._serial
        if serial is None or serial.cost is None:
            return []
        calls, seconds, records, _, _ = serial.cost
        return [StepStats(serial.title, "trainer", calls, seconds, 0.0, records)]

    def _begin_at(self, layout: Layout) -> None:
        """Restricts the iterator to the stream of one epoch."""
        self._pipeline.go_to(layout.first(), layout)
        if self._serial is not None:
            self._serial.begin(layout)

    def _declared(self) -> fingerprint.Declared:
        about, pipeline = self._about, self._pipeline
        return fingerprint.declared(self._mark, about.plan, pipeline.layout, about.tail)

    def _draws(self) -> str:
        own = (stage.title for stage in self._about.tail if isinstance(stage, Own))
        return super()._draws() or next(own, "")

    def _batch_rows(self) -> tuple[tuple[int, ...], int | None] | None:
        return None if self._serial else super()._batch_rows()

    def _keep_rest(self, rule: str) -> None:
        if self._serial is None:
            super()._keep_rest(rule)

    def _batch_sizes(self) -> tuple[int, ...] | None:
        return None if self._serial else super()._batch_sizes()

    def _is_fresh(self) -> bool:
        return self._serial is None and super()._is_fresh()

    def _outlook(self) -> tuple[bool, int] | None:
        return None if self._serial else super()._outlook()


class _Metadata:
    """Makes the metadata of a record on its way into an operation."""

    def __init__(self, about: Description) -> None:
        assert has_positions(about.plan.root)
        self._root = about.plan.root
        self._seed = about.seed
        self._step = sum(step.is_random for step in about.plan.steps)
        self._has_key = all(step.keeps_key for step in about.plan.steps)

    def __call__(self, origin: Any, position: int, output: int, rng: Any) -> records.RecordMetadata:
        """Returns index, record key and generator of an element."""
        key = self._root.key(origin, position) if self._has_key else None
        if rng is None and self._seed is not None:
            rng = randomness.generator(self._seed, position, output, self._step)
        return records.RecordMetadata(position, key, rng)


def _parsed(state: Any) -> Any:
    if not isinstance(state, (bytes, bytearray, str)):
        raise errors.StateError(
            f"a loader's state is bytes, got {type(state).__name__}. Give what get_state() "
            "returned."
        )
    try:
        return json.loads(state)
    except (ValueError, RecursionError) as error:
        raise errors.StateError(
            f"these {len(state)} bytes are no state: {error}. Give what get_state() returned."
        ) from None
