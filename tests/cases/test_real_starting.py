"""Helpers that cannot start, and modules whose import in a worker would start workers."""

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

HEAD = """
import os, sys
import numpy as np
import grain_jax as grain
from grain_jax import errors

python = sys.executable
loader = grain.load(np.arange(6), num_epochs=1, batch_size=2, worker_count=2)
iterator = None

def attempt():
    global iterator
    try:
        iterator = iterator or iter(loader)
        print([batch.tolist() for batch in iterator])
    except errors.WorkerError as error:
        print(str(error).replace("\\n", " / "))
        return str(error)
"""
RIGHT = "[[0, 1], [2, 3], [4, 5]]"


def output(folder: Path, text: str, mode: str) -> list[str]:
    text = textwrap.dedent(HEAD) + textwrap.dedent(text)
    return scripts.output(folder, text, GRAIN_JAX_ENGINE_MODE=mode)


@pytest.mark.every_mode
@pytest.mark.parametrize("mode", MODES)
def test_a_module_of_the_scripts_in_place_of_pythons(tmp_path: Path, mode: str) -> None:
    (tmp_path / "socket.py").write_text("raise RuntimeError('this is no socket')\n")
    text = "import sys; here = sys.path.pop(0); import socket; sys.path.insert(0, here)\n"
    text += textwrap.dedent(HEAD)
    text += "attempt()\nos.remove('socket.py')\nattempt()\n"
    failed, lines = scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert "could not be started: it ended with exit code 1" in failed
    assert "socket.py" in failed
    assert failed.endswith("RuntimeError: this is no socket")
    assert "memory" not in failed
    assert lines == RIGHT


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("echo unknown option: -c >&2; exit 2", "exit code 2. The program is "),
        ("exit 0", "exit code 0. The program is "),
    ],
)
def test_a_program_that_is_no_interpreter(
    tmp_path: Path, mode: str, body: str, expected: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho x >> {tmp_path}/starts\n{body}\n")
    program.chmod(0o755)
    text = """
    sys.executable = os.path.abspath("program")
    attempt()
    attempt()
    sys.executable = python
    attempt()
    """
    *failed, right = output(tmp_path, text, mode)
    assert len(failed) == 2
    for line in failed:
        assert expected in line
        assert f"{tmp_path}/program (sys.executable)" in line
        assert "memory" not in line
        last = "It wrote: / unknown option: -c" if "echo" in body else "It wrote nothing to stderr."
        assert line.endswith(last)
    assert right == RIGHT
    # For each try, one in the place of each of zygote and helper.
    assert len((tmp_path / "starts").read_text().split()) <= 4


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_does_something_else_for_ever(tmp_path: Path, mode: str) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    text = """
    from grain_jax._execution.engine import process
    process._PATIENCE = 1
    sys.executable = os.path.abspath("program")
    attempt()
    process._PATIENCE = 100
    sys.executable = python
    attempt()
    """
    failed, right = output(tmp_path, text, mode)
    assert "has not run what it was given within 1 s" in failed
    assert right == RIGHT


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_is_the_script_itself(tmp_path: Path, mode: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/script.py\n")
    program.chmod(0o755)
    text = f"""
    with open("starts", "a") as file:
        file.write("x\\n")
    sys.executable = "{program}"
    failed = attempt()
    loader.close()
    if failed:
        sys.exit(failed)
    """
    text = textwrap.dedent(HEAD) + textwrap.dedent(text)
    done = scripts.run(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert done.returncode == 1
    assert "could not be started: it ended with exit code 1" in done.stderr
    assert "has started this program in place of a Python interpreter" in done.stderr
    assert 2 <= len((tmp_path / "starts").read_text().split()) <= 3


@pytest.mark.every_mode
@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_is_not_there(tmp_path: Path, mode: str) -> None:
    text = """
    sys.executable = "/not/there"
    attempt()
    sys.executable = ""
    attempt()
    sys.executable = python
    attempt()
    """
    first, second, right = output(tmp_path, text, mode)
    assert first.startswith("/not/there (sys.executable) could not be started")
    assert second.startswith("sys.executable is empty")
    assert right == RIGHT


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_on_the_sizes_of_files(tmp_path: Path, mode: str) -> None:
    text = """
    try:
        next(iter(loader))
    except OSError as error:
        print(error.strerror, "ulimit -f" in error.__notes__[0])
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(HEAD) + textwrap.dedent(text))
    done = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -f 1000; exec {sys.executable} script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(scripts.ROOT), "GRAIN_JAX_ENGINE_MODE": mode},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("File too large True\n", "")


@pytest.mark.every_mode
@pytest.mark.parametrize("mode", MODES)
def test_what_workers_print_reaches_the_trainers_stderr(tmp_path: Path, mode: str) -> None:
    text = """
    import sys
    import numpy as np
    import grain_jax as grain
    class Say(grain.transforms.Map):
        def map(self, element):
            print("element", element, file=sys.stderr)
            return element
    with grain.load(
        np.arange(3), num_epochs=1, transformations=[Say()], worker_count=1
    ) as loader:
        print(list(map(int, loader)))
    """
    done = scripts.run(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert done.stdout == "[0, 1, 2]\n"
    assert done.stderr == "element 0\nelement 1\nelement 2\n"


MODULE = """
import os
import numpy as np
import grain_jax as grain

with open("imports", "a") as file:
    file.write("x\\n")

class Double(grain.transforms.Map):
    def map(self, element): return 2 * element

loader = grain.load(
    np.arange(6), num_epochs=1, transformations=[Double()], batch_size=2, worker_count=WORKERS
)
LAST
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("last", ["first = next(iter(loader))", "iter(loader).start_prefetch()"])
def test_a_module_that_takes_a_batch_as_it_is_imported(
    tmp_path: Path, last: str, mode: str
) -> None:
    (tmp_path / "data.py").write_text(MODULE.replace("LAST", last).replace("WORKERS", "1"))
    text = """
    import grain_jax as grain
    try:
        import data
        print(next(iter(data.loader)).tolist())
    except grain.errors.WorkerError as error:
        print(error)
        print(*error.__notes__)
    """
    lines = scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines[0].startswith(
        f"a loader was iterated while a worker process imports module data ({tmp_path}/data.py)"
    )
    assert f'File "{tmp_path}/data.py", line ' in "".join(lines)
    # Once in the trainer, once in the helper, and in the worker; a second iterator adds two.
    assert len((tmp_path / "imports").read_text().split()) <= 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("workers", "last"), [(1, "iterator = iter(loader)"), (0, "first = next(iter(loader))")]
)
def test_a_module_that_only_makes_a_loader_or_has_no_workers(
    tmp_path: Path, workers: int, last: str, mode: str
) -> None:
    body = MODULE.replace("LAST", last).replace("WORKERS", str(workers))
    (tmp_path / "data.py").write_text(body)
    text = """
    import data
    import grain_jax as grain
    import numpy as np
    with grain.load(
        np.arange(4), num_epochs=1, transformations=[data.Double()], batch_size=2, worker_count=1
    ) as loader:
        print([batch.tolist() for batch in loader])
    print(data.loader and next(iter(data.loader)).tolist())
    data.loader.close()
    """
    lines = scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == ["[[0, 2], [4, 6]]", "[0, 2]"]
