"""Stats as numbers and as a table."""

from __future__ import annotations

from grain_jax._values.stats import Stats, StepStats, WorkerStats


def test_shares_and_rates_are_those_of_its_seconds() -> None:
    stats = Stats(10.0, 40, waited=2.0, computed=6.0, steps=())
    assert (stats.wait_share, stats.rate) == (0.25, 4.0)
    assert (Stats(0.0, 0, 0.0, 0.0, ()).wait_share, Stats(0.0, 0, 0.0, 0.0, ()).rate) == (0, 0)


def test_the_table_has_a_line_for_each_step_and_each_process() -> None:
    steps = (
        StepStats("source", "workers", 2, 0.25, 0.25, 64, 6_400_000),
        StepStats("step 1: map(decode)", "workers", 2, 0.75, 0.75, 64),
    )
    workers = (WorkerStats("worker 1", 4, 1.0),)
    stats = Stats(
        2.0, 8, 0.5, 1.5, steps, workers, ready=0.5, buffered=1.25, buffer_size=2, skipped=3
    )
    assert str(stats).splitlines() == [
        "8 elements in 2.0 s (4/s); the loop waited for data 25% of its time (0.50 s), and 50% of "
        "the elements were there when asked for",
        "step                 where    calls  seconds  share  records   MB",
        "source               workers      2    0.250  25.0%       64  6.4",
        "step 1: map(decode)  workers      2    0.750  75.0%       64    -",
        "worker 1: 4 tasks, 1.00 s (50% busy)",
        "ahead of the loop: 1.2 of 2 elements",
        "records left out: 3",
    ]
