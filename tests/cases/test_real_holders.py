"""Values of the user's modules that scripts set: workers read the same, or an error names them.

Here they are read by ways that no code of the user's spells out: what is made at the first use,
what a library calls, what objects in C hold, modules that only a step imports.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cases import scripts

pytestmark = pytest.mark.timeout(300)

MODES = ["fork_imported", "fork_first", "fresh"]

# Prints for each function of a module what a pipeline of it gives, or what a worker misses.
SCRIPT = """
import pathlib, sys, numpy as np, grain_jax as grain
import mod
exec(pathlib.Path("change.py").read_text())
class Call(grain.transforms.Map):
    def __init__(self, function): self.function = function
    def map(self, x): return self.function(x)
for name in pathlib.Path("readers").read_text().split():
    for workers in map(int, pathlib.Path("workers").read_text().split()):
        step = Call(getattr(mod, name))
        loader = grain.load([1, 2], num_epochs=1, transformations=[step], worker_count=workers)
        try:
            found = list(loader)
        except grain.errors.DriftError as error:
            found = str(error).splitlines()[1].strip()
        print(name, workers, found, flush=True)
"""


def look(
    folder: Path, readers: str, change: str, workers: str = "0 2", mode: str = "", **files: str
) -> list[str]:
    """Returns what a script printed that sets things in `mod` and reads them by functions."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    (folder / "change.py").write_text(textwrap.dedent(change))
    (folder / "readers").write_text(readers)
    (folder / "workers").write_text(workers)
    settings = {"GRAIN_JAX_ENGINE_MODE": mode} if mode else {}
    return scripts.output(folder, SCRIPT, 200, **settings)


MADE = """
    import functools, pathlib
    _t = _s = None
    def get():
        global _t
        if _t is None:
            _t = {w: i for i, w in enumerate(pathlib.Path("words").read_text().split())}
        return _t
    def encode(x): return get().get("c", -1)
    def stop():
        global _s
        if _s is None:
            _s = ["a"]
        return _s
    def keep(x): return [w for w in "ab" if w not in stop()]
    @functools.lru_cache
    def cfg(): return {"k": 1}
    def scale(x): return x * cfg().get("m", 1)
    _seen = None
    def seen():
        global _seen
        if _seen is None:
            _seen = {}
        return _seen
    def remember(x):
        if x not in seen():
            seen()[x] = x * 2
        return seen()[x]
"""


@pytest.mark.parametrize("mode", MODES)
def test_what_is_made_at_the_first_use(mode: str, tmp_path: Path, no_process_left: None) -> None:
    (tmp_path / "words").write_text("a b")
    change = "mod.get()['c'] = 2; mod.stop().append('b'); mod.cfg()['m'] = 5"
    lines = look(tmp_path, "encode keep scale remember", change, mode=mode, mod=MADE)
    assert lines == [
        "encode 0 [2, 2]",
        "encode 2 mod._t['c'] is 2 here, and missing in a worker",
        "keep 0 [[], []]",
        "keep 2 mod._s[1] is 'b' here, and missing in a worker",
        "scale 0 [5, 10]",
        "scale 2 mod.cfg()['m'] is 5 here, and missing in a worker",
        "remember 0 [2, 4]",
        "remember 2 [2, 4]",
    ]


def test_a_table_that_is_read_from_a_file_which_changes(
    tmp_path: Path, no_process_left: None
) -> None:
    (tmp_path / "words").write_text("a c")
    change = "mod.get(); pathlib.Path('words').write_text('c d')"
    assert look(tmp_path, "encode", change, mod=MADE) == [
        "encode 0 [1, 1]",
        "encode 2 mod._t['a'] is 0 here, and missing in a worker",
    ]


def test_a_ring_that_leads_to_another_object(tmp_path: Path, no_process_left: None) -> None:
    text = """
    class N:
        def __init__(self, v):
            self.v, self.next = v, self
        def get(self): return self.next.v
    R = N(1)
    def f(x): return x * R.get()
    """
    zero, two = look(tmp_path, "f", "mod.R.next = mod.N(8)", mod=text)
    assert zero == "f 0 [8, 16]"
    assert two.startswith("f 2 mod.R.next is N(")


def test_what_a_generator_draws_at_the_first_use_is_no_generator(
    tmp_path: Path, no_process_left: None
) -> None:
    text = """
    import numpy as np
    class A:
        def __init__(self): self.p = None
        def __call__(self, i):
            if self.p is None:
                self.p = np.random.default_rng(5).permutation(7)
            return int(self.p[i])
    f = A()
    """
    assert look(tmp_path, "f", "", mod=text) == ["f 0 [4, 2]", "f 2 [4, 2]"]


