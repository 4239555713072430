"""Every file of engine tests ends without a process of its own."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grain_jax._execution.engine import launch
from tests.processes import children
from tests.waiting import until

_numbers = itertools.count()
Make = Callable[[str], types.ModuleType]


@pytest.fixture(scope="module", autouse=True)
def nothing_left(shared_process: launch.Handle) -> Iterator[None]:
    before = children()
    yield
    # The one that all tests keep may be another now.
    before.add(shared_process.zygote.process.pid)
    until(lambda: not children() - before)
    left = children() - before
    assert not left, f"processes {sorted(left)} outlived these tests"


@pytest.fixture(scope="module", autouse=True)
def warm(nothing_left: None) -> Iterator[None]:
    handle = launch.keep_alive()
    yield
    handle.close()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes modules of the user's; MODULE in a text stands for the module's name."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def make(text: str) -> types.ModuleType:
        name = f"drifting_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text).replace("MODULE", name))
        names.append(name)
        return importlib.import_module(name)

    yield make
    for name in names:
        sys.modules.pop(name, None)
