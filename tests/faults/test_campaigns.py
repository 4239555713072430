"""The short forms of the campaigns; `make faults` runs the long ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import (
    edited_kills,
    forks,
    many_processes,
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
        (edited_kills.run, 8, "processes killed"),
        (forks.run, 16, "forks"),
        (trainer_kills.run, 1, "kills"),
        (mutated_states.run, 390, "states"),
        (random_pipelines.run, 15, "pipelines"),
        (soak.run, 2000, "batches"),
        (many_processes.run, 8, "phases"),
    ],
    ids=["workers", "edits", "forks", "trainers", "states", "pipelines", "soak", "processes"],
)
def test_short_form(campaign: Callable[[int, int], Any], count: int, what: str) -> None:
    assert campaign(count, 1)[what] == count


def test_the_readme_quotes_the_counts_of_the_page_on_faults() -> None:
    root = Path(__file__).parents[2]

    def rows(page: str) -> dict[str, str]:
        lines = (root / page).read_text().splitlines()
        cells = [line.strip("| ").split(" | ") for line in lines if "-m tests.faults." in line]
        return {command: result for command, *_, result in cells}

    quoted, full = rows("README.md"), rows("docs/faults.md")
    assert quoted.keys() == full.keys()
    for command, result in quoted.items():
        numbers = re.findall(r"[0-9][0-9,]*", result)
        assert numbers
        assert set(numbers) <= set(re.findall(r"[0-9][0-9,]*", full[command])), command
