"""Packs: every sequence once and whole, in the row that a plain loop puts it in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax.experimental import BestFitPackIterDataset, FirstFitPackIterDataset
from tests.property import trees

PACKS = [FirstFitPackIterDataset, BestFitPackIterDataset]


def sequences(count: int, longest: int = 9, seed: int = 0) -> list[Any]:
    """Sequences of different numbers, from 1 on."""
    lengths = np.random.default_rng(seed).integers(1, longest + 1, count)
    ends = np.cumsum(lengths) + 1
    return [
        {"x": np.arange(end - length, end), "note": f"{length}"}
        for length, end in zip(lengths, ends, strict=True)
    ]


def by_a_loop(kind: Any, given: list[Any], length: int, bins: int) -> list[list[int]]:
    """The numbers of the sequences in each row, in order of the rows."""
    out: list[list[int]] = []
    rows: list[list[int]] = []

    def used(row: list[int]) -> int:
        return sum(len(given[number]["x"]) for number in row)

    for number, element in enumerate(given):
        fitting = [row for row in rows if used(row) + len(element["x"]) <= length]
        if not fitting and len(rows) == bins:
            out, rows = out + rows, []
        if not fitting:
            rows.append([number])
        elif kind is FirstFitPackIterDataset:
            fitting[0].append(number)
        else:
            max(fitting, key=used).append(number)
    return out + rows


def expected(given: list[Any], rows: list[list[int]], length: int) -> list[Any]:
    found = []
    for row in rows:
        parts = [given[number]["x"] for number in row]
        padding = [0] * (length - sum(map(len, parts)))
        segments = [number for number, part in enumerate(parts, 1) for _ in part]
        positions = [place for part in parts for place in range(len(part))]
        found.append(
            {
                "x": np.array([*np.concatenate(parts), *padding]),
                "x_segment_ids": np.array(segments + padding, np.int32),
                "x_positions": np.array(positions + padding, np.int32),
                "note": [given[number]["note"] for number in row],
            }
        )
    return found


@pytest.mark.parametrize("bins", [1, 2, 7])
@pytest.mark.parametrize("kind", PACKS)
def test_rows_are_those_of_a_plain_loop(kind: Any, bins: int) -> None:
    for count in (0, 1, 2, 30):
        given = sequences(count)
        made = trees.of(
            given,
            lambda parent: kind(
                parent,
                length_struct={"x": 12},
                num_packing_bins=bins,
                meta_features=["note"],
                shuffle_bins=False,
            ),
        )
        rows = by_a_loop(kind, given, 12, bins)
        assert trees.same(trees.check(made, workers=(0,)), expected(given, rows, 12))


@pytest.mark.parametrize("kind", PACKS)
def test_every_token_comes_once_in_any_order_of_rows(kind: Any) -> None:
    given = sequences(60, seed=1)

    def make(seed: int) -> list[Any]:
        stream = trees.of(
            [{"x": one["x"]} for one in given],
            lambda parent: kind(
                parent,
                length_struct={"x": 12},
                num_packing_bins=5,
                seed=seed,
                padding_struct={"x": -1},
                pack_alignment_struct={"x": 4},
            ),
        )
        return trees.check(stream, workers=(0,), every=3)

    found = [make(seed) for seed in (0, 2**40)]
    for rows in found:
        tokens = [int(token) for row in rows for token in row["x"] if token != -1]
        assert sorted(tokens) == [int(token) for one in given for token in one["x"]]
        for row in rows:
            starts = np.flatnonzero((row["x_positions"] == 0) & (row["x_segment_ids"] > 0))
            assert not any(starts % 4)
            assert ((row["x"] == -1) == (row["x_segment_ids"] == 0)).all()
    assert not trees.same(*found)


def test_with_workers_behind_a_filter_and_before_a_batch(no_process_left: None) -> None:
    def make(parent: grain.IterDataset[Any]) -> grain.IterDataset[Any]:
        packed = FirstFitPackIterDataset(
            parent.filter(lambda one: len(one["x"]) != 3).map(lambda one: {"x": one["x"]}),
            length_struct={"x": 12},
            num_packing_bins=4,
        )
        return packed.seed(5).random_map(with_noise).batch(3)

    found = trees.check(trees.of(sequences(40), make), workers=(2,))
    noise = [float(value) for batch in found for value in batch["noise"]]
    assert len(set(noise)) == len(noise)


def with_noise(row: Any, rng: np.random.Generator) -> Any:
    return {**row, "noise": rng.random()}


def test_rows_have_at_most_so_many_sequences() -> None:
    found = trees.whole(
        trees.of(
            sequences(30),
            lambda parent: FirstFitPackIterDataset(
                parent.map(lambda one: {"x": one["x"]}),
                length_struct={"x": 100},
                num_packing_bins=3,
                max_sequences_per_bin=4,
            ),
        )
    )
    counts = [int(row["x_segment_ids"].max()) for row in found]
    assert sum(counts) == 30
    assert sorted(counts) == [2, *[4] * 7]


def test_mixed_integers_keep_their_values() -> None:
    given = [{"x": np.array([1, 2], np.int32)}, {"x": np.array([2**40])}]
    (row,) = trees.whole(
        trees.of(
            given,
            lambda parent: FirstFitPackIterDataset(
                parent, length_struct={"x": 4}, num_packing_bins=1
            ),
        )
    )
    assert row["x"].dtype == np.int64
    assert row["x"].tolist() == [1, 2, 2**40, 0]


X = {"x": np.arange(3)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": np.arange(6)}, "the feature 'x' has length 6, and the rows have 5"),
        (
            {**X, "note": 0, "y": 1},
            r"has the features \['y'\], for which length_struct has no length",
        ),
        ({"note": "a"}, r"has the features \['note'\], and \['x'\] of \['x', 'note'\] not"),
        (X, r"has the features \['x'\], and \['note'\] of \['x', 'note'\] not"),
        ({"x": [1, 2], "note": 1}, "the feature 'x' is a list. Make it an array"),
        ({"x": "text", "note": 1}, "the feature 'x' is a value of type str"),
        ([1, 2], r"takes dicts with the features \['x', 'note'\]"),
    ],
)
def test_what_cannot_be_packed_is_told_behind_the_rows_before(given: Any, message: str) -> None:
    good = [{"x": np.arange(5), "note": number} for number in range(3)]
    stream = trees.of(
        [*good, given],
        lambda parent: FirstFitPackIterDataset(
            parent, length_struct={"x": 5}, num_packing_bins=1, meta_features=["note"]
        ),
    )
    iterator = iter(stream)
    assert [next(iterator)["note"] for _ in range(2)] == [[0], [1]]
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        next(iterator)
    assert "first_fit_pack" in caught.value.__notes__[0]
    assert "position 3" in caught.value.__notes__[0]


def test_rows_that_cannot_be_made() -> None:
    mixed = [{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}]
    stream = trees.of(
        mixed,
        lambda parent: BestFitPackIterDataset(parent, length_struct={"x": 5}, num_packing_bins=1),
    )
    with pytest.raises(ValueError, match=r"the feature 'x' has rows of shape \(2,\)"):
        trees.whole(stream)


GOOD = {"length_struct": {"x": 5, "y": 2}, "num_packing_bins": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_struct": {"x": 0}}, r"length_struct\['x'\] must be at least 1, got 0"),
        ({"length_struct": {"x": 1.5}}, r"length_struct\['x'\] must be a whole number"),
        ({"length_struct": {}}, "length_struct has no features"),
        ({"length_struct": 5}, "length_struct must be a dict"),
        ({"length_struct": {"x": {"y": 5}}}, r"length_struct\['x'\] must be a whole number"),
        ({"length_struct": {"x": 5, "x_positions": 5}}, "would be called 'x_positions'"),
        ({"num_packing_bins": 0}, "num_packing_bins must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"max_sequences_per_bin": 0}, "max_sequences_per_bin must be at least 1"),
        ({"meta_features": "x"}, "meta_features must be a list of names"),
        ({"pack_alignment_struct": {"x": 2}}, "pack_alignment_struct must have a number for each"),
        ({"pack_alignment_struct": {"x": 2, "y": 0}}, r"struct\['y'\] must be at least 1"),
        ({"padding_struct": {"x": 2}}, "padding_struct must have a value for each"),
        ({"padding_struct": {"x": [2], "y": 1}}, r"padding_struct\['x'\] must be one value"),
        ({"shuffle_bins_group_by_feature": "z"}, "'z' is no feature of length_struct"),
    ],
)
def test_options_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        trees.of([X], lambda parent: FirstFitPackIterDataset(parent, **{**GOOD, **options}))


def test_rows_are_sorted_by_numbers_only() -> None:
    stream = trees.of(
        [{**X, "y": "a"}],
        lambda parent: FirstFitPackIterDataset(
            parent,
            length_struct={"x": 5},
            num_packing_bins=1,
            meta_features=["y"],
            shuffle_bins_group_by_feature="y",
        ),
    )
    with pytest.raises(TypeError, match="rows cannot be sorted by the feature 'y'"):
        trees.whole(stream)


def test_a_state_of_other_rows_is_refused() -> None:
    def make(length: int) -> grain.IterDataset[Any]:
        return trees.of(
            [X] * 5,
            lambda parent: FirstFitPackIterDataset(
                parent, length_struct={"x": length}, num_packing_bins=1
            ),
        )

    with iter(make(5)) as iterator:
        next(iterator)
        state = iterator.get_state()
    with iter(make(6)) as iterator, pytest.raises(grain.errors.StateError, match="Packing"):
        iterator.set_state(state)
