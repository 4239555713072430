"""Flat cursors of version 1 as nested ones; that they restore is in tests/states."""

from __future__ import annotations

from typing import Any

import pytest

from grain_jax._execution.version1 import as_version_2


def state(**fields: Any) -> dict[str, Any]:
    plain = {"joined": None, "cursors": [None], "next_lane": 0, "tail": []}
    return {"grain_jax": 1, "elastic": False, **plain, **fields}


@pytest.mark.parametrize(
    ("fields", "cursor"),
    [
        ({}, None),
        ({"cursors": [[7, 2]]}, [7, 2]),
        ({"cursors": [[7, 0, 3, 1]]}, [[[[7, 0]], [3], 0], 1]),
        ({"cursors": [[7, 0, 3, 1, 5, 0]]}, [[[[[[[7, 0]], [3], 0], 1]], [5], 0], 0]),
        ({"cursors": [[4, 0], None], "next_lane": 1}, [[[[4, 0], None], [1], 0], 0]),
        ({"cursors": [[4, 0]], "tail": [2, 1]}, [[[[4, 0]], [2], 0], 1]),
        ({"cursors": [[4, {"own": 1}]]}, [4, {"own": 1}]),
        (
            {"joined": 2, "cursors": [[8, 0, 3, 0], [9, 1, 2, 0]], "batches": 3},
            [[[[8, 0], [9, 1]], [3, 3, 2], 0], 0],
        ),
        ({"joined": 2, "cursors": [None, None]}, [[[None, None], [0, 0, 0], 0], 0]),
        ({"joined": 1, "cursors": [[8, 0, 3, 0]]}, [[[[8, 0]], [3, 3], 0], 0]),
    ],
)
def test_cursors(fields: dict[str, Any], cursor: Any) -> None:
    found = as_version_2(state(**fields))
    assert found["grain_jax"] == 2
    assert found["cursor"] == cursor
    assert found.keys().isdisjoint({"cursors", "tail", "next_lane", "batches"})


def test_others_stay_as_they_are() -> None:
    for given in ({}, {"grain_jax": 2, "cursor": 1}, {"grain_jax": True}, {"grain_jax": "1"}):
        assert as_version_2(given) is given
    elastic = {"grain_jax": 1, "elastic": True, "position": 5}
    assert as_version_2(elastic) == {**elastic, "grain_jax": 2}
    odd = as_version_2(state(cursors=5))
    assert odd["cursor"] == {"cursors": 5, "tail": []}  # nothing that would be taken for a cursor
