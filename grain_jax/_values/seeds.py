"""Seeds for the steps of a pipeline that has one seed for all of them."""

from __future__ import annotations

import functools
import hashlib

import numpy as np

__all__ = ["derive_seed", "word"]


@functools.lru_cache(maxsize=1024)
def derive_seed(seed: int, depth: int) -> int:
    """The seed of the random step that stands `depth` steps after a pipeline's `seed`.

    The step right after it has depth 1, and steps that draw nothing count, too. This is what gives
    `dataset.seed(s).shuffle()` the order of Grain 0.2.18. The result has 32 bits.

    >>> derive_seed(42, 1)
    3329053876
    """
    return int(np.random.SeedSequence((seed, depth)).generate_state(1)[0])


def word(seed: int) -> int:
    """A seed as 64 bits: itself if it has no more, and otherwise a hash of it.

    >>> word(2**40), word(2**64 + 5) == word(5)
    (1099511627776, False)
    """
    if not seed >> 64:
        return seed
    text = seed.to_bytes(seed.bit_length() // 8 + 1, "big")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
