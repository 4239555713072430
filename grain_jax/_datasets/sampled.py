"""The root of a loader whose sampler is the user's own: asked in the trainer, in order."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from grain_jax._algebra import access, stacking
from grain_jax._algebra.blocks import Block
from grain_jax._datasets import nodes, roots
from grain_jax._datasets.schedule import Span
from grain_jax._values import errors, options

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


def length_of(sampler: Any) -> int | None:
    """Returns how many positions a sampler says it has; None if it does not say or has no end."""
    try:
        return len(sampler)
    except TypeError:
        return None


class SampledRoot(roots.NodeRoot):
    """Records of a source in the order of any sampler. The keys travel with the tasks."""

    def __init__(
        self, source: access.Source, sampler: Any, read_options: options.ReadOptions | None
    ) -> None:
        super().__init__(nodes.SourceNode(source), read_options)
        self._sampler = sampler
        self._length = length_of(sampler)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_sampler": None}

    @property
    def length(self) -> int | None:
        """What the sampler's `__len__` says; None without one."""
        return self._length

    @property
    def sparse(self) -> bool:
        """A sampler of unknown length has to be counted as it runs."""
        return self._length is None

    def prepare(self, span: Span) -> Any:
        """Asks the sampler for the positions of a span; None if it has no more.

        Raises:
          OutOfRangeError: for a key that the source does not have.
        """
        keys: list[int] = []
        rngs: list[np.random.Generator | None] = []
        for position in span.positions().tolist():
            try:
                metadata = self._sampler[position]
            except IndexError:
                if self._length is not None:
                    raise
                break
            key = metadata.record_key
            if key is None or not 0 <= key < self._node.length:
                raise errors.OutOfRangeError(
                    f"the sampler {type(self._sampler).__name__} gives record key {key} at "
                    f"position {position}, and the source has keys 0 to {self._node.length - 1}."
                )
            keys.append(int(key))
            rngs.append(metadata.rng)
        if not keys:
            return None
        span = dataclasses.replace(span, count=len(keys))
        return _Asked(
            span, np.array(keys, np.int64), rngs if any(r is not None for r in rngs) else None
        )

    def read(self, payload: Any) -> Block:
        """Reads the keys that the sampler gave."""
        positions = payload.span.positions()
        known = dict(zip(positions.tolist(), payload.keys.tolist(), strict=True))
        block = self._node.read(payload.keys, self._read)
        rows = range(len(block)) if block.rows is None else block.rows
        block.positions = positions[list(rows)].tolist()
        block.rngs = None if payload.rngs is None else [payload.rngs[row] for row in rows]
        block.ordinal = payload.span.ordinal
        block.describe = lambda position: f"position {position} (record key {known[position]})"
        return block

    def read_batch(
        self, payload: Any, allocate: stacking.Allocate | None
    ) -> tuple[Any, Block] | None:
        """Lets the source stack, if it can."""
        found = nodes.read_batch(self._node, payload.keys, allocate)
        if found is None:
            return None
        where = Block([], payload.span.positions().tolist(), rngs=payload.rngs)
        where.ordinal = payload.span.ordinal
        return found, where
