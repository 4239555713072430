"""Steps on blocks: values, whereabouts, and errors that say which step, record and line."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grain_jax import errors, transforms
from grain_jax._algebra import kinds, stacking, steps
from grain_jax._algebra.blocks import Block, joined
from grain_jax._values import randomness


def block(data: list[Any], first: int = 10) -> Block:
    """Elements at the positions first, first + 1, ..., whose record keys are 100 more."""
    where = range(first, first + len(data))
    return Block(data, list(where), describe=lambda p: f"position {p} (record key {p + 100})")


class Double(transforms.Map):
    def map(self, element: Any) -> Any:
        return 2 * element


class Odd(transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(element % 2)


class Copies(transforms.FlatMap):
    max_fan_out = 3

    def flat_map(self, element: Any) -> list[Any]:
        return [element] * element


class Draw(transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(2**40))


class TfDraw(transforms.TfRandomMap):
    def np_random_map(self, element: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(2**40))


class Place(transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> tuple[int, Any]:
        return index, element


def drawn(seed: int, position: int, output: int = 0, step: int = 0) -> int:
    return int(randomness.generator(seed, position, output, step).integers(2**40))


def step(kind: str, transform: Any, **settings: Any) -> Any:
    return steps.step_for(kind, transform, number=3, **settings)


def test_map() -> None:
    found = step("map", Double())(block([1, 2, 3]))
    assert (found.data, list(found.positions)) == ([2, 4, 6], [10, 11, 12])


def test_filter_keeps_whereabouts() -> None:
    found = step("filter", Odd())(block([1, 2, 3, 4, 5]))
    assert (found.data, list(found.positions)) == ([1, 3, 5], [10, 12, 14])
    assert found.rows == [0, 2, 4]
    again = step("filter", lambda x: x > 1)(found)
    assert (again.data, again.rows) == ([3, 5], [2, 4])


@pytest.mark.parametrize("truth", [1, "yes", [0], np.bool_(True), np.int8(1)])
def test_filter_goes_by_truth(truth: Any) -> None:
    assert step("filter", lambda x: truth)(block([1])).data == [1]


def test_flat_map_numbers_its_outputs() -> None:
    found = step("flat_map", Copies())(block([2, 0, 1, 3]))
    assert found.data == [2, 2, 1, 3, 3, 3]
    assert list(found.positions) == [10, 10, 12, 13, 13, 13]
    assert found.outputs == [0, 1, 0, 0, 1, 2]


def test_nested_flat_maps_keep_their_numbers_apart() -> None:
    twice = step("flat_map", lambda x: [x, x])
    found = block([0])
    for _ in range(4):
        found = twice(found)
    assert len(set(found.outputs or ())) == 16
    draws = step("random_map", Draw(), seed=1)(found).data
    assert len(set(draws)) == 16


def test_none_from_a_flat_map_is_an_error() -> None:
    with pytest.raises(errors.InvalidValueError, match=r"returned None .*number 1.*leave") as info:
        step("flat_map", lambda x: iter([x, None, x + 1]))(block([5]))
    assert "position 10 (record key 110)" in info.value.__notes__[0]


def test_flat_map_takes_iterators() -> None:
    found = step("flat_map", lambda x: iter([x, x + 1]))(block([5]))
    assert (found.data, found.outputs) == ([5, 6], [0, 1])


def test_flat_map_stops_at_its_limit() -> None:
    class Endless(Copies):
        def flat_map(self, element: Any) -> Any:
            return itertools.repeat(element)

    with pytest.raises(ValueError, match="more than max_fan_out=3 elements") as info:
        step("flat_map", Endless())(block([1]))
    assert "position 10 (record key 110)" in info.value.__notes__[0]


def test_flat_map_to_nothing() -> None:
    found = step("flat_map", lambda x: [])(block([1, 2]))
    assert (found.data, len(found)) == ([], 0)


@pytest.mark.parametrize("transform", [Draw(), TfDraw(), Draw().random_map])
def test_random_map_draws_by_position(transform: Any) -> None:
    found = step("random_map", transform, seed=7, random_number=2)(block([0, 0, 0]))
    assert found.data == [drawn(7, position, 0, 2) for position in (10, 11, 12)]


def test_random_map_draws_by_output() -> None:
    found = step("flat_map", Copies())(block([2, 1]))
    found = step("random_map", Draw(), seed=7)(found)
    assert found.data == [drawn(7, 10, 0), drawn(7, 10, 1), drawn(7, 11, 0)]


def test_generators_that_the_user_keeps() -> None:
    kept: list[np.random.Generator] = []

    def keep(element: Any, rng: np.random.Generator) -> float:
        kept.append(rng)
        return rng.random()

    found = step("random_map", keep, seed=7)(block([0, 0, 0]))
    for row, rng in enumerate(kept):
        expected = randomness.generator(7, 10 + row)
        assert found.data[row] == expected.random()
        assert rng.random() == expected.random()


def test_a_samplers_generators_are_obeyed_by_all_random_steps() -> None:
    given = block([0, 0])
    given.rngs = [np.random.default_rng(5), np.random.default_rng(6)]
    draw = step("random_map", lambda x, rng: [*(x or []), rng.random()], seed=1)
    found = draw(draw(given)).data
    assert found == [list(np.random.default_rng(seed).random(2)) for seed in (5, 6)]


def test_random_map_without_any_seed() -> None:
    with pytest.raises(ValueError, match="needs a random generator"):
        step("random_map", Draw())(block([0]))


def test_index_by_position_or_by_number() -> None:
    given = block([5, 6])
    given.ordinal = 40
    assert step("map_with_index", Place())(given).data == [(10, 5), (11, 6)]
    given = block([5, 6])
    given.ordinal = 40
    assert step("map_with_index", Place(), by_position=False)(given).data == [(40, 5), (41, 6)]


def test_batch_stands_where_its_last_record_stands() -> None:
    given = block([1, 2, 3, 4, 5])
    given.outputs, given.ordinal = [0, 1, 2, 3, 4], 20
    given.rngs = [np.random.default_rng(i) for i in range(5)]
    rngs = given.rngs
    found = step("batch", transforms.Batch(2))(given)
    assert [b.tolist() for b in found.data] == [[1, 2], [3, 4], [5]]
    assert list(found.positions) == [11, 13, 14]
    assert found.outputs == [1, 3, 4]
    assert found.rngs == [rngs[1], rngs[3], rngs[4]]
    assert found.ordinal == 10


def test_batch_fn() -> None:
    assert step("batch", transforms.Batch(2, batch_fn=tuple))(block([1, 2, 3])).data == [
        (1, 2),
        (3,),
    ]


def test_none_goes_through_all_but_a_batch() -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("called for an absent element")

    for kind in ("map", "random_map", "map_with_index", "filter", "flat_map"):
        found = step(kind, refuse, seed=1)(block([None, None]))
        assert found.data == [None, None], kind


MAPS: dict[str, Callable[..., Any]] = {
    "map": lambda f: lambda x: f(x),
    "random_map": lambda f: lambda x, rng: f(x),
    "map_with_index": lambda f: lambda i, x: f(x),
    "filter": lambda f: lambda x: f(x),
    "flat_map": lambda f: lambda x: [f(x)],
}


def fails_at_3(element: Any) -> Any:
    if element == 3:
        raise LookupError("three")
    return element


@pytest.mark.parametrize("kind", MAPS)
def test_errors_name_step_record_and_line(kind: str) -> None:
    with pytest.raises(LookupError, match="three") as info:
        step(kind, MAPS[kind](fails_at_3), seed=1)(block([1, 2, 3, 4]))
    (note,) = info.value.__notes__
    line = fails_at_3.__code__.co_firstlineno + 2
    assert f"in step 3: {kind}(<lambda>), at position 12 (record key 112)" in note
    assert f"{__file__}:{line}, in fails_at_3" in note


@pytest.mark.parametrize("kind", MAPS)
def test_stop_iteration_is_an_error(kind: str) -> None:
    def stops(element: Any) -> Any:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration") as info:
        step(kind, MAPS[kind](stops), seed=1)(block([1]))
    assert "position 10" in info.value.__notes__[0]


@pytest.mark.parametrize("kind", ["map", "random_map", "map_with_index"])
def test_none_from_a_map_is_an_error(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"step 3: {kind}\(<lambda>\) returned None.*Filter"):
        step(kind, MAPS[kind](lambda x: None), seed=1)(block([1]))


def test_batch_fn_errors_name_the_batch() -> None:
    def make(elements: Any) -> Any:
        if 3 in elements:
            raise LookupError("three")
        return None if 5 in elements else elements

    with pytest.raises(LookupError) as info:
        step("batch", transforms.Batch(2, batch_fn=make))(block([1, 2, 3, 4]))
    where = "from position 12 (record key 112) to position 13 (record key 113)"
    assert where in info.value.__notes__[0]
    with pytest.raises(ValueError, match="returned None") as none:
        step("batch", transforms.Batch(2, batch_fn=make))(block([5]))
    assert "record key 110" in none.value.__notes__[0]


def test_what_does_not_stack_names_leaf_shapes_and_both_records() -> None:
    elements = [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(3)}]
    with pytest.raises(stacking.StackError) as info:
        step("batch", transforms.Batch(2))(block(elements))
    text = str(info.value)
    assert "x" in text
    assert "(2,)" in text
    assert "(3,)" in text
    (note,) = info.value.__notes__
    assert "position 12 (record key 112) and position 13 (record key 113)" in note


def test_returning_no_elements() -> None:
    with pytest.raises(TypeError, match="returned int, which holds no elements"):
        step("flat_map", lambda x: 5)(block([1]))


@pytest.mark.parametrize(
    ("kind", "transform", "text"),
    [
        ("map", transforms.Batch(2), r"map takes a function or a transforms.Map.*\.batch\("),
        ("map", Odd(), r"\.filter\("),
        ("filter", Double(), r"filter takes a function or a transforms.Filter.*\.map\("),
        ("map", Double, r"Double is a class.*Write Double\(\.\.\.\)"),
        ("map", 5, "got 5 of type int"),
        ("map_with_index", None, "transforms.MapWithIndex, got None"),
        ("batch", Double(), "batch takes"),
    ],
)
def test_wrong_kinds_are_refused(kind: str, transform: Any, text: str) -> None:
    with pytest.raises(errors.InvalidTypeError, match=text):
        step(kind, transform)


def test_a_class_that_makes_elements_is_a_function() -> None:
    assert step("map", str)(block([1])).data == ["1"]


class Both(Double, Odd):
    pass


def test_an_object_of_two_kinds_has_to_be_told() -> None:
    with pytest.raises(TypeError, match="Both is map and filter at once"):
        kinds.kind_of(Both())
    assert step("filter", Both())(block([1, 2])).data == [1]
    assert step("map", Both())(block([1, 2])).data == [2, 4]


@pytest.mark.parametrize("thing", [5, None, "map", len, Double, lambda x: x, object()])
def test_what_is_no_transformation(thing: Any) -> None:
    with pytest.raises(errors.InvalidTypeError):
        kinds.kind_of(thing)


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (Double(), "Double"),
        (np.sqrt, "sqrt"),
        (len, "len"),
        (str, "str"),
        (functools.partial(round, ndigits=1), "partial(round)"),
        (Double().map, "Double.map"),
    ],
)
def test_titles(transform: Any, name: str) -> None:
    assert step("map", transform).title == f"step 3: map({name})"


@pytest.mark.parametrize("fan_out", [0, -1, 1.5, "2"])
def test_bad_fan_outs(fan_out: Any) -> None:
    transform = Copies()
    transform.max_fan_out = fan_out
    with pytest.raises(errors.GrainError, match="max_fan_out"):
        step("flat_map", transform)


def test_blocks_join_and_part() -> None:
    whole = step("flat_map", Copies())(block([1, 2, 3]))
    whole.rows = [0, 1, 1, 2, 2, 2]
    whole.rngs = [np.random.default_rng(i) for i in range(6)]
    again = joined([whole.part(0, 2), whole.part(2, 2), whole.part(2, 6)])
    for name in ("data", "positions", "outputs", "rngs", "rows"):
        assert list(getattr(again, name)) == list(getattr(whole, name))
    assert whole.part(2, 4).ordinal == whole.ordinal + 2
