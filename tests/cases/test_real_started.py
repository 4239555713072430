"""What steps start: with default signals, also as a fork, and it ends with the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cases import scripts
from tests.processes import children, parent_of_each

pytestmark = pytest.mark.usefixtures("no_process_left")

MODES = ["fork_imported", "fork_first", "fresh"]
MEMORIES = ["", "file"]

SIGNALS = """
import concurrent.futures, multiprocessing, operator, os, signal, subprocess, sys, time
import numpy as np
import grain_jax as grain

def ended_by(number):
    program = subprocess.Popen(["sleep", "1000"])
    program.send_signal(number)
    return program.wait()

def fork_ended_by(number):
    ready, inside = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(inside, b"x")
            while True:
                time.sleep(0.01)  # a signal just before a long one would wait for its end
        except KeyboardInterrupt:
            os._exit(77)
        os._exit(1)
    os.read(ready, 1)
    os.close(ready)
    os.close(inside)
    os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def pooled(values):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(operator.neg, values)

def executed(values):
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        return list(executor.map(operator.neg, values))

def terminated():
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode

class Start(grain.transforms.Map):
    def map(self, element):
        found = [ended_by(signal.SIGTERM), ended_by(signal.SIGINT), terminated()]
        found += [fork_ended_by(signal.SIGTERM), fork_ended_by(signal.SIGINT)]
        return np.array([element, *found, *pooled([1, 2]), *executed([3])])

loader = grain.load(
    np.arange(4), num_epochs=1, transformations=[Start()], worker_count=int(sys.argv[1])
)
for row in loader:
    print(row.tolist())
loader.close()
"""


def run(folder: Path, text: str, workers: int, **environment: str) -> list[str]:
    text = text.replace("int(sys.argv[1])", str(workers))
    return scripts.output(folder, text, **environment)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("mode", MODES)
def test_what_a_step_starts_has_default_signals(tmp_path: Path, mode: str, memory: str) -> None:
    settings = {"GRAIN_JAX_ENGINE_MODE": mode, "GRAIN_JAX_ENGINE_MEMORY": memory}
    expected = [f"[{n}, -15, -2, -15, -15, 77, -1, -2, -3]" for n in range(4)]
    assert run(tmp_path, SIGNALS, 2, **settings) == expected


def test_so_it_has_without_workers(tmp_path: Path) -> None:
    expected = [f"[{n}, -15, -2, -15, -15, 77, -1, -2, -3]" for n in range(4)]
    assert run(tmp_path, SIGNALS, 0) == expected


@pytest.mark.every_mode
@pytest.mark.parametrize("mode", MODES)
def test_so_it_has_at_load(tmp_path: Path, mode: str) -> None:
    # A module that starts a process as it is imported, and an init function.
    (tmp_path / "starter.py").write_text(
        "import os, signal, subprocess, time\n"
        "program = subprocess.Popen(['sleep', '1000'])\n"
        "program.terminate()\n"
        "code = program.wait()\n"
        "def get(x): return [int(x), code]\n"
    )
    text = """
    import numpy as np
    import grain_jax as grain
    import starter
    class Get(grain.transforms.Map):
        def map(self, element): return starter.get(element)
    with grain.load([1, 2], num_epochs=1, transformations=[Get()], worker_count=1) as loader:
        print(list(loader))
    """
    assert scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode) == ["[[1, -15], [2, -15]]"]


KEEPING = """
import concurrent.futures, multiprocessing, operator, os, signal, subprocess, sys, time
import numpy as np
import grain_jax as grain

kept = []

class Start(grain.transforms.Map):
    def map(self, element):
        if not kept:
            kept.append(subprocess.Popen(["sleep", "1000"]))
            kept.append(subprocess.Popen([sys.executable, "-c",
                "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
                "time.sleep(1000)"]))
            context = multiprocessing.get_context("fork")
            kept.append(concurrent.futures.ProcessPoolExecutor(2, mp_context=context))
            kept.append(context.Pool(1))
        list(kept[2].map(operator.neg, [1, 2, 3]))
        kept[3].map(operator.neg, [1, 2, 3])
        return element

