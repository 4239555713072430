"""What functools makes of a script's functions works in workers: caches and dispatchers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import scripts

MODES = ["fork_imported", "fork_first", "fresh"]

HEAD = """
import functools, sqlite3, threading
import grain_jax as grain

def show(source, *functions):
    for workers in (0, 2):
        stream = grain.MapDataset.source(source)
        for function in functions:
            stream = stream.map(function)
        stream = stream.to_iter_dataset()
        if workers:
            stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        with iter(stream) as elements:
            print(*elements)
"""

# Each with the elements of both streams.
SCRIPTS = {
    "a connection": (
        """
with sqlite3.connect("some.db") as made:
    made.execute("create table t (i integer, j integer)")
    made.executemany("insert into t values (?, ?)", [(i, 7 * i) for i in range(4)])
made.close()
@functools.lru_cache(maxsize=None)
def connect(path):
    return sqlite3.connect(path)
class Rows:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return connect("some.db").execute("select j from t where i = ?", (i,)).fetchone()[0]
here = connect("some.db")  # what the cache holds stays here: a connection does not pickle
show(Rows())
here.close()
""",
        "0 7 14 21",
    ),
    "a function of a map": (
        """
@functools.cache
def square(i):
    return i * i
show(range(4), lambda i: square(i))
show(range(4), square)
""",
        "0 1 4 9",
    ),
    "a function that calls itself": (
        """
@functools.cache
def fibonacci(i):
    return i if i < 2 else fibonacci(i - 1) + fibonacci(i - 2)
show([10, 20, 30, 40], fibonacci)
""",
        "55 6765 832040 102334155",
    ),
    "methods": (
        """
class Rows:
    def __init__(self):
        self.bound = functools.lru_cache(maxsize=4)(self._bound)
        self.plain = functools.lru_cache(lambda i: i * 1000)
    def __len__(self):
        return 3
    @functools.lru_cache(maxsize=10)
    def read(self, i):
        return i
    @staticmethod
    @functools.cache
    def static(i):
        return i * 10
    @classmethod
    @functools.cache
    def of_class(cls, i):
        return i * 10000
    def _bound(self, i):
        return i * 100
    def __getitem__(self, i):
        return (self.read(i) + self.static(i) + self.bound(i) + self.plain(i)
                + Rows.of_class(i))
show(Rows())
""",
        "0 11111 22222",
    ),
    "a local function": (
        """
def make():
    @functools.cache
    def scaled(i):
        return i * 11
    return lambda i: scaled(i)
show(range(3), make())
""",
        "0 11 22",
    ),
    "its size, kind and attributes": (
        """
@functools.lru_cache(maxsize=7, typed=True)
def same(i):
    "Says the same."
    return i
same.scale = 3
def look(i):
    return same(i), same.scale, same.cache_parameters(), same.__name__, same.__doc__
show(range(2), look)
""",
        "(0, 3, {'maxsize': 7, 'typed': True}, 'same', 'Says the same.') "
        "(1, 3, {'maxsize': 7, 'typed': True}, 'same', 'Says the same.')",
    ),
    "a function that the cache has another name for": (
        """
def own(function):
    return functools.wraps(function)(functools.lru_cache(function))
@own
def double(i):
    return 2 * i
show(range(3), double)
""",
        "0 2 4",
    ),
    "a function in each record": (
        """
@functools.cache
def double(i):
    return 2 * i
def call(record):
    return record["function"](record["i"])
show([{"function": double, "i": i} for i in range(3)], call)
""",
        "0 2 4",
    ),
    "a dispatcher": (
        """
import collections.abc
class Own:
    pass
@functools.singledispatch
def named(x):
    return f"other: {x}"
@named.register
def _(x: int):
    return named(str(x))
@named.register(str)
def _(x):
    return "text " + x
named.register(collections.abc.Sequence, lambda x: f"sequence of {len(x)}")
named.register(Own, lambda x: "one of its own")
values = [1, "a", [1, 2], Own()]
show(range(4), lambda i: named(values[i]))
show(values, named)
""",
        "text 1 text a sequence of 2 one of its own",
    ),
    "a dispatcher as a method": (
        """
class Names:
    suffix = "!"
    @functools.singledispatchmethod
    def named(self, x):
        return f"other{self.suffix}"
    @named.register
    def _(self, x: int):
        return self.named(str(x))
    @named.register(str)
    def _(self, x):
        return f"text {x}{self.suffix}"
    @functools.singledispatchmethod
    @classmethod
    def kind(cls, x):
        return "other"
    @kind.register
    @classmethod
    def _(cls, x: int):
        return cls.suffix
    def __call__(self, x):
        return self.named(x), self.kind(x)
Names()(1), Names()("a")  # whatever Python caches of it stays here
show([1, "a", 2.5], Names())
""",
        "('text 1!', '!') ('text a!', 'other') ('other!', 'other')",
    ),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_wrapped_functions_work_in_workers(
    kind: str, tmp_path: Path, no_process_left: None
) -> None:
    body, right = SCRIPTS[kind]
    lines = scripts.output(tmp_path, HEAD + body)
    assert len(lines) >= 2
    assert lines == [right] * len(lines)


@pytest.mark.parametrize("mode", MODES)
def test_in_every_start_mode(mode: str, tmp_path: Path, no_process_left: None) -> None:
    text = HEAD + SCRIPTS["methods"][0] + SCRIPTS["a dispatcher"][0]
    more = {"GRAIN_JAX_ENGINE_MODE": mode, "GRAIN_JAX_ENGINE_MEMORY": "file"}
    methods, names = SCRIPTS["methods"][1], SCRIPTS["a dispatcher"][1]
    assert scripts.output(tmp_path, text, **more) == [methods] * 2 + [names] * 4


def test_those_of_a_module_are_the_modules(tmp_path: Path, no_process_left: None) -> None:
    (tmp_path / "helpers.py").write_text(
        "import functools\n"
        "@functools.cache\ndef double(i):\n    return 2 * i\n"
        "@functools.singledispatch\ndef name(x):\n    return 'other'\n"
        "@name.register\ndef _(x: int):\n    return f'int {x}'\n"
    )
    body = """
import os, sys
sys.path.insert(0, os.getcwd())
from helpers import double, name
def check(i):
    import helpers
    assert helpers.double is double and helpers.name is name
    return double(i)
show(range(3), check, name)
"""
    assert scripts.output(tmp_path, HEAD + body) == ["int 0 int 2 int 4"] * 2


def test_what_does_not_pickle_is_named(tmp_path: Path, no_process_left: None) -> None:
    body = """
LOCK = threading.Lock()
@functools.cache
def locked(i):
    with LOCK:
        return i
try:
    show(range(3), locked)
except TypeError as error:
    print(error)
"""
    body += """
def own(function):
    return functools.wraps(function)(functools.lru_cache(lambda i: function(i) + 1))
@own
def more(i):
    return i
try:
    show(range(3), more)
except TypeError as error:
    print(error)
"""
    lines = scripts.output(tmp_path, HEAD + body)
    assert lines[0] == "0 1 2"
    assert lines[2] == "1 2 3"
    assert "the __wrapped__ of more has been set to another function" in lines[3]
    assert "the global `LOCK` of locked is a _thread.lock, which does not pickle" in lines[1]
