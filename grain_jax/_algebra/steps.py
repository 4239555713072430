"""Steps: how each operator acts on a block. Each operator exists once, here.

A step is a function from a block to a block. Random-access datasets, streams, the loader, this
process and worker processes all use the same ones. An element that is None, in a stream that was
asked to keep absent ones, goes through all of them but a batch as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from grain_jax._algebra import held, kinds, running, stacking, traits, transforms
from grain_jax._algebra.batches import BatchStep
from grain_jax._algebra.blocks import Block
from grain_jax._algebra.running import Counts, Failures, Made
from grain_jax._values import errors, options, randomness
from grain_jax._values.trees import IMMUTABLE_TYPES

__all__ = [
    "BatchStep",
    "FilterStep",
    "FlatMapStep",
    "IndexStep",
    "MapStep",
    "RandomStep",
    "Step",
    "step_for",
]


class Step(Protocol):
    """A function from a block to a block."""

    @property
    def counts(self) -> Counts:
        """How many outputs there are."""

    @property
    def is_random(self) -> bool:
        """Whether it draws from generators of ours, so that later ones have another number."""

    @property
    def title(self) -> str:
        """What error messages call the step."""

    @property
    def function(self) -> Callable[..., Any] | None:
        """The user's function, if there is one."""

    @property
    def needs_ordinal(self) -> bool:
        """Whether it has to know how many elements of the stream come before."""

    @property
    def keeps_key(self) -> bool:
        """Whether a record keeps its key; behind what makes several of one it cannot."""

    @property
    def batching(self) -> traits.Batching | None:
        """How it makes batches; None if it makes none."""

    def placed(self, allocate: stacking.Allocate) -> Step:
        """Returns the step, with `allocate` for the memory of what it stacks."""

    def __call__(self, block: Block, failures: Failures | None = None) -> Block:
        """Returns the outputs; `failures` takes what single elements raise, if there are any."""


class _Each(traits.Traits):
    """A step that acts on each element by itself; see `running`."""

    title: str

    def __call__(self, block: Block, failures: Failures | None = None) -> Block:
        return running.run(self, block, failures)

    def begin(self) -> Made:
        """Returns room for one output of each element."""
        return Made([])

    def act(self, block: Block, rows: Iterator[int], made: Made) -> None:
        """Adds the outputs for some elements."""
        raise NotImplementedError

    def finish(self, block: Block, made: Made) -> Block:
        """Returns the outputs in place of the elements."""
        block.data = made.data
        return block


# Elements leave their list as they are acted on, so that whoever else keeps one is seen.


@dataclasses.dataclass
class MapStep(_Each):
    """Maps every element by itself."""

    function: Callable[[Any], Any]
    title: str
    keeps_key: bool = True

    def act(self, block: Block, rows: Iterator[int], made: Made) -> None:
        """Calls the function."""
        data, out, function, plain = block.data, made.data, self.function, made.plain
        for row in rows:
            element = data[row]
            if element is None:
                out.append(None)
                continue
            data[row] = None
            result = function(element)
            out.append(result)
            if type(result) is not plain:
                del element, result
                made.plain = plain = running.settle(out, self.title, plain)


@dataclasses.dataclass
class RandomStep(_Each):
    """Maps every element with a generator that depends on its position only.

    Attributes:
      number: which random step of the pipeline this is, from 0.
      seed: the seed; None means that every record brings the sampler's own generator.
    """

    function: Callable[[Any, np.random.Generator], Any]
    title: str
    number: int
    seed: int | None
    keeps_key: bool = True

    is_random = True

    def act(self, block: Block, rows: Iterator[int], made: Made) -> None:
        """Calls the function with each element's generator."""
        data, out, outputs = block.data, made.data, block.outputs
        keyed = None if self.seed is None else randomness.Rekeyed(self.seed, self.number)
        for row in rows:
            if data[row] is None:
                out.append(None)
                continue
            rng = block.rngs[row] if block.rngs else None
            if rng is None:
                if keyed is None:
                    raise errors.InvalidValueError(
                        f"{self.title} needs a random generator, and neither a seed nor the "
                        f"sampler's metadata gives one. Write seed=... in the sampler."
                    )
                rng = keyed.take(int(block.positions[row]), outputs[row] if outputs else 0)
            element, data[row] = data[row], None
            out.append(self.function(element, rng))
            del element
            made.plain = running.settle(out, self.title, made.plain)


@dataclasses.dataclass
class IndexStep(_Each):
    """Maps every element, knowing its place.

    Attributes:
      by_position: whether the place is the position of its record (random access and the loader) or
        the number of elements before it (streams).
    """

    function: Callable[[int, Any], Any]
    title: str
    by_position: bool

    @property
    def needs_ordinal(self) -> bool:  # type: ignore[override]
        """Whether the place is counted."""
        return not self.by_position

    def act(self, block: Block, rows: Iterator[int], made: Made) -> None:
        """Calls the function with each element's place."""
        data, out = block.data, made.data
        for row in rows:
            if data[row] is None:
                out.append(None)
                continue
            place = int(block.positions[row]) if self.by_position else block.ordinal + row
            element, data[row] = data[row], None
            out.append(self.function(place, element))
            del element
            made.plain = running.settle(out, self.title, made.plain)


