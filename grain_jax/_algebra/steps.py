"""Steps: how each operator acts on a block. Each operator exists once, here.

A step is a function from a block to a block. Random-access datasets, streams, the loader, this
process and worker processes all use the same ones. An element that is None, in a stream that was
asked to keep absent ones, goes through all of them but a batch as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from grain_jax._algebra import held, kinds, stacking, transforms
from grain_jax._algebra.blocks import Block
from grain_jax._values import errors, faults, options, progress, randomness
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
    def title(self) -> str:
        """What error messages call the step."""

    @property
    def function(self) -> Callable[..., Any] | None:
        """The user's function, if there is one."""

    def __call__(self, block: Block) -> Block: ...


def _settle(out: list[Any], title: str, plain: type | None) -> type | None:
    """Looks at what the user's code has returned, which is the last of `out`.

    Args:
      out: results.
      title: of the step.
      plain: what this returned before.

    Returns:
      A type whose values need no look; None if there was none yet.
    """
    kind = type(out[-1])
    if kind is type(None):
        out.pop()
        raise errors.InvalidValueError(
            f"{title} returned None. A map returns the new element; to drop elements, write a "
            "Filter."
        )
    if kind in IMMUTABLE_TYPES:
        return kind
    # At its next call the code may write to what it has kept, while this element is on its way.
    held.detach(out, -1)
    return plain


def _leaving(data: list[Any]) -> Iterable[Any]:
    """Yields elements as they leave their list, so that whoever else keeps one is seen."""
    if data and type(data[0]) in IMMUTABLE_TYPES:
        return data  # others among them may be copied in vain
    return _popped(data)


def _popped(data: list[Any]) -> Iterator[Any]:
    data.reverse()
    while data:
        yield data.pop()


@dataclasses.dataclass
class MapStep:
    """Maps every element by itself."""

    function: Callable[[Any], Any]
    title: str
    keeps_key: bool = True

    def __call__(self, block: Block) -> Block:
        out: list[Any] = []
        append, function = out.append, self.function
        plain = None
        progress.at(self.title, lambda: block.where(len(out)))
        try:
            for element in _leaving(block.data):
                if element is None:
                    append(None)
                    continue
                result = function(element)
                append(result)
                if type(result) is not plain:
                    del element, result
                    plain = _settle(out, self.title, plain)
        except BaseException as error:
            faults.reraise(error, self.title, block.where(len(out)))
        block.data = out
        return block


@dataclasses.dataclass
class RandomStep:
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

    def __call__(self, block: Block) -> Block:
        out: list[Any] = []
        plain = None
        progress.at(self.title, lambda: block.where(len(out)))
        try:
            keyed = None if self.seed is None else randomness.Rekeyed(self.seed, self.number)
            outputs = block.outputs
            for element in _leaving(block.data):
                if element is None:
                    out.append(None)
                    continue
                row = len(out)
                rng = block.rngs[row] if block.rngs else None
                if rng is None:
                    if keyed is None:
                        raise errors.InvalidValueError(
                            f"{self.title} needs a random generator, and neither a seed nor the "
                            f"sampler's metadata gives one. Write seed=... in the sampler."
                        )
                    rng = keyed.take(int(block.positions[row]), outputs[row] if outputs else 0)
                out.append(self.function(element, rng))
                del element
                plain = _settle(out, self.title, plain)
        except BaseException as error:
            faults.reraise(error, self.title, block.where(len(out)))
        block.data = out
        return block


@dataclasses.dataclass
class IndexStep:
    """Maps every element, knowing its place.

    Attributes:
      by_position: whether the place is the position of its record (random access and the loader) or
        the number of elements before it (streams).
    """

    function: Callable[[int, Any], Any]
    title: str
    by_position: bool

    def __call__(self, block: Block) -> Block:
        out: list[Any] = []
        plain = None
        progress.at(self.title, lambda: block.where(len(out)))
        try:
            for element in _leaving(block.data):
                if element is None:
                    out.append(None)
                    continue
                row = len(out)
                place = int(block.positions[row]) if self.by_position else block.ordinal + row
                out.append(self.function(place, element))
                del element
                plain = _settle(out, self.title, plain)
        except BaseException as error:
            faults.reraise(error, self.title, block.where(len(out)))
        block.data = out
        return block


