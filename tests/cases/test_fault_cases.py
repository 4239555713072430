"""Cases from users' reports that concern faults; the numbers are those of the list of cases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from tests.cases import scripts
from tests.faults import campaign
from tests.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.usefixtures("no_process_left"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]


@pytest.mark.parametrize("record", [4, 53])
@pytest.mark.parametrize("how", ['"/dev/null"', '"/dev/null", "rb"'])
def test_case_5_a_record_with_an_open_file(record: int, how: str, tmp_path: Path) -> None:
    lines = scripts.output(
        tmp_path,
        f"""
        import numpy as np
        import grain_jax as grain

        class Read(grain.transforms.Map):
            def map(self, element):
                out = {{"n": int(element), "image": np.full(3, element)}}
                if element == {record}:
                    out["source"] = opened = open({how})
                    kept.append(opened)  # it would warn as it goes
                return out

        kept = []

        loader = grain.load(
            np.arange({2 * record}), num_epochs=1, transformations=[Read()], worker_count=2
        )
        iterator, seen = iter(loader), []
        for _ in range(2):
            try:
                for element in iterator:
                    seen.append(element["n"])
            except TypeError as error:
                print(error, *error.__notes__)
        print(seen == list(range({record})))
        loader.close()
        """,
    )
    assert lines[-1] == "True"
    text = "\n".join(lines)
    assert text.count(f"at position {record} (record key {record})") == 2
    assert text.count("['source'] of a dict") == 2


def test_case_6_a_sharp_error(tmp_path: Path) -> None:
    lines = scripts.output(
        tmp_path,
        """
        import numpy as np
        import grain_jax as grain

        class Torn(Exception):
            def __init__(self, number, reason):
                super().__init__(f"{number}: {reason}")

        class Check(grain.transforms.Map):
            def map(self, element):
                if element == 9:
                    raise Torn(int(element), "torn")
                return element

        loader = grain.load(
            np.arange(20), num_epochs=1, transformations=[Check()], batch_size=3, worker_count=2
        )
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        try:
            next(iterator)
        except Torn as error:
            print(error, *error.__notes__)
        loader.close()
        """,
    )
    assert lines[0].startswith("9: torn")
    text = "\n".join(lines)
    assert "at position 9 (record key 9)" in text
    assert "script.py:12" in text


_TRAINS = """
import sys, time
import numpy as np
import grain_jax as grain

class Image(grain.transforms.Map):
    def map(self, element):
        return np.full((1 << 20,), element, np.int64)  # 8 MB

if __name__ == "__main__":
    loader = grain.load(np.arange(1000), transformations=[Image()], worker_count=2)
    kept = []
    for number, batch in enumerate(loader):
        kept = [*kept[-3:], batch]
        if number == 5:
            print("ready", flush=True)
        time.sleep(0.02)
"""


@pytest.mark.parametrize("to_group", [False, True], ids=["process", "group"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_case_13_nothing_is_left(how: signal.Signals, to_group: bool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_TRAINS)
    mark = uuid.uuid4().hex
    shared = campaign.shared_memory()
    trainer = subprocess.Popen(
        [sys.executable, "-W", "error", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(scripts.ROOT), "MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert trainer.stdout is not None
    try:
        assert trainer.stdout.readline() == "ready\n"
        assert len(campaign.marked(mark)) >= 4  # itself, and at least a helper and two workers
        (os.killpg if to_group else os.kill)(trainer.pid, how)
        _, errors = trainer.communicate(timeout=PATIENCE)
    finally:
        trainer.kill()
        trainer.wait()
    if how == signal.SIGINT:
        assert errors.splitlines()[-1] == "KeyboardInterrupt"
        assert errors.count("Traceback") == 1
    else:
        assert errors == ""
    assert until(lambda: not campaign.marked(mark))
    assert campaign.shared_memory() <= shared


def test_case_14_a_small_dev_shm(tmp_path: Path) -> None:
    script = """
        import os
        import numpy as np
        import grain_jax as grain
        room = os.statvfs("/dev/shm")
        assert room.f_blocks * room.f_frsize == 32 << 20

        class Image(grain.transforms.Map):
            def map(self, element):
                return np.full((3 << 18,), element, np.int32)  # 3 MiB

        loader = grain.load(
            np.arange(64), num_epochs=1, transformations=[Image()], batch_size=4, worker_count=2
        )
        kept = list(loader)
        loader.close()
        good = all((b == np.arange(4 * i, 4 * i + 4)[:, None]).all() for i, b in enumerate(kept))
        print(len(kept), kept[0].nbytes >> 20, good)
        """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    mount = "mount -t tmpfs -o size=32m tmpfs /dev/shm"
    allowed = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, check=False
    )
    if allowed.returncode:
        pytest.skip(f"no private mounts here: {allowed.stderr.strip()}")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -W error script.py', sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(scripts.ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["16", "12", "True"]


@pytest.mark.parametrize("always", [False, True])
def test_case_19_a_worker_that_kills_itself(always: bool, tmp_path: Path) -> None:
    lines = scripts.output(
        tmp_path,
        f"""
        import os, signal
        import numpy as np
        import grain_jax as grain

        class Dies(grain.transforms.Map):
            def map(self, element):
                if element == 9:
                    try:
                        os.close(os.open("died", os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        pass
                    else:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if {always}:
                        os.kill(os.getpid(), signal.SIGKILL)
                return element

        loader = grain.load(
            np.arange(40), num_epochs=1, transformations=[Dies()], batch_size=4, worker_count=2
        )
        seen = []
        try:
            for batch in loader:
                seen += batch.tolist()
        except grain.errors.WorkerError as error:
            print(error)
        print(seen == list(range(8 if {always} else 40)))
        loader.close()
        """,
    )
    assert lines[-1] == "True"
    if always:
        assert "4 times at positions 8 to" in lines[0]
        assert "signal 9 (SIGKILL); out of memory?" in lines[0]
    else:
        assert len(lines) == 1


@pytest.mark.parametrize("batch_size", [None, 5])
def test_case_25_a_death_beside_a_slow_worker(batch_size: int | None, tmp_path: Path) -> None:
    lines = scripts.output(
        tmp_path,
        f"""
        import os, signal, time
        import numpy as np
        import grain_jax as grain

        class Work(grain.transforms.Map):
            def map(self, element):
                with open(str(os.getpid()), "w"):
                    pass
                out = np.full(40_000, element)
                if element == 12:
                    out[:20_000] = 7  # half done
                    time.sleep(1)
                    out[:20_000] = element
                if element == 30:
                    try:
                        os.close(os.open("died", os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        pass
                    else:
                        os.kill(os.getpid(), signal.SIGKILL)
                return out

        loader = grain.load(
            np.arange(120), num_epochs=1, transformations=[Work()], batch_size={batch_size},
            worker_count=2,
        )
        kept = list(loader)
        loader.close()
        rows = np.concatenate(kept) if {batch_size} else np.stack(kept)
        print(os.path.exists("died"), (rows == np.arange(120)[:, None]).all())
        """,
    )
    assert lines == ["True True"]
