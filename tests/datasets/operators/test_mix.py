"""Streams in proportion to weights."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.property import trees

pytestmark = pytest.mark.usefixtures("no_process_left")


def parts(*lengths: int) -> list[Any]:
    """Streams whose elements say which one, and where in it."""
    return [
        trees.of([(part, place) for place in range(length)]) for part, length in enumerate(lengths)
    ]


def chosen(weights: list[int], count: int) -> list[int]:
    """Grain's rule, one element at a time."""
    found = []
    for number in range(count):
        rest, before, after = sum(weights), number, number + 1
        for part, weight in enumerate(weights):
            less = before * (rest - weight) // rest, after * (rest - weight) // rest
            if before - less[0] != after - less[1]:
                found.append(part)
                break
            (before, after), rest = less, rest - weight
    return found


def merged(elements: list[list[Any]], weights: list[int]) -> list[Any]:
    """What plain Python makes of parts."""
    sources = [iter(part) for part in elements]
    found = []
    for part in chosen(weights, sum(map(len, elements)) + 1):
        try:
            found.append(next(sources[part]))
        except StopIteration:
            return found
    raise AssertionError


@pytest.mark.parametrize(
    ("lengths", "weights"),
    [
        ([5, 7], [1, 1]),
        ([9, 4], [3, 1]),
        ([4, 30], [1, 7]),
        ([6, 0, 3], [1, 1, 1]),
        ([20, 9, 5], [5, 3, 2]),
        ([3], [4]),
        ([0], [1]),
    ],
)
def test_elements_come_in_proportion(lengths: list[int], weights: list[int]) -> None:
    made = grain.IterDataset.mix(parts(*lengths), weights)
    scaled = [int(weight * 100 / min(weights)) for weight in weights]
    apart = [[(part, place) for place in range(size)] for part, size in enumerate(lengths)]
    assert trees.check(made, workers=[0]) == merged(apart, scaled)


def test_equal_shares_without_weights() -> None:
    assert trees.whole(grain.IterDataset.mix(parts(2, 3))) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_filtered_and_batched_parts_with_workers() -> None:
    one, other = parts(40, 60)
    one = one.filter(lambda pair: pair[1] % 3 > 0).map(lambda pair: pair[1])
    made = grain.IterDataset.mix([one, other.map(lambda pair: -pair[1])], [2, 1]).batch(4)
    kept = [[n for n in range(40) if n % 3], [-n for n in range(60)]]
    found = trees.check(made, workers=[0, 2], every=3)
    assert np.concatenate(found).tolist() == merged(kept, [200, 100])


def test_random_steps_behind_it_draw_otherwise_for_each_part() -> None:
    def noise(pair: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(1 << 60))

    made = grain.IterDataset.mix(parts(50, 50)).random_map(noise, seed=3)
    assert len(set(trees.check(made, workers=[0], every=9))) == 100


def test_thousands_of_elements_are_those_of_the_random_access_mixture() -> None:
    """Choices are planned some thousands at a time."""
    lengths, weights = [9000, 9000, 9000], [7, 2, 4]
    apart = [grain.MapDataset.range(n * 10**6, n * 10**6 + size) for n, size in enumerate(lengths)]
    expected = list(grain.MapDataset.mix(apart, weights))
    made = grain.IterDataset.mix([part.to_iter_dataset() for part in apart], weights)
    with iter(made) as iterator:
        assert list(itertools.islice(iterator, len(expected))) == expected
        state = iterator.get_state()
    with iter(made) as iterator:
        iterator.set_state(state)
        rest = list(iterator)
    assert expected + rest == list(made)


def test_a_part_is_not_asked_for_more_than_its_share() -> None:
    asked = []

    def noted(pair: Any) -> Any:
        asked.append(pair)
        return pair

    one, other = parts(9, 9)
    stream = iter(grain.IterDataset.mix([one.map(noted), other], [1, 8]))
    assert [next(stream) for _ in range(8)].count((0, 0)) == 1
    assert asked == [(0, 0)]


