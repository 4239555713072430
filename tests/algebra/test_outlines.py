"""The code of modules that are not loaded is read, and does not run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grain_jax._algebra import outlines, reach


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_a_module_will_have(folder: Path) -> None:
    text = """
import json as j, os.path, not_there_at_all
from json import dumps as write
if j: raise SystemExit
class Kind:
    def method(self): return j
def function(x): return [y for y in x]
"""
    (folder / "outlined_a.py").write_text(text)
    found = outlines.module("outlined_a")
    assert isinstance(found, outlines.Outline)
    assert "outlined_a" not in sys.modules
    scope = vars(found)
    assert {"j", "os", "write", "Kind", "function", outlines.BODY} <= scope.keys()
    assert "not_there_at_all" not in scope
    assert scope["Kind"].method.__qualname__.endswith("Kind.method")


def test_modules_that_import_each_other(folder: Path) -> None:
    (folder / "outlined_b.py").write_text("import outlined_c\n")
    (folder / "outlined_c.py").write_text("from outlined_b import *\nimport outlined_b\n")
    found = outlines.module("outlined_b")
    assert found is not None
    assert vars(vars(found)["outlined_c"])["outlined_b"] is found


def test_modules_inside_packages(folder: Path) -> None:
    package = folder / "outlined_d"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import f\n")
    (package / "inner.py").write_text("from . import other\ndef f(x): return other\n")
    (package / "other.py").write_text("")
    found = outlines.module("outlined_d.inner")
    assert found is not None
    assert vars(found)["other"].__name__ == "outlined_d.other"
    above = outlines.module("outlined_d")
    assert vars(above)["f"] is vars(found)["f"]


@pytest.mark.parametrize("name", ["not_there_at_all", "numpy.not_there", "outlined_bad", "turtle"])
def test_what_has_no_outline(name: str, folder: Path) -> None:
    (folder / "outlined_bad.py").write_text("def f(: pass\n")
    assert name not in sys.modules
    assert outlines.module(name) is None


def test_loaded_modules_are_themselves() -> None:
    assert outlines.module("sys") is sys


def test_only_what_code_names_of_them_is_followed(folder: Path) -> None:
    (folder / "outlined_e.py").write_text(
        "import outlined_f\n"
        "def used(x): return outlined_f.called(x)\n"
        "def unused(x): return outlined_f.other(x)\n"
    )
    (folder / "outlined_f.py").write_text("def called(x): return x\ndef other(x): return x\n")
    scope: dict[str, object] = {"__name__": "made_by_hand"}
    exec("def f(x):\n    from outlined_e import used\n    return used(x)\n", scope)
    found = {one.path for one in reach.reach([scope["f"]]) if one.kind == reach.FUNCTION}
    assert {"outlined_e.used", "outlined_f.called"} <= found
    assert found.isdisjoint({"outlined_e.unused", "outlined_f.other"})
