"""Serial stage: a user's own operations, which run here over the ordered stream of records.

What such an operation keeps in itself is not ours to save. If all of them have `get_state` and
`set_state`, these are used. Otherwise a state counts the outputs since the start, and restoring
runs the stream again up to there.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from grain_jax._algebra import operations, traits
from grain_jax._execution import cursors, silence, snapshots, states
from grain_jax._execution.layout import Layout, Position
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.runs import END
from grain_jax._values import errors, faults, records
from grain_jax._values.clock import Cost

__all__ = ["Own", "Serial"]

Records = Iterator[records.Record[Any]]
Metadata = Callable[[Any, int, int, Any], records.RecordMetadata]
"""Of the payload that a record was read for, its position, flat-map number and generator."""


@dataclasses.dataclass(frozen=True)
class Own(traits.Traits):
    """An operation of the user's own, and what error messages call it."""

    operation: Any
    title: str

    counts = "any"


class Serial:
    """Runs operations, and the steps between and after them, behind a pipeline.

    Attributes:
      cost: what it takes beside the pipeline; None where nobody asks.

    Args:
      pipeline: gives the elements.
      tail: an `Own` for each operation, and steps, in order.
      metadata: makes a record's metadata.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tail: Sequence[Any],
        metadata: Metadata,
    ) -> None:
        self.pipeline = pipeline
        # What the user changes from now on is for the next iteration.
        self._tail = snapshots.snapshot(list(tail))
        self._metadata = metadata
        self._stream: Records | None = None
        self._live: list[Any] = []
        self._to_skip = 0
        # Without an epoch: such an operation may gather as many records as it likes.
        titles = " and ".join(s.title for s in self._tail if s.counts in ("fewer", "any"))
        self._silence = silence.Silence(drops=lambda: titles)
        self.cost: Cost | None = None
        self._place = _Place(pipeline.position, 0, None)

    @property
    def position(self) -> Position:
        """The pipeline's position after the last output."""
        return self._place.position

    def next(self) -> Any:
        """Returns the next output's data, or raises StopIteration."""
        self.pipeline.check_open()
        begin = time.perf_counter()
        try:
            stream = self._started()
            while self._to_skip:
                next(stream)
                self._silence.end()
                self._to_skip -= 1
            record = next(stream)
            self._silence.end()
            saved = self._taken()
        except StopIteration:
            raise
        except BaseException:
            self.pipeline.check_open()  # another thread may have closed it meanwhile
            self._stand(self._place, self.pipeline.layout)
            raise
        self._place = _Place(self.pipeline.position, self._place.outputs + 1, saved)
        if (cost := self.cost) is not None:
            cost[0] += 1
            cost[1] += time.perf_counter() - begin
            cost[2] += 1
        return record.data

    @property
    def title(self) -> str:
        """What it is called where times are told."""
        return " and ".join(stage.title for stage in self._tail)

    def state(self) -> dict[str, Any]:
        """Returns what has to be added to the pipeline's state, as a JSON value.

        Raises:
          InvalidTypeError: for a state of an operation that is no JSON.
        """
        saved = self._place.saved
        if saved is not None:
            saved = [
                states.as_json(f"{own.title}: get_state returned", one)
                for own, one in zip(self._own(), saved, strict=True)
            ]
        return {"outputs": self._place.outputs, "operations": saved}

    def begin(self, layout: Layout) -> None:
        """Moves to the first element of a stream."""
        self._stand(_Place(layout.first(), 0, None), layout)

    def go_to(self, position: Position, layout: Layout, state: Any) -> None:
        """Moves to a state; one that an operation refuses changes nothing.

        Args:
          position: the pipeline's position in the state.
          layout: its shards and lanes.
          state: what `state` returned.

        Raises:
          StateError: if that is no such state.
        """
        if not isinstance(state, dict):
            raise errors.StateError(
                "the state knows of no operation of your own, and this pipeline has one. Build the "
                "pipeline as it was when the state was saved."
            )
        outputs, saved = states.number(state, "outputs"), state.get("operations")
        own = self._own()
        if saved is not None and (not isinstance(saved, list) or len(saved) != len(own)):
            raise errors.StateError(
                f"field 'operations' of the state is {cursors.brief(saved)}, expected a list for "
                f"{len(own)} operations"
            )
        if not self._saves:
            saved = None
        if saved is None and outputs:
            names = " and ".join(stage.title for stage in own)
            warnings.warn(
                f"{names}: without get_state and set_state, which would restore its position at "
                f"once, the stream is run again from its start, up to output {outputs}.",
                stacklevel=4,
            )
        before = self._place, self.pipeline.layout
        self._stand(_Place(position, outputs, saved), layout)
        if saved is not None:
            try:
                self._started()
            except BaseException:
                self._stand(*before)
                raise

    @property
    def _saves(self) -> bool:
        """Whether the operations' own states say all there is to say."""
        return all(
            hasattr(one.operation, "get_state") and hasattr(one.operation, "set_state")
            for one in self._own()
        ) and not any(one.counts == "any" for one in self._tail if not isinstance(one, Own))

    def _own(self) -> list[Own]:
        return [stage for stage in self._tail if isinstance(stage, Own)]

    def _taken(self) -> list[Any] | None:
        """Returns the operations' states; copies, as they may go on counting in these objects."""
        if not self._saves:
            return None
        return [copy.deepcopy(operation.get_state()) for operation in self._live]

    def _stand(self, place: _Place, layout: Layout) -> None:
        """Goes where an output left us; what is under way is forgotten."""
        self.pipeline.go_to(layout.first() if place.saved is None else place.position, layout)
        self._place = place
        self._to_skip = place.outputs if place.saved is None else 0
        self._stream = None
        self._silence.end()

    def _started(self) -> Records:
        if self._stream is None:
            self._live = []
            # Nothing in the stream refers to this object, which would be a cycle.
            upstream = _Upstream(self.pipeline, self._metadata, self._silence, self.cost)
            stream = upstream.stream()
            for number, stage in enumerate(self._tail):
                if isinstance(stage, Own):
                    live = snapshots.snapshot(stage.operation)
                    self._live.append(live)
                    stream = _run(stage, live, stream, upstream)
                else:
                    stream = operations.run_step(stream, stage, self.pipeline.plan.seed, number)
            if self._place.saved is not None:
                for operation, state in zip(self._live, self._place.saved, strict=True):
                    operation.set_state(copy.deepcopy(state))
            self._stream = stream
        return self._stream