def test_parts_by_name() -> None:
    one, other = parts(9, 9)
    named = grain.IterDataset.mix({"web": one, "books": other}, {"books": 1, "web": 3})
    assert list(named) == list(grain.IterDataset.mix([one, other], [3, 1]))
    assert repr(named).startswith("mix(weights={'books': 1, 'web': 3})")


def test_a_state_of_other_weights_is_refused() -> None:
    with iter(grain.IterDataset.mix(parts(9, 9), [1, 2])) as iterator:
        next(iterator)
        state = iterator.get_state()
    with (
        iter(grain.IterDataset.mix(parts(9, 9), [2, 1])) as iterator,
        pytest.raises(grain.errors.StateError, match=r"100, 200.*200, 100"),
    ):
        iterator.set_state(state)


def test_mixtures_of_mixtures() -> None:
    a, b, c = ([(part, place) for place in range(9)] for part in range(3))
    inner = grain.IterDataset.mix([trees.of(a), trees.of(b)], [1, 2])
    made = grain.IterDataset.mix([inner, trees.of(c)], [3, 1])
    assert trees.check(made, workers=[0]) == merged([merged([a, b], [100, 200]), c], [300, 100])


@pytest.mark.parametrize(
    ("names", "weights", "text"),
    [
        (False, [1], "1 weights for 2 datasets"),
        (False, [1, 0], "weight 1 of mix is 0"),
        (False, [-2, 1], "weight 0 of mix is -2"),
        (False, [1, float("nan")], "weight 1 of mix is nan"),
        (False, {"a": 1, "b": 1}, "weights by name"),
        (True, [1, 2], r"Give the weights by name, too: \{'a': 1, 'b': 1\}"),
        (True, {"a": 1}, "'b' is not in both"),
        (True, {"a": 1, "b": 2, "c": 3}, "'c' is not in both"),
    ],
)
def test_bad_weights_are_refused(names: bool, weights: Any, text: str) -> None:
    datasets: Any = dict(zip("ab", parts(3, 3), strict=True)) if names else parts(3, 3)
    with pytest.raises(grain.errors.GrainError, match=text):
        grain.IterDataset.mix(datasets, weights)


@pytest.mark.parametrize(
    ("datasets", "text"),
    [
        ([], "no datasets"),
        ({}, "no datasets"),
        (trees.of(range(3)), "takes a list of datasets"),
        ([trees.of(range(3)), grain.MapDataset.range(3)], r"dataset 1 of mix.*to_iter_dataset"),
        ({1: trees.of(range(3))}, "named 1"),
    ],
)
def test_what_is_no_list_of_streams_is_refused(datasets: Any, text: str) -> None:
    with pytest.raises(grain.errors.GrainError, match=text):
        grain.IterDataset.mix(datasets)


def blended(
    elements: list[list[Any]], weights: list[int], stop: str, weigh: Any, most: int = 200
) -> list[Any]:
    """What plain Python makes of parts by the other rules."""
    sources = [iter(part) for part in elements]
    sums = [0] * len(elements)
    active, found, since = list(range(len(elements))), [], 0
    while active and len(found) < most:
        chosen_weights = [weights[part] for part in active]
        if weigh is None:
            part = active[chosen(chosen_weights, since + 1)[-1]]
        else:
            whole, total = sum(chosen_weights), sum(sums[part] for part in active)
            lags = [Fraction(weights[p], whole) - Fraction(sums[p], total or 1) for p in active]
            part = active[lags.index(max(lags))] if total else active[0]
        try:
            element = next(sources[part])
        except StopIteration:
            if stop == "first":
                break
            if stop == "all":
                active.remove(part)
                since = 0
                continue
            sources[part] = iter(elements[part])
            element = next(sources[part])
        found.append(element)
        since += 1
        sums[part] += 0 if weigh is None else weigh(element)
    return found


