"""Threads start by themselves only inside sources that hold data and change none of it."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import pathlib
import re
import sqlite3
import threading
import zipfile
from typing import Any

import numpy as np
import pytest

from grain_jax._algebra.concurrency import may_share

_FILE = io.BytesIO(b"abc")
_TABLE = {"a": 1}


class Base:
    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 3


class Reads(Base):
    def __getitem__(self, index: int) -> Any:
        return self.held, index


class OpensEach(Base):
    def __getitem__(self, index: int) -> bytes:
        with open(self.held[index], "rb") as file:
            return file.read()


class OpensOnce(Base):
    def __getitem__(self, index: int) -> Any:
        if self.held is None:
            self.held = open("x", "rb")  # noqa: SIM115
        return self.held.read(index)


class Remembers(Base):
    def __getitem__(self, index: int) -> Any:
        self.held[index] = index
        return index


class Appends(Base):
    def __getitem__(self, index: int) -> Any:
        self.held.append(index)
        return index


class FillsBuffer(Base):
    def __getitem__(self, index: int) -> Any:
        self.held.fill(index)
        return self.held.copy()


class ReadsModule(Base):
    def __getitem__(self, index: int) -> Any:
        return _FILE.read(index)


class ReadsTable(Base):
    def __getitem__(self, index: int) -> Any:
        return _TABLE["a"] + index


class CallsCached(Base):
    def __getitem__(self, index: int) -> Any:
        return _opened("x").read(index)


class Counts(Base):
    def __getitem__(self, index: int) -> Any:
        global _COUNT
        _COUNT = index
        return index


_COUNT = 0


@functools.lru_cache
def _opened(path: str) -> Any:
    return open(path, "rb")


def _inside(handle: Any) -> Any:
    return Reads({"train": [Reads((handle,))]})


@pytest.mark.parametrize(
    "source",
    [
        Reads(),
        Reads(["a", "b"]),
        Reads({"a": (1, 2.5), "b": {"c": b"x"}}),
        Reads(np.arange(3)),
        Reads(pathlib.Path("x")),
        Reads(re.compile("x")),
        Reads(threading.Lock()),
        Reads(list(range(5_000))),
        OpensEach(["a", "b"]),
        ReadsTable(),
        _inside(3),
    ],
)
def test_data_may_be_shared(source: Any) -> None:
    assert may_share(source)


@pytest.mark.parametrize(
    "handle",
    [
        io.BytesIO(b"x"),
        zipfile.ZipFile(io.BytesIO(), "w"),
        iter([1, 2]),
        collections.deque([1]),
        np.random.default_rng(0),
        np.array([io.BytesIO()], object),
    ],
    ids=lambda handle: type(handle).__name__,
)
def test_what_has_a_position_may_not(handle: Any) -> None:
    assert not may_share(Reads(handle))
    assert not may_share(_inside(handle))
    assert not may_share(Reads([1] * 5_000 + [handle]))


def test_a_connection_may_not() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        assert not may_share(_inside(connection))


@pytest.mark.parametrize(
    "source",
    [
        OpensOnce(),
        Remembers({}),
        Appends([]),
        FillsBuffer(np.zeros(3)),
        ReadsModule(),
        CallsCached(),
        Counts(),
    ],
    ids=lambda source: type(source).__name__,
)
def test_what_changes_as_it_is_read_may_not(source: Any) -> None:
    assert not may_share(source)


def test_of_other_languages_and_libraries_nobody_knows() -> None:
    assert not may_share([1, 2, 3])
    assert not may_share(np.zeros(3))
    assert not may_share(collections.UserList([1]))
