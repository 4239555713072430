"""Workers that are ended while they load the pipeline: what they have opened is closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("no_process_left")]

MODES = ["fork_imported", "fork_first", "fresh"]

# A source that is open once it is loaded, and a step behind it whose loading does not end.
SCRIPT = """
import os, sys, time, threading, pathlib
import grain_jax as grain
log = pathlib.Path("log")
def note(text):
    with log.open("a") as file:
        file.write(text + "\\n")
def noted(text):
    return log.read_text().split().count(text) if log.exists() else 0
class Rows:
    def __len__(self): return 8
    def __getitem__(self, index): return index
    def __getstate__(self): return os.getpid()
    def __setstate__(self, trainer):
        self.is_open = os.getpid() != trainer
        if self.is_open: note("opened")
    def close(self):
        if getattr(self, "is_open", False): note("closed")
class Slow(grain.transforms.Map):
    def __getstate__(self): return os.getpid()
    def __setstate__(self, trainer):
        if os.getpid() == trainer: return
        note("loads")
        LOADS
    def map(self, x): return x
loader = grain.load(Rows(), num_epochs=1, transformations=[Slow()], worker_count=2)
iterator = iter(loader)
def end():
    while noted("loads") < 2: time.sleep(0.01)
    begin = time.monotonic()
    loader.close()
    print(time.monotonic() - begin < 30)
thread = threading.Thread(target=end)
thread.start()
try:
    next(iterator)
except grain.errors.ClosedError:
    print("closed")
thread.join()
deadline = time.monotonic() + WAITS
while noted("closed") < 2 and time.monotonic() < deadline: time.sleep(0.01)
print(noted("opened"), noted("closed"))
"""

LOADS = {
    "sleep": "time.sleep(1000)",
    "loop": "while True: pass",
    "retries": """
        while True:
            try: time.sleep(1000)
            except Exception: pass
    """,
    "import": "import slow",
    "raises another": """
        try: time.sleep(1000)
        except BaseException as error: raise ValueError("no") from error
    """,
    "goes on": """
        try: time.sleep(1000)
        except BaseException: pass
    """,
}


def run(folder: Path, loads: str, waits: int, mode: str) -> list[str]:
    (folder / "slow.py").write_text("import time\ntime.sleep(1000)\n")
    text = SCRIPT.replace("LOADS", loads).replace("WAITS", str(waits))
    lines = scripts.output(folder, text, 200, GRAIN_JAX_ENGINE_MODE=mode)
    return sorted(lines)


@pytest.mark.parametrize("how", LOADS)
@pytest.mark.parametrize("mode", MODES)
def test_what_was_opened_is_closed(how: str, mode: str, tmp_path: Path) -> None:
    assert run(tmp_path, LOADS[how], 60, mode) == ["2 2", "True", "closed"]


def test_code_that_does_not_come_back_is_ended_without(tmp_path: Path) -> None:
    loads = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', (1 << 31) - 1)"
    assert run(tmp_path, loads, 0, "fork_first") == ["2 0", "True", "closed"]


@pytest.mark.parametrize("mode", MODES)
def test_what_was_opened_before_loading_failed_is_closed(mode: str, tmp_path: Path) -> None:
    text = """
    import os, pathlib, time
    import grain_jax as grain
    log = pathlib.Path("log")
    class Rows:
        def __len__(self): return 8
        def __getitem__(self, index): return index
        def __getstate__(self): return os.getpid()
        def __setstate__(self, trainer): self.is_open = os.getpid() != trainer
        def close(self):
            if getattr(self, "is_open", False):
                with log.open("a") as file: file.write("closed\\n")
    class Bad(grain.transforms.Map):
        def __getstate__(self): return os.getpid()
        def __setstate__(self, trainer):
            if os.getpid() != trainer: raise ValueError("no")
        def map(self, x): return x
    loader = grain.load(Rows(), num_epochs=1, transformations=[Bad()], worker_count=1)
    try:
        list(loader)
    except ValueError as error:
        print(error)
    loader.close()
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline: time.sleep(0.01)
    print(log.read_text())
    """
    found = scripts.output(tmp_path, text, 200, GRAIN_JAX_ENGINE_MODE=mode)
    assert found == ["no", "closed", ""]