def heavy(pair: Any) -> int:
    """Weighs an element of `parts`."""
    return 1 + (7 * pair[0] + 5 * pair[1]) % 11


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
@pytest.mark.parametrize("weigh", [None, heavy])
@pytest.mark.parametrize(
    ("lengths", "weights"),
    [
        ([5, 7], [1, 1]),
        ([9, 4], [3, 1]),
        ([4, 30], [1, 7]),
        ([20, 9, 5], [5, 3, 2]),
        ([6, 1, 13, 2], [1, 1, 2, 1]),
        ([3], [4]),
    ],
)
def test_the_rules_for_ends_and_weights(
    lengths: list[int], weights: list[int], weigh: Any, stop: Any
) -> None:
    made = grain.IterDataset.mix(parts(*lengths), weights, stop=stop, weigh=weigh)
    scaled = [int(weight * 100 / min(weights)) for weight in weights]
    apart = [[(part, place) for place in range(size)] for part, size in enumerate(lengths)]
    expected = blended(apart, scaled, stop, weigh, 90)
    assert trees.check(made.limit(90), workers=[0], every=3) == expected
    if stop == "all":
        assert sorted(expected) == sorted(itertools.chain(*apart))


def test_the_shares_of_a_mixture_by_weight_are_those_of_the_weights() -> None:
    rng = np.random.default_rng(0)
    texts = [
        [{"id": part, "tokens": np.zeros(size)} for size in rng.integers(1, 40 * (1 + part), 999)]
        for part in range(3)
    ]
    made = grain.IterDataset.mix(
        dict(zip("abc", map(trees.of, texts), strict=True)),
        {"a": 0.7, "b": 0.2, "c": 0.1},
        weigh=lambda e: len(e["tokens"]),
    )
    with iter(made.limit(900)) as iterator:
        sums = np.zeros(3)
        for count, element in enumerate(iterator):
            sums[element["id"]] += len(element["tokens"])
            if count > 30:  # never further from the weights than the longest text
                assert np.all(np.abs(sums - sums.sum() * np.array([0.7, 0.2, 0.1])) <= 120)
        counts = iterator.mixture_counts
        assert [counts[name]["weight"] for name in "abc"] == sums.tolist()
        assert sum(counts[name]["elements"] for name in "abc") == 900


def test_by_weight_behind_filters_with_workers() -> None:
    one, other = parts(40, 60)
    made = grain.IterDataset.mix(
        [one.filter(lambda pair: pair[1] % 3 > 0), other], [2, 1], weigh=heavy, stop="all"
    )
    apart = [[(0, n) for n in range(40) if n % 3], [(1, n) for n in range(60)]]
    found = trees.check(made.map(lambda pair: [*pair]).batch(4), workers=[0, 2], every=3)
    expected = blended(apart, [200, 100], "all", heavy)
    assert [tuple(row) for batch in found for row in np.stack(batch, 1).tolist()] == expected


def test_parts_that_begin_anew_draw_otherwise_in_each_epoch() -> None:
    def noise(pair: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(1 << 60))

    made = grain.IterDataset.mix(parts(3, 4), stop="repeat").random_map(noise, seed=3).limit(40)
    assert len(set(trees.check(made, workers=[0], every=9))) == 40


def test_a_part_without_elements_cannot_be_repeated() -> None:
    one, other = parts(3, 3)
    made = grain.IterDataset.mix(
        {"some": one, "none": other.filter(lambda pair: False)}, stop="repeat"
    )
    iterator = iter(made)
    assert next(iterator) == (0, 0)
    with pytest.raises(grain.errors.NoElementsError, match="dataset 'none' of mix has no elements"):
        next(iterator)
    left_out = grain.IterDataset.mix([one, other.filter(lambda pair: False)], stop="all")
    assert list(left_out) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
