"""Files take turns as a queue of them in plain Python does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grain_jax._algebra.files.interleave import Interleave


def turns(counts: list[int], places: int) -> list[tuple[int, int]]:
    following = min(places, len(counts))
    open_files: list[int | None] = list(range(following))
    done, found = [0] * len(counts), []
    while any(file is not None for file in open_files):
        for place, file in enumerate(open_files):
            if file is None:
                continue
            if done[file] < counts[file]:
                found.append((file, done[file]))
                done[file] += 1
            else:
                open_files[place] = following if following < len(counts) else None
                following += 1
    return found


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 5))
def test_turns(counts: list[int], places: int) -> None:
    order = Interleave(counts, places)
    files, rows = order.at(np.arange(sum(counts), dtype=np.int64))
    right = turns(counts, places)
    assert list(zip(files.tolist(), rows.tolist(), strict=True)) == right
    assert [order.one(position) for position in range(order.length)] == right
