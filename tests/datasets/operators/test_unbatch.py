"""Unbatch: every row of every batch once, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.property import trees
from tests.property.registered import Plain


@pytest.mark.parametrize("size", [1, 3, 5, 20])
def test_it_undoes_a_batch(size: int) -> None:
    records = [{"x": np.arange(3) + place, "y": (place, str(place))} for place in range(7)]
    found = trees.check(trees.of(records).batch(size).unbatch(), workers=[0])
    assert [e["x"].tolist() for e in found] == [record["x"].tolist() for record in records]
    assert [(int(e["y"][0]), str(e["y"][1])) for e in found] == [r["y"] for r in records]


def test_batches_of_registered_classes() -> None:
    batches = [Plain(np.arange(4).reshape(2, 2), np.array([7, 8])), Plain(np.zeros((0, 2)), [][:])]
    found = list(trees.of(batches[:1]).unbatch())
    assert [(e.x.tolist(), int(e.y)) for e in found] == [([0, 1], 7), ([2, 3], 8)]


def test_batches_without_rows_add_nothing() -> None:
    batches = [np.arange(2), np.zeros(0, int), np.arange(5, 6)]
    assert [int(x) for x in trees.of(batches).unbatch()] == [0, 1, 5]


def test_behind_a_filter_with_workers(no_process_left: None) -> None:
    stream = trees.of(range(40)).filter(lambda x: x % 3).batch(4).unbatch().map(lambda x: int(x))
    found = trees.check(stream.batch(5), workers=[0, 2])
    assert np.concatenate(found).tolist() == [x for x in range(40) if x % 3]


def test_rows_of_one_batch_draw_differently() -> None:
    stream = trees.of(range(12)).batch(4).unbatch().seed(1)
    draws = trees.check(stream.random_map(lambda x, rng: float(rng.random())), workers=[0])
    assert len(set(draws)) == 12


def test_a_row_that_is_changed_changes_no_other() -> None:
    def added(row: Any) -> Any:
        row += 1
        return row

    data = np.zeros((8, 2), int)
    stream = trees.of(data).batch(4).unbatch().map(added)
    assert [row.tolist() for row in stream] == [[1, 1]] * 8
    assert not data.any()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (3, "unbatch takes batches, and the element itself has no axis for its rows"),
        ({}, "unbatch takes batches, and this element has no arrays"),
        ({"x": np.arange(2), "y": np.arange(3)}, r"equally many rows.*has 2.*has 3"),
    ],
)
def test_what_is_no_batch_is_named(batch: Any, message: str) -> None:
    with pytest.raises(grain.errors.GrainError, match=message):
        list(trees.of([batch]).unbatch())
