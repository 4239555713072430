"""Pools in plain scripts: no guard, nothing on stderr, nothing left when the trainer dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.processes import children
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]
MODES = ["fork_imported", "fork_first", "fresh"]

HEAD = """
import os, sys, threading, time
import numpy as np
from grain_jax._execution.engine.pool import Pool

MODE = sys.argv[1]

class Call:
    def run(self, kind, payload, inputs, allocate):
        return payload[0](*payload[1:]), None

def ask(pool, *payload):
    return pool.result(pool.submit(0, payload)).load()
"""


def script(folder: Path, body: str) -> Path:
    path = folder / "script.py"
    path.write_text(HEAD + textwrap.dedent(body))
    return path


def start(path: Path, mode: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(path), mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=path.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
    )


def output(folder: Path, mode: str, body: str, **more: str) -> str:
    process = start(script(folder, body), mode, **more)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    return out


@pytest.mark.parametrize("mode", MODES)
def test_a_script_needs_no_guard_and_runs_once(mode: str, tmp_path: Path) -> None:
    body = """
    import dataclasses, enum
    with open("count", "a") as file:
        file.write("x")

    @dataclasses.dataclass
    class Point:
        x: int
        y: np.ndarray

    class Color(enum.Enum):
        RED = 1

    class Odd(Exception):
        def __init__(self, record, why):
            super().__init__(f"{record}: {why}")
            self.record = record

    factor = 3

    def make(n):
        return [Point(factor * n, np.arange(n)), Color.RED, make, lambda: factor]

    def fail(n):
        raise Odd(n, "why")

    class Program(Call):
        makers = [make, fail]

    pool = Pool(Program(), workers=2, mode=MODE)
    for n in range(5):
        point, color, function, text = ask(pool, make, n)
        assert type(point) is Point and isinstance(point, Point), type(point)
        assert point.x == 3 * n and (point.y == np.arange(n)).all()
        assert color is Color.RED
        assert function is make
        assert text() == 3
    try:
        ask(pool, fail, 9)
    except Odd as error:
        assert error.record == 9 and str(error) == "9: why"
        assert "script.py" in error.__notes__[0] and 'raise Odd(n, "why")' in error.__notes__[0]
    else:
        raise AssertionError
    print("main in worker:", ask(pool, lambda: [getattr(sys.modules["__main__"], "__file__", 0)]))
    print("done")
    """
    assert output(tmp_path, mode, body) == "main in worker: [0]\ndone\n"
    assert (tmp_path / "count").read_text() == "x"


def test_a_module_run_as_main_too(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        HEAD
        + textwrap.dedent(
            """
            class Thing: pass
            def make(): return [Thing()]
            class Program(Call):
                makers = [make]
            pool = Pool(Program(), workers=1, mode=MODE)
            print(type(ask(pool, make)[0]) is Thing)
            """
        )
    )
    line = [sys.executable, "-m", "package.train", "fork_imported"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("mode", MODES)
def test_warnings_as_errors_and_prints_of_workers(mode: str, tmp_path: Path) -> None:
    body = """
    def say():
        print("from a worker")
        return []
    pool = Pool(Call(), workers=1, mode=MODE)
    ask(pool, say)
    """
    more = {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"}
    assert output(tmp_path, mode, body, **more) == "from a worker\n"


@pytest.mark.parametrize("mode", MODES)
def test_surroundings_at_the_time_of_the_pool(mode: str, tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "found_later.py").write_text("value = 5")
    body = """
    from grain_jax._execution.engine import launch
    keep = launch.keep_alive()
    os.chdir("later")
    sys.path.insert(0, os.getcwd())
    os.environ["ADDED"] = "1"
    del os.environ["REMOVED"]
    os.environ["JAX_PLATFORMS"] = "tpu"
    def look():
        import found_later
        e = os.environ
        return [os.getcwd(), found_later.value, e["ADDED"], "REMOVED" in e, e["JAX_PLATFORMS"],
                "jax" in sys.modules, sys.argv]
    pool = Pool(Call(), workers=1, mode=MODE)
    cwd, *rest = ask(pool, look)
    assert cwd == os.getcwd()
    assert rest == [5, "1", False, "cpu", False, sys.argv], rest
    """
    output(tmp_path, mode, body, REMOVED="1")


def test_jax_flags_travel_and_a_device_array_does_no_harm(tmp_path: Path) -> None:
    body = """
    import jax, jax.numpy as jnp
    jax.config.update("jax_enable_x64", True)
    held = jnp.arange(3.0)
    def compute(n):
        import jax.numpy as jnp
        return [str(jnp.arange(n, dtype=jnp.float64).dtype), int(jnp.sum(held))]
    pool = Pool(Call(), workers=1, mode=MODE)
    assert ask(pool, lambda: ["jax" in sys.modules]) == [False]
    assert ask(pool, compute, 3) == ["float64", 3]

    class Captured(Call):
        constant = None
        def __init__(self): self.constant = held
    second = Pool(Captured(), workers=2, mode=MODE)
    assert ask(second, compute, 3) == ["float64", 3]
    print(second.mode)
    """
    assert output(tmp_path, "fork_imported", body) == "fork_imported\n"


@pytest.mark.parametrize("mode", MODES)
def test_a_pool_outlives_the_thread_that_made_it(mode: str, tmp_path: Path) -> None:
    body = """
    made = []
    thread = threading.Thread(target=lambda: made.append(Pool(Call(), workers=1, mode=MODE)))
    thread.start(); thread.join()
    pid = ask(made[0], lambda: [os.getpid()])[0]
    time.sleep(1.5)
    assert ask(made[0], lambda: [os.getpid()])[0] == pid
    thread = threading.Thread(target=lambda: made.append(Pool(Call(), workers=1, mode=MODE)))
    thread.start(); thread.join()
    time.sleep(0.1)
    ask(made[1], lambda: [1])
    """
    output(tmp_path, mode, body)


SLOW = """
pool = Pool(Call(), workers=2, mode=MODE)
ask(pool, lambda: [1])
for _ in range(2):
    pool.submit(0, (lambda: time.sleep(100),))
