"""The short forms of the campaigns; `make faults` runs the long ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults import (
    mutated_states,
    random_pipelines,
    soak,
    trainer_kills,
    worker_kills,
)

pytestmark = [
    pytest.mark.usefixtures("no_process_left"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]


@pytest.mark.parametrize(
    ("campaign", "count", "what"),
    [
        (worker_kills.run, 8, "processes killed"),
        (trainer_kills.run, 1, "kills"),
        (mutated_states.run, 390, "states"),
        (random_pipelines.run, 30, "pipelines"),
        (soak.run, 2000, "batches"),
    ],
    ids=["workers", "trainers", "states", "pipelines", "soak"],
)
def test_short_form(campaign: Callable[[int, int], Any], count: int, what: str) -> None:
    assert campaign(count, 1)[what] == count
