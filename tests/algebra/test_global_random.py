"""Code that may draw from the process-wide generators is told from code that cannot."""

from __future__ import annotations

import dataclasses
import functools
import random
import threading
from collections.abc import Callable, Iterator
from random import random as uniform
from typing import Any

import numpy as np
import numpy.random as aliased
import pytest

from grain_jax import transforms
from grain_jax._algebra import global_random

SCALE = 3
TABLE = np.arange(4)
FUNCTIONS = np.array([random.random], dtype=object)
RECORD = np.array([(random.random,)], dtype=[("draw", object)])[0]
np_again = np


def helper(x: Any) -> Any:
    return x + random.random()


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(x: Any) -> Any:
        return function(x) + uniform()

    return wrapper


class Quiet(transforms.Map):
    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale

    def map(self, element: Any) -> Any:
        return np.clip(element["x"].astype(np.float32) * self.scale, 0, 1)


class ByMethod(Quiet):
    def map(self, element: Any) -> Any:
        return self.draw(element)  # type: ignore[attr-defined]

    def draw(self, element: Any) -> Any:
        return np.random.rand()


class ByAttribute(Quiet):
    def __init__(self) -> None:
        self.r = np.random

    def map(self, element: Any) -> Any:
        return self.r.rand()


class ByObject(ByAttribute):
    def __init__(self) -> None:
        self.sum = np.random.RandomState(0)

    def map(self, element: Any) -> Any:
        return self.sum.normal()


class ByCall(Quiet):
    def map(self, element: Any) -> Any:
        return self(element)  # type: ignore[operator]

    def __call__(self, element: Any) -> Any:
        return np.random.rand()


class ByOperator(Quiet):
    def map(self, element: Any) -> Any:
        return self + element  # type: ignore[operator]

    def __add__(self, other: Any) -> Any:
        return np.random.rand()


class ByProperty(Quiet):
    def map(self, element: Any) -> Any:
        return self.shape

    @property
    def shape(self) -> float:
        return random.random()


class ByGetattr(Quiet):
    def map(self, element: Any) -> Any:
        return self.mean

    def __getattr__(self, name: str) -> float:
        return random.random()


class BySuper(ByMethod):
    def map(self, element: Any) -> Any:
        return super().map(element)


class OfClass:
    @classmethod
    def map(cls, element: Any) -> Any:
        return cls.draw()

    @classmethod
    def draw(cls) -> float:
        return random.random()


@dataclasses.dataclass
class Data(transforms.Map):
    scale: int = 2

    def map(self, element: Any) -> Any:
        return element * self.scale


class Random(transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + rng.random() + rng.normal(size=3)


def generates(x: Any) -> Iterator[float]:
    yield np.random.rand()


def nested(x: Any) -> Any:
    def inner() -> float:
        return random.random()

    return inner()


def imports(x: Any) -> Any:
    import random as r

    return r.random()


def alias(x: Any) -> Any:
    f = np
    return f.random.rand()


def by_default(x: Any, draw: Callable[[], float] = random.random) -> Any:
    return draw()


def by_keyword(x: Any, *, draw: Any = (np.random.rand,)) -> Any:
    return draw[0]()


def closes_over() -> Callable[[Any], Any]:
    sum = random.random
    return lambda x: sum()


def not_yet(x: Any) -> Any:
    return clip(x)  # type: ignore[name-defined]  # noqa: F821 - whoever defines it later may draw


DRAWING: dict[str, Callable[..., Any]] = {
    "np.random": lambda x: np.random.rand(),
    "random": lambda x: random.random(),
    "from import": lambda x: uniform(),
    "module alias": lambda x: aliased.rand(),
    "package alias": lambda x: np_again.random.rand(),
    "local alias": alias,
    "function": lambda x: helper(x),
    "nested": nested,
    "import": imports,
    "generator": generates,
    "comprehension": lambda xs: {k: np.random.rand() for k in xs},
    "default": by_default,
    "keyword default": by_keyword,
    "closure": closes_over(),
    "decorator": decorated(lambda x: x),
    "partial": functools.partial(lambda r, x: r.rand(), np.random),
    "builtin method": np.random.rand,
    "getattr": lambda x: getattr(np, "ran" + "dom").rand(),
    "dict of the module": lambda x: np.__dict__["ran" + "dom"].rand(),
    "vars": lambda x: vars(np)["ran" + "dom"].rand(),
    "globals": lambda x: globals()["ran" + "dom"].random(),
    "__import__": lambda x: __import__("random").random(),
    "eval": lambda x: eval("random.random()"),
    "array of functions": lambda x: FUNCTIONS[0](),
    "record of functions": lambda x: RECORD["draw"](),
    "object of the user's": lambda x: x.draw(),
    "name defined later": not_yet,
    "function that calls another": lambda x: np.apply_along_axis(x, 0, TABLE) + np.lib.draw(),
    "frompyfunc": np.frompyfunc(helper, 1, 1),
    "class": Quiet,
    "method": ByMethod().map,
    "module as attribute": ByAttribute().map,
    "object as attribute": ByObject().map,
    "own call": ByCall().map,
    "own operator": ByOperator().map,
    "own property": ByProperty().map,
    "own __getattr__": ByGetattr().map,
    "super": BySuper().map,
    "classmethod": OfClass.map,
}

QUIET: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x: x + 1,
    "global data": lambda x: x * SCALE + TABLE[0],
    "numpy": lambda x: np.float32(x) / np.sqrt(2),
    "array methods": lambda x: x["image"].reshape(-1).mean(),
    "ufunc": np.sqrt,
    "built-in": list,
    "attributes": Quiet().map,
    "dataclass": Data().map,
    "its own generator": Random().random_map,
}


