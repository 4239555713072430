"""Code that looks its script's globals up by name, as it runs: the same in workers, or an error."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("no_process_left")]

MODES = ["fork_imported", "fork_first", "fresh"]

SCRIPT = """
import copy, dataclasses, enum, importlib, inspect, pickle, sys, threading, typing
import __main__ as me
import jax
import numpy as np
import registry
import grain_jax as grain
from jax.sharding import Mesh
from pickle import dumps as to_bytes

SCALE = 5
TABLE = np.arange(10)
PARAMETERS = jax.numpy.zeros(3)
LOCK = threading.Lock()
BIG = np.zeros(1 << 23)
CONFIG = {"deep": [1, {"k": 7}]}

def aug_flip(x): return -x
def aug_twice(x): return 2 * helper(x)
def helper(x): return x + OFFSET
def train_step(x): return jax.numpy.sum(PARAMETERS) + x

class Aug:
    registry = {}
    def __call__(self, x): return x + 100
class Mirror(Aug):
    def __call__(self, x): return x + 1000

@dataclasses.dataclass
class Point:
    x: int
    after: "typing.Optional[Other]" = None
@dataclasses.dataclass
class Other:
    y: int
class Color(enum.Enum):
    RED = 1

OFFSET = 3
own = globals

FOUND = {
    "get": (lambda x: x * globals().get("SCALE", 1), [5, 10, 15]),
    "modules": (lambda x: x * getattr(sys.modules[__name__], "SCALE", 1), [5, 10, 15]),
    "dict": (lambda x: x * vars(sys.modules["__main__"]).get("SCALE", 1), [5, 10, 15]),
    "import": (lambda x: x * getattr(importlib.import_module("__main__"), "SCALE", 1),
               [5, 10, 15]),
    "itself": (lambda x: x * getattr(me, "SCALE", 1), [5, 10, 15]),
    "alias": (lambda x: x * own().get("SCALE", 1), [5, 10, 15]),
    "put together": (lambda x: globals().get("aug_" + ["flip"][x - x], abs)(x), [-1, -2, -3]),
    "with globals of its own": (lambda x: globals()["aug_" + "twice"](x), [8, 10, 12]),
    "eval": (lambda x: eval("x * SCALE + aug_flip(x)"), [4, 8, 12]),
    "exec": (lambda x: run(x), [6, 7, 8]),
    "class": (lambda x: globals()["Mir" + "ror"]()(x), [1001, 1002, 1003]),
    "scan": (lambda x: sorted(name for name, value in list(globals().items())
                              if isinstance(value, type) and issubclass(value, Aug)),
             [["Aug", "Mirror"]] * 3),
    "names": (lambda x: sorted({name for name in globals() if name[:2] != "__"} ^ NAMES), [[]] * 3),
    "same": (lambda x: globals()["Point"] is Point and me.Point is Point, [True] * 3),
    "array": (lambda x: int(globals()["TAB" + "LE"][x]), [1, 2, 3]),
    "container": (lambda x: globals()["CONFIG"]["deep"][1]["k"], [7] * 3),
    "type of what does not travel": (lambda x: isinstance(globals()["BIG"], np.ndarray),
                                     [True] * 3),
    "module": (lambda x: globals()["copy"].copy([x]), [[1], [2], [3]]),
    "hints": (lambda x: str(typing.get_type_hints(Point)["after"]),
              ["typing.Optional[__main__.Other]"] * 3),
    "pickled": (lambda x: pickle.loads(pickle.dumps(Point(x))).x, [1, 2, 3]),
    "pickled otherwise": (lambda x: pickle.loads(to_bytes((Color.RED, Point(x))))[0] is Color.RED,
                          [True] * 3),
    "frame": (lambda x: sys._getframe().f_globals["SCALE"], [5] * 3),
    "of a function": (lambda x: aug_flip.__globals__["SCALE"], [5] * 3),
    "from a module": (registry.scaled, [5, 10, 15]),
    "from a module, by class": (lambda x: registry.other(Point(x)), [5, 10, 15]),
}

def run(x):
    space = {}
    exec("def f(x): return x + SCALE", globals(), space)
    return space["f"](x)

MISSED = {
    "LOCK": lambda x: globals()["LO" + "CK"].locked(),
    "BIG": lambda x: len(globals()["BI" + "G"]),
    "PARAMETERS": lambda x: globals()["PARA" + "METERS"] + x,
    "Mesh": lambda x: globals()["Me" + "sh"](x),
    "loader": lambda x: bool(globals()["load" + "er"]),
}
loader = grain.load([1, 2], num_epochs=1)