"""


def ended(pids: set[int]) -> bool:
    return until(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_trainer_though_its_child_does(
    mode: str, how: int, tmp_path: Path
) -> None:
    body = (
        SLOW
        + """
child = os.fork()
if child == 0:
    os.close(1); os.close(2)
    time.sleep(100)
    os._exit(0)
print(child, flush=True)
time.sleep(100)
"""
    )
    trainer = start(script(tmp_path, body), mode)
    assert trainer.stdout is not None
    child = int(trainer.stdout.readline())
    time.sleep(0.2)
    others = children(trainer.pid) - {child}
    assert len(others) >= 3
    os.kill(trainer.pid, how)
    trainer.wait()
    try:
        assert ended(others)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
    _, err = trainer.communicate()
    assert err == ""


@pytest.mark.parametrize("mode", MODES)
def test_ctrl_c_interrupts_the_trainer_alone(mode: str, tmp_path: Path) -> None:
    body = """
    pool = Pool(Call(), workers=2, mode=MODE)
    ask(pool, lambda: [1])
    ticket = pool.submit(0, (lambda: time.sleep(100),))
    print("ready", flush=True)
    try:
        pool.result(ticket)
    except KeyboardInterrupt:
        pass
    print(ask(pool, lambda: ["still there"]))
    """
    path = script(tmp_path, body)
    trainer = start(path, mode)
    assert trainer.stdout is not None
    trainer.stdout.readline()
    time.sleep(0.2)
    for pid in {trainer.pid} | children(trainer.pid):
        with contextlib.suppress(ProcessLookupError):  # a short-lived one has ended meanwhile
            os.kill(pid, signal.SIGINT)
    out, err = trainer.communicate(timeout=PATIENCE)
    assert (out, err) == ("['still there']\n", "")


def test_an_exit_with_work_under_way_is_clean(tmp_path: Path) -> None:
    trainer = start(
        script(tmp_path, SLOW + "print(1, flush=True)\ntime.sleep(0.3)"), "fork_imported"
    )
    assert trainer.stdout is not None
    trainer.stdout.readline()
    others = children(trainer.pid)
    out, err = trainer.communicate(timeout=PATIENCE)
    assert (trainer.returncode, out, err) == (0, "", "")
    assert ended(others)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("mode", MODES)
def test_processes_have_names_that_a_person_understands(mode: str, tmp_path: Path) -> None:
    body = """
    pool = Pool(Call(), workers=2, mode=MODE)
    found = set()
    def look():
        names = []
        for pid in (os.getpid(), os.getppid()):
            with open(f"/proc/{pid}/cmdline") as file:
                names.append(file.read())
        time.sleep(0.05)
        return [*names, dict(os.environ) != {}, sys.executable, sys.argv]
    while len(found) < 2:
        name, above, *rest = ask(pool, look)
        found.add((name, above))
        assert rest == [True, sys.executable, sys.argv], rest
    print(sorted(found))
    """
    seen = [(f"grain_jax worker {n} of 2\0", "grain_jax helper\0") for n in (1, 2)]
    assert output(tmp_path, mode, body) == f"{seen}\n"
