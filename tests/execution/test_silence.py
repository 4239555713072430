"""Silence: which record is one too many, whatever the tasks that bring it."""

from __future__ import annotations

import itertools
import logging

import pytest

from grain_jax._algebra import index_maps, samplers, sources, steps, transforms
from grain_jax._algebra.running import Skip
from grain_jax._datasets import lineage, nodes
from grain_jax._datasets.outcomes import Outcome
from grain_jax._datasets.schedule import Span
from grain_jax._execution import leaves, silence
from grain_jax._values import errors, sharding


def task(begin: int, count: int, unit: int = 1) -> leaves._Stretch:
    return leaves._Stretch(None, Span(begin, 1, count * unit, begin), unit, count, "")


def heard(kept: set[int], sizes: list[int], epoch: int | None, least: int = 0) -> int | None:
    """Returns which of the units of one record is refused; those in `kept` give an element."""
    silent, begin = silence.Silence(epoch, least), 0
    for size in sizes:
        units = [unit for unit in range(size) if begin + unit in kept]
        outcome = Outcome(0.0, 0.0, size, units=units)
        found = silent.pass_over(task(begin, size), outcome, ())
        if found is not None:
            assert isinstance(found[1], errors.NoElementsError)
            return begin + found[0]
        begin += size
    return None


SIZES = [[1] * 60, [60], [7] * 9, [2, 5, 1, 13, 30, 9], [20, 20, 20]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kept", [set(), {0}, {4, 5, 9}, {5, 26, 27}, {5, 25}, {20, 41, 62}, {59}])
@pytest.mark.parametrize("least", [0, 25])
def test_the_same_record_is_one_too_many_in_all_tasks(
    sizes: list[int], kept: set[int], least: int
) -> None:
    run, expected = 0, None
    for record in range(60):
        run = 0 if record in kept else run + 1
        if run > 20 and run > least:
            expected = record
            break
    assert heard(kept, sizes, epoch=10, least=least) == expected


def test_without_an_epoch_there_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    assert heard(set(), [200] * 100, epoch=None) is None
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith("5000 records in a row gave no element")


def test_only_longer_gaps_are_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "grain_jax")
    ends = itertools.accumulate([6000, 6000, 12000])
    assert heard(set(ends), [250] * 120, epoch=None) is None
    told = [record.getMessage().split()[0] for record in caplog.records]
    assert told == ["5000", "10000"]


def test_the_first_record_left_out_of_the_run_is_named() -> None:
    silent = silence.Silence(2)
    skips = [(unit, Skip("ValueError", f"record {unit}")) for unit in (0, 2, 3, 4, 5, 6)]
    outcome = Outcome(0.0, 0.0, 7, units=[1], skipped=skips)
    found = silent.pass_over(task(0, 7), outcome, (Skip("ValueError", "earlier"),))
    assert found is not None
    unit, error = found
    assert unit == 6
    assert "ValueError: record 2" in str(error)
    silent = silence.Silence(2)
    outcome = Outcome(0.0, 0.0, 7, units=[], skipped=skips)
    found = silent.pass_over(task(0, 7), outcome, (Skip("ValueError", "earlier"),))
    assert found is not None
    assert found[0] == 4
    assert "ValueError: earlier" in str(found[1])


def test_batches_count_their_records() -> None:
    silent = silence.Silence(10, 3)
    assert silent.pass_over(task(0, 3, unit=8), Outcome(0.0, 0.0, 3, units=[]), ()) is None
    found = silent.pass_over(task(24, 3, unit=8), Outcome(0.0, 0.0, 3, units=[]), ())
    assert found is not None
    assert found[0] == 0


def test_epochs_of_nodes() -> None:
    source = nodes.SourceNode(sources.adapt(range(12)))
    keep = nodes.StepNode(source, steps.step_for("filter", bool, number=1))

    def over(node: nodes.Node, index_map: index_maps.IndexMap) -> nodes.IndexNode:
        return nodes.IndexNode(node, index_map)

    endless = over(keep, index_maps.Repeat(12, None, True))
    assert lineage.epoch(source) == lineage.epoch(keep) == lineage.epoch(endless) == 12
    assert lineage.dropping(endless) == ["step 1: filter(bool)"]
    part = index_maps.Slice(range(0, 12, 3), 12)
    assert lineage.epoch(over(over(keep, part), index_maps.Repeat(4, 7, True))) == 4
    several = over(source, index_maps.Repeat(12, 3, True))
    assert lineage.epoch(several) == 12
    assert lineage.epoch(over(several, index_maps.Shuffle(36, 0))) == 36
    assert (
        lineage.epoch(over(endless, index_maps.Slice(range(5, 1000, 2), index_maps.ENDLESS))) == 12
    )
    batch = steps.step_for("batch", transforms.Batch(5), number=1)
    assert isinstance(batch, steps.BatchStep)
    batches = nodes.BatchNode(endless, batch)
    assert lineage.epoch(batches) == 3
    assert lineage.batched(batches)
    assert not lineage.batched(endless)
    split = steps.step_for("flat_map", list, number=1)
    assert isinstance(split, steps.FlatMapStep)
    assert lineage.epoch(nodes.FlatMapNode(source, split, 4)) == 48
    shard = sharding.ShardOptions(1, 3)
    sampler = samplers.IndexSampler(12, shard, shuffle=True, seed=0)
    assert lineage.epoch(over(source, index_maps.Sample(sampler))) == 4
    once = samplers.SequentialSampler(9)
    assert lineage.epoch(over(source, index_maps.Sample(once))) == 9
