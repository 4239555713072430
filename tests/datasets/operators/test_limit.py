"""The first elements of a stream."""

import pytest

import grain_jax as grain
from grain_jax import experimental
from tests.property import trees


@pytest.mark.parametrize("count", [0, 1, 3, 7, 20])
def test_the_first_elements(count: int) -> None:
    for length in (0, 1, 3, 8):
        made = trees.of(range(length), lambda parent: experimental.LimitIterDataset(parent, count))
        assert trees.check(made, workers=[0]) == list(range(length))[:count]


def test_the_first_elements_of_a_filtered_stream_with_workers() -> None:
    kept = trees.of(range(30)).filter(lambda x: x % 3 > 0)
    made = experimental.LimitIterDataset(kept, 7).map(lambda x: 10 * x)
    assert trees.check(made, workers=[0, 2]) == [10 * x for x in range(30) if x % 3][:7]


def test_nothing_is_done_for_elements_behind_it_where_nothing_is_read_ahead() -> None:
    asked = []

    def noted(element: int) -> int:
        asked.append(element)
        return element

    options = grain.ReadOptions(num_threads=0)
    parent = grain.MapDataset.range(10).to_iter_dataset(options).map(noted)
    assert list(experimental.LimitIterDataset(parent, 3)) == [0, 1, 2]
    assert asked == [0, 1, 2]


def test_a_stream_without_an_end_has_a_first_part() -> None:
    parent = grain.MapDataset.range(3).repeat().to_iter_dataset()
    assert list(experimental.LimitIterDataset(parent, 7)) == [0, 1, 2, 0, 1, 2, 0]


def test_what_comes_after_them_may_fail() -> None:
    def checked(element: int) -> int:
        return 10 // (3 - element)

    parent = trees.of(range(5)).map(checked)
    assert list(experimental.LimitIterDataset(parent, 3)) == [3, 5, 10]
    with pytest.raises(ZeroDivisionError):
        list(experimental.LimitIterDataset(parent, 4))


def test_a_state_of_another_limit_is_refused() -> None:
    stream = trees.of(range(9))
    with iter(experimental.LimitIterDataset(stream, 5)) as iterator:
        assert next(iterator) == 0
        state = iterator.get_state()
    with (
        iter(experimental.LimitIterDataset(stream, 6)) as iterator,
        pytest.raises(grain.errors.StateError, match=r"count=5.*count=6"),
    ):
        iterator.set_state(state)


def test_a_state_behind_the_last_element_is_refused() -> None:
    with iter(experimental.LimitIterDataset(trees.of(range(9)), 5)) as iterator:
        list(iterator)
        state = iterator.get_state()
        kept = state["cursor"][0][1]
        assert kept == [5]
        kept[0] = 6
        with pytest.raises(grain.errors.StateError, match=r"6 elements of limit\(5\)"):
            iterator.set_state(state)


def test_a_random_access_dataset_is_no_stream() -> None:
    with pytest.raises(grain.errors.InvalidTypeError, match=r"dataset 0 of limit.*to_iter_dataset"):
        experimental.LimitIterDataset(grain.MapDataset.range(3), 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [-1, 1.5, "3", None])
def test_a_count_that_is_none_is_refused(count: object) -> None:
    parent = grain.MapDataset.range(3).to_iter_dataset()
    with pytest.raises((TypeError, ValueError), match="count"):
        experimental.LimitIterDataset(parent, count)  # type: ignore[arg-type]