@dataclasses.dataclass
class FilterStep:
    """Keeps the elements for which the function is true."""

    function: Callable[[Any], bool]
    title: str
    keeps_key: bool = True

    def __call__(self, block: Block) -> Block:
        keep: list[int] = []
        row = 0
        progress.at(self.title, lambda: block.where(row))
        try:
            function, data = self.function, block.data
            for row in range(len(data)):
                if data[row] is None:
                    keep.append(row)
                elif function(data[row]):
                    keep.append(row)
                    if type(data[row]) not in IMMUTABLE_TYPES:
                        held.detach(data, row)
        except BaseException as error:
            faults.reraise(error, self.title, block.where(row))
        if len(keep) == len(block):
            return block
        kept = block.take(keep)
        data.clear()
        return kept


@dataclasses.dataclass
class FlatMapStep:
    """Replaces every element by the elements that the function returns for it."""

    function: Callable[[Any], Sequence[Any]]
    title: str
    max_fan_out: int | None

    def __call__(self, block: Block) -> Block:
        data: list[Any] = []
        keep: list[int] = []
        outputs: list[int] = []
        row = 0
        progress.at(self.title, lambda: block.where(row))
        try:
            for row in range(len(block)):
                element = block.data[row]
                results = [None] if element is None else self._results(element)
                # Nested flat-maps keep their numbers apart: 32 bits for each.
                first = block.outputs[row] << 32 if block.outputs else 0
                outputs += range(first, first + len(results))
                keep += [row] * len(results)
                if element is None:
                    data.append(None)
                else:
                    element = block.data[row] = None
                    self._add(results, data)
        except BaseException as error:
            faults.reraise(error, self.title, block.where(row))
        made = dataclasses.replace(block.take(keep), data=data, outputs=outputs)
        if block.rngs is not None:
            made.rngs = _branched(block.rngs, keep, outputs)
        return made

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


@dataclasses.dataclass
class BatchStep:
    """Groups `size` consecutive elements; the last group of a block may be smaller.

    Attributes:
      size: elements per batch.
      drop: whether the end of the stream drops an incomplete batch (whoever cuts the stream obeys).
      function: makes a batch of a list of elements; None stacks.
      allocate: memory for stacked arrays; None means fresh memory.
    """

    size: int
    drop: bool
    function: Callable[[Sequence[Any]], Any] | None
    title: str
    allocate: stacking.Allocate | None = None

    def __call__(self, block: Block) -> Block:
        batches: list[Any] = []
        begin = 0
        ends = [min(begin + self.size, len(block)) for begin in range(0, len(block), self.size)]
        progress.at(self.title, block.span)
        try:
            for end in ends:
                if self.function is None:
                    batches.append(stacking.stack(block.data[begin:end], self.allocate))
                else:
                    batches.append(self.function(block.move(begin, end).data))
                    _settle(batches, self.title, None)
                begin = end
        except stacking.StackError as error:
            places = [block.where(begin + row) for row in (error.first, error.second)]
            faults.reraise(error, self.title, " and ".join(dict.fromkeys(places)))
        except BaseException as error:
            first, last = block.where(begin), block.where(min(begin + self.size, len(block)) - 1)
            faults.reraise(error, self.title, f"the batch from {first} to {last}")
        rows = [end - 1 for end in ends]
        # A batch stands where its last record stands.
        return Block(
            batches,
            [block.positions[row] for row in rows],
            None if block.outputs is None else [block.outputs[row] for row in rows],
            None if block.rngs is None else [block.rngs[row] for row in rows],
            None,
            block.ordinal // self.size,
            block.describe,
        )


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
) -> Step:
    """Returns the step that does what a transformation, or a plain function, asks for.

    Args:
      kind: the operator: "map", "random_map", "map_with_index", "filter", "flat_map" or "batch".
      transform: a transformation object or, except for "batch", a callable.
      number: the step's number in the pipeline, from 1, for error texts.
      random_number: which random step this is, from 0.
      seed: for random steps.
      by_position: see `IndexStep`.

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
        return MapStep(function, title)
    if kind == "random_map":
        return RandomStep(function, title, random_number, seed)
    if kind == "map_with_index":
        return IndexStep(function, title, by_position)
    if kind == "filter":
        return FilterStep(function, title)
    fan_out = getattr(transform, "max_fan_out", None)
    if fan_out is not None:
        fan_out = options.check_count("max_fan_out", fan_out, minimum=1)
    return FlatMapStep(function, title, fan_out)