@pytest.mark.parametrize(
    ("lengths", "weights"), [([5, 7], [1, 1]), ([20, 9, 5], [5, 3, 2]), ([1, 1, 30], [3, 2, 1])]
)
def test_random_access_has_the_same_rules(
    lengths: list[int], weights: list[int], stop: Any
) -> None:
    apart = [grain.MapDataset.source([(p, n) for n in range(s)]) for p, s in enumerate(lengths)]
    made = grain.MapDataset.mix(apart, weights, stop=stop)
    streams = grain.IterDataset.mix(parts(*lengths), weights, stop=stop).limit(100)
    found = list(itertools.islice(made.to_iter_dataset(), 100))
    # A stream goes on while the part whose turn it is has elements; Grain's lengths are rounded.
    assert found == list(streams)[: len(found)]
    if stop == "all":
        assert len(found) == len(made) == sum(lengths)
        assert sorted(made[len(made) + place] for place in range(len(made))) == sorted(found)
    elif stop == "repeat":
        assert len(found) == 100
        with pytest.raises(grain.errors.InvalidValueError, match="repeat cannot follow"):
            made.repeat()
    else:
        assert len(found) == len(made)


@pytest.mark.parametrize(
    ("datasets", "options", "text"),
    [
        ([3, 0], {}, "dataset 1 of mix has no elements. Leave it out"),
        ([3, 3], {"stop": "last"}, r'stop must be "first".*got \'last\''),
        ([3, None], {"stop": "all"}, 'dataset 1 of mix has no end.*stop="first"'),
    ],
)
def test_mixtures_of_random_access_that_cannot_be(datasets: Any, options: Any, text: str) -> None:
    made = [
        grain.MapDataset.range(3).repeat() if size is None else grain.MapDataset.range(size)
        for size in datasets
    ]
    with pytest.raises(grain.errors.InvalidValueError, match=text):
        grain.MapDataset.mix(made, **options)


@pytest.mark.parametrize(
    ("weigh", "text"),
    [
        (lambda pair: -1, "what weigh returns must be at least 0, got -1"),
        (lambda pair: 0.5, "what weigh returns must be a whole number, got 0.5"),
        (lambda pair: pair["tokens"], "tuple indices must be integers"),
    ],
)
def test_weights_of_elements_that_cannot_be_are_named(weigh: Any, text: str) -> None:
    with pytest.raises((grain.errors.GrainError, TypeError), match=text) as raised:
        list(grain.IterDataset.mix(parts(2, 2), weigh=weigh))
    assert "mix(by weight)" in "".join(raised.value.__notes__)


def test_what_is_no_function_cannot_weigh() -> None:
    with pytest.raises(grain.errors.InvalidTypeError, match=r"weigh must be a function.*got 3"):
        grain.IterDataset.mix(parts(2, 2), weigh=3)  # type: ignore[arg-type]
    with pytest.raises(grain.errors.InvalidValueError, match="stop must be"):
        grain.IterDataset.mix(parts(2, 2), stop="end")  # type: ignore[arg-type]


def taken(stream: Any, count: int, state: Any = None, workers: int = 0) -> tuple[list[Any], Any]:
    """The next elements from a state on, and the state behind them."""
    with iter(trees.with_workers(stream, workers) if workers else stream) as iterator:
        if state is not None:
            iterator.set_state(json.loads(json.dumps(state)))
        return list(itertools.islice(iterator, count)), iterator.get_state()


