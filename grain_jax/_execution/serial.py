"""Serial stage: a user's own operations, which run here over the ordered stream of records.

What such an operation keeps in itself is not ours to save. If all of them have `get_state` and
`set_state`, these are used. Otherwise a state counts the outputs since the start, and restoring
runs the stream again up to there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from grain_jax._algebra import operations, steps
from grain_jax._execution import snapshots
from grain_jax._execution.items import END, Item
from grain_jax._execution.layout import Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._values import errors, records

__all__ = ["Serial"]

Stage = Callable[[Iterator[records.Record[Any]]], Iterator[records.Record[Any]]]


class Serial:
    """Runs operations, and the steps between and after them, behind a pipeline.

    Args:
      pipeline: gives the items.
      stages: operations and steps, in order.
      metadata: makes an item's metadata.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        stages: Sequence[Any],
        metadata: Callable[[Item], records.RecordMetadata],
    ) -> None:
        self.pipeline = pipeline
        self._make = stages
        self._metadata = metadata
        self._stream: Iterator[records.Record[Any]] | None = None
        self._live: list[Any] = []
        self._outputs = 0
        self._to_skip = 0
        self._states: list[Any] | None = None
        self._at = pipeline.position

    def next(self) -> Any:
        """Returns the next output's data, or raises StopIteration."""
        try:
            stream = self._started()
            while self._to_skip:
                next(stream)
                self._to_skip -= 1
            record = next(stream)
        except StopIteration:
            raise
        except BaseException:
            self._reset(self._outputs)
            raise
        self._outputs += 1
        self._at = self.pipeline.position
        self._states = [operation.get_state() for operation in self._live] if self._saves else None
        return record.data if isinstance(record, records.Record) else record

    def advance(self) -> None:
        """Gets the work before the operations going."""
        self.pipeline.advance()

    def close(self) -> None:
        """Ends workers and threads."""
        self.pipeline.close()

    def state(self) -> dict[str, Any]:
        """Returns what has to be added to the pipeline's state."""
        return {"outputs": self._outputs, "operations": self._states}

    def go_to(self, start: Position, position: Position, state: Mapping[str, Any]) -> None:
        """Moves to a state.

        Args:
          start: the position before the first element.
          position: the pipeline's position in the state.
          state: what `state` returned.
        """
        outputs, saved = state.get("outputs"), state.get("operations")
        if type(outputs) is not int or outputs < 0:
            raise errors.StateError(
                f"field 'outputs' of the state is {outputs!r}, expected a count"
            )
        self._stream = None
        if saved is not None and self._saves:
            if not isinstance(saved, list) or len(saved) != len(self._own()):
                raise errors.StateError(
                    f"field 'operations' of the state does not fit {len(self._own())} operations"
                )
            self.pipeline.go_to(position)
            self._outputs, self._to_skip, self._states, self._at = outputs, 0, saved, position
            self._start()
            for operation, one in zip(self._live, saved, strict=True):
                operation.set_state(one)
            return
        if outputs:
            names = ", ".join(type(operation).__name__ for operation in self._own())
            warnings.warn(
                f"{names} has no get_state and set_state: the stream is run again from its start, "
                f"up to output {outputs}.",
                stacklevel=4,
            )
        self._begin(start, outputs)

    @property
    def _saves(self) -> bool:
        """Whether the operations' own states say all there is to say."""
        return all(
            hasattr(one, "get_state") and hasattr(one, "set_state") for one in self._own()
        ) and not any(isinstance(one, steps.FlatMapStep) for one in self._make)

    def _own(self) -> list[Any]:
        return [one for one in self._make if not _is_step(one)]

    def _begin(self, start: Position, outputs: int) -> None:
        self.pipeline.go_to(start)
        self._stream, self._states = None, None
        self._outputs = self._to_skip = outputs

    def _reset(self, outputs: int) -> None:
        """After an error: the next call tries the same output again."""
        saved = self._states
        if saved is not None:
            state = {"outputs": outputs, "operations": saved}
            self.go_to(self.pipeline.start(), self._at, state)
        else:
            self._begin(self.pipeline.start(), outputs)

    def _started(self) -> Iterator[records.Record[Any]]:
        if self._stream is None:
            self._start()
        assert self._stream is not None
        return self._stream

    def _start(self) -> None:
        self._live = []
        stream = self._records()
        for stage in self._make:
            if _is_step(stage):
                stream = operations.run_steps(stream, [stage])
            else:
                live = snapshots.snapshot(stage)
                self._live.append(live)
                stream = iter(live(stream))
        self._stream = stream

    def _records(self) -> Iterator[records.Record[Any]]:
        while True:
            item = self.pipeline.next_item()
            if item is END:
                return
            yield records.Record(self._metadata(item), item.element)


def _is_step(stage: Any) -> bool:
    return hasattr(stage, "title") and hasattr(stage, "function")