LATE = {
    "conf": "K, L, UNREAD = 1, 1, 1",
    "other": "M = 1",
    "late": """
        import later.inner as deep, conf
        from conf import L
        class Scaled:
            def __call__(self, x): return x * conf.K
        def g(x): return Scaled()(x)
        def by_name(x): return x * L
        def by_later(x): return deep.h(x)
        def plot(): return conf.UNREAD
    """,
    "plug": """
        K = 1
        class Neg:
            def __call__(self, x): return -x * K
    """,
    "mod": """
        import importlib
        TARGET, LATE = "plug.Neg", "late:g"
        def by_import(x):
            from late import g
            return g(x)
        def by_module(x):
            import late
            return late.by_name(x)
        def by_later(x):
            import late as found
            return found.by_later(x)
        def by_text(x):
            module, name = TARGET.rsplit(".", 1)
            return getattr(importlib.import_module(module), name)()(x)
        def by_late_text(x):
            module, name = LATE.split(":")
            return getattr(importlib.import_module(module), name)(x)
        def by_attribute(x):
            import later
            return later.inner.h(x)
        def by_package(x):
            from later import inner
            return inner.h(x)
    """,
}


@pytest.mark.parametrize("mode", MODES)
def test_modules_that_only_a_step_imports(mode: str, tmp_path: Path, no_process_left: None) -> None:
    package = tmp_path / "later"
    package.mkdir()
    lazy = "def __getattr__(name): return importlib.import_module('later.inner')"
    (package / "__init__.py").write_text(f"import importlib\n{lazy}\n")
    (package / "inner.py").write_text("import other\ndef h(x): return x * other.M\n")
    change = "import conf, plug, other; conf.K = 9; conf.L = 8; other.M = 7; conf.UNREAD = 6"
    readers = "by_import by_module by_later by_text by_late_text by_package by_attribute"
    change += "; plug.K = 4"
    # Before any of them is loaded here.
    assert look(tmp_path, readers, change, "2", mode, **LATE) == [
        "by_import 2 conf.K is 9 here, and 1 in a worker",
        "by_module 2 conf.L is 8 here, and 1 in a worker",
        "by_later 2 other.M is 7 here, and 1 in a worker",
        "by_text 2 plug.K is 4 here, and 1 in a worker",
        "by_late_text 2 conf.K is 9 here, and 1 in a worker",
        "by_package 2 other.M is 7 here, and 1 in a worker",
        "by_attribute 2 other.M is 7 here, and 1 in a worker",
    ]
    assert look(tmp_path, readers, change, "0", mode, **LATE) == [
        "by_import 0 [9, 18]",
        "by_module 0 [8, 16]",
        "by_later 0 [7, 14]",
        "by_text 0 [-4, -8]",
        "by_late_text 0 [9, 18]",
        "by_package 0 [7, 14]",
        "by_attribute 0 [7, 14]",
    ]


HOOKS = """
    import abc, ast, csv, io, json, operator, pickle, datetime as dt, weakref
    import numpy as np
    REN = {"x": "y"}
    RENAME = {}
    XOR = 0
    OFF = dt.timedelta(0)
    K = 1
    class A: k = 1
    class B: k = 2
    class R(ast.NodeTransformer):
        def visit_Name(s, n): return ast.Name(id=REN.get(n.id, n.id), ctx=n.ctx)
    def ren(_): return ast.unparse(R().visit(ast.parse("x+z")))
    class U(pickle.Unpickler):
        def find_class(s, m, n): return RENAME.get(n) or super().find_class(m, n)
    BYTES = pickle.dumps(A())
    def load(_): return U(io.BytesIO(BYTES)).load().k
    class Enc(json.JSONEncoder):
        ndigits = None
        def encode(s, o): return super().encode(o if s.ndigits is None else round(o, s.ndigits))
    def dump(_): return json.dumps(1.23456, cls=Enc)
    class Dec(io.RawIOBase):
        def __init__(s, b): s.b = io.BytesIO(b)
        def readable(s): return True
        def readinto(s, o):
            d = bytes(c ^ XOR for c in s.b.read(len(o)))
            o[:len(d)] = d
            return len(d)
    def dec(_): return Dec(b"ab").read()
    class Z(dt.tzinfo):
        def utcoffset(s, d): return OFF
        def dst(s, d): return dt.timedelta(0)
    def when(_): return dt.datetime.fromtimestamp(0, Z()).hour
    class D(csv.excel): delimiter = ","
    def row(_): return next(csv.reader(io.StringIO("a;b,c"), dialect=D))
    class V:
        def __init__(s, x): s.x = x
        def val(s): return s.x * K
    get = operator.methodcaller("val")
    def caller(x): return get(V(x))
    each = np.frompyfunc(lambda x: x * K, 1, 1)
    def ufunc(x): return each([x]).tolist()
    MASKED = np.ma.masked_array([1, 2, 3], mask=[0, 0, 0])
    def masked(x): return int(MASKED.sum()) * x
    DATA = bytearray(b"ab")
    VIEW = memoryview(DATA)
    def view(x): return VIEW[0]
    class Meta(type):
        reg = {}
        def __new__(m, n, b, d):
            c = super().__new__(m, n, b, d)
            m.reg[n] = c
            return c
    class Base(metaclass=Meta):
        def do(self, x): return x
    def meta(x): return Meta.reg.get("Neg", Base)().do(x)
    class Num(abc.ABC): pass
    Num.register(int)
    def registered(x): return isinstance("x", Num)
    WEAK = weakref.WeakValueDictionary()
    def weak(x): return WEAK["a"].k if "a" in WEAK else 0
"""

