"""Every file of engine tests ends without a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from grain_jax._execution.engine import launch
from tests.conftest import children


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    before = children()
    yield
    deadline = time.monotonic() + 5
    while (left := children() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"processes {sorted(left)} outlived these tests"


@pytest.fixture(scope="module", autouse=True)
def warm(nothing_left: None) -> Iterator[None]:
    handle = launch.keep_alive()
    yield
    handle.close()
