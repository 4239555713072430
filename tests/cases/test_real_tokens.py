"""A job of real processes that read a packed mixture: killed, and resumed on other numbers."""

from __future__ import annotations

import itertools
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cases import tokens_job
from tests.product.jobs import free_address, running
from tests.property.test_trees import mixed, packed

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("no_process_left")]


def steps_in_plain_python() -> list[list[list[int]]]:
    """Each virtual shard mixes and packs its own records; a step has two rows of each."""
    shards = tokens_job.SHARDS
    rows = []
    for shard in range(shards):
        few, others = (
            [[number + place for place in range(1 + number % 7)] for number in part[shard::shards]]
            for part in tokens_job.sources()
        )
        kept = [row for row in few if tokens_job.keeps(row[0])]
        both = list(mixed([kept, others], (0, 0, 1)))
        rows.append(list(packed(both, tokens_job.LENGTH, tokens_job.BINS)))
    share = tokens_job.SHARE
    most = max(-(-len(own) // share) for own in rows)
    cut = [[own[k * share : (k + 1) * share] for own in rows] for k in range(most)]
    return [list(itertools.chain(*parts)) for parts in cut]


def logged(folder: Path, count: int) -> dict[int, list[list[int]]]:
    """Rows of each step that all processes of a run have logged."""
    logs: list[dict[int, Any]] = []
    for index in range(count):
        log = folder / f"{index}-of-{count}.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        logs.append(dict(json.loads(line) for line in lines if line.endswith("\n")))
    common = sorted(set.intersection(*map(set, logs)))
    return {step: [row for log in logs for row in log[step]] for step in common}


def run(folder: Path, count: int, begin: Path | None, most: int | None) -> Path:
    """Runs a job from a save on; with `most`, until so many more steps are done, and kills it.

    Returns:
      The last save that all processes have made.
    """
    rest = [str(folder), str(int(count == 2)), str(begin or "")]
    address = free_address()
    commands = [
        ["-m", "tests.cases.tokens_job", address, str(count), str(index), *rest]
        for index in range(count)
    ]
    with running(commands, devices=1) as processes:
        while most is not None and len(logged(folder, count)) < most:
            for process in processes:
                assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        if most is not None:
            # The first one last: without it the others would end by themselves.
            for process in reversed(processes):
                process.send_signal(signal.SIGKILL)
        ends = [process.communicate(timeout=200)[1] for process in processes]
        for process, errors in zip(processes, ends, strict=True):
            assert process.returncode == (0 if most is None else -signal.SIGKILL), errors
    return folder / f"{count}_{max(logged(folder, count))}"


def test_a_packed_mixture_on_4_2_8_and_1_processes_has_the_tokens_of_the_unbroken_run(
    tmp_path: Path,
) -> None:
    expected = dict(enumerate(steps_in_plain_python(), 1))
    save, last = None, 0
    for count, most in ((4, 5), (2, 5), (8, 5), (1, None)):
        save = run(tmp_path, count, save, most)
        found = logged(tmp_path, count)
        assert list(found) == list(range(last + 1, max(found) + 1))
        assert found == {step: expected[step] for step in found}
        last = max(found)
        assert most is None or last < len(expected)
    assert last == len(expected)