loader = grain.load(
    np.arange(4), transformations=[Start()], worker_count=2, ignore_globals=["__main__"]
)
iterator = iter(loader)
print([int(next(iterator)) for _ in range(8)], flush=True)
"""


def await_end(pids: set[int]) -> None:
    while pids & set(parent_of_each()):
        time.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["", "loader.close()", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_it_ends_with_the_trainer(tmp_path: Path, mode: str, end: str) -> None:
    text = f"{KEEPING}\nsys.stdin.readline()\n{end}\nprint('closed', flush=True)\n"
    if "close" in end:
        text += "sys.stdin.readline()\n"
    (tmp_path / "script.py").write_text(text)
    trainer = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(scripts.ROOT), "GRAIN_JAX_ENGINE_MODE": mode},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "[0, 1, 2, 3, 0, 1, 2, 3]\n"
    zygote = {pid for pid, parent in parent_of_each().items() if parent == trainer.pid}
    started = children(trainer.pid)
    assert len(started) >= 2 + 5  # a worker, maybe both, has started two programs and three forks
    trainer.stdin.write("\n")
    trainer.stdin.flush()
    if "close" in end:
        assert trainer.stdout.readline() == "closed\n"
        await_end(started - zygote)
    trainer.stdin.close()
    trainer.wait()
    trainer.stdout.close()
    await_end(started)


@pytest.mark.every_mode
@pytest.mark.parametrize("mode", MODES)
def test_it_ends_with_a_worker_that_dies(tmp_path: Path, mode: str) -> None:
    text = """
    import os, signal, subprocess, sys, time
    import numpy as np
    import grain_jax as grain
    class Start(grain.transforms.Map):
        def map(self, element):
            if not os.path.exists("pid"):
                program = subprocess.Popen(["sleep", "1000"])
                with open("pid", "w") as file:
                    file.write(str(program.pid))
                os.kill(os.getpid(), signal.SIGKILL)
            return element
    loader = grain.load(np.arange(3), num_epochs=1, transformations=[Start()], worker_count=1)
    iterator = iter(loader)
    print(next(iterator))
    def runs(pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    with open("pid") as file:
        pid = int(file.read())
    while runs(pid):
        time.sleep(0.01)
    print("gone", [int(x) for x in iterator])
    """
    lines = scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == ["0", "gone [1, 2]"]


@pytest.mark.parametrize("how", ["pass", "raise SystemExit(3)", "raise ValueError('no')"])
def test_a_fork_that_goes_on_from_the_step_is_no_second_worker(tmp_path: Path, how: str) -> None:
    text = f"""
    import os, sys, time
    import numpy as np
    import grain_jax as grain
    class Start(grain.transforms.Map):
        def map(self, element):
            pid = os.fork()
            if pid == 0:
                element = element * 0 - 7
                {how}
            else:
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                element = element * 10 + code
            return np.full(1000, element)
    loader = grain.load(
        np.arange(16), num_epochs=1, transformations=[Start()], batch_size=2, worker_count=2
    )
    kept = [batch for batch in loader]
    print(np.concatenate(kept)[:, ::999].tolist())
    loader.close()
    """
    code = 3 if "System" in how else 1
    done = scripts.run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    expected = [[10 * n + code] * 2 for n in range(16)]
    assert done.stdout.splitlines() == [str(expected)]
    said = {"pass": "went on with the worker's task", "raise SystemExit(3)": ""}
    assert said.get(how, "ValueError: no") in done.stderr


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_all_processes_are_left_to_the_trainer(
    tmp_path: Path, mode: str, number: int
) -> None:
    text = f"""
    import os, signal, subprocess, sys, time
    import numpy as np
    import grain_jax as grain
    got = []
    signal.signal({int(number)}, lambda *_: got.append(1))
    class Slow(grain.transforms.Map):
        def map(self, element):
            with open(f"worker{{os.getpid()}}", "w"):
                pass
            time.sleep(0.05)
            return element
    loader = grain.load(np.arange(40), num_epochs=1, transformations=[Slow()], worker_count=2)
    iterator = iter(loader)
    seen = [int(next(iterator))]
    def family(pid):
        found, todo = [], [pid]
        while todo:
            one = todo.pop()
            for task in os.listdir(f"/proc/{{one}}/task"):
                with open(f"/proc/{{one}}/task/{{task}}/children") as file:
                    todo += [int(child) for child in file.read().split()]
            found.append(one)
        return found
    workers = sorted(os.listdir())
    all = family(os.getpid())
    assert len(all) >= 4
    for _ in range(10):
        for pid in all:
            os.kill(pid, {int(number)})
        seen.append(int(next(iterator)))
    seen += [int(x) for x in iterator]
    print(seen == list(range(40)), len([f for f in os.listdir() if f.startswith("worker")]))
    """
    assert scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode) == ["True 2"]
