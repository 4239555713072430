"""A pipeline travels whole; one that cannot names what is in the way."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from grain_jax._execution.engine import helper, locations, parcel
from grain_jax._values.errors import InvalidTypeError
from tests.execution.engine.conftest import Make


def there_and_back(program: Any, **settings: Any) -> Any:
    descriptor, registry, modules = parcel.pack(program, None, settings, "parcel")
    plain = {**settings, "token": "parcel", "modules": modules, "locations": locations.find()}
    assert helper.read_settings(descriptor).items() >= plain.items()
    del registry
    content = parcel.Parcel(descriptor, "parcel")
    assert content.load_init() is None
    loaded, _ = content.load_program()
    os.close(descriptor)
    return loaded


@pytest.mark.parametrize("memory", ["memory", "file"])
def test_large_arrays_travel_beside_the_pickle(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", memory)
    large = np.random.default_rng(0).random((600, 500))
    frozen = large.copy()
    frozen.flags.writeable = False
    small = np.arange(5)
    program = {"large": large, "again": large, "frozen": frozen, "small": small, "text": "t" * 10}
    back = there_and_back(program, a=1, b="c")
    for name in ("large", "frozen", "small"):
        np.testing.assert_array_equal(back[name], program[name])
    assert back["again"] is back["large"]
    assert not back["frozen"].flags.writeable
    back["large"][0] = -1  # this process's own copy of a page
    assert large[0, 0] != -1


def test_what_is_by_value_is_registered() -> None:
    made = type("Made", (), {"__module__": "__main__"})

    def function() -> int:
        return 5

    function.__module__ = "__main__"
    descriptor, registry, _ = parcel.pack([made, function, np.mean, dict], None, {}, "by value")
    os.close(descriptor)
    assert made in registry.objects
    assert not {np.mean, dict} & set(registry.objects)
    assert cloudpickle.loads(cloudpickle.dumps(function))() == 5


class Step:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def method(self) -> None: ...


LOCK = threading.Lock()


def captures(lock: Any) -> Any:
    return lambda x: (x, lock)


class Slotted:
    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (Step(steps=[Step(a=1), Step(function=captures(LOCK))]), ["variable `lock`", "captures"]),
        (Step(table={"x": LOCK}), ["['x']", "_thread.lock"]),
        (Step(handle=LOCK), ["handle", "lock"]),
        (functools.partial(print, LOCK), ["lock"]),
        (Step(handle=LOCK).method, ["handle", "Step"]),
        (Slotted(LOCK), ["handle"]),
        (LOCK, ["it is a _thread.lock"]),
    ],
)
def test_the_error_names_what_does_not_pickle(program: Any, names: list[str]) -> None:
    with pytest.raises(InvalidTypeError, match="cannot be sent to worker processes") as caught:
        parcel.pack(program, None, {}, "bad")
    for name in names:
        assert name in str(caught.value)
    assert "worker_count=0" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


class Refuses:
    def __getstate__(self) -> Any:
        raise ValueError("no")


class Reduces:
    def __reduce__(self) -> Any:
        return self.reduce()

    def reduce(self) -> Any:
        return threading.Lock().__reduce_ex__(4)  # the user's code asks for what is refused


@pytest.mark.parametrize(
    ("program", "kind", "text", "names"),
    [
        (Refuses(), ValueError, "no", ["it is a", "Refuses", "in __getstate__"]),
        (Step(a=[Refuses()]), ValueError, "no", ["[0]", "Refuses, which does not pickle"]),
        (Step(method=Reduces().reduce), TypeError, "lock", ["Reduces", "in reduce"]),
    ],
)
def test_what_the_users_own_code_raises_is_raised_as_itself(
    program: Any, kind: type[Exception], text: str, names: list[str]
) -> None:
    with pytest.raises(kind, match=text) as caught:
        parcel.pack(program, None, {}, "bad")
    assert type(caught.value) is kind
    assert caught.value.__cause__ is None
    (note,) = caught.value.__notes__
    for name in [*names, "cannot be sent to worker processes", __file__, "worker_count=0"]:
        assert name in note


def test_functions_of_a_module_whose_file_is_gone_travel_by_value(make: Make) -> None:
    module = make("K = 2\ndef f(x):\n    return x * K\n")
    assert there_and_back(module.f) is module.f
    os.unlink(str(module.__file__))
    module.K = 5  # type: ignore[attr-defined]
    loaded = there_and_back(module.f)
    assert loaded is not module.f
    assert loaded(3) == 15


def test_functions_of_an_archive_on_a_path_that_leads_elsewhere_travel_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("in_an_archive.py", "def f(x):\n    return x * 9\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("lib.zip")
    module = importlib.import_module("in_an_archive")
    try:
        assert there_and_back(module.f) is module.f
        monkeypatch.chdir(away)
        loaded = there_and_back(module.f)
        assert loaded is not module.f
        assert loaded(3) == 27
    finally:
        del sys.modules["in_an_archive"]