SET = """
import datetime
mod.REN["z"] = "w"; mod.RENAME["A"] = mod.B; mod.Enc.ndigits = 2; mod.XOR = 1; mod.K = 3
mod.OFF = datetime.timedelta(hours=2); mod.D.delimiter = ";"; mod.MASKED.mask[1] = True
mod.DATA[0] = 0; mod.Num.register(str)
class Neg(mod.Base):
    def do(self, x): return -x
mod.WEAK["a"] = held = mod.B()
"""

SEEN = {
    "ren": ("['y + w', 'y + w']", "mod.REN['z'] is 'w' here, and missing in a worker"),
    "load": ("[2, 2]", "mod.RENAME['A'] is class mod.B here, and missing in a worker"),
    "dump": ("['1.23', '1.23']", "mod.Enc.ndigits is 2 here, and None in a worker"),
    "dec": ("[b'`c', b'`c']", "mod.XOR is 1 here, and 0 in a worker"),
    "when": ("[2, 2]", "mod.OFF is datetime.timedelta(seconds=7200) here, and datetime.timedelta"),
    "row": ("[['a', 'b,c'], ['a', 'b,c']]", "mod.D.delimiter is ';' here, and ',' in a worker"),
    "caller": ("[3, 6]", "mod.K is 3 here, and 1 in a worker"),
    "ufunc": ("[[3], [6]]", "mod.K is 3 here, and 1 in a worker"),
    "masked": ("[4, 8]", "mod.MASKED"),
    "view": ("[0, 0]", "mod.VIEW is array([0, 98]) of uint8, shape (2,) here, and array([97, 98])"),
    "meta": ("[-1, -2]", "mod.Meta.reg['Neg'] is class __main__.Neg here, and missing in a worker"),
    "registered": ("[True, True]", "mod.Num.register() is {class int, class str} here, and {class"),
    "weak": ("[2, 2]", "mod.WEAK['a'] is B(k=2) here, and missing in a worker"),
}


@pytest.mark.parametrize("mode", MODES)
def test_what_libraries_and_objects_in_c_read(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    lines = look(tmp_path, " ".join(SEEN), SET, mode=mode, mod=HOOKS)
    for (name, (here, there)), zero, two in zip(SEEN.items(), lines[::2], lines[1::2], strict=True):
        assert zero == f"{name} 0 {here}"
        assert two.startswith(f"{name} 2 {there}")


def test_what_libraries_and_objects_in_c_read_is_equal_where_nothing_is_set(
    tmp_path: Path, no_process_left: None
) -> None:
    lines = look(tmp_path, " ".join(SEEN), "", mod=HOOKS)
    for zero, two in zip(lines[::2], lines[1::2], strict=True):
        assert zero.split(" ", 2)[2] == two.split(" ", 2)[2]


def test_a_method_of_an_object_that_travels_by_its_name(
    tmp_path: Path, no_process_left: None
) -> None:
    text = """
    class T:
        scale = 1
        def go(self, x): return x * self.scale
    held = T()
    f = held.go
    """
    assert look(tmp_path, "f", "mod.T.scale = 4", mod=text) == [
        "f 0 [4, 8]",
        "f 2 mod.T.scale is 4 here, and 1 in a worker",
    ]
