"""The root of a loader whose sampler is the user's own: asked in the trainer, in order."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from grain_jax._algebra import access, global_random, guard, stacking
from grain_jax._algebra.blocks import Block
from grain_jax._datasets import nodes, roots
from grain_jax._datasets.schedule import Span
from grain_jax._values import errors, faults, options

__all__ = ["SampledRoot", "length_of"]


@dataclasses.dataclass(slots=True)
class _Asked:
    """What the sampler said about the positions of a span."""

    span: Span
    keys: nodes.Indices
    rngs: list[np.random.Generator | None] | None

    @property
    def count(self) -> int:
        return self.span.count

    def part(self, begin: int, end: int) -> _Asked:
        rngs = None if self.rngs is None else self.rngs[begin:end]
        return _Asked(self.span.part(begin, end), self.keys[begin:end], rngs)

    def describe(self) -> Callable[[int], str]:
        """Returns what says in words which record stands at a position."""

        def text(position: int) -> str:
            return f"position {position} (record key {self.key(position)})"

        return text

    def key(self, position: int) -> int:
        """Returns the key that the sampler gave for a position."""
        return int(self.keys[(position - self.span.first) // self.span.stride])


def length_of(sampler: Any) -> int | None:
    """Returns how many positions a sampler says it has; None if it does not say or has no end."""
    try:
        return len(sampler)
    except TypeError:
        return None


class SampledRoot(roots.NodeRoot):
    """Records of a source in the order of any sampler. The keys travel with the tasks."""

    def __init__(
        self,
        source: access.Source,
        sampler: Any,
        read_options: options.ReadOptions | None,
        seed: int = 0,
    ) -> None:
        super().__init__(nodes.SourceNode(source), read_options, seed=seed, by_position=True)
        self._sampler = sampler
        self._guard = guard.Guard(guard.SAMPLER)
        self._length = length_of(sampler)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_sampler": None}

    @property
    def length(self) -> int | None:
        """What the sampler's `__len__` says; None without one."""
        return self._length

    @property
    def has_gaps(self) -> bool:
        """A sampler of unknown length has to be counted as it runs."""
        return self._length is None or super().has_gaps

    def key(self, payload: Any, position: int) -> int | None:
        """Returns the key that the sampler gave."""
        key: int = payload.key(position)
        return key

    def describe(self, position: int) -> str:
        """Says the position: its key has gone with the task."""
        return f"position {position}"

    @property
    def asks(self) -> str:
        """The sampler: its code is the user's."""
        return self._title

    def prepare(self, span: Span) -> Any:
        """Asks the sampler for the positions of a span; None if it has no more.

        Where the sampler fails, the positions before come first. Where it draws, it is asked again,
        with the process-wide generators seeded for each position.

        Raises:
          OutOfRangeError: for a key that the source does not have.
          InvalidTypeError: for what is no metadata.
        """
        found = self._guard.run(lambda: self._asked(span, self._ask), self._seed)
        if found is not guard.DREW:
            return found
        with global_random.preserved():
            return self._asked(span, lambda p: self._guard.seeded(self._ask, p, self._seed, p))

    def _asked(self, span: Span, ask: Callable[[int], tuple[int, Any] | None]) -> _Asked | None:
        keys: list[int] = []
        rngs: list[np.random.Generator | None] = []
        for position in span.positions().tolist():
            try:
                found = ask(position)
            except Exception:
                if keys:
                    break
                raise
            if found is None:
                break
            keys.append(found[0])
            rngs.append(found[1])
        if not keys:
            return None
        given = rngs if any(rng is not None for rng in rngs) else None
        return _Asked(span.part(0, len(keys)), np.array(keys, np.int64), given)

    def _ask(self, position: int) -> tuple[int, Any] | None:
        """Returns key and generator that the sampler has for a position; None past its end."""
        try:
            metadata = self._sampler[position]
        except IndexError as error:
            if self._length is None:
                return None
            faults.reraise(error, self._title, f"position {position}")
        except BaseException as error:
            faults.reraise(error, self._title, f"position {position}")
        try:
            key = operator.index(metadata.record_key)
            # A copy: this run's draws must not show in what the sampler keeps.
            rng = copy.deepcopy(metadata.rng)
        except (AttributeError, TypeError):
            raise errors.InvalidTypeError(
                f"{self._title} gives {metadata!r} at position {position}. Return a "
                "grain_jax.RecordMetadata with a whole number as record_key."
            ) from None
        if not 0 <= key < self._node.length:
            raise errors.OutOfRangeError(
                f"{self._title} gives record key {key} at position {position}, and the source "
                f"has keys 0 to {self._node.length - 1}."
            )
        return key, rng

    @property
    def _title(self) -> str:
        return f"the sampler {type(self._sampler).__name__}"

    def read(self, payload: Any) -> Block:
        """Reads the keys that the sampler gave."""
        positions = payload.span.positions()
        try:
            block = self._node.read(payload.keys, self._reading(positions))
        except BaseException as error:
            self._reraise(error, positions, payload.describe())
        rows = range(len(block)) if block.rows is None else block.rows
        block.positions = positions[list(rows)].tolist()
        block.rngs = None if payload.rngs is None else [payload.rngs[row] for row in rows]
        block.ordinal = payload.span.ordinal
        block.describe = payload.describe()
        return block

    def read_batch(
        self, payload: Any, allocate: stacking.Allocate | None
    ) -> tuple[Any, Block] | None:
        """Lets the source stack, if it can."""
        positions = payload.span.positions()
        try:
            found = nodes.read_batch(self._node, payload.keys, allocate, self._seed)
        except BaseException as error:
            self._reraise(error, positions, payload.describe())
        if found is None:
            return None
        where = Block([], positions.tolist(), rngs=payload.rngs)
        where.ordinal, where.describe = payload.span.ordinal, payload.describe()
        return found, where
