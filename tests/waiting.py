"""Waiting for what comes in a moment on a quiet machine, and much later on a busy one."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 40.0
"""Seconds: less than a test has, so that its own message says what did not come."""


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Returns whether a condition came true while this waited for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
