"""RngPool: the generators of random steps, by index."""

from __future__ import annotations

import numpy as np

from grain_jax._values import options, randomness

__all__ = ["RngPool"]


class RngPool:
    """The generators that `random_map` gives to elements, for transformations of one's own.

    Args:
      seed: of the pipeline, from 0.

    Example:
      >>> import grain_jax as grain
      >>> pool = RngPool(seed=3)
      >>> rng = pool.acquire_rng(5)
      >>> ds = grain.MapDataset.range(9).random_map(lambda x, rng: rng.random(), seed=3)
      >>> rng.random() == ds[5]
      True
      >>> pool.release_rng(rng)
    """

    def __init__(self, seed: int) -> None:
        self._seed = options.check_any_seed(seed)

    def acquire_rng(self, index: int, *, op_seed: int = 0) -> np.random.Generator:
        """Returns the generator of an element.

        Args:
          index: of the element, from 0.
          op_seed: which random step of the pipeline draws, from 0: each draws otherwise.
        """
        index = options.check_count("index", index, minimum=0)
        step = options.check_count("op_seed", op_seed, minimum=0)
        return randomness.generator(self._seed, index, 0, step)

    def release_rng(self, rng: np.random.Generator) -> None:
        """Takes a generator back: accepted for compatibility, each is made anew."""
