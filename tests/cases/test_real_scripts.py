"""Code that no import in a worker would give: scripts under other names, modules of files."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

MODES = ["fork_imported", "fork_first", "fresh"]

BODY = """
import dataclasses, enum, sys
import numpy as np
import grain_jax as grain

with open("runs", "a") as file:
    file.write(__name__ + "\\n")

SCALE = 3

@dataclasses.dataclass
class Point:
    x: int

class Color(enum.Enum):
    RED = 1

class Odd(Exception):
    pass

def scaled(x):
    return x * SCALE

class Source:
    def __len__(self): return 6
    def __getitem__(self, index): return Point(int(index))

class Paint(grain.transforms.Map):
    def map(self, point): return Point(scaled(point.x)), Color.RED

class Fail(grain.transforms.Map):
    def map(self, point): raise Odd(point.x)

def check():
    for workers in (0, 2):
        with grain.load(
            Source(), num_epochs=1, transformations=[Paint(), lambda pair: pair],
            worker_count=workers,
        ) as loader:
            pairs = list(loader)
        assert all(type(point) is Point and color is Color.RED for point, color in pairs), pairs
        print([point.x for point, _ in pairs], flush=True)
        with grain.load(
            Source(), num_epochs=1, transformations=[Fail()], worker_count=workers
        ) as loader:
            try:
                next(iter(loader))
            except Odd as error:
                print("odd", error.args, flush=True)
"""

PRINTED = ["[0, 3, 6, 9, 12, 15]", "odd (0,)"] * 2


def run(folder: Path, *arguments: str, mode: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(scripts.ROOT), "GRAIN_JAX_ENGINE_MODE": mode},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def runs(folder: Path) -> list[str]:
    """The names under which the code has run."""
    return (folder / "runs").read_text().split()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_script_that_multiprocessing_has_started(tmp_path: Path, method: str, mode: str) -> None:
    main = f"""
    if __name__ == "__main__":
        import multiprocessing
        process = multiprocessing.get_context("{method}").Process(target=check)
        process.start()
        process.join()
        assert process.exitcode == 0
    """
    (tmp_path / "script.py").write_text(BODY + textwrap.dedent(main))
    assert run(tmp_path, "script.py", mode=mode) == PRINTED
    assert runs(tmp_path) == ["__main__", *(["__mp_main__"] if method != "fork" else [])]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [None, "job", "package.job", "__main__", "wave"])
@pytest.mark.parametrize("place", ["script.py", "folder"])
def test_a_script_under_runpy(tmp_path: Path, name: str | None, place: str, mode: str) -> None:
    path = tmp_path / place
    if place == "folder":
        path.mkdir()
        path = path / "__main__.py"
    path.write_text(BODY + "\ncheck()\n")
    (tmp_path / "start.py").write_text(
        f"import runpy; runpy.run_path({place!r}, run_name={name!r})"
    )
    assert run(tmp_path, "start.py", mode=mode) == PRINTED
    assert runs(tmp_path) == [name or "<run_path>"]


@pytest.mark.parametrize("mode", MODES)
def test_a_module_whose_file_is_gone(tmp_path: Path, mode: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "loaded.py").write_text(BODY)
    (tmp_path / "start.py").write_text(
        textwrap.dedent("""
        import importlib.util, os, sys
        spec = importlib.util.spec_from_file_location("loaded", "elsewhere/loaded.py")
        sys.modules["loaded"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        os.remove("elsewhere/loaded.py")
        module.check()
        """)
    )
    assert run(tmp_path, "start.py", mode=mode) == PRINTED
    assert runs(tmp_path) == ["loaded"]


@pytest.mark.parametrize("mode", MODES)
def test_code_that_was_executed_in_a_namespace_with_a_file(tmp_path: Path, mode: str) -> None:
    (tmp_path / "code.txt").write_text(BODY)
    (tmp_path / "start.py").write_text(
        textwrap.dedent("""
        import sys, types
        module = types.ModuleType("loaded")
        module.__file__ = "code.txt"
        sys.modules["loaded"] = module
        with open("code.txt") as file:
            exec(compile(file.read(), "code.txt", "exec"), vars(module))
        module.check()
        """)
    )
    assert run(tmp_path, "start.py", mode=mode) == PRINTED
    assert runs(tmp_path) == ["loaded"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["importlib", "prepend"])
def test_classes_of_a_test_module_that_pytest_loads_by_file(
    tmp_path: Path, how: str, mode: str
) -> None:
    (tmp_path / "inner").mkdir()
    # Workers load such a module from its file, as the trainer has.
    body = BODY.replace('open("runs", "a")', 'open("/dev/null", "w")')
    (tmp_path / "inner" / "test_mine.py").write_text(body + "\ndef test_it(): check()\n")
    arguments = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"--import-mode={how}"]
    lines = run(tmp_path, *arguments, "inner/test_mine.py", mode=mode)
    assert lines[:4] == PRINTED
    assert "1 passed" in lines[-1]