@pytest.mark.parametrize("weigh", [None, heavy])
@pytest.mark.parametrize("workers", [0, 2])
def test_parts_by_name_change_as_a_state_is_restored(weigh: Any, workers: int) -> None:
    web, books, code = parts(90, 90, 90)
    old = grain.IterDataset.mix({"web": web, "books": books}, {"web": 3, "books": 1}, weigh=weigh)
    before, state = taken(old, 24, workers=workers)
    done = [sum(pair[0] == part for pair in before) for part in range(2)]
    apart = [[(part, place) for place in range(90)] for part in range(3)]

    # Unchanged, it goes on as it was, and says nothing.
    rest, _ = taken(old, 20, state, workers)
    assert before + rest == blended(apart[:2], [300, 100], "first", weigh, 44)

    # Other weights: both parts go on where they were, in the new proportions from here on.
    other = grain.IterDataset.mix({"web": web, "books": books}, {"web": 1, "books": 2}, weigh=weigh)
    with pytest.warns(UserWarning, match=r"weights were \[300, 100\], and are \[100, 200\]"):
        rest, _ = taken(other, 20, state, workers)
    left = [apart[0][done[0] :], apart[1][done[1] :]]
    assert rest == blended(left, [100, 200], "first", weigh, 20)

    # A part more, one less, in another order.
    added = grain.IterDataset.mix({"code": code, "web": web}, {"web": 1, "code": 1}, weigh=weigh)
    with pytest.warns(UserWarning, match="'code' begins; 'books' is left out"):
        rest, after = taken(added, 20, state, workers)
    assert rest == blended([apart[2], left[0]], [100, 100], "first", weigh, 20)

    # And on from there, without a word.
    further, _ = taken(added, 20, after, workers)
    assert rest + further == blended([apart[2], left[0]], [100, 100], "first", weigh, 40)


