"""A signal handler that asks an iterator for an element while its thread is inside `next()`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("no_process_left")]

SCRIPT = """
import faulthandler, signal, threading, time
import numpy as np
import grain_jax as grain
faulthandler.dump_traceback_later(90, exit=True)
inside, seen = threading.Event(), []
class Slow(grain.transforms.Map):
    def map(self, record):
        time.sleep(0.2)
        return record
def handler(*_):
    state = iterator.get_state()
    try:
        next(iterator)
    except ValueError as error:
        seen.append(str(error))
    assert iterator.get_state() == state
with MAKE as iterator:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    found = [np.asarray(batch).tolist() for batch in iterator]
    signal.setitimer(signal.ITIMER_REAL, 0)
print(found == [[0, 1], [2, 3], [4, 5], [6, 7]], bool(seen), *{text[:64] for text in seen})
"""
LOADER = """grain.load(np.arange(8), num_epochs=1, batch_size=2, transformations=[Slow()],
                  worker_count=WORKERS)"""
DATASET = """(grain.MapDataset.source(np.arange(8)).map(Slow()).to_iter_dataset().batch(2)
             .mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS)).__iter__())"""
MAKE = {
    "loader": f"iter({LOADER})",
    "dataset": DATASET,
    "stage": f"grain.prefetch_to_device({LOADER})",
    "stage of a dataset": f"grain.prefetch_to_device({DATASET})",
}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_refused_and_the_stream_goes_on(name: str, workers: int, tmp_path: Path) -> None:
    make = MAKE[name].replace("WORKERS", str(workers))
    assert scripts.output(tmp_path, SCRIPT.replace("MAKE", make), 100) == [
        "True True next() of this iterator was called within its own next(), in the"
    ]
