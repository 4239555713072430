"""Sequences cut into rows, in both libraries."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax
from tests.compat.pairs import plain_list


def rows(library: ModuleType, elements: list[Any], bos: bool, **options: Any) -> list[Any]:
    stream = library.MapDataset.source(elements).to_iter_dataset(library.ReadOptions(num_threads=0))
    experimental = library.experimental
    if bos:
        handling = experimental.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS
        options |= {"bos_handling": handling, "bos_features": ["x"], "bos_token_id": -7}
    return plain_list(experimental.ConcatThenSplitIterDataset(stream, **options))


@settings(max_examples=150)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 14), st.just(5)), max_size=30),
    splits=st.booleans(),
    bos=st.booleans(),
    several=st.booleans(),
    meta=st.sampled_from([None, 0, 1, 2]),
)
def test_rows_equal_grain(
    reference_grain: ModuleType,
    sizes: list[int],
    splits: bool,
    bos: bool,
    several: bool,
    meta: int | None,
) -> None:
    if bos:  # of a sequence without tokens Grain replaces one of the next, or fails
        sizes = [size or 1 for size in sizes]
    elements: list[Any] = []
    lengths = {"x": 5}
    for number, size in enumerate(sizes):
        elements.append({"x": 100 * number + np.arange(size)})
        if several:
            elements[-1]["y"] = np.full((size, 2), number, np.float32)
        if meta is not None:
            elements[-1]["m"] = np.full(meta, number + 1, np.int32) if meta else np.int32(number)
    if several:
        lengths["y"] = 5
    if meta is not None:
        lengths["m"] = 7
    options = {
        "length_struct": lengths,
        "meta_features": () if meta is None else ("m",),
        "split_full_length_features": splits,
    }
    theirs = rows(reference_grain, elements, bos, **options)
    assert rows(grain_jax, elements, bos, **options) == theirs
