"""Saving and restoring the data position with Orbax, in the same step as the parameters.

Orbax is imported, and told of these classes, when one of their names is first used.
"""

from typing import TYPE_CHECKING

from grain_jax import _lazy

if TYPE_CHECKING:
    from grain_jax._product.checkpoint import CheckpointHandler as CheckpointHandler
    from grain_jax._product.checkpoint import CheckpointRestore as CheckpointRestore
    from grain_jax._product.checkpoint import CheckpointSave as CheckpointSave
else:
    __getattr__, __dir__, __all__ = _lazy.facade(
        __name__,
        {
            "CheckpointHandler": "grain_jax._product.checkpoint:CheckpointHandler",
            "CheckpointRestore": "grain_jax._product.checkpoint:CheckpointRestore",
            "CheckpointSave": "grain_jax._product.checkpoint:CheckpointSave",
        },
    )
