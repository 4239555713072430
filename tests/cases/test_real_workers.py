"""Workers are processes of their own: handles, settings and classes of a script."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import cloudpickle
import pytest

import grain_jax as grain
from tests.cases import scripts

MODES = ["fork_imported", "fork_first", "fresh"]

# A file of 5,000 numbers of 8 bytes; number i is 3 * i + 1.
NUMBERS = """
import functools, os, sqlite3, sys, zipfile
import numpy as np
import grain_jax as grain

N = 5_000
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
    for i in range(1000):
        made.writestr(f"{i}", str(RIGHT[i]))
class Zipped:
    def __init__(self):
        self.zip = zipfile.ZipFile("numbers.zip")
    def __reduce__(self):
        return Zipped, ()
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        return int(self.zip.read(f"{i}"))
check(Zipped(), n=1000)
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


# A library whose behaviour hangs on a global that the script sets.
STRICT = """
import os, sys
import grain_jax as grain

with open("decoder.py", "w") as file:
    file.write("LENIENT = False\\ndef decode(x):\\n    if x == 3 and not LENIENT:\\n"
               "        raise OSError('truncated')\\n    return x\\n")
sys.path.insert(0, os.getcwd())

def init(index, count):
    import decoder
    decoder.LENIENT = True
    assert "later" not in sys.modules

def decode(x):
    import decoder
    return decoder.decode(x)

class Decode(grain.transforms.Map):
    def map(self, x):
        return decode(x)
"""