class _Upstream:
    """The records that a pipeline gives, and where it stands.

    Attributes:
      where: what the operations are at, in words.
      failed: the `id` of the error that the pipeline itself has raised; the error would be a cycle.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        metadata: Metadata,
        silent: silence.Silence,
        cost: Cost | None,
    ) -> None:
        self._cost = cost
        self._pipeline = pipeline
        self._metadata = metadata
        self._silence = silent
        self.where = "its start"
        self.failed: int | None = None

    def stream(self) -> Records:
        """Yields the records."""
        while (record := self._next()) is not None:
            yield record

    def _next(self) -> records.Record[Any] | None:
        begin = time.perf_counter()
        try:
            found = self._pipeline.next_row()
        except BaseException as error:
            self.failed = id(error)
            raise
        if self._cost is not None:
            self._cost[1] -= time.perf_counter() - begin  # that is the pipeline's
        if found is END:
            return None
        run, row = found
        (position,), outputs, rngs = run.places.whereabouts(row, row + 1)
        self.where = f"the record at position {position}"
        self._silence.add(1)
        output, rng = outputs[0] if outputs else 0, rngs[0] if rngs else None
        metadata = self._metadata(run.places.origin(row), position, output, rng)
        return records.Record(metadata, run.held[row])


def _run(stage: Own, live: Any, stream: Records, upstream: _Upstream) -> Records:
    """Returns the outputs of one operation, which says where it failed."""
    try:
        outputs = iter(live(stream))
    except Exception as error:
        _reraise(stage, error, "its start", has_yielded=False)
    return _watched(stage, outputs, upstream)


def _watched(stage: Own, outputs: Records, upstream: _Upstream) -> Records:
    has_yielded = False
    try:
        for record in outputs:
            if not isinstance(record, records.Record):
                raise errors.InvalidTypeError(
                    f"{stage.title} yielded {type(record).__name__}. Yield records: "
                    "grain_jax.Record(metadata, data)."
                )
            yield record
            has_yielded = True
    except Exception as error:
        if id(error) == upstream.failed:
            raise
        _reraise(stage, error, upstream.where, has_yielded)


def _reraise(stage: Own, error: Exception, where: str, has_yielded: bool) -> NoReturn:
    """Raises what an operation raised, located; says what one is, where that may not be known."""
    try:
        faults.reraise(error, stage.title, where)
    except Exception as located:
        if not has_yielded and not _is_generator(stage.operation):
            faults.add_note(
                located,
                "A function, or any callable, among the transformations or operations of a loader "
                "is called once, with an iterator of records. To call it with each element, write "
                "grain_jax.python.MapOperation(function), derive from grain_jax.transforms.Map, or "
                "use MapDataset.map.",
            )
        raise


def _is_generator(operation: Any) -> bool:
    """Whether a callable of the user's is meant to be one that yields."""
    is_function = isinstance(operation, types.FunctionType | types.MethodType)
    return inspect.isgeneratorfunction(operation if is_function else type(operation).__call__)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where an output left us.

    Attributes:
      position: the pipeline's.
      outputs: how many outputs are delivered.
      saved: the operations' states; None if they have none, or before the first output.
    """

    position: Position
    outputs: int
    saved: list[Any] | None