def stream(step, workers, init=None):
    options = grain.MultiprocessingOptions(num_workers=workers)
    dataset = grain.MapDataset.range(1, 4).map(step).to_iter_dataset()
    return list(dataset.mp_prefetch(options, worker_init_fn=init))

NAMES = set()
def main():
    NAMES.update(name for name in globals() if name[:2] != "__")
    for name, (step, expected) in FOUND.items():
        for workers in (0, 2):
            got = stream(step, workers)
            assert got == expected, (name, workers, got)
    for name, step in MISSED.items():
        try:
            got = stream(step, 2)
        except RuntimeError as error:
            assert f"__main__.{name} was looked up by its name in a worker process" in str(error)
        else:
            raise AssertionError((name, got))
    print("done")
with grain.load([0], worker_count=1) as idle:
    iter(idle)  # what all loaders share stays, which makes each start in milliseconds
    main()
"""

REGISTRY = """
import sys
def scaled(x):
    import __main__
    return x * getattr(__main__, "SCALE", 1)
def other(point): return point.x * getattr(sys.modules[type(point).__module__], "SCALE", 1)
def closed(name): return lambda x: globals().get(name, abs)(x)
def negative(x): return -x
"""


@pytest.mark.parametrize("mode", MODES)
def test_globals_are_found_by_name(tmp_path: Path, mode: str) -> None:
    (tmp_path / "registry.py").write_text(REGISTRY)
    assert scripts.output(tmp_path, SCRIPT, 150, GRAIN_JAX_ENGINE_MODE=mode) == ["done"]


def test_they_are_found_in_a_package_that_runs_as_a_program(tmp_path: Path) -> None:
    package = tmp_path / "program"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "constants.py").write_text("K = 2\n")
    (package / "__main__.py").write_text(
        textwrap.dedent(
            """
            import sys
            import grain_jax as grain
            SCALE = 5
            def step(x):
                from . import constants
                return x * constants.K * getattr(sys.modules[__name__], "SCALE", 1)
            for workers in (0, 2):
                options = grain.MultiprocessingOptions(num_workers=workers)
                dataset = grain.MapDataset.range(3).map(step).to_iter_dataset()
                print(list(dataset.mp_prefetch(options)), flush=True)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "program"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(scripts.ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["[0, 10, 20]"] * 2, "")


MORE = """
import importlib, multiprocessing, sys
import jax
import registry
import grain_jax as grain

with open("runs", "a") as file:
    file.write(__name__ + "\\n")

SCALE = 5
BIG = list(range(1 << 23))
NOTES = {}

def stream(step, workers, init=None):
    options = grain.MultiprocessingOptions(num_workers=workers)
    dataset = grain.MapDataset.range(1, 4).map(step).to_iter_dataset()
    return list(dataset.mp_prefetch(options, worker_init_fn=init))

def initialise(index, count): globals()["NOTES"]["scale"] = globals()["SCALE"] + index * 0
def noted(x): return x * NOTES["scale"] + len(BIG) * 0 + BIG[x]

def without_jax(x): return globals()["SCALE"] * x, "jax" in sys.modules and "worker" in ROLE
ROLE = "worker"

def started(x):
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    process = context.Process(target=end.__class__.send, args=(end, globals()["SCALE"]))
    process.start()
    got = pipe.recv()
    process.join()
    process.close()
    return got * x
"""


@pytest.mark.parametrize("mode", MODES)
def test_worker_init_fn_finds_them_and_shares_them_with_the_steps(
    tmp_path: Path, mode: str
) -> None:
    (tmp_path / "registry.py").write_text(REGISTRY)
    text = MORE + "print(stream(noted, 2, initialise))\n"
    lines = scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == ["[6, 12, 18]"]


def test_functions_inside_those_of_modules_find_the_names_of_their_module(tmp_path: Path) -> None:
    (tmp_path / "registry.py").write_text(REGISTRY)
    text = MORE + 'print(stream(registry.closed("negative"), 0))\n'
    text += 'print(stream(registry.closed("negative"), 2))\n'
    assert scripts.output(tmp_path, text) == ["[-1, -2, -3]"] * 2


def test_a_module_of_the_script_is_imported_only_where_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "registry.py").write_text(REGISTRY)
    text = MORE + "print(stream(without_jax, 2))\n"
    assert scripts.output(tmp_path, text) == ["[(5, False), (10, False), (15, False)]"]


def test_what_a_step_starts_does_not_run_the_script(tmp_path: Path) -> None:
    (tmp_path / "registry.py").write_text(REGISTRY)
    text = MORE + "print(stream(started, 2))\n"
    assert scripts.output(tmp_path, text) == ["[5, 10, 15]"]
    assert (tmp_path / "runs").read_text() == "__main__\n"
