"""Concat-then-split: every token once and in order, wherever a row ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax.experimental import BOSHandling, ConcatThenSplitIterDataset
from tests.property import trees


def elements(*sizes: tuple[int, ...]) -> list[Any]:
    """Elements with features of these lengths, whose tokens are different, from 1 on."""
    names = "xyz"
    found, token = [], 1
    for lengths in sizes:
        found.append({})
        for name, length in zip(names, lengths, strict=False):
            found[-1][name] = np.arange(token, token + length)
            token += length
    return found


def split(given: list[Any], length: int = 5, **options: Any) -> grain.IterDataset[Any]:
    lengths = dict.fromkeys(given[0] if given else ["x"], length)
    return trees.of(
        given,
        lambda parent: ConcatThenSplitIterDataset(parent, length_struct=lengths, **options),
    )


@pytest.mark.parametrize("length", [1, 4, 7])
def test_one_feature_is_cut_every_so_many_tokens(length: int) -> None:
    given = elements(*((size,) for size in (3, 12, 1, 0, 7, 4, 4, 2)))
    found = trees.check(split(given, length), workers=(0,))
    tokens = np.concatenate([one["x"] for one in given])
    numbers = [number for number, one in enumerate(given) for _ in one["x"]]
    for row, begin in zip(found, range(0, len(tokens), length), strict=True):
        count = len(tokens[begin : begin + length])
        padding = [0] * (length - count)
        assert row["x"].tolist() == [*tokens[begin : begin + length], *padding]
        assert row["x_segment_ids"].dtype == row["x_positions"].dtype == np.int32
        assert row["x_segment_ids"][count:].tolist() == padding
        # Ids count elements, among them those without tokens.
        inside = numbers[begin : begin + count]
        steps = np.diff(row["x_segment_ids"][:count]).tolist()
        assert steps == np.diff(inside).tolist()
        restarts = [place for place in range(count) if not row["x_positions"][place]]
        assert restarts == [p for p in range(count) if not p or inside[p] != inside[p - 1]]


@pytest.mark.parametrize("splits", [True, False])
def test_tokens_of_several_features_come_once(splits: bool) -> None:
    random = np.random.default_rng(3)
    given = elements(*(tuple(random.integers(0, 13, 3)) for _ in range(25)))
    found = trees.check(split(given, 6, split_full_length_features=splits), workers=(0,))
    for name in "xyz":
        wanted = [int(token) for one in given for token in one[name]]
        tokens = [int(token) for row in found for token in row[name] if token]
        assert (tokens if splits else sorted(tokens)) == wanted
        for row in found:
            assert ((row[name] > 0) == (row[f"{name}_segment_ids"] > 0)).all()


def test_with_workers(no_process_left: None) -> None:
    given = elements(*((size,) for size in (3, 22, 1, 0, 7, 4, 4, 2, 5, 5, 9, 3)))

    def make(parent: grain.IterDataset[Any]) -> grain.IterDataset[Any]:
        rows = ConcatThenSplitIterDataset(
            parent, length_struct={"x": 5}, split_full_length_features=False
        )
        return rows.seed(2).random_map(with_noise)

    found = trees.check(trees.of(given, make), workers=(2,))
    noise = [float(row["noise"]) for row in found]
    assert len(set(noise)) == len(noise) == 13


def with_noise(row: Any, rng: np.random.Generator) -> Any:
    return {**row, "noise": rng.random()}


def test_full_elements_wait_for_the_row_before_them_but_not_for_ever() -> None:
    given = elements((2,), *[(5,)] * 150, (4,))
    found = trees.check(split(given, split_full_length_features=False), workers=(0,), every=9)
    rows = [row["x"].tolist() for row in found]
    full = [one["x"].tolist() for one in given[1:-1]]
    assert rows == [
        [1, 2, 0, 0, 0],
        *full[:128],
        [*given[-1]["x"].tolist(), 0],
        *full[128:],
    ]


def test_segments_begin_with_a_token() -> None:
    given = elements((3, 2), (4, 1), (9, 0))
    found = trees.whole(
        split(
            given,
            bos_handling=BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
            bos_features=["x"],
            bos_token_id=-1,
        )
    )
    plain = trees.whole(split(given))
    for row, before in zip(found, plain, strict=True):
        first = (before["x_segment_ids"] > 0) & (before["x_positions"] == 0)
        assert row["x"].tolist() == np.where(first, -1, before["x"]).tolist()
        assert row["y"].tolist() == before["y"].tolist()


def test_a_row_ends_before_a_meta_feature_that_does_not_fit() -> None:
    given = [{"x": np.arange(1), "m": np.full(2, number + 1)} for number in range(3)]
    stream = trees.of(
        given,
        lambda parent: ConcatThenSplitIterDataset(
            parent, length_struct={"x": 9, "m": 4}, meta_features=["m"]
        ),
    )
    found = trees.check(stream, workers=(0,))
    assert [row["m"].tolist() for row in found] == [[1, 1, 2, 2], [3, 3, 0, 0]]
    assert set(found[0]) == {"x", "x_segment_ids", "x_positions", "m"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": np.ones(1)}, r"has the features \['x'\], and \['m'\] of \['x', 'm'\] not"),
        ({"x": np.ones(1), "m": 1, "y": 1}, r"the features \['y'\], for which length_struct has"),
        ({"x": np.ones(1), "m": np.ones(3)}, "the feature 'm' has length 3, and the rows have 2"),
        ({"x": [1], "m": 1}, "the feature 'x' is a list"),
    ],
)
def test_elements_that_cannot_be_cut(given: Any, message: str) -> None:
    stream = trees.of(
        [{"x": np.ones(7), "m": 1}, given],
        lambda parent: ConcatThenSplitIterDataset(
            parent, length_struct={"x": 5, "m": 2}, meta_features=["m"]
        ),
    )
    iterator = iter(stream)
    next(iterator)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        next(iterator)
    assert "position 1" in caught.value.__notes__[0]


BOS = BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_struct": {"x": 0}}, r"length_struct\['x'\] must be at least 1"),
        ({"meta_features": ["m"]}, r"no length for the meta features \['m'\]"),
        ({"bos_handling": "replace"}, "bos_handling must be one of"),
        ({"bos_handling": BOS, "bos_features": ["x"]}, "needs a bos_token_id"),
        (
            {"bos_handling": BOS, "bos_features": ["y"], "bos_token_id": 1},
            r"bos_features must be some of the features \['x'\], got \['y'\]",
        ),
    ],
)
def test_options_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        trees.of(
            elements((1,)),
            lambda parent: ConcatThenSplitIterDataset(
                parent, **{"length_struct": {"x": 5}, **options}
            ),
        )


def test_a_token_that_the_dtype_does_not_hold() -> None:
    given = [{"x": np.ones(3, np.uint8)}]
    stream = split(given, bos_handling=BOS, bos_features=["x"], bos_token_id=-1)
    with pytest.raises(ValueError, match="the feature 'x' would hold -1, which is no value of"):
        trees.whole(stream)


def test_a_state_of_other_data_is_told() -> None:
    with iter(split(elements((12,)))) as iterator:
        next(iterator), next(iterator)
        state = iterator.get_state()
    with iter(split(elements((7,)))) as iterator:
        iterator.set_state(state)
        with pytest.raises(grain.errors.StateError, match=r"\(10,\) tokens of an element with"):
            next(iterator)
