"""The main program of every Bazel test target."""

from __future__ import annotations

import sys

import pytest

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
