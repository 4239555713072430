"""Tuples of the elements of several datasets."""

from __future__ import annotations

from typing import Any

import pytest

import grain_jax as grain
from grain_jax import experimental
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")


def parts(*lengths: int) -> list[Any]:
    """Streams whose elements say which one, and where in it."""
    return [
        trees.of([(part, place) for place in range(length)]) for part, length in enumerate(lengths)
    ]


def elements(*lengths: int) -> list[Any]:
    return [[(part, place) for place in range(length)] for part, length in enumerate(lengths)]


@pytest.mark.parametrize("lengths", [(5, 5), (3, 3, 3), (0, 0), (4,)])
def test_tuples_of_streams(lengths: tuple[int, ...]) -> None:
    made = experimental.ZipIterDataset(parts(*lengths))
    assert trees.check(made, workers=[0]) == list(zip(*elements(*lengths), strict=True))


@pytest.mark.parametrize("lengths", [(5, 3), (3, 5), (0, 2), (2, 0), (4, 6, 2), (2, 3, 1)])
def test_the_shortest_stream_ends_it(lengths: tuple[int, ...]) -> None:
    made = experimental.ZipIterDataset(parts(*lengths), strict=False)
    assert trees.check(made, workers=[0]) == list(zip(*elements(*lengths), strict=False))


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ((5, 3), "dataset 1 ended after 3 elements, and dataset 0 has 4 at least"),
        ((3, 5), "dataset 0 ended after 3 elements, and dataset 1 has 4 at least"),
        ((3, 3, 4), "dataset 1 ended after 3 elements, and dataset 2 has 4 at least"),
        ((0, 1), "dataset 0 ended after 0 elements, and dataset 1 has 1 at least"),
    ],
)
def test_unequal_lengths_are_an_error_behind_the_last_tuple(
    lengths: tuple[int, ...], text: str
) -> None:
    fails_behind_the_last_tuple(lengths, text, workers=0)


def test_unequal_lengths_with_workers() -> None:
    fails_behind_the_last_tuple((5, 3), "dataset 1 ended after 3 elements", workers=2)


def fails_behind_the_last_tuple(lengths: tuple[int, ...], text: str, workers: int) -> None:
    made = experimental.ZipIterDataset(parts(*lengths))
    found = []
    with iter(trees.with_workers(made, workers) if workers else made) as iterator:
        for _ in range(min(lengths)):
            found.append(next(iterator))
        state = iterator.get_state()
        for _ in range(2):
            with pytest.raises(grain.errors.InvalidValueError, match=f"{text}.*strict=False"):
                next(iterator)
        assert iterator.get_state() == state
        if found:
            iterator.set_state(state)
            with pytest.raises(grain.errors.InvalidValueError, match=text):
                next(iterator)
    assert found == list(zip(*elements(*lengths), strict=False))


def test_filtered_streams_and_steps_behind_with_workers() -> None:
    one, other = parts(30, 20)
    made = experimental.ZipIterDataset([one.filter(lambda pair: pair[1] % 3 > 0), other])
    made = made.map(lambda pairs: pairs[0][1] * 100 + pairs[1][1])
    kept = [n for n in range(30) if n % 3]
    expected = [first * 100 + second for first, second in zip(kept, range(20), strict=True)]
    assert trees.check(made, workers=[0, 2], every=3) == expected


def test_an_element_that_fails_fails_in_its_turn() -> None:
    one, other = parts(5, 5)

    def checked(pair: Any) -> Any:
        if pair[1] == 3:
            raise OSError("no such element")
        return pair

    iterator = iter(experimental.ZipIterDataset([one, other.map(checked)]))
    assert [next(iterator)[1] for _ in range(3)] == [(1, 0), (1, 1), (1, 2)]
    with pytest.raises(OSError, match=r"(?s)no such element.*step 1.*at position 3"):
        next(iterator)


def test_random_access() -> None:
    one, other = grain.MapDataset.range(3), grain.MapDataset.range(10, 13)
    made = experimental.ZipMapDataset([one, other])
    assert (len(made), made[1], made[-1], list(made)) == (
        3,
        (1, 11),
        (2, 12),
        [(0, 10), (1, 11), (2, 12)],
    )
    assert list(made.seed(1).shuffle().map(sum)) == list(
        grain.MapDataset.zip([one, other]).seed(1).shuffle().map(sum)
    )
    assert list(made.parents) == [one, other]
    with pytest.raises(grain.errors.InvalidValueError, match=r"equal lengths.*\[3, 2\]"):
        experimental.ZipMapDataset([one, other[:2]])


@pytest.mark.parametrize("kind", [experimental.ZipIterDataset, experimental.ZipMapDataset])
def test_what_is_no_list_of_datasets_is_refused(kind: Any) -> None:
    stream, other = trees.of(range(3)), grain.MapDataset.range(3)
    for bad in ([], stream, other, [stream, other], [other, stream], [stream, 3], 5):
        with pytest.raises(grain.errors.GrainError, match="zip"):
            kind(bad)


def test_strict_is_true_or_false() -> None:
    with pytest.raises(grain.errors.InvalidTypeError, match="strict must be True or False"):
        experimental.ZipIterDataset(parts(2, 2), strict=1)  # type: ignore[arg-type]
