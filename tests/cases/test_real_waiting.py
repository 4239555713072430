"""Streams that gather for long, that yield nothing, and that are left: what holds for each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import grain_jax as grain
from tests.cases import scripts

pytestmark = [pytest.mark.usefixtures("no_process_left"), pytest.mark.timeout(120)]


# Slices of a shuffled dataset.


@pytest.mark.parametrize("workers", [0, 2])
def test_slices_of_a_shuffled_dataset_share_no_record(workers: int) -> None:
    whole = grain.MapDataset.range(12).seed(7).shuffle()
    order = [whole[index] for index in range(12)]

    def stream(part: grain.MapDataset[int]) -> list[int]:
        dataset = part.repeat(3).to_iter_dataset()
        if workers:
            dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        with iter(dataset) as iterator:
            return [int(element) for element in iterator]

    assert stream(whole[:8]) == 3 * order[:8]
    assert stream(whole[8:]) == 3 * order[8:]
    assert sorted(order) == list(range(12))


# Interrupts.


def test_tests_started_with_interrupts_ignored_can_interrupt_all_the_same() -> None:
    body = """
import os, signal, subprocess, sys
before = signal.getsignal(signal.SIGINT)
import tests.conftest
for _ in range(1000):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        break
else:
    sys.exit("not interrupted")
program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
print(before == signal.SIG_IGN, flush=True)
subprocess.run([sys.executable, "-c", program], check=True)
"""
    done = subprocess.run(
        ["/bin/sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, body],
        cwd=scripts.ROOT,
        env={**os.environ, "PYTHONPATH": str(scripts.ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")
