"""A device, for tests whose steps go to workers: these need not import jax along with them."""

from __future__ import annotations

from typing import Any


def first() -> Any:
    """Returns the first device of this process."""
    import jax

    return jax.devices()[0]
