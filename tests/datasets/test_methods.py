"""Methods that are operators: what the classes make, and the same on random access."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import experimental
from tests.property import trees


def rows(*lengths: int) -> list[dict[str, Any]]:
    return [{"x": np.arange(length) + 10 * place} for place, length in enumerate(lengths)]


ROWS = rows(3, 4, 1, 2, 5, 2)
FIRST, BEST = experimental.FirstFitPackIterDataset, experimental.BestFitPackIterDataset
SPLIT = experimental.ConcatThenSplitIterDataset
BOS = experimental.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS


@pytest.mark.parametrize(
    ("method", "made"),
    [
        (lambda ds: ds.limit(3), lambda ds: experimental.LimitIterDataset(ds, 3)),
        (lambda ds: ds.repeat(2), lambda ds: experimental.RepeatIterDataset(ds, 2)),
        (
            lambda ds: ds.window_shuffle(4, seed=5),
            lambda ds: experimental.WindowShuffleIterDataset(ds, window_size=4, seed=5),
        ),
        (
            lambda ds: grain.IterDataset.zip([ds, ds.limit(2)], strict=False),
            lambda ds: experimental.ZipIterDataset([ds, ds.limit(2)], strict=False),
        ),
        (
            lambda ds: ds.limit(1).rebatch(2, drop_remainder=True),
            lambda ds: experimental.RebatchIterDataset(ds.limit(1), 2, True),
        ),
        (
            lambda ds: ds.pack({"x": 5}, num_packing_bins=2, seed=3, max_sequences_per_bin=2),
            lambda ds: FIRST(
                ds, length_struct={"x": 5}, num_packing_bins=2, seed=3, max_sequences_per_bin=2
            ),
        ),
        (
            lambda ds: ds.pack({"x": 5}, num_packing_bins=3, fit="best", meta_features=["x"]),
            lambda ds: BEST(ds, length_struct={"x": 5}, num_packing_bins=3, meta_features=["x"]),
        ),
        (
            lambda ds: ds.concat_then_split({"x": 4}),
            lambda ds: SPLIT(ds, length_struct={"x": 4}),
        ),
        (
            lambda ds: ds.concat_then_split(
                {"x": 4}, bos_handling=BOS, bos_features=["x"], bos_token_id=9
            ),
            lambda ds: SPLIT(
                ds, length_struct={"x": 4}, bos_handling=BOS, bos_features=["x"], bos_token_id=9
            ),
        ),
    ],
)
def test_a_method_makes_what_the_class_makes(method: Any, made: Any) -> None:
    stream = trees.of(ROWS)
    assert repr(method(stream)) == repr(made(stream))
    with iter(method(stream)) as one, iter(made(stream)) as other:
        assert one.get_state() == other.get_state()
        elements = list(one)
        assert trees.same(elements, list(other))
    assert elements


def test_what_the_methods_make_is_a_stream_that_goes_on() -> None:
    stream = trees.of(range(6)).repeat(2).limit(9).map(lambda x: 10 * x)
    assert trees.check(stream, workers=[0]) == [0, 10, 20, 30, 40, 50, 0, 10, 20]


def test_windows_take_the_seed_of_the_dataset() -> None:
    numbers = grain.MapDataset.range(12)
    for seeded in (numbers.seed(7), numbers.seed(7).to_iter_dataset()):
        first = list(seeded.window_shuffle(6))
        assert first == list(seeded.window_shuffle(6))
        assert sorted(first) == list(range(12))
        assert {*first[:6]} == {*range(6)}
        assert first != list(seeded.window_shuffle(6, seed=1))
        # One behind another one is not its inverse, and no copy of it.
        assert list(seeded.window_shuffle(6).window_shuffle(6)) not in (first, list(range(12)))
    with pytest.raises(grain.errors.InvalidValueError, match="window_shuffle needs a seed"):
        numbers.window_shuffle(6)
    with pytest.raises(grain.errors.InvalidValueError, match="window_shuffle needs a seed"):
        numbers.to_iter_dataset().window_shuffle(6)


def test_windows_of_random_access_are_those_of_the_class() -> None:
    numbers = grain.MapDataset.range(10)
    made = experimental.WindowShuffleMapDataset(numbers, window_size=4, seed=2)
    assert list(numbers.window_shuffle(4, seed=2).repeat(2)) == list(made.repeat(2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda ds: ds.limit(-1), "count must be at least 0, got -1"),
        (lambda ds: ds.repeat(0), "num_epochs must be at least 1, got 0"),
        (lambda ds: ds.rebatch(0), "batch_size must be at least 1, got 0"),
        (lambda ds: ds.window_shuffle(0, seed=1), "window_size must be at least 1, got 0"),
        (lambda ds: ds.pack({"x": 5}, num_packing_bins=0), "num_packing_bins must be at least 1"),
        (lambda ds: ds.pack({"x": 0}, num_packing_bins=1), r"length_struct\['x'\] must be at le"),
        (
            lambda ds: ds.pack({"x": 5}, num_packing_bins=1, fit="next"),
            'fit must be "first" or "best", got \'next\'',
        ),
        (lambda ds: grain.IterDataset.zip([]), "zip got no datasets"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_the_call(wrong: Any, message: str) -> None:
    with pytest.raises(grain.errors.InvalidValueError, match=message):
        wrong(trees.of(ROWS))


LETTERS = list("abcdefghij")


@pytest.mark.parametrize(
    "indices",
    [
        [3, 1],
        (0, 9, 0),
        [-1, -10],
        [],
        range(7, 2, -2),
        np.array([4, 4, 8]),
        np.array([], np.int64),
        np.array([2, 7], np.uint64),
        [np.int8(5), 6],
    ],
    ids=repr,
)
def test_a_slice_by_indices(indices: Any) -> None:
    picked = grain.MapDataset.source(LETTERS).slice(indices)
    expected = [LETTERS[index] for index in indices]
    assert len(picked) == len(expected)
    assert list(picked) == expected
    assert [picked[place] for place in range(len(expected))] == expected
    if expected:
        assert list(picked.repeat(2)) == 2 * expected


def test_a_slice_by_indices_is_written_with_brackets_too() -> None:
    letters = grain.MapDataset.source(LETTERS)
    assert list(letters[[3, 1]]) == ["d", "b"]
    assert list(letters[np.array([3, 1])]) == ["d", "b"]
    assert list(letters[grain.MapDataset.range(2)]) == ["a", "b"]
    assert letters[np.array(3)] == "d"


def test_a_slice_by_a_dataset_of_indices() -> None:
    letters = grain.MapDataset.source(LETTERS)
    even = grain.MapDataset.range(10).filter(lambda index: index % 2 == 0)
    assert list(letters.slice(even)) == list("acegi")
    shuffled = grain.MapDataset.range(10).shuffle(seed=3)
    assert list(letters.slice(shuffled)) == [LETTERS[index] for index in shuffled]
    assert list(letters.slice(grain.MapDataset.range(2).repeat(2))) == list("abab")


def test_a_slice_by_indices_has_the_same_elements_in_every_epoch() -> None:
    shuffled = grain.MapDataset.source(LETTERS).shuffle(seed=1)
    first = list(shuffled)
    parts = [shuffled.slice([0, 3, 5]), shuffled.slice([1, 2, 4])]
    for part, places in zip(parts, ([0, 3, 5], [1, 2, 4]), strict=True):
        assert list(part.repeat(3)) == 3 * [first[place] for place in places]


def test_random_steps_before_a_slice_by_indices_draw_anew_in_each_epoch() -> None:
    drawn = grain.MapDataset.range(5).seed(1).random_map(lambda x, rng: (x, rng.integers(1 << 40)))
    picked = list(drawn.slice([4, 2]).repeat(2))
    assert [x for x, _ in picked] == [4, 2, 4, 2]
    assert len({number for _, number in picked}) == 4
    assert picked == [drawn[4], drawn[2], drawn[9], drawn[7]]


def test_a_slice_by_indices_with_workers_from_every_position_on() -> None:
    picked = grain.MapDataset.range(40).shuffle(seed=1).slice([*range(0, 40, 3), 1, 1])
    stream = picked.map(lambda x: 10 * x).to_iter_dataset().batch(2)
    whole = list(grain.MapDataset.range(40).shuffle(seed=1))
    expected = [10 * whole[index] for index in [*range(0, 40, 3), 1, 1]]
    with iter(trees.with_workers(stream, 2)) as iterator:
        assert np.concatenate(list(iterator)).tolist() == expected
        iterator.set_state({**iterator.get_state(), "position": 6})
        assert np.concatenate(list(iterator)).tolist() == expected[6:]


def test_a_state_of_other_indices_is_refused() -> None:
    numbers = grain.MapDataset.range(9)
    with iter(numbers.slice([1, 2, 3]).to_iter_dataset()) as iterator:
        next(iterator)
        state = iterator.get_state()
    with (
        iter(numbers.slice([1, 2, 4]).to_iter_dataset()) as iterator,
        pytest.raises(grain.errors.StateError, match="3 indices"),
    ):
        iterator.set_state(state)


@pytest.mark.parametrize(
    ("indices", "kind", "message"),
    [
        ([3, 10], IndexError, r"index 10 \(place 1 of the list\), and the dataset has 10 elements"),
        ([-11], IndexError, r"index -11 \(place 0"),
        ([2**70], TypeError, "index 0 of it is 1180591620717411303424"),
        (np.array([2**63 + 5], np.uint64), IndexError, r"and the dataset has 10 elements"),
        ([1, 2.0], TypeError, "index 1 of it is 2.0, which is no whole number"),
        ([1, "2"], TypeError, "index 1 of it is '2'"),
        ([[1], [2]], TypeError, r"index 0 of it is \[1\]"),
        ([True, False], TypeError, r"np\.flatnonzero\(mask\)"),
        (grain.MapDataset.range(3).repeat(), ValueError, r"has an end.*repeat\(\) behind"),
        ("12", TypeError, "a slice or a list of indices, got '12'"),
        (3, TypeError, "a slice or a list of indices, got 3"),
    ],
)
def test_indices_that_cannot_be_are_refused_at_the_call(
    indices: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as raised:
        grain.MapDataset.source(LETTERS).slice(indices)
    assert isinstance(raised.value, grain.errors.GrainError)
