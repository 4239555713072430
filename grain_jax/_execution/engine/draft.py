"""Elements that are made in the trainer, as inputs of tasks: bundles that lie in no slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from grain_jax._execution.engine import wire
from grain_jax._execution.engine.arena import ALIGNMENT, private_memory
from grain_jax._execution.engine.bundle import Bundle

__all__ = ["bundle_of"]


class _Draft:
    """Memory that grows as it is written to, in parts; like a slot, but of this process alone."""

    def __init__(self) -> None:
        self.end = 0
        self._parts: list[tuple[int, npt.NDArray[np.uint8]]] = []

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns an uninitialised array."""
        size = np.dtype(dtype).itemsize
        for length in shape:
            size *= length
        self.take(size)
        return np.ndarray(shape, dtype, buffer=self._parts[-1][1])

    def take(self, size: int) -> int:
        """Sets bytes aside and returns where they begin."""
        start = -(-self.end // ALIGNMENT) * ALIGNMENT
        self._parts.append((start, np.empty(size, np.uint8)))
        self.end = start + size
        return start

    def bytes_at(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Returns the bytes that `take` has set aside last."""
        return self._parts[-1][1]

    def offset_of(self, array: npt.NDArray[Any]) -> int | None:
        """Says that every array lies elsewhere."""
        return None

    def written(self) -> Any:
        """Returns all of it as one."""
        memory = private_memory(self.end)
        for start, part in self._parts:
            memory[start : start + len(part)] = part
        return memory


def bundle_of(elements: Sequence[Any], registry: wire.Registry) -> Bundle:
    """Returns elements as a bundle, which has left its slot, so to speak.

    Raises:
      UnsendableError: naming the first that does not pickle.
    """
    draft: Any = _Draft()
    offset, length = wire.encode(elements, None, draft, registry)
    bundle = Bundle(registry.token, (0, offset, length, draft.end), draft.written(), registry)
    bundle.moved = True
    return bundle
