"""Workers are processes of their own: handles, settings and classes of a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = pytest.mark.timeout(120)

MODES = ["fork_imported", "fork_first", "fresh"]

# A file of 20,000 numbers of 8 bytes; number i is 3 * i + 1.
NUMBERS = """
import functools, os, sqlite3, sys, zipfile
import numpy as np
import grain_jax as grain

N = 20_000
RIGHT = [3 * i + 1 for i in range(N)]
with open("numbers", "wb") as file:
    file.write(np.array(RIGHT, "<i8").tobytes())

def check(source, steps=(), n=N):
    for workers in (0, 2, 4):
        loader = grain.load(source, num_epochs=1, transformations=steps, batch_size=100,
                            worker_count=workers)
        got = np.concatenate([np.asarray(batch) for batch in loader]).tolist()
        wrong = sum(a != b for a, b in zip(got, RIGHT[:n], strict=True))
        print(wrong, "wrong")
        loader.close()
"""

HANDLES = {
    "buffered": """
class Numbers:
    def __init__(self, path):
        self.path, self.file = path, open(path, "rb")
    def __reduce__(self):
        return Numbers, (self.path,)
    def __len__(self):
        return N
    def __getitem__(self, i):
        self.file.seek(8 * i)
        return int.from_bytes(self.file.read(8), "little")
check(Numbers("numbers"))
""",
    "unbuffered": """
class Numbers:
    def __init__(self, path):
        self.path, self.file = path, open(path, "rb", buffering=0)
    def __reduce__(self):
        return Numbers, (self.path,)
    def __len__(self):
        return N
    def __getitem__(self, i):
        self.file.seek(8 * i)
        return int.from_bytes(self.file.read(8), "little")
check(Numbers("numbers"))
""",
    "length_that_opens": """
class Numbers:
    file = None
    def __getstate__(self):
        return {}
    def open(self):
        if self.file is None:
            self.file = open("numbers", "rb")
        return self.file
    def __len__(self):
        return self.open().seek(0, os.SEEK_END) // 8
    def __getitem__(self, i):
        self.open().seek(8 * i)
        return int.from_bytes(self.file.read(8), "little")
check(Numbers())
""",
    "transform": """
class Look(grain.transforms.Map):
    def __init__(self, path):
        self.path, self.file = path, open(path, "rb")
    def __reduce__(self):
        return Look, (self.path,)
    def map(self, i):
        self.file.seek(8 * i)
        return int.from_bytes(self.file.read(8), "little")
check(range(N), [Look("numbers")])
""",
    "module": """
with open("reader.py", "w") as file:
    file.write("FILE = open('numbers', 'rb')\\ndef read(i):\\n    FILE.seek(8 * i)\\n"
               "    return int.from_bytes(FILE.read(8), 'little')\\n")
sys.path.insert(0, os.getcwd())
import reader
class Look(grain.transforms.Map):
    def map(self, i):
        return reader.read(i)
check(range(N), [Look()])
""",
    "sqlite": """
with sqlite3.connect("numbers.db") as made:
    made.execute("create table t (i integer primary key, v integer)")
    made.executemany("insert into t values (?, ?)", enumerate(RIGHT))
class Rows:
    def __init__(self):
        self.handle = sqlite3.connect("numbers.db", check_same_thread=False)
    def __reduce__(self):
        return Rows, ()
    def __len__(self):
        return N
    def __getitem__(self, i):
        return self.handle.execute("select v from t where i = ?", (i,)).fetchone()[0]
check(Rows())
made.close()
""",
    "zip": """
with zipfile.ZipFile("numbers.zip", "w") as made:
    for i in range(2000):
        made.writestr(f"{i}", str(RIGHT[i]))
class Zipped:
    def __init__(self):
        self.zip = zipfile.ZipFile("numbers.zip")
    def __reduce__(self):
        return Zipped, ()
    def __len__(self):
        return 2000
    def __getitem__(self, i):
        return int(self.zip.read(f"{i}"))
check(Zipped(), n=2000)
""",
    "generator": """
def places():
    file = open("numbers", "rb")
    i = yield
    while True:
        file.seek(8 * i)
        i = yield int.from_bytes(file.read(8), "little")
class Generated:
    def __init__(self):
        self.running = places()
        next(self.running)
    def __reduce__(self):
        return Generated, ()
    def __len__(self):
        return N
    def __getitem__(self, i):
        return self.running.send(i)
check(Generated())
""",
    "dataset": """
class Numbers:
    def __init__(self, path):
        self.path, self.file = path, open(path, "rb")
    def __reduce__(self):
        return Numbers, (self.path,)
    def __len__(self):
        return N
    def __getitem__(self, i):
        self.file.seek(8 * i)
        return int.from_bytes(self.file.read(8), "little")
for workers in (0, 2, 4):
    stream = grain.MapDataset.source(Numbers("numbers")).batch(100).to_iter_dataset()
    if workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    with iter(stream) as batches:
        got = np.concatenate(list(batches)).tolist()
    print(sum(a != b for a, b in zip(got, RIGHT, strict=True)), "wrong")
""",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", HANDLES)
def test_handles_are_each_workers_own(
    kind: str, mode: str, tmp_path: Path, no_process_left: None
) -> None:
    done = scripts.run(tmp_path, NUMBERS + HANDLES[kind], warn="ignore", GRAIN_JAX_ENGINE_MODE=mode)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["0 wrong"] * 3
