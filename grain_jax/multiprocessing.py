"""Settings for worker processes."""

from grain_jax._values.options import MultiprocessingOptions

__all__ = ["MultiprocessingOptions"]