@dataclasses.dataclass
class FilterStep(_Each):
    """Keeps the elements for which the function is true."""

    function: Callable[[Any], bool]
    title: str
    keeps_key: bool = True

    counts = "fewer"

    def begin(self) -> Made:
        """Returns room for the rows that are kept; their elements stay where they are."""
        return Made([], [])

    def act(self, block: Block, rows: Iterator[int], made: Made) -> None:
        """Asks the function."""
        data, keep, function = block.data, made.rows, self.function
        assert keep is not None
        for row in rows:
            if data[row] is None:
                keep.append(row)
            elif function(data[row]):
                keep.append(row)
                if type(data[row]) not in IMMUTABLE_TYPES:
                    held.detach(data, row)

    def finish(self, block: Block, made: Made) -> Block:
        """Returns the elements that are kept."""
        assert made.rows is not None
        if len(made.rows) == len(block):
            return block
        kept = block.take(made.rows)
        block.data.clear()
        return kept


@dataclasses.dataclass
class FlatMapStep(_Each):
    """Replaces every element by the elements that the function returns for it."""

    function: Callable[[Any], Sequence[Any]]
    title: str
    max_fan_out: int | None

    counts = "any"
    keeps_key = False

    def begin(self) -> Made:
        """Returns room for outputs, and what they are made of."""
        return Made([], [], [])

    def act(self, block: Block, rows: Iterator[int], made: Made) -> None:
        """Calls the function and numbers what it returns."""
        keep, outputs = made.rows, made.outputs
        assert keep is not None
        assert outputs is not None
        for row in rows:
            element = block.data[row]
            results = [None] if element is None else self._results(element)
            # Nested flat-maps keep their numbers apart: 32 bits for each.
            first = block.outputs[row] << 32 if block.outputs else 0
            outputs += range(first, first + len(results))
            keep += [row] * len(results)
            if element is None:
                made.data.append(None)
            else:
                element = block.data[row] = None
                self._add(results, made.data)

    def finish(self, block: Block, made: Made) -> Block:
        """Returns all outputs, each with the whereabouts of what it is made of."""
        assert made.rows is not None
        assert made.outputs is not None
        found = dataclasses.replace(block.take(made.rows), data=made.data, outputs=made.outputs)
        if block.rngs is not None:
            found.rngs = _branched(block.rngs, made.rows, made.outputs)
        return found

    def _add(self, results: list[Any], data: list[Any]) -> None:
        begin = len(data)
        results.reverse()
        while results:
            data.append(results.pop())
            if data[-1] is None:
                raise errors.InvalidValueError(
                    f"{self.title} returned None among its elements (number "
                    f"{len(data) - 1 - begin}). A flat-map returns the elements there are: leave "
                    "this one out of the list."
                )
            if type(data[-1]) not in IMMUTABLE_TYPES:
                held.detach(data, -1)

    def _results(self, element: Any) -> list[Any]:
        given = self.function(element)
        try:
            results = iter(given)
        except TypeError:
            raise errors.InvalidTypeError(
                f"{self.title} returned {type(given).__name__}, which holds no elements. Return a "
                "list of elements; an empty one drops the element."
            ) from None
        if self.max_fan_out is None:
            return list(results)
        # One more than allowed tells, even of a generator without an end.
        found = list(itertools.islice(results, self.max_fan_out + 1))
        if len(found) > self.max_fan_out:
            raise errors.InvalidValueError(
                f"{self.title} returned more than max_fan_out={self.max_fan_out} elements. Raise "
                "max_fan_out or return fewer."
            )
        return found


def _branched(
    rngs: Sequence[np.random.Generator | None], rows: Sequence[int], outputs: Sequence[int]
) -> list[np.random.Generator | None]:
    """Gives every output of a flat-map a generator of its own: one may be used without another."""
    found: list[np.random.Generator | None] = []
    for row, group in itertools.groupby(zip(rows, outputs, strict=True), key=lambda pair: pair[0]):
        numbers, rng = [output for _, output in group], rngs[row]
        found += [None] * len(numbers) if rng is None else randomness.branches(rng, numbers)
    return found


def _name(transform: Any) -> str:
    if isinstance(transform, functools.partial):
        return f"partial({_name(transform.func)})"
    name = getattr(transform, "__qualname__", None) or getattr(transform, "__name__", None)
    if isinstance(name, str):
        return name.rsplit("<locals>.", 1)[-1]
    return type(transform).__name__


def step_for(
    kind: str,
    transform: Any,
    *,
    number: int,
    random_number: int = 0,
    seed: int | None = None,
    by_position: bool = True,
    keeps_key: bool = True,
) -> Step:
    """Returns the step that does what a transformation, or a plain function, asks for.

    Args:
      kind: the operator: "map", "random_map", "map_with_index", "filter", "flat_map" or "batch".
      transform: a transformation object or, except for "batch", a callable.
      number: the step's number in the pipeline, from 1, for error texts.
      random_number: which random step this is, from 0.
      seed: for random steps.
      by_position: see `IndexStep`.
      keeps_key: whether a record may keep its key.

    Raises:
      InvalidTypeError: for an object of another kind.
    """
    title = f"step {number}: {kind}({_name(transform)})"
    if kind == "batch" and isinstance(transform, transforms.Batch):
        drop = ", drop_remainder=True" * transform.drop_remainder
        title = f"step {number}: batch({transform.batch_size}{drop})"
        return BatchStep(transform.batch_size, transform.drop_remainder, transform.batch_fn, title)
    function = kinds.function_of(kind, transform)
    if kind == "map":
        return MapStep(function, title, keeps_key)
    if kind == "random_map":
        return RandomStep(function, title, random_number, seed, keeps_key)
    if kind == "map_with_index":
        return IndexStep(function, title, by_position)
    if kind == "filter":
        return FilterStep(function, title, keeps_key)
    fan_out = getattr(transform, "max_fan_out", None)
    if fan_out is not None:
        fan_out = options.check_count("max_fan_out", fan_out, minimum=1)
    return FlatMapStep(function, title, fan_out)
