"""Settings for worker processes, and arrays in memory that processes share."""

from typing import TYPE_CHECKING

from grain_jax import _lazy
from grain_jax._values.options import MultiprocessingOptions

if TYPE_CHECKING:
    from grain_jax._algebra.shared_arrays import SharedMemoryArray as SharedMemoryArray
    from grain_jax._algebra.shared_arrays import (
        SharedMemoryArrayMetadata as SharedMemoryArrayMetadata,
    )
else:
    _HOME = "grain_jax._algebra.shared_arrays"
    __getattr__, __dir__, _ = _lazy.facade(
        __name__,
        {
            "SharedMemoryArray": f"{_HOME}:SharedMemoryArray",
            "SharedMemoryArrayMetadata": f"{_HOME}:SharedMemoryArrayMetadata",
        },
    )

__all__ = ["MultiprocessingOptions", "SharedMemoryArray", "SharedMemoryArrayMetadata"]
