"""What code reads from modules is the same in workers, or an error says what differs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cases import scripts

MODES = ["fork_imported", "fork_first", "fresh"]

# A package of the user's, with state of each kind that scripts set.
PACKAGE = {
    "config.py": """
        import dataclasses, enum
        import numpy as np

        SCALE = 1
        TABLE = {"scale": 1, "names": ["a", "b"]}
        STEPS = np.array([1, 2, 3])

        @dataclasses.dataclass
        class Config:
            scale: int = 1
            other: int = 1

        CONFIG = Config()

        class Mode(enum.Enum):
            PLAIN = 1
            TWICE = 2

        MODE = Mode.PLAIN

        class Scaled:
            scale = 1
            def map(self, x):
                return x * self.scale

        def helper(x):
            return x

        def scaled(x, scale=1):
            return x * scale
        """,
    "code.py": """
        import config
        from config import SCALE as COPIED

        def by_module(x):
            return x * config.SCALE

        def by_copy(x):
            return x * COPIED

        def deep(x):
            return by_module(x)

        def by_table(x):
            return x * config.TABLE["scale"]

        def by_array(x):
            return x * config.STEPS[0]

        def by_object(x):
            return x * config.CONFIG.scale

        def by_enum(x):
            return x * config.MODE.value

        def by_class(x):
            return config.Scaled().map(x)

        def by_import(x):
            from config import SCALE
            return x * SCALE

        def by_lazy_module(x):
            import lazy
            return x * lazy.SCALE

        def by_function(x):
            return config.helper(x)

        def by_default(x):
            return config.scaled(x)
        """,
    "lazy.py": "SCALE = 1",
}

# Each with what the script does, and what the error says.
CHANGES = {
    "by_module": ("config.SCALE = 7", "config.SCALE is 7 here, and 1 in a worker"),
    "by_copy": ("code.COPIED = 7", "code.COPIED is 7 here, and 1 in a worker"),
    "deep": ("config.SCALE = 7", "config.SCALE is 7 here, and 1 in a worker"),
    "by_table": ("config.TABLE['scale'] = 7", "config.TABLE['scale'] is 7 here, and 1 in a worker"),
    "by_array": ("config.STEPS[0] = 7", "config.STEPS is array([7, 2, 3]) of int64"),
    "by_object": ("config.CONFIG.scale = 7", "config.CONFIG.scale is 7 here, and 1 in a worker"),
    "by_enum": (
        "config.MODE = config.Mode.TWICE",
        "config.MODE is Mode.TWICE here, and Mode.PLAIN in a worker",
    ),
    "by_class": ("config.Scaled.scale = 7", "config.Scaled.scale is 7 here, and 1 in a worker"),
    "by_import": ("config.SCALE = 7", "config.SCALE is 7 here, and 1 in a worker"),
    "by_lazy_module": ("import lazy; lazy.SCALE = 7", "lazy.SCALE is 7 here, and 1 in a worker"),
    "by_function": (
        "config.helper = lambda x: 7 * x",
        "config.helper is function __main__.<lambda> here, and function config.helper in a worker",
    ),
    "by_default": ("config.scaled.__defaults__ = (7,)", "config.scaled(scale=) is 7 here, and 1"),
}

TRY = """
    import code, config
    import grain_jax as grain

    idle = grain.load([0], worker_count=1)
    iter(idle)  # what all loaders share stays, which makes each start in milliseconds

    class Apply(grain.transforms.Map):
        def __init__(self, function):
            self.function = function

        def map(self, x):
            return self.function(x)

    def stream(function, workers, **options):
        with grain.load([0, 1, 2], num_epochs=1, transformations=[Apply(function)],
                        worker_count=workers, **options) as loader:
            return [int(x) for x in loader]

    def tried(function, workers, **options):
        try:
            return stream(function, workers, **options)
        except grain.errors.DriftError as error:
            assert isinstance(error, RuntimeError)
            return str(error).splitlines()[1].strip()
    """


def package(folder: Path, **more: str) -> None:
    for name, text in {**PACKAGE, **more}.items():
        (folder / name).write_text(textwrap.dedent(text))


def script(*parts: str) -> str:
    return "\n".join(textwrap.dedent(part) for part in parts)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_script_sets_in_a_module_is_an_error_with_workers(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    package(tmp_path)
    body = f"""
    for name, (change, _) in {CHANGES!r}.items():
        before = stream(getattr(code, name), 2)
        kept = {{**vars(config)}}, config.Config(), {{**config.TABLE}}
        exec(change)
        print(before, stream(getattr(code, name), 0))
        print(tried(getattr(code, name), 1 + len(name) % 3))
        vars(config).update(kept[0])
        config.CONFIG.scale, config.Scaled.scale, config.STEPS[0] = 1, 1, 1
        config.TABLE.update(kept[2])
    """
    lines = scripts.output(tmp_path, script(TRY, body), GRAIN_JAX_ENGINE_MODE=mode)
    twice, seven = "[0, 1, 2] [0, 2, 4]", "[0, 1, 2] [0, 7, 14]"
    for name, streams, told in zip(CHANGES, lines[::2], lines[1::2], strict=True):
        assert streams == (twice if name == "by_enum" else seven), name
        assert told.startswith(CHANGES[name][1]), name


@pytest.mark.parametrize("memory", ["memory", "file"])
def test_the_message_names_both_values_and_what_to_write(memory: str, tmp_path: Path) -> None:
    package(tmp_path)
    body = """
    config.SCALE = 7
    stages = [Apply(lambda x: x * config.SCALE)]
    loader = grain.load([0, 1, 2, 3], num_epochs=1, batch_size=2, transformations=stages,
                        worker_count=2)
    for batches in (iter(loader), grain.prefetch_to_device(loader)):
        for _ in range(2):  # and again: it does not go away
            try:
                print(next(batches))
            except RuntimeError as error:
                print(error)
    loader.close()
    """
    lines = scripts.output(tmp_path, script(TRY, body), GRAIN_JAX_ENGINE_MEMORY=memory)
    assert lines[:2] == [
        "what the pipeline's code reads is not the same in worker processes as here:",
        "  config.SCALE is 7 here, and 1 in a worker",
    ]
    for hint in ("to the transformation", "worker_init_fn", "ignore_globals=('config.SCALE',)"):
        assert hint in lines[2]
    assert len(lines) == 12
    assert lines[3:] == lines[:3] * 3


def test_what_the_message_says_works(tmp_path: Path, no_process_left: None) -> None:
    package(tmp_path)
    body = """
    config.SCALE = 7

    def init(index, count):
        import config
        config.SCALE = 7

    def own(index, count):  # what each worker sets for itself is its own affair
        import config
        config.SCALE = index + 3

    print(tried(code.by_module, 2, worker_init_fn=init))
    print(tried(code.by_module, 1, worker_init_fn=own))
    print(tried(code.by_module, 2, ignore_globals=("config.SCALE",)))
    print(tried(code.by_module, 2, ignore_globals=["config"]))
    print(tried(code.by_module, 2, ignore_globals=["conf", "config.SCALES", "config.OTHER"]))
    options = grain.MultiprocessingOptions(2, ignore_globals=("config",))
    stream = grain.MapDataset.range(3).map(code.by_module).to_iter_dataset()
    print([int(x) for x in stream.mp_prefetch(options)])
    try:
        print(list(stream.mp_prefetch(grain.MultiprocessingOptions(2))))
    except grain.errors.DriftError as error:
        print(str(error).splitlines()[1].strip())
    """
    error = "config.SCALE is 7 here, and 1 in a worker"
    assert scripts.output(tmp_path, script(TRY, body)) == [
        "[0, 7, 14]",
        "[0, 3, 6]",
        "[0, 1, 2]",
        "[0, 1, 2]",
        error,
        "[0, 1, 2]",
        error,
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_changes_between_epochs_is_named(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    package(tmp_path)
    body = """
    import pathlib
    loader = grain.load([0, 1, 2], num_epochs=1, worker_count=2,
                        transformations=[Apply(config.Scaled().map)])
    file = pathlib.Path(config.__file__)
    text = file.read_text()

    def epoch(edited):
        file.write_text(edited)
        try:
            return [int(x) for x in loader]
        except grain.errors.DriftError as error:
            told = str(error).splitlines()[1].strip().replace(str(file), "FILE")
            return told, f"{file} " in str(error)

    print(epoch(text))
    print(epoch(text.replace("x * self.scale", "x * self.scale + 100")))
    print(epoch(text.replace("    scale = 1", "    scale = 100")))
    print(epoch(text.replace("Scaled:", "Renamed:")))
    print(epoch("\\n# a remark\\n" + text.replace("return x\\n", "return -x\\n")))
    loader.close()
    """
    lines = scripts.output(tmp_path, script(TRY, body), GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == [
        "[0, 1, 2]",
        "('the code of config.Scaled.map differs: FILE has changed since it was imported here', "
        "True)",
        "('config.Scaled.scale is 1 here, and 100 in a worker (FILE has changed meanwhile)', True)",
        "('config.Scaled.map is function config.Scaled.map here, and missing in a worker (FILE has "
        "changed meanwhile)', True)",
        "[0, 1, 2]",  # nothing that the pipeline's code reads
    ]


def test_a_worker_that_is_replaced_compares_too(tmp_path: Path, no_process_left: None) -> None:
    package(tmp_path)
    body = """
    import os, pathlib, signal

    def die(x):
        if x == 2 and not os.path.exists("died"):
            text = pathlib.Path(config.__file__).read_text()
            # Of another size: Python takes its cache for a file of the same second and size.
            edited = text.replace("SCALE = 1", "SCALE = 7  # edited")
            pathlib.Path(config.__file__).write_text(edited)
            pathlib.Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return code.by_module(x)

    print(tried(die, 1))
    """
    (line,) = scripts.output(tmp_path, script(TRY, body), GRAIN_JAX_ENGINE_MODE="fork_first")
    assert line.startswith("config.SCALE is 1 here, and 7 in a worker (")


# What is different in a worker by nature, or because code has used it here: no error.
OWN = {
    "own.py": """
        import collections, functools, logging, os, threading, time
        import numpy as np

        logger = logging.getLogger(__name__)
        lock = threading.Lock()
        calls = 0
        cache = {}
        seen = set()
        log = []
        groups = collections.defaultdict(list)
        table = None
        pid = None
        ready = False

        def count(x):
            global calls
            calls += 1
            logger.debug("call %d", calls)
            with lock:
                log.append(x)
            return x

        def cached(x):
            if x not in cache:
                cache[x] = x * 10
            seen.add(x)
            groups[x % 2].append(x)
            return cache[x]

        def made(x):
            global table, ready
            if table is None:
                table = {n: n + 1 for n in range(5)}
            if not ready:
                ready = True
            return table[int(x)]

        def by_process(x):
            global pid
            if pid != os.getpid():
                pid = os.getpid()
            return x

        @functools.lru_cache
        def remembered(x):
            return x + 5

        def counter():
            n = 0
            def count(x, memory={}):
                nonlocal n
                n += 1
                memory[x] = n
                return x
            return count

        inner = counter()

        class Tool:
            made = 0
            def __init__(self):
                self.n = 0
                self.cache = {}
                self.table = None
                Tool.made += 1
            def use(self, x):
                self.n += 1
                self.cache[x] = self.n
                if self.table is None:
                    self.table = {1: 2}
                return x * self.table[1]

        tool = Tool()

        def by_tool(x):
            return tool.use(x) + Tool().use(x)

        registry = {}

        def register(function):
            registry[function.__name__] = function
            return function

        def by_name(x):
            return registry["twice"](x)
        """,
    "plugin.py": """
        import own

        @own.register
        def twice(x):
            return 2 * x
        """,
}


@pytest.mark.parametrize("mode", MODES)
def test_what_code_changes_itself_is_left_alone(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    package(tmp_path, **OWN)
    body = """
    import own, plugin

    functions = [own.count, own.cached, own.made, own.by_process, own.remembered, own.inner,
                 own.by_tool, own.by_name]
    for function in functions:
        alone = stream(function, 0)  # it has been used here
        print(alone == stream(function, 2), alone)
    """
    lines = scripts.output(tmp_path, script(TRY, body), GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == [
        "True [0, 1, 2]",
        "True [0, 10, 20]",
        "True [1, 2, 3]",
        "True [0, 1, 2]",
        "True [5, 6, 7]",
        "True [0, 1, 2]",
        "True [0, 4, 8]",
        "True [0, 2, 4]",
    ]


def test_what_is_made_at_the_first_use_is_compared_then(tmp_path: Path) -> None:
    package(
        tmp_path,
        **{
            "paths.py": """
                ROOT = None

                def root():
                    global ROOT
                    if ROOT is None:
                        ROOT = "/default"
                    return ROOT

                def under(x):
                    return x + len(root())
                """
        },
    )
    body = """
    import paths
    print(tried(paths.under, 2))
    paths.root()  # as a worker makes it
    print(tried(paths.under, 2))
    paths.ROOT = "/data"
    print(tried(paths.under, 2))
    """
    assert scripts.output(tmp_path, script(TRY, body)) == [
        "[8, 9, 10]",
        "[8, 9, 10]",
        "paths.ROOT is '/data' here, and '/default' in a worker",
    ]


def test_an_order_that_hangs_on_hashes_is_found(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(100)]
    package(
        tmp_path,
        **{
            "words.py": f"""
                WORDS = list(set({words!r}))
                SET = set(WORDS)

                def listed(x):
                    return len(WORDS[int(x)])

                def counted(x):
                    return len(SET)
                """
        },
    )
    body = """
    import words
    print(tried(words.counted, 2))
    print(tried(words.listed, 2)[:12])
    """
    assert scripts.output(tmp_path, script(TRY, body)) == ["[100, 100, 100]", "words.WORDS["]


@pytest.mark.parametrize("name", ["os", "numpy"])
def test_libraries_are_set_in_worker_init_fn(name: str, tmp_path: Path) -> None:
    # Only modules of the user's are compared: what a library keeps is its own affair.
    package(tmp_path, **{"uses.py": f"import {name} as lib\ndef use(x): return x * lib.SCALE\n"})
    body = f"""
    import {name} as lib
    import uses

    def init(index, count):
        import {name} as lib
        lib.SCALE = 7

    init(0, 0)
    print(stream(uses.use, 0), stream(uses.use, 2, worker_init_fn=init))
    """
    assert scripts.output(tmp_path, script(TRY, body)) == ["[0, 7, 14] [0, 7, 14]"]


def test_a_setting_of_pillow_is_set_in_worker_init_fn(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    body = """
    import io
    import numpy as np
    import grain_jax as grain
    from PIL import Image, ImageFile

    def init(index, count):
        ImageFile.LOAD_TRUNCATED_IMAGES = True

    class Decode(grain.transforms.Map):
        def map(self, data):
            return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    whole = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(whole, "jpeg")
    cut = whole.getvalue()[:-500]
    init(0, 0)
    images = []
    for workers in (0, 2):
        with grain.load([cut, cut], num_epochs=1, transformations=[Decode()], worker_count=workers,
                        worker_init_fn=init) as loader:
            images += list(loader)
        sampler = grain.samplers.SequentialSampler(2)
        with grain.DataLoader(data_source=[cut, cut], sampler=sampler, operations=[Decode()],
                              worker_count=workers, worker_init_fn=init) as loader:
            images += list(loader)
    right = np.asarray(Image.open(io.BytesIO(cut)).convert("RGB"))
    print(len(images), all(np.array_equal(image, right) for image in images), right.shape)
    """
    assert scripts.output(tmp_path, script(body)) == ["8 True (64, 64, 3)"]
