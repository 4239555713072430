"""Elements that are made in the trainer, as inputs of tasks: bundles that lie in no slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from grain_jax._execution.engine import wire
from grain_jax._execution.engine.arena import ALIGNMENT, Memory, private_memory
from grain_jax._execution.engine.bundle import Bundle

__all__ = ["bundle_of"]

_SMALLEST = 4096


class _Draft:
    """Memory that grows as it is written to; like a slot, but of this process alone."""

    def __init__(self, size: int) -> None:
        self.end = 0
        self._memory = private_memory(size)

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns an uninitialised array, to be written to at once."""
        size = np.dtype(dtype).itemsize
        for length in shape:
            size *= length
        start = self.take(size)
        return np.ndarray(shape, dtype, buffer=self._memory, offset=start)

    def take(self, size: int) -> int:
        """Sets bytes aside and returns where they begin."""
        start = -(-self.end // ALIGNMENT) * ALIGNMENT
        if start + size > self._memory.size:
            memory = private_memory(max(2 * self._memory.size, start + size))
            memory[: self.end] = self._memory[: self.end]
            self._memory = memory
        self.end = start + size
        return start

    def bytes_at(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Returns bytes that `take` has set aside, to be written to at once."""
        return self._memory[start : start + size]

    def offset_of(self, array: npt.NDArray[Any]) -> int | None:
        """Says that every array lies elsewhere."""
        return None

    def written(self) -> Memory:
        """Returns what was set aside."""
        return self._memory.part(0, self.end)


def bundle_of(elements: Sequence[Any], registry: wire.Registry) -> Bundle:
    """Returns elements as a bundle, which has left its slot, so to speak.

    Raises:
      UnsendableError: naming the first that does not pickle.
    """
    draft: Any = _Draft(_SMALLEST + sum(getattr(one, "nbytes", 0) for one in elements))
    offset, length = wire.encode(elements, None, draft, registry)
    bundle = Bundle(registry.token, (0, offset, length, draft.end), draft.written(), registry)
    bundle.moved = True
    return bundle