def test_parts_by_name_change_in_front_of_batches_and_within_one_another() -> None:
    a, b, c, d = parts(50, 50, 50, 50)
    inner = grain.IterDataset.mix({"a": a, "b": b.filter(lambda pair: pair[1] % 2 > 0)})

    def batched(pieces: Any) -> Any:
        mixed = grain.IterDataset.mix(pieces).map(lambda pair: 100 * pair[0] + pair[1])
        return mixed.batch(4)

    before, state = taken(batched({"ab": inner, "c": c}), 3)
    more = batched({"c": c, "ab": inner, "d": d.filter(lambda pair: pair[1] % 5 > 0)})
    with pytest.warns(UserWarning, match="'d' begins"):
        rest, _ = taken(more, 5, state)
    numbers = np.concatenate([*before, *rest]).tolist()
    assert sorted(numbers) == sorted(set(numbers))  # none twice
    for part in range(4):
        found = [n % 100 for n in numbers if n // 100 == part]
        every = [n for n in range(50) if (part != 1 or n % 2) and (part != 3 or n % 5)]
        assert found == every[: len(found)]  # none left out


def test_outputs_that_cannot_be_made_again_are_made_of_elements_that_come_once_more() -> None:
    texts = [[{"x": np.full(3, 100 * part + place)} for place in range(40)] for part in range(2)]

    def packed(weights: Any) -> Any:
        mixed = grain.IterDataset.mix(dict(zip("ab", map(trees.of, texts), strict=True)), weights)
        return mixed.pack({"x": 6}, num_packing_bins=4, shuffle_bins=False)

    before, state = taken(packed({"a": 1, "b": 1}), 6)
    with (
        pytest.warns(UserWarning, match="the weights were"),
        pytest.warns(UserWarning, match="2 outputs behind the mixture"),
    ):
        rest, _ = taken(packed({"a": 3, "b": 1}), 60, state)
    seen = np.concatenate([row["x"] for row in before + rest])
    # Four rows are done with, and the elements of two more come again: none is lost.
    for part in range(2):
        found = {n for n in np.unique(seen).tolist() if n // 100 == part and n % 100}
        assert found == set(range(100 * part + 1, 1 + max(found)))


def test_a_list_of_parts_does_not_change() -> None:
    _before, state = taken(grain.IterDataset.mix(parts(9, 9), [1, 2]), 3)
    with pytest.raises(grain.errors.StateError, match=r"streams|another pipeline"):
        taken(grain.IterDataset.mix(parts(9, 9, 9), [1, 2, 1]), 3, state)
    with pytest.raises(grain.errors.StateError, match=r"by name"):
        taken(grain.IterDataset.mix(dict(zip("ab", parts(9, 9), strict=True))), 3, state)


def test_none_of_the_parts_of_a_state() -> None:
    one, other = parts(9, 9)
    _, state = taken(grain.IterDataset.mix({"web": one}), 2)
    with pytest.raises(grain.errors.StateError, match=r"\['web'\].*\['code'\]: none is the same"):
        taken(grain.IterDataset.mix({"code": other}), 2, state)


def test_a_part_that_keeps_its_name_keeps_its_order() -> None:
    numbers = grain.MapDataset.range(20)

    def mixed(seed: int, more: Any) -> Any:
        return grain.IterDataset.mix({"a": numbers.shuffle(seed=seed).to_iter_dataset(), **more})

    _, state = taken(mixed(1, {}), 2)
    with pytest.raises(grain.errors.StateError, match="the order of records"):
        taken(mixed(2, {"b": numbers.to_iter_dataset()}), 2, state)


def test_counts_of_parts_can_be_read_while_it_runs() -> None:
    a, b, c = parts(30, 30, 30)
    inner = grain.IterDataset.mix([a, b], [2, 1])
    made = grain.IterDataset.mix({"ab": inner, "c": c}, {"ab": 1, "c": 1}, stop="repeat")
    for workers in (0, 2):
        stream = trees.with_workers(made, workers) if workers else made
        with iter(stream) as iterator, grain.prefetch_to_device(stream) as ahead:
            for count in range(70):
                found = iterator.mixture_counts
                assert {name: one["elements"] for name, one in found.items()} == {
                    "ab": count - count // 2,
                    "c": count // 2,
                    **_inner(count - count // 2),
                }
                if count and count < 30:
                    next(ahead)
                    assert ahead.mixture_counts == found or count == 1
                next(iterator)


def _inner(count: int) -> dict[str, int]:
    order = (chosen([200, 100], 45) * 2)[:count]
    return {"ab/0": order.count(0), "ab/1": order.count(1)}


@pytest.mark.parametrize("weigh", [None, heavy])
@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_shards_that_count_for_themselves_join_and_take_another_part(stop: Any, weigh: Any) -> None:
    def part(number: int) -> Any:
        return parts(*[120] * (number + 1))[number].filter(lambda pair: pair[1] % 3 > 0)

    def shard(index: int, count: int, names: str, weights: dict[str, float]) -> Any:
        mixed = grain.IterDataset.mix(
            {name: part("abc".index(name)) for name in names}, weights, stop=stop, weigh=weigh
        )
        batches = mixed.map(lambda pair: 1000 * pair[0] + pair[1]).batch(8 // count)
        return batches.shard(grain.sharding.ShardOptions(index, count), virtual_shards=4)

    weights = {"a": 2, "b": 1}
    both = [iter(shard(index, 2, "ab", weights)) for index in range(2)]
    before = [next(one).tolist() for _ in range(3) for one in both]
    states = [json.loads(json.dumps(one.get_state())) for one in both]
    rest = [sorted(np.concatenate([next(one) for one in both]).tolist()) for _ in range(4)]

    joined = iter(shard(0, 1, "ab", weights))
    joined.set_state({"processes": states})
    assert [sorted(next(joined).tolist()) for _ in range(4)] == rest
    counts = [one.mixture_counts for one in both]
    assert sum(each[name]["elements"] for each in counts for name in "ab") == 7 * 8

    other = iter(shard(0, 1, "acb", {"a": 1, "b": 1, "c": 1}))
    with pytest.warns(UserWarning, match="'c' begins") as warned:
        other.set_state({"processes": states})
    assert len(warned) == 1
    numbers = [n for batch in before for n in batch]
    numbers += [n for _ in range(6) for n in next(other).tolist()]
    assert len(set(numbers)) == len(numbers)
    assert {n // 1000 for n in numbers[24:]} == {0, 1, 2}


def test_parts_of_other_structure_are_called_by_their_names() -> None:
    web = trees.of([{"x": 1}, {"x": 2}])
    books = trees.of([{"x": 1, "y": 2}])
    with pytest.raises(grain.errors.StackError, match="differ in structure") as raised:
        list(grain.IterDataset.mix({"web": web, "books": books}).batch(2))
    notes = "".join(raised.value.__notes__)
    assert "dataset 'web' of step 1: mix()" in notes
    assert "dataset 'books' of step 1: mix()" in notes
