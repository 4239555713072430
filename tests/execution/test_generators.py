"""Generators with a state of their own are found where the pipeline's code can draw from them."""

from __future__ import annotations

import functools
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import grain_jax as grain
from grain_jax import errors

HERE = __name__

rng = np.random.default_rng()
seeded = np.random.default_rng(0)
python = random.Random(3)
legacy = np.random.RandomState(3)
draw = seeded.random
listed = {"a": [np.random.Philox(3)]}
lazy: Any = None


def module_rng(x: Any) -> Any:
    return x + rng.random()


def by_helper(x: Any) -> Any:
    return module_rng(x)


def by_default(x: Any, generator: Any = legacy) -> Any:
    return x + generator.rand()


def lazily(x: Any) -> Any:
    global lazy
    if lazy is None:
        lazy = np.random.default_rng(0)
    return x


def closes_over(generator: Any) -> Callable[[Any], Any]:
    return lambda x: x + generator.random()


class Held(grain.transforms.Map):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def map(self, element: Any) -> Any:
        return element + self.rng.random()


class Lazy(grain.transforms.Map):
    def __init__(self) -> None:
        self.rng: Any = None

    def map(self, element: Any) -> Any:
        if self.rng is None:
            self.rng = np.random.default_rng(3)
        return element + self.rng.random()


class LazyDraw(grain.transforms.Map):
    """Keeps a method of a generator that it makes at the first use."""

    draw = None

    def map(self, element: Any) -> Any:
        if self.draw is None:
            self.draw = np.random.default_rng(3).random
        return element + self.draw()


class LazySpawned(grain.transforms.Map):
    """Keeps generators that one has made at the first use."""

    rngs = None

    def map(self, element: Any) -> Any:
        if self.rngs is None:
            self.rngs = np.random.default_rng(3).spawn(2)
        return element + self.rngs[0].random()


class LazyTable(grain.transforms.Map):
    """Keeps what generators have drawn at the first use, and none of them."""

    order = weights = chosen = None

    def map(self, element: Any) -> Any:
        if self.order is None:
            self.order = np.random.Generator(np.random.PCG64(3)).permutation(7)
            self.weights = np.random.RandomState(3).randn(8).astype(np.float32)
            self.chosen = random.Random(3).sample(range(9), 2)
        return element + self.order[0]


class OnlyAtFirst(grain.transforms.Map):
    """Draws as it is made, and never again."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.table = self.rng.permutation(10)

    def map(self, element: Any) -> Any:
        return self.table[element % 10]


class Fresh(grain.transforms.Map):
    """Makes a generator for each record."""

    def map(self, element: Any) -> Any:
        self.rng = np.random.default_rng(int(element))
        return element + self.rng.random()


def fresh(x: Any) -> Any:
    generator = np.random.default_rng(int(x))
    return x + generator.random()


def of_the_process(x: Any) -> Any:
    return x + np.random.rand() + random.random() + np.random.mtrand.rand()


def names_none(x: Any) -> Any:
    return x + 1


@functools.lru_cache
def cached(name: str) -> Any:
    made = np.random.default_rng(len(name))
    return made


@functools.cache
def permuted(count: int) -> Any:
    return np.random.default_rng(count).permutation(count)


def numbered() -> Iterator[int]:
    yield from range(1000)


seeds = np.random.SeedSequence(3)
numbers = numbered()
counted = itertools.count()
streams = nnx.Rngs(0)
base = jax.random.key(0)


class Cached(grain.transforms.Map):
    """Makes its generator at the first use."""

    @functools.cached_property
    def rng(self) -> Any:
        return np.random.default_rng(0)

    def map(self, element: Any) -> Any:
        return element + self.rng.random()


class Splits(grain.transforms.Map):
    """Keeps a key of JAX, and goes on with it."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def map(self, element: Any) -> Any:
        self.key, _ = jax.random.split(self.key)
        return element


class Folds(grain.transforms.Map):
    """Makes a key for each record from one that it keeps."""

    def __init__(self) -> None:
        self.base = np.array([0, 3], np.uint32)
        self.key = np.array([0, 3], np.uint32)

    def map(self, element: Any) -> Any:
        self.key = jax.random.fold_in(jax.random.wrap_key_data(self.base), int(element))
        first, _ = jax.random.split(self.key)
        return int(jax.random.randint(first, (), 0, 9))