@pytest.mark.parametrize("mode", MODES)
def test_worker_init_fn_sets_what_the_script_set(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    body = """
    init(0, 0)
    sampler = grain.samplers.IndexSampler(8, num_epochs=1)
    for workers in (0, 2):
        loader = grain.DataLoader(data_source=range(8), sampler=sampler, operations=[Decode()],
                                  worker_count=workers, worker_init_fn=init)
        print([int(x) for x in loader])
        loader.close()
        loader = grain.load(range(8), num_epochs=1, transformations=[Decode()],
                            worker_count=workers, worker_init_fn=init)
        print([int(x) for x in loader])
        loader.close()
    stream = grain.MapDataset.range(8).map(decode).to_iter_dataset()
    options = grain.MultiprocessingOptions(num_workers=2, worker_init_fn=init)
    for prefetched in (stream.mp_prefetch(options),
                       stream.mp_prefetch(grain.MultiprocessingOptions(2), worker_init_fn=init)):
        with iter(prefetched) as numbers:
            print([int(x) for x in numbers])
    """
    text = STRICT + textwrap.dedent(body)
    lines = scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == [str([*range(8)])] * 6


@pytest.mark.parametrize("mode", MODES)
def test_worker_init_fn_runs_before_anything_is_loaded_and_in_replacements(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    body = """
    import signal
    with open("later.py", "w") as file:
        file.write("import builtins\\nFOUND = builtins.ready\\n"
                   "def see(x):\\n    return FOUND, x\\n")
    import builtins
    builtins.ready = "in the script"
    import later

    def start(index, count):
        import builtins, sys
        assert "later" not in sys.modules
        builtins.ready = (index, count)
        with open(f"started-{index}-{os.getpid()}", "w"):
            pass

    class Die(grain.transforms.Map):
        def map(self, x):
            if x == 5 and not os.path.exists("died"):
                with open("died", "w"):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            return later.see(x)

    class Source:
        def __len__(self):
            return 8
        def __getitem__(self, i):
            return later.see(i)[1]

    with grain.load(Source(), num_epochs=1, transformations=[Die()], worker_count=1,
                    worker_init_fn=start, ignore_globals=["later.FOUND"]) as loader:
        found = list(loader)
    assert [x for _, x in found] == [*range(8)], found
    assert {seen for seen, _ in found} == {(0, 1)}, found
    print(len([name for name in os.listdir() if name.startswith("started-")]))
    """
    text = STRICT + textwrap.dedent(body)
    assert scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode) == ["2"]


@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_worker_init_fn_is_itself_and_says_so(mode: str, tmp_path: Path) -> None:
    body = """
    def fail(index, count):
        raise FileNotFoundError("no such table")
    try:
        next(iter(grain.load([1, 2], worker_count=1, worker_init_fn=fail)))
    except FileNotFoundError as error:
        print(error, *error.__notes__, sep="\\n")
    """
    text = STRICT + textwrap.dedent(body)
    lines = scripts.output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines[:2] == ["no such table", "worker_init_fn(0, 1) raised this."]
    assert any("script.py" in line and "in fail" in line for line in lines)


def test_load_takes_the_settings_of_a_loader() -> None:
    policy = grain.ErrorPolicy(skip=ValueError, max_count=1)

    def init(index: int, count: int) -> None: ...

    given = {
        "worker_buffer_size": 3,
        "lanes": 2,
        "strict": False,
        "on_error": policy,
        "max_worker_restarts": 1,
        "stall_timeout": 9.0,
        "worker_init_fn": init,
    }
    made = grain.load([1, 2, 3], **given).multiprocessing_options  # type: ignore[arg-type]
    assert {name: getattr(made, name) for name in given if name != "worker_buffer_size"} == {
        name: value for name, value in given.items() if name != "worker_buffer_size"
    }
    assert made.per_worker_buffer_size == 3


def test_load_leaves_out_what_its_policy_allows_and_deals_in_lanes() -> None:
    class Fail(grain.transforms.Map):
        def map(self, x: int) -> int:
            if x == 2:
                raise ValueError("two")
            return x

    policy = grain.ErrorPolicy(skip=ValueError, max_count=1)
    loader = grain.load(range(6), num_epochs=1, transformations=[Fail()], on_error=policy)
    assert [int(x) for x in loader] == [0, 1, 3, 4, 5]
    lanes = grain.load(range(8), num_epochs=1, batch_size=2, lanes=2)
    assert [batch.tolist() for batch in lanes] == [[0, 2], [1, 3], [4, 6], [5, 7]]


MODULES = """
import importlib.util, os, sys, types
import grain_jax as grain

def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write(text)

STEPS = '''
import dataclasses
import grain_jax as grain
OFFSET = 10
def add(x):
    return x + OFFSET
class Add(grain.transforms.Map):
    def map(self, x):
        return add(x)
@dataclasses.dataclass
class Point:
    x: int
def point(x):
    return Point(x)
'''

def by_hand(name, path, **more):
    spec = importlib.util.spec_from_file_location(name, path, **more)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

def check(steps, loaded):
    class Call(grain.transforms.Map):  # of the script, which names the module
        def map(self, x):
            return loaded.add(x)
    for step in (steps.Add(), Call()):
        for workers in (0, 2):
            with grain.load(range(3), num_epochs=1, transformations=[step],
                            worker_count=workers) as loader:
                print(*[int(x) for x in loader], end="; ")
    stream = grain.MapDataset.range(3).map(steps.point).to_iter_dataset()
    with iter(stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))) as points:
        found = list(points)
    print(found == [steps.Point(x) for x in range(3)])
"""

BY_HAND = {
    "a file": """
write("away/steps_file.py", STEPS)
steps = by_hand("steps", "away/steps_file.py")
check(steps, steps)
""",
    "another name on the path": """
write("steps.py", "OFFSET = 99")
write("away/steps.py", STEPS)
steps = by_hand("steps", "away/steps.py")
check(steps, steps)
""",
    "a package": """
write("away/pack/__init__.py", "from pack.inner import steps")
write("away/pack/inner/__init__.py", "")
write("away/pack/inner/steps.py", STEPS)
pack = by_hand("pack", "away/pack/__init__.py", submodule_search_locations=["away/pack"])
check(pack.steps, pack.steps)
""",
    "no package above": """
write("away/steps.py", STEPS)
for name in ("above", "above.of"):
    sys.modules[name] = types.ModuleType(name)
steps = by_hand("above.of.steps", "away/steps.py")
check(steps, steps)
""",
    "imported by another": """
write("away/steps_file.py", STEPS)
by_hand("steps", "away/steps_file.py")
write("between.py", "from steps import Add, Point, add, point")
import between
check(between, between)
""",
    "a path taken away": """
write("away/steps.py", STEPS)
sys.path.insert(0, "away")
import steps
sys.path.remove("away")
check(steps, steps)
""",
    "a directory left": """
write("away/steps.py", STEPS)
os.chdir("away")
sys.path.insert(0, "")
import steps
os.chdir("..")
check(steps, steps)
""",
    "no file at all": """
steps = types.ModuleType("steps")
sys.modules["steps"] = steps
exec(STEPS, vars(steps))
check(steps, steps)
""",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", BY_HAND)
def test_modules_loaded_by_hand(
    kind: str, mode: str, tmp_path: Path, no_process_left: None
) -> None:
    lines = scripts.output(tmp_path, MODULES + BY_HAND[kind], GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == ["10 11 12; " * 4 + "True"]
    assert not cloudpickle.list_registry_pickle_by_value()


def test_test_modules_that_pytest_imports_by_file(tmp_path: Path) -> None:
    text = """
    import grain_jax as grain

    class Add(grain.transforms.Map):
        def map(self, x):
            return x + 1

    def test_add():
        with grain.load(range(3), num_epochs=1, transformations=[Add()], worker_count=2) as loader:
            assert [int(x) for x in loader] == [1, 2, 3]
    """
    folder = tmp_path / "suite" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(textwrap.dedent(text))
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*line, "suite"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(scripts.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_a_cut_image_is_read_as_the_script_says(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    body = """
    import io
    import numpy as np
    import grain_jax as grain
    from PIL import Image, ImageFile
    whole = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(whole, "JPEG")
    cut = whole.getvalue()[: len(whole.getvalue()) * 2 // 3]

    def init(index, count):
        from PIL import ImageFile
        ImageFile.LOAD_TRUNCATED_IMAGES = True

    class Decode(grain.transforms.Map):
        def map(self, data):
            return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    def read(**settings):
        with grain.load([cut, whole.getvalue()], num_epochs=1, transformations=[Decode()],
                        **settings) as loader:
            return list(loader)

    init(0, 0)
    first, second = read(), read(worker_count=2, worker_init_fn=init)
    print([bool((a == b).all()) for a, b in zip(first, second, strict=True)])
    try:
        print(len(read(worker_count=2)))
    except OSError as error:
        print(error)
    """
    lines = scripts.output(tmp_path, textwrap.dedent(body), GRAIN_JAX_ENGINE_MODE=mode)
    assert lines[0] == "[True, True]"
    assert lines[1].startswith("image file is truncated")  # never another image
