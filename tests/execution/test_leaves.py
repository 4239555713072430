"""Leaves: how large tasks are, by how the ones before went."""

from __future__ import annotations

import pytest

import grain_jax as grain
from grain_jax._algebra import sources
from grain_jax._datasets import nodes, roots, schedule
from grain_jax._datasets.outcomes import Outcome
from grain_jax._execution.leaves import Records

QUICK, SLOW, WAITED = (1e-4, 0.0), (0.1, 0.0), (0.02, 0.019)


def sizes(unit: int, eager: bool, wanted: int, went: tuple[float, float]) -> list[int]:
    """Units of each of the first tasks, all of which went the same way."""
    root = roots.NodeRoot(nodes.SourceNode(sources.adapt(range(10**6))))
    head = Records(root, schedule.lane(10**6, batches=[(unit, False)]), 0, eager, wanted)
    found = []
    for _ in range(14):
        found.append(head.next(False).units)
        seconds, waited = went
        head.learn(Outcome(seconds, waited, found[-1]))
    return found


@pytest.mark.parametrize(
    ("unit", "eager", "wanted", "went", "largest"),
    [
        (8, False, 1, QUICK, 1),  # batches in this process are made one by one
        (8, True, 1, QUICK, 16),
        (1, False, 1, QUICK, 1),
        (1, False, 40, QUICK, 64),  # records that a batch wants: doubled until there are 40
        (1, False, 4000, QUICK, 256),
        (1, True, 4, QUICK, 64),
        (1, True, 40, QUICK, 1024),
        (1, True, 4000, QUICK, 4096),
        (1, False, 4000, SLOW, 1),
        (1, True, 4000, SLOW, 1),
        (8, False, 1, WAITED, 8),  # 64 records at once
        (128, True, 1, WAITED, 1),
        (1, True, 4000, WAITED, 64),
        (1, False, 1, WAITED, 16),
    ],
)
def test_tasks_grow_to(
    unit: int, eager: bool, wanted: int, went: tuple[float, float], largest: int
) -> None:
    grown = sizes(unit, eager, wanted, went)
    assert grown[0] == 1
    assert grown == sorted(grown)
    assert grown[-1] == largest


def test_records_that_one_thread_reads_do_not_gain_by_waiting_together() -> None:
    options = grain.ReadOptions(num_threads=0)
    root = roots.NodeRoot(nodes.SourceNode(sources.adapt(range(100))), options)
    head = Records(root, schedule.lane(100), 0, False)
    for _ in range(5):
        assert head.next(False).units == 1
        head.learn(Outcome(*WAITED, 1))


def test_a_task_that_takes_too_long_makes_the_next_ones_smaller() -> None:
    root = roots.NodeRoot(nodes.SourceNode(sources.adapt(range(100))))
    head = Records(root, schedule.lane(100), 0, True, 16)
    for seconds, units in [(1e-4, 1), (1e-4, 2), (1e-4, 4), (0.1, 8), (0.1, 4), (0.1, 2)]:
        assert head.next(False).units == units
        head.learn(Outcome(seconds, 0.0, units))


@pytest.mark.parametrize(
    ("outputs_of_units", "largest"),
    [
        ((1, 1), 256),  # a map
        ((4, 1), 256),  # a flat-map
        ((1, 2), 512),
        ((1, 5), 2048),  # the first power of two that is not below 5 * 256
        ((1, 256), 4096),
        ((0, 1), 4096),  # a filter that keeps nothing
    ],
)
def test_tasks_grow_further_where_most_records_are_left_out(
    outputs_of_units: tuple[int, int], largest: int
) -> None:
    root = roots.NodeRoot(nodes.SourceNode(sources.adapt(range(10**6))))
    head = Records(root, schedule.lane(10**6), 0, True, 16)
    outputs, units = outputs_of_units
    found = []
    for _ in range(40):
        task = head.next(False)
        found.append(task.units)
        kept = [unit for unit in range(task.units) for _ in range(outputs) if unit % units == 0]
        head.learn(Outcome(1e-4, 0.0, task.units, kept))
    assert max(found) == largest
