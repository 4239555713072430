"""Packs of the same elements, in both libraries."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax
from tests.compat.pairs import plain_list

ELEMENTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 3)), max_size=40)


def element(number: int, x: int, y: int, group: int) -> dict[str, Any]:
    """Two features, one that rows can be sorted by, and one for lists."""
    return {
        "x": 100 * number + np.arange(x, dtype=np.int32),
        "y": np.full((y, 2), number + 0.5, np.float32),
        "group": np.full(1, group),
        "note": f"{number}",
    }


def packed(library: ModuleType, name: str, elements: list[Any], **options: Any) -> list[Any]:
    stream = library.MapDataset.source(elements).to_iter_dataset(library.ReadOptions(num_threads=0))
    made = getattr(library.experimental, name)(stream, **options)
    return plain_list(made)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # Grain divides by zero
@pytest.mark.parametrize("name", ["FirstFitPackIterDataset", "BestFitPackIterDataset"])
@settings(max_examples=60)
@given(
    sizes=ELEMENTS,
    bins=st.integers(1, 6),
    seed=st.integers(0, 5),
    shuffles=st.booleans(),
    sorts=st.sampled_from([None, "group", "note"]),
    metas=st.sampled_from([("note",), ("note", "y"), ("note", "group")]),
    alignment=st.sampled_from([None, {"x": 2, "y": 1, "group": 1}, {"x": 1, "y": 4, "group": 3}]),
    padding=st.sampled_from([None, {"x": -1, "y": 0.25, "group": 9}]),
    most=st.sampled_from([None, 1, 3]),
)
def test_packs_equal_grain(
    reference_grain: ModuleType,
    name: str,
    sizes: list[tuple[int, int, int]],
    bins: int,
    seed: int,
    shuffles: bool,
    sorts: str | None,
    metas: tuple[str, ...],
    alignment: Any,
    padding: Any,
    most: int | None,
) -> None:
    elements = [element(number, *size) for number, size in enumerate(sizes)]
    if sorts == "note":
        elements = [{**one, "note": number % 3} for number, one in enumerate(elements)]
    options = {
        "length_struct": {"x": 8, "y": 7, "group": 6},
        "num_packing_bins": bins,
        "seed": seed,
        "shuffle_bins": shuffles,
        "shuffle_bins_group_by_feature": sorts,
        "meta_features": metas,
        "pack_alignment_struct": alignment,
        "padding_struct": padding,
        "max_sequences_per_bin": most,
    }
    theirs = packed(reference_grain, name, elements, **options)
    assert packed(grain_jax, name, elements, **options) == theirs


@pytest.mark.parametrize("name", ["FirstFitPackIterDataset", "BestFitPackIterDataset"])
def test_many_sequences_in_many_bins(reference_grain: ModuleType, name: str) -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    elements = [{"x": np.arange(length), "n": int(length)} for length in lengths]
    options = {"length_struct": {"x": 128, "n": 9}, "num_packing_bins": 16}
    theirs = packed(reference_grain, name, elements, **options)
    assert packed(grain_jax, name, elements, **options) == theirs
