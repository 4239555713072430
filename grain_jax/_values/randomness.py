"""Random generators that depend on where a record stands, and on nothing else.

Every draw comes from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
2011) with the key (seed, global position) and the counter (0, 0, output number, step number): two
records, epochs, seeds, flat-map outputs or random steps share no draw. An output number above 64
bits, of a third flat-map inside two others, goes on in the word before; of one above 128 bits it
is a hash, which no two outputs are known to share.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from grain_jax._values.seeds import word

__all__ = ["Rekeyed", "branches", "counter_of", "generator"]

_MASK = 2**64 - 1


def generator(seed: int, position: int, output: int = 0, step: int = 0) -> np.random.Generator:
    """Returns a fresh generator for one record at one random step.

    Args:
      seed: the pipeline's seed, from 0.
      position: global position in the stream, from 0; epochs go on counting.
      output: which output of a flat-map this is, from 0.
      step: which random step of the pipeline asks, from 0.
    """
    key = np.array([word(seed), position & _MASK], np.uint64)
    bits = np.random.Philox(counter=counter_of(output, step), key=key)
    return np.random.Generator(bits)


def counter_of(output: int, step: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Returns where the draws of a flat-map's output at a step begin."""
    if output >> 128:
        text = output.to_bytes(output.bit_length() // 8 + 1, "big")
        output = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")
    words = [0, output >> 64 & _MASK, output & _MASK, step & _MASK]
    return np.array(words, np.uint64)


def branches(rng: np.random.Generator, outputs: Sequence[int]) -> list[np.random.Generator]:
    """Returns a generator for each output of a flat-map, keyed by what `rng` draws next."""
    key = rng.integers(0, 2**64, 2, np.uint64)
    return [
        np.random.Generator(np.random.Philox(counter=counter_of(output, 0), key=key))
        for output in outputs
    ]


class Rekeyed:
    """One generator that is set anew for every record: 1 µs instead of 12.

    A generator that its user keeps stays untouched: the next `take` then makes a new one. Not for
    use from several threads.
    """

    def __init__(self, seed: int, step: int) -> None:
        self._seed = word(seed)
        self._step = step & _MASK
        self._renew()

    def _renew(self) -> None:
        self._bits = np.random.Philox(key=np.zeros(2, np.uint64))
        self._generator = np.random.Generator(self._bits)
        self._key = np.array([self._seed, 0], np.uint64)
        self._counter, self._output = counter_of(0, self._step), 0
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": self._key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def take(self, position: int, output: int = 0) -> np.random.Generator:
        """Returns a generator equal to `generator(seed, position, output, step)`."""
        # One reference is this attribute, one the argument; the bit generator has its owner, too.
        if sys.getrefcount(self._generator) > 2 or sys.getrefcount(self._bits) > 3:
            self._renew()
        self._key[1] = position & _MASK
        if output != self._output:
            self._output = output
            self._counter[:] = counter_of(output, self._step)
        self._bits.state = self._state
        return self._generator
