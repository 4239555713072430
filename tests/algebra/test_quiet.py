"""Sources that certainly never draw are told from those that may."""

from __future__ import annotations

import functools
import io
import json
import random
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import random as uniform
from typing import Any

import numpy as np
import pytest

from grain_jax import sources
from grain_jax._algebra.sources import adapt

np_again = np
library = random
SCALE = 3


def quiet_helper(x: int) -> int:
    return x * SCALE


def drawing_helper(x: int) -> float:
    return x * uniform()


class Base:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.record(index)

    def record(self, index: int) -> Any:
        return index


class Arrays(Base):
    def __init__(self) -> None:
        self.x = np.zeros(10)

    def record(self, index: int) -> Any:
        return {"x": self.x[index].astype(np.float32), "y": quiet_helper(index)}


class Files(Base):
    def __init__(self) -> None:
        self.paths = [Path("a"), Path("b")]
        self.lock = threading.Lock()
        self.file: Any = None

    def record(self, index: int) -> Any:
        with self.lock:
            if self.file is None:
                self.file = io.BytesIO(b"abcd" * 10)
            self.file.seek(4 * index)
            time.sleep(0)
            with open(self.paths[0], "rb") as file:
                return struct.unpack("<I", file.read(4)), json.loads("1")


class Images(Base):
    def record(self, index: int) -> Any:
        from PIL import Image

        return np.asarray(Image.new("RGB", (2, 2)))


class Many(Arrays):
    def __getitems__(self, indices: Sequence[int]) -> Any:
        return [self[i] for i in indices]


class Holder(Base):
    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def record(self, index: int) -> Any:
        return self.function(index)


class ManyDraw(Arrays):
    def __getitems__(self, indices: Sequence[int]) -> Any:
        return np.random.rand(len(indices))


class ByAttribute(Base):
    def __init__(self) -> None:
        self.r: Any = np.random

    def record(self, index: int) -> Any:
        return self.r.rand()


class ByList(Base):
    def __init__(self) -> None:
        self.functions = [quiet_helper] * 2_000 + [drawing_helper]

    def record(self, index: int) -> Any:
        return self.functions[index](index)


class Unknown(Base):
    def record(self, index: int) -> Any:
        import pandas

        return pandas.Series([1]).sample()


def aliased(index: int) -> Any:
    f = np_again
    return f.random.rand()


def imports(index: int) -> Any:
    import numpy

    return numpy.random.rand()


QUIET = [Arrays(), Files(), Images(), Many(), Holder(quiet_helper), Holder(lambda i: i + SCALE)]
DRAWING = [
    ManyDraw(),
    ByAttribute(),
    ByList(),
    Unknown(),
    *map(
        Holder,
        [
            drawing_helper,
            aliased,
            imports,
            functools.partial(drawing_helper),
            random.random,
            np.random.rand,
            lambda i: uniform(),
            lambda i: np.random.rand(),
            lambda i: library.random(),
            lambda i: quiet_helper(i) + drawing_helper(i),
            lambda i: getattr(np, "random").rand(),  # noqa: B009
            lambda i: eval("random.random()"),
            lambda i: [drawing_helper(j) for j in range(i)],
            lambda i: later(i),  # type: ignore[name-defined]  # noqa: F821
        ],
    ),
]


@pytest.mark.parametrize("source", QUIET, ids=lambda s: type(s).__name__)
def test_sources_that_cannot_draw(source: Any) -> None:
    assert not adapt(source).may_draw()


@pytest.mark.parametrize("source", DRAWING, ids=lambda s: type(s).__name__)
def test_sources_that_may(source: Any) -> None:
    assert adapt(source).may_draw()


def test_sources_of_the_library() -> None:
    for source in (sources.RangeDataSource(0, 3, 1), [1, 2], {"x": np.zeros(3)}):
        assert not adapt(source).may_draw()


def test_arrays_in_a_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "file", "w") as file:
        file["x"] = np.arange(5)
        assert not adapt({"x": file["x"]}).may_draw()


def test_an_edit_is_seen() -> None:
    holder = Holder(quiet_helper)
    adapted = adapt(holder)
    assert not adapted.may_draw()
    holder.function = drawing_helper
    assert adapted.may_draw()