@pytest.mark.parametrize("name", DRAWING)
def test_what_may_draw(name: str) -> None:
    assert global_random.may_draw(DRAWING[name])


@pytest.mark.parametrize("name", QUIET)
def test_what_cannot_draw(name: str) -> None:
    assert not global_random.may_draw(QUIET[name])


def test_the_answer_survives_pickling_the_class() -> None:
    import pickle

    pickle.dumps(Data())
    assert not global_random.may_draw(Data().map)


def draws() -> tuple[float, ...]:
    return random.random(), np.random.rand(), np.random.randn(), random.gauss(0, 1)


def test_seeds_fix_every_draw() -> None:
    with global_random.preserved():
        seen = []
        for key in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]:
            global_random.seed_for(*key)
            first = draws()
            random.random()
            np.random.randn()
            global_random.seed_for(*key)
            assert draws() == first
            seen += first
        assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("key", [(0, -1, 0, 0), (2**32 - 1, 2**62, 2**96 + 5, 3)])
def test_seeds_of_any_size(key: tuple[int, int, int, int]) -> None:
    with global_random.preserved():
        global_random.seed_for(*key)
        first = draws()
        global_random.seed_for(*key)
        assert draws() == first


def test_the_users_own_state_is_put_back() -> None:
    random.seed(3)
    np.random.seed(3)
    expected = [draws() for _ in range(5)]
    random.seed(3)
    np.random.seed(3)
    found = []
    for position in range(5):
        found.append(draws())  # an odd number of normal draws leaves one waiting
        with global_random.preserved():
            global_random.seed_for(0, position, 0, 0)
            draws()
    assert found == expected


def test_nested_uses_put_back_what_they_found() -> None:
    with global_random.preserved():
        global_random.seed_for(0, 1, 0, 0)
        expected = [draws() for _ in range(2)]
        global_random.seed_for(0, 1, 0, 0)
        found = [draws()]
        with global_random.preserved():
            global_random.seed_for(0, 2, 0, 0)
            draws()
        found.append(draws())
        assert found == expected


def test_threads_that_overlap_leave_the_users_state(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two are inside at once only where one waits for its turn in vain.
    monkeypatch.setattr(global_random, "_LONGEST_TURN", 0.1)
    random.seed(5)
    np.random.seed(5)
    expected = draws()
    random.seed(5)
    np.random.seed(5)
    inside, go = threading.Event(), threading.Event()

    def work() -> None:
        with global_random.preserved():
            global_random.seed_for(0, 0, 0, 0)
            inside.set()
            go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    with global_random.preserved():
        go.set()
        thread.join()
        global_random.seed_for(0, 1, 0, 0)
    assert draws() == expected


@pytest.mark.filterwarnings("error")
def test_numpys_older_functions_work_on_the_seeded_generator() -> None:
    with global_random.preserved():
        global_random.seed_for(0, 0, 0, 0)
        state = np.random.get_state()
        first = np.random.rand()
        np.random.set_state(state)
        assert np.random.rand() == first
        np.random.seed(1)
        assert np.random.rand() == np.random.RandomState(1).rand()
