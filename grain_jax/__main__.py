"""`python -m grain_jax inspect FILE:NAME`: see `--help`."""

import sys

from grain_jax._product.command import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