FOUND = [
    (lambda x: x + cached("a").random(), f"{HERE}.cached"),
    (lambda x: x + np.random.default_rng(seeds.spawn(1)[0]).random(), f"{HERE}.seeds"),
    (lambda x: x + next(numbers), f"{HERE}.numbers"),
    (lambda x: x + next(counted), f"{HERE}.counted"),
    (lambda x: streams(), f"{HERE}.streams"),
    (Cached(), "Cached.rng"),
    (Splits(np.array([0, 3], np.uint32)), "Splits.key"),
    (module_rng, f"{HERE}.rng"),
    (by_helper, f"{HERE}.rng"),
    (lambda x: x + seeded.random(), f"{HERE}.seeded"),
    (lambda x: x + python.random(), f"{HERE}.python"),
    (lambda x: x + legacy.rand(), f"{HERE}.legacy"),
    (lambda x: x + draw(), f"{HERE}.draw"),
    (lambda x: x + listed["a"][0].random_raw(), f"{HERE}.listed"),
    (by_default, "by_default.generator"),
    (lazily, f"{HERE}.lazy"),
    (closes_over(random.Random(3)), "closes_over.<locals>.<lambda>.generator"),
    (functools.partial(lambda r, x: x + r.random(), random.Random(5)), "partial.args"),
    (Held(), "Held.rng"),
    (Lazy(), "Lazy.rng"),
    (LazyDraw(), "LazyDraw.draw"),
    (LazySpawned(), "LazySpawned.rngs"),
]

NOT_FOUND = [OnlyAtFirst(), LazyTable(), Fresh(), fresh, of_the_process, names_none, Folds()]
NOT_FOUND += [
    lambda x: x + permuted(5)[0],
    lambda x: x + np.random.default_rng(seeds.generate_state(4)).random(),
    lambda x: jax.random.uniform(jax.random.fold_in(base, int(x))) + 1,
]


def dataset(function: Any) -> grain.IterDataset[Any]:
    return grain.MapDataset.range(10).map(function).to_iter_dataset()


def parallel(ds: Any, *ignored: str) -> Any:
    return ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, ignore_globals=ignored))


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(("function", "name"), FOUND)
def test_an_error_with_workers_and_a_warning_without(function: Any, name: str) -> None:
    with pytest.raises(errors.InvalidValueError) as info:
        next(iter(parallel(dataset(function))))
    text = str(info.value)
    assert f"{name} is a " in text
    assert "def random_map(self, element, rng):" in text
    assert "begin with a copy" in text
    assert f"ignore_globals=({name!r},)" in text
    with pytest.warns(UserWarning, match="after a restore; with worker processes") as caught:
        next(iter(dataset(function)))
    assert len(caught) == 1
    assert name in str(caught[0].message)


@pytest.mark.parametrize("function", NOT_FOUND)
def test_nothing_is_said_of_others(function: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(dataset(function)))


def test_a_typed_key_of_jax() -> None:
    with pytest.warns(UserWarning, match="Splits.key is a JAX key with a state of its own"):
        next(iter(dataset(Splits(jax.random.key(0)))))


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("ignored", [f"{HERE}.rng", HERE])
def test_names_that_are_left_alone(ignored: str) -> None:
    with parallel(dataset(module_rng), ignored).__iter__() as iterator:
        assert 0 <= next(iterator) < 1


class Source:
    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> float:
        return self.rng.random()


class Custom(grain.MapDataset[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(3)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> Any:
        return self.rng.random()


@pytest.mark.parametrize("kind", [Source, Custom])
def test_sources_and_datasets_of_the_users_own(kind: Any) -> None:
    ds = Custom() if kind is Custom else grain.MapDataset.source(Source())
    with pytest.raises(errors.InvalidValueError, match=rf"{kind.__name__}\.rng is a Random with"):
        next(iter(parallel(ds.to_iter_dataset())))
    with pytest.warns(UserWarning, match=rf"{kind.__name__}\.rng"):
        next(iter(ds.to_iter_dataset()))


class FreshSource(Source):
    """Makes a generator for each record, and holds on to it."""

    def __getitem__(self, index: int) -> float:
        self.rng = random.Random(index)
        return self.draw()

    def draw(self) -> float:
        return self.rng.random()


@pytest.mark.usefixtures("no_process_left")
def test_a_source_that_seeds_for_each_record() -> None:
    ds = grain.MapDataset.source(FreshSource())
    expected = [random.Random(index).random() for index in range(10)]
    assert [ds[index] for index in range(10)] == expected
    assert list(ds.to_iter_dataset()) == expected
    assert list(parallel(ds.to_iter_dataset())) == expected


def test_steps_behind_the_workers_are_in_this_process() -> None:
    ds = grain.MapDataset.range(3).to_iter_dataset()
    behind = parallel(ds).map(module_rng)
    with (
        pytest.warns(UserWarning, match="are others after a restore"),
        iter(behind) as iterator,
    ):
        next(iterator)


def test_objects_of_libraries() -> None:
    held = type("Compose", (), {"__module__": "numpy"})()
    held.random_generator = np.random.default_rng(3)

    class Augment(grain.transforms.Map):
        def __init__(self) -> None:
            self.compose = held

        def map(self, element: Any) -> Any:
            return self.compose(element)

    with pytest.raises(errors.InvalidValueError, match=r"Compose\.random_generator is a Generator"):
        next(iter(parallel(dataset(Augment()))))
