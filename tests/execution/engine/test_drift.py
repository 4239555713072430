"""What code reads from modules is observed, and compared: here within one process."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from grain_jax._execution.engine.drift import Observed, Watch
from grain_jax._execution.engine.observer import observe
from grain_jax._values.errors import DriftError
from tests.execution.engine.conftest import Make


def observed(*roots: Any, ignored: tuple[str, ...] = ()) -> Observed | None:
    found, _ = observe(roots, [], [], ignored)
    return pickle.loads(pickle.dumps(found))  # type: ignore[no-any-return]


def names(*roots: Any, ignored: tuple[str, ...] = ()) -> set[str]:
    found = observed(*roots, ignored=ignored)
    return set() if found is None else {one.name.partition(".")[2] for one in found.observations}


def told(found: Observed | None) -> str:
    assert found is not None
    with pytest.raises(DriftError) as caught:
        Watch(found).look()
    return str(caught.value).splitlines()[1].strip().partition(".")[2]


def test_what_is_observed(make: Make) -> None:
    module = make(
        """
        import os
        import numpy as np
        A, B, C = 1, 2, 3
        class Used:
            a, b, __slots__ = 1, 2, ()
            def method(self):
                return self.a
        class Unused:
            def method(self):
                return C
        def helper(x):
            return x + B
        def function(x):
            return os.sep, np.pi, len(str(x)), Used().method() + helper(x) + A
        """
    )
    assert names(module.function) == {
        *("function", "helper", "A", "B"),
        *("Used", "Used.a", "Used.method", "os", "np"),
    }
    assert names(module.Unused) == {"C", "Unused.method"}
    name = module.__name__
    assert names(module.Unused, ignored=(f"{name}.Unused", f"{name}.C")) == set()
    assert observed(module.Unused, ignored=(name,)) is None
    assert observed(len, textwrap.dedent, Path, int) is None


def test_code_that_travels_by_value_brings_its_own_globals(make: Make) -> None:
    module = make("A = 1\nB = 2\ndef f(x):\n    return x + B\n")
    scope = {"__name__": "__main__", "module": module, "OWN": 3}
    exec("def own(x):\n    return module.A, module.f(x), OWN", scope)
    found, _ = observe([], [scope["own"]], [])
    assert found is not None
    assert {one.name.partition(".")[2] for one in found.observations} == {"A", "B", "f"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("module.held.scale()", "held.k is 9 here, and 1 in a worker"),
        ("module.held.encode(x)", "held.ids['a'] is 0 here, and missing in a worker"),
        ("module.Config.get().k", "Config.one.k is 9 here, and 1 in a worker"),
    ],
)
def test_methods_that_code_of_the_script_calls_are_followed(
    body: str, text: str, make: Make
) -> None:
    module = make(
        """
        class Held:
            def __init__(self): self.k, self.ids = 1, {}
            def scale(self): return self.k
            def encode(self, x): return self.ids.get(x, -1)
        held = Held()
        class Config:
            one = None
            def __init__(self): self.k = 1
            @classmethod
            def get(cls):
                if cls.one is None:
                    cls.one = cls()
                return cls.one
        """
    )
    scope = {"__name__": "__main__", "module": module}
    exec(f"def own(x):\n    return {body}", scope)
    config = module.Config.get()
    module.held.k, module.held.ids["a"], config.k = 9, 0, 9
    found, _ = observe([], [scope["own"]], [])
    module.held.k, config.k = 1, 1
    module.held.ids.clear()
    assert told(found) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("A = 7", "A is 1 here, and 7 in a worker"),
        ("del A", "A is 1 here, and missing in a worker"),
        ("Used.a = 7", "Used.a is 1 here, and 7 in a worker"),
        ("Used.method = lambda self: 3", "Used.method is function"),
        ("Used.fixed = staticmethod(lambda x: x)", "Used.fixed is function"),
        ("Used.size = property(lambda self: 2)", "Used.size.fget is function"),
        ("decorated.__wrapped__.__code__ = (lambda x: x + 2).__code__", "the code of"),
        ("function.__defaults__ = (8,)", "function(k=) is 0 here, and 8 in a worker"),
        ("REGISTRY['a'] = len", "REGISTRY['a'] is function"),
        ("MADE = None", "MADE is an object of type object here, and None in a worker"),
        ("Base.b = 7", "Base.b is 1 here, and 7 in a worker"),
    ],
)
def test_what_is_compared(change: str, text: str, make: Make) -> None:
    module = make(
        """
        import functools
        import numpy as np
        A, MADE = 1, object()
        class Base:
            b = 1
        class Used(Base):
            a = 1
            def method(self):
                return self.a + self.b + self.fixed(2) + self.size
            @staticmethod
            def fixed(x):
                return x
            @property
            def size(self):
                return 1
        @functools.lru_cache
        def decorated(x):
            return x + 1
        REGISTRY = {"a": decorated}
        def function(x, k=0):
            return Used().method(), A, decorated(x), REGISTRY["a"](x), np.pi, MADE
        """
    )
    found = observed(module.function, module.Used)
    Watch(found).look()  # type: ignore[arg-type]
    exec(change, vars(module))
    line = told(found)
    if text == "the code of":
        assert line.startswith(f"decorated differs: {module.__file__} has changed")
    else:
        assert line.startswith(text)


def test_what_a_module_imports_later_is_compared_later(make: Make) -> None:
    late = make("SCALE = 1\n")
    module = make(f"def f(x):\n    import {late.__name__} as late\n    return x * late.SCALE\n")
    found = observed(module.f)
    assert found is not None
    del sys.modules[late.__name__]
    watch = Watch(found)
    assert watch.look()  # there is more to compare
    importlib.import_module(late.__name__)
    assert not watch.look()
    late.SCALE = 7  # type: ignore[attr-defined]
    sys.modules[late.__name__] = late
    assert told(found) == "SCALE is 1 here, and 7 in a worker"


def test_modules_that_make_their_variables_when_asked(make: Make) -> None:
    module = make(
        """
        import sys
        def __getattr__(name):
            if name == "LAZY":
                globals()["LAZY"] = 3
                return 3
            raise AttributeError(name)
        def f(x):
            return sys.modules[__name__].LAZY
        """
    )
    other = make(f"import {module.__name__} as m\ndef f(x):\n    return m.LAZY\n")
    assert module.LAZY == 3
    found = observed(other.f)
    assert found is not None
    del vars(module)["LAZY"]
    watch = Watch(found)
    assert watch.look()
    assert other.f(1) == 3
    assert not watch.look()


def test_code_that_an_import_hook_has_rewritten_is_left_alone(make: Make) -> None:
    module = make("A = 1\ndef f(x):\n    assert A\n    return x + A\n")
    module.f.__globals__["__loader__"] = types.SimpleNamespace()  # as pytest has it
    found = observed(module.f)
    module.f.__code__ = (lambda x: x + A).__code__  # type: ignore[name-defined]  # noqa: F821
    assert not Watch(found).look()  # type: ignore[arg-type]
    module.A = 7  # type: ignore[attr-defined]
    assert told(found) == "A is 1 here, and 7 in a worker"


def test_a_value_that_raises_as_it_is_looked_at_ends_nothing(make: Make) -> None:
    module = make(
        """
        class Meta(type):
            def __getattribute__(self, name):
                raise RuntimeError(name)
            def __instancecheck__(self, other):
                raise RuntimeError("instancecheck")
        class Bad(metaclass=Meta):
            def __getattribute__(self, name):
                raise RuntimeError(name)
        bad, other = Bad(), 1
        def f(x):
            return bad, other, Bad
        """
    )
    found = observed(module.f)
    if found is not None:
        Watch(found).look()


def test_more_differences_than_fit_are_counted(make: Make) -> None:
    values = "\n".join(f"A{n} = {n}" for n in range(8))
    module = make(f"{values}\ndef f(x):\n    return {', '.join(f'A{n}' for n in range(8))}\n")
    found = observed(module.f)
    assert found is not None
    for n in range(8):
        vars(module)[f"A{n}"] = "other"
    with pytest.raises(DriftError) as caught:
        Watch(found).look()
    lines = str(caught.value).splitlines()
    assert len(lines) == 8
    assert lines[6] == "  and 3 more"


def test_what_a_function_that_code_calls_assigns_is_left_alone(make: Make) -> None:
    module = make(
        """
        ready = False
        strength, scale = 1, 1
        def setup():
            global ready
            ready = True
        def set_scale(x):
            global scale
            scale = x
        class Augment:
            def __init__(self, x):
                global strength
                strength = x
            def map(self, x):
                if not ready:
                    setup()
                return x * strength * scale
        """
    )
    found = observed(module.Augment)
    module.setup()
    assert not Watch(found).look()  # type: ignore[arg-type]
    module.Augment(7)
    assert told(found) == "strength is 1 here, and 7 in a worker"
    module.Augment(1)
    module.set_scale(7)
    assert told(found) == "scale is 1 here, and 7 in a worker"


def test_modules_that_objects_and_containers_hold_are_looked_into(make: Make) -> None:
    config = make("scale = other = 2\ndef scaled(x): return x * scale\ntotal = 0")
    module = make(
        f"""
        import {config.__name__} as config
        table = {{"config": [config]}}
        class Held:
            def __init__(self): self.config = config
            def map(self, x): return x * self.config.scale
        held = Held()
        def by_table(x): return x * table["config"][0].scale
        def by_held(x): return held.map(x)
        def by_function(x): return table["config"][0].scaled(x)
        """
    )
    for reader in (module.by_table, module.by_held, module.by_function):
        found = observed(reader)
        assert found is not None
        names = {one.name for one in found.observations}
        assert f"{config.__name__}.scale" in names
        assert names.isdisjoint({f"{config.__name__}.other", f"{config.__name__}.total"})
        assert not Watch(found).look()
        exec("scale = 9", vars(config))
        assert told(found) == "scale is 2 here, and 9 in a worker"
        exec("scale = 2", vars(config))


def test_a_variable_that_holds_a_module_is_compared(make: Make) -> None:
    module = make(
        """
        import json, os.path
        codec, later = json, None
        def f(x):
            global later
            if later is None:
                import json as later
            return codec.dumps(x), later.dumps(x), os.path.sep
        """
    )
    module.f(1)
    found = observed(module.f)
    assert found is not None
    module.later = None  # as a worker that has not called it
    assert Watch(found).look()
    exec("import pickle as codec", vars(module))
    assert told(found) == "codec is module json here, and module pickle in a worker"


def test_a_wrapper_lies_where_its_name_says(make: Make) -> None:
    tools = make(
        """
        import functools
        def counted(function):
            calls = 0
            @functools.wraps(function)
            def inner(x):
                nonlocal calls
                calls += 1
                return function(x)
            return inner
        """
    )
    module = make(f"from {tools.__name__} import *\n@counted\ndef f(x):\n    return x + 1\n")
    found = observed(module.f)
    module.f(1)
    assert not Watch(found).look()  # type: ignore[arg-type]
    exec("@counted\ndef f(x):\n    return x + 2\n", vars(module))
    assert told(found).startswith("f with function differs: ")


def test_the_modules_and_globals_of_a_process_are_its_own(make: Make) -> None:
    module = make(
        """
        import sys
        modules, scope, new = sys.modules, globals(), 1
        def f(x):
            return modules[str(x)], len(scope)
        """
    )
    found = observed(module.f)
    make("")
    module.new = 2  # type: ignore[attr-defined]
    assert not Watch(found).look()  # type: ignore[arg-type]


SEEN = """
    import collections, configparser, contextvars, functools, importlib, operator, sys, threading
    import array
    import numpy as np, pandas as pd, polars as pl
    NAME, NAMES, K = "scale", ("a", "scale"), 2
    scale = unread = 2
    _values = {"lazy": 2}
    def __getattr__(name):
        if name in _values:
            return _values[name]
        raise AttributeError(name)
    own = sys.modules[__name__]
    def by_name(x): return getattr(own, NAME)
    def by_names(x): return [getattr(own, one) for one in NAMES[1:]]
    def by_import(x): return importlib.import_module("MODULE").K
    def by_modules(x): return sys.modules["MODULE"].K
    def by_globals(x): return globals()["K"]
    def by_module_getattr(x): return own.lazy
    def gained(x): return gained.k
    gained.k = 2
    class Meta(type):
        k = 2
        @property
        def size(cls): return cls.k
        def __getitem__(cls, name): return cls.table[name]
    class Sized(metaclass=Meta):
        table = {"k": 2}
    def by_property_of_a_metaclass(x): return Sized.size
    def by_item_of_a_metaclass(x): return Sized["k"]
    class Plugin:
        known = []
        def __init_subclass__(cls): Plugin.known.append(cls)
    class First(Plugin): pass
    def by_known(x): return [kind() for kind in Plugin.known]
    def by_subclasses(x): return Plugin.__subclasses__()
    @functools.singledispatch
    def converted(x): return x
    def by_dispatch(x): return converted(x)
    def closing(held):
        def inner(x): return held["k"]
        return inner
    held = {"k": 2}
    closure = closing(held)
    def by_closure(x): return closure(x)
    parser = configparser.ConfigParser()
    parser.read_string("[a]\\nk=2\\n")
    section = parser["a"]
    chained, user = collections.ChainMap({"k": 2}), collections.UserDict(k=2)
    items, words = collections.UserList([2]), array.array("i", [2])
    variable, local = contextvars.ContextVar("variable", default=2), threading.local()
    local.k = 2
    item, attribute, method = operator.itemgetter(0), operator.attrgetter("a"), None
    method = operator.methodcaller("get", "a", default=2)
    polynomial = np.poly1d([1, 2])
    frame, series = pd.DataFrame({"k": [2], "t": ["a"]}), pd.Series([2])
    polar = pl.DataFrame({"k": [2], "t": ["a"]})
    def by_parser(x): return parser["a"]["k"]
    def by_section(x): return section["k"]
    def by_chained(x): return chained["k"]
    def by_user(x): return user["k"]
    def by_items(x): return items[0]
    def by_words(x): return words[0]
    def by_variable(x): return variable.get()
    def by_local(x): return local.k
    def by_item(x): return item(x)
    def by_attribute(x): return attribute(x)
    def by_method(x): return method(x)
    def by_polynomial(x): return polynomial(x)
    def by_frame(x): return frame["k"]
    def by_series(x): return series[0]
    def by_polar(x): return polar["k"]
    class Field:
        def __set_name__(self, owner, name): self.name = "_" + name
        def __get__(self, held, owner=None): return held.__dict__.get(self.name, 2)
        def __set__(self, held, value): held.__dict__[self.name] = value
    class Config:
        field = Field()
    config = Config()
    config.field = 2
    def by_descriptor(x): return config.field
    import jax.numpy as jnp
    number = jnp.asarray(2)
    def by_jax_array(x): return number
    @functools.cache
    def cached(): return {"k": 2}
    def by_cache(x): return cached()["k"]
    @functools.lru_cache
    def bounded(*given): return {"k": 2}
    def by_small_cache(x): return bounded()["k"]
    class Single:
        one, k = None, 2
        @staticmethod
        @functools.cache
        def read(): return {"k": 2}
        @classmethod
        def get(cls):
            if cls.one is None:
                cls.one = cls()
            return cls.one
    cached(), bounded(), Single.read(), Single.get()
    def by_method_cache(x): return Single.read()["k"]
    def by_single(x): return Single.get().k
    counts = {"calls": 0, "scale": 2}
    def by_entry(x):
        counts["calls"] += 1
        return counts["scale"]
    class Words(dict):
        def scaled(self): return scale
    listed = Words()
    def by_method_of_a_dict(x): return listed.scaled()
"""


@pytest.mark.parametrize(
    ("reader", "change", "text"),
    [
        ("by_name", "scale = 9", "scale is 2 here, and 9 in a worker"),
        ("by_names", "scale = 9", "scale is 2 here, and 9 in a worker"),
        ("by_import", "K = 9", "K is 2 here, and 9 in a worker"),
        ("by_modules", "K = 9", "K is 2 here, and 9 in a worker"),
        ("by_globals", "K = 9", "K is 2 here, and 9 in a worker"),
        ("by_module_getattr", "_values['lazy'] = 9", "_values['lazy'] is 2 here, and 9 in"),
        ("gained", "gained.k = 9", "gained.k is 2 here, and 9 in a worker"),
        ("by_property_of_a_metaclass", "Meta.k = 9", "Meta.k is 2 here, and 9 in a worker"),
        ("by_item_of_a_metaclass", "Sized.table['k'] = 9", "Sized.table['k'] is 2 here, and 9 in"),
        ("by_known", "class B(Plugin): pass", "Plugin.known[1] is missing here, and class"),
        ("by_subclasses", "class B(Plugin): pass", "Plugin.__subclasses__() is {class"),
        (
            "by_dispatch",
            "converted.register(int, by_item)",
            "converted.registry[class int] is",
        ),
        ("by_closure", "held['k'] = 9", "closure with held['k'] is 2 here, and 9"),
        ("by_parser", "parser['a']['k'] = '9'", "parser._sections['a']['k'] is '2' here, and '9'"),
        ("by_section", "section['k'] = '9'", "section._parser._sections['a']['k'] is '2' here"),
        ("by_chained", "chained['k'] = 9", "chained.maps[0]['k'] is 2 here, and 9 in a worker"),
        ("by_user", "user['k'] = 9", "user.data['k'] is 2 here, and 9 in a worker"),
        ("by_items", "items[0] = 9", "items.data[0] is 2 here, and 9 in a worker"),
        ("by_words", "words[0] = 9", "words is array([2]) of int32, shape (1,) here"),
        ("by_variable", "variable.set(9)", "variable.get() is 2 here, and 9 in a worker"),
        ("by_local", "local.k = 9", "local.k is 2 here, and 9 in a worker"),
        ("by_item", "item = operator.itemgetter(1)", "item(0) is 0 here, and 1 in a worker"),
        ("by_attribute", "attribute = operator.attrgetter('b')", "attribute(0) is 'a' here, and"),
        (
            "by_method",
            "method = operator.methodcaller('get', 'a', default=9)",
            "method(default=) is 2 here, and 9",
        ),
        ("by_polynomial", "polynomial = np.poly1d([1, 9])", "polynomial.coeffs is array([1, 2])"),
        ("by_descriptor", "config.field = 9", "config._field is 2 here, and 9 in a worker"),
        ("by_jax_array", "number = jnp.asarray(9)", "number is 2 of dtype int32 here, and 9"),
        ("by_cache", "cached()['k'] = 9", "cached()['k'] is 2 here, and 9 in a worker"),
        ("by_small_cache", "bounded()['k'] = 9", "bounded()['k'] is 2 here, and 9 in a worker"),
        ("by_method_cache", "Single.read()['k'] = 9", "Single.read()['k'] is 2 here, and 9 in"),
        ("by_single", "Single.get().k = 9", "Single.one.k is 2 here, and 9 in a worker"),
        ("by_entry", "counts['scale'] = 9", "counts['scale'] is 2 here, and 9 in a worker"),
        ("by_method_of_a_dict", "scale = 9", "scale is 2 here, and 9 in a worker"),
        ("by_frame", "frame.loc[0, 'k'] = 9", "frame['k'] is array([2]) of int64"),
        ("by_frame", "frame.loc[0, 't'] = 'b'", "frame['t'][1][0] is 'a' here, and 'b'"),
        ("by_series", "series[0] = 9", "series.values is array([2]) of int64"),
        ("by_polar", "polar = polar.with_columns(pl.Series('k', [9]))", "polar['k'] is array([2])"),
        (
            "by_polar",
            "polar = polar.with_columns(pl.Series('t', ['b']))",
            "polar['t'][1][0] is 'a'",
        ),
    ],
)
def test_what_is_seen(reader: str, change: str, text: str, make: Make) -> None:
    module = make(SEEN)
    found = observed(getattr(module, reader))
    assert found is not None
    exec("unread = 3", vars(module))
    assert not Watch(found).look()
    exec(change, vars(module))
    assert told(found).startswith(text)


def test_singletons_of_a_metaclass_are_compared_once_they_are_made(make: Make) -> None:
    module = make(
        """
        class Meta(type):
            instances = {}
            def __call__(cls):
                if cls not in cls.instances:
                    cls.instances[cls] = super().__call__()
                return cls.instances[cls]
        class Config(metaclass=Meta):
            def __init__(self): self.k = 2
        class Other(metaclass=Meta):
            def __init__(self): self.k = 2
        def f(x): return Config().k, Other().k
        """
    )
    module.f(1)
    module.Other().k = 9
    found = observed(module.f)
    assert found is not None
    watch = Watch(found)
    module.Meta.instances.clear()  # as a worker that has not called it
    assert watch.look()
    module.Config()
    assert watch.look()
    module.Other()
    with pytest.raises(DriftError, match=r"Other\]\.k is 9 here, and 2 in a worker"):
        watch.look()


def test_what_a_cache_holds_is_left_alone_by_the_name_in_the_message(make: Make) -> None:
    module = make(
        """
        import functools
        @functools.cache
        def read(): return {"k": 2}
        def f(x): return read()["k"]
        """
    )
    module.f(1)
    found = observed(module.f)
    assert found is not None
    module.read()["k"] = 9
    name = f"{module.__name__}.read()"
    with pytest.raises(DriftError, match=re.escape(f"ignore_globals=('{name}',)")):
        Watch(found).look()
    assert names(module.f) - names(module.f, ignored=(name,)) == {"read()"}


@pytest.mark.parametrize(
    "text",
    [
        # What code changes itself, in closures, functions, threads and at the first use.
        """
        def counted(f):
            seen, table = {}, {"k": 1}
            def inner(x):
                seen[x] = seen.get(x, 0) + 1
                return f(x) * table["k"]
            return inner
        @counted
        def g(x): return x
        def f(x): return g(x)
        """,
        "def f(x):\n    f.count += 1\n    return f.count\nf.count = 0",
        """
        def f(x):
            if not hasattr(f, "table"):
                f.table = [x]
            return getattr(f, "table")
        """,
        """
        import threading
        local = threading.local()
        def f(x):
            found = getattr(local, "made", None)
            if found is None:
                found = local.made = [x]
            return found
        """,
        """
        class Once(type):
            made = {}
            def __call__(cls, *given):
                if cls not in Once.made:
                    Once.made[cls] = super().__call__(*given)
                return Once.made[cls]
        class Table(metaclass=Once):
            pass
        def f(x): return Table()
        """,
        """
        table = {"calls": 0, "warned": False, "scale": 2}
        times = {"read": 0.0}
        def f(x):
            table["calls"] += 1
            table["warned"] = True
            times["re" + "ad"] += 0.1
            return x * table["scale"]
        """,
        """
        import collections
        class Recent(collections.OrderedDict):
            def find(self, key):
                if key not in self:
                    self[key] = key
                self.move_to_end(key)
                while len(self) > 1: self.popitem(last=False)
                return self[key]
        class Missing(dict):
            def __missing__(self, key):
                self[key] = key
                return key
        recent, missing = Recent(), Missing()
        def f(x): return recent.find(x) + missing[x]
        """,
        """
        import collections, functools, os
        @functools.cache
        def state(): return {"n": 0, "size": 1}
        @functools.lru_cache(maxsize=1)
        def log(): return []
        @functools.cache
        def total(): return collections.Counter()
        @functools.cache
        def buffer(): return {"seen": []}
        @functools.cache
        def process(): return os.getpid()
        @functools.cache
        def nothing(): return None
        @functools.cache
        def square(x): return x * x
        class Settings:
            made = None
            @classmethod
            @functools.cache
            def counts(cls): return {"n": 0}
            @staticmethod
            @functools.cache
            def table(): return {"n": 0}
            @classmethod
            def get(cls):
                if cls.made is None:
                    cls.made = Settings()
                return cls.made
            def __init__(self): self.n = 0
        def f(x):
            state()["n"] += x
            held = state()
            held["n"] += 1
            held["last"] = x
            log().append(x)
            total().update(["x"])
            buffer()["seen"].append(x)
            Settings.counts()["n"] += 1
            Settings.table()["n"] += 1
            Settings.get().n += 1
            return square(x), nothing(), process()
        """,
        """
        class Cache:
            def __init__(self): self._held, self._order, self._n = {}, [], {"calls": 0}
            def __contains__(self, key): return key in self._held
            def __getitem__(self, key):
                self._n["calls"] += 1
                return self._held[key]
            def __setitem__(self, key, value):
                self._held[key] = value
                self._order.append(key)
        class Counts:
            def __init__(self): self._counts = {"read": 0}
            def __getitem__(self, key): return self._counts[key]
            def __setitem__(self, key, value): self._counts[key] = value
        cache, counts = Cache(), Counts()
        held = {frozenset([1]): cache, 2: [cache] * 300, 3: {n: cache for n in range(300)}}
        def f(x):
            counts["read"] += 1
            for n in range(x):
                if n not in cache:
                    cache[n] = n
            return cache[0], held
        """,
        """
        import functools
        class Tables:
            @functools.cached_property
            def table(self): return [1, 2]
        class Lazy:
            def __init__(self): self.__dict__["_module"] = None
            def __getattr__(self, name):
                if self._module is None:
                    self.__dict__["_module"] = __import__("math")
                return getattr(self._module, name)
        tables, math = Tables(), Lazy()
        def f(x): return tables.table[0] * math.floor(x)
        """,
        """
        import functools
        @functools.singledispatch
        def g(x): return x
        @g.register
        def _(x: int): return x + 1
        def f(x): return g(x)
        """,
    ],
)
def test_what_code_changes_itself_is_no_difference(text: str, make: Make) -> None:
    module = make(text)
    found = observed(module.f)
    assert found is not None
    module.f(1)  # as a worker that has read a record
    module.f(2)
    Watch(found).look()
    found = observed(module.f)
    assert found is not None
    exec(Path(module.__file__ or "").read_text(), vars(module))  # as a worker that has not
    Watch(found).look()


def test_attributes_that_code_only_assigns_are_left_alone(make: Make) -> None:
    module = make(
        """
        import time
        class Timer:
            elapsed = scale = 0.0
            def __enter__(self): self.start = time.perf_counter()
            def __exit__(self, *raised): Timer.elapsed = time.perf_counter() - self.start
        class Progress:
            def __init__(self): self.last = self.read = None
            def tick(self, x): self.last = self.read = x
            def __repr__(self): return str(self.last)
            def report(self): return self.last
        progress = Progress()
        def counted(function):
            def inner(x):
                inner.time = time.time()
                return function(x)
            return inner
        @counted
        def scaled(x): return x
        def f(x):
            with Timer():
                progress.tick(x)
                return scaled(x), Timer.scale, progress.read
        """
    )
    found = observed(module.f)
    module.f(1)
    module.progress.read = None
    assert not Watch(found).look()  # type: ignore[arg-type]
    module.progress.read = 7
    assert told(found) == "progress.read is None here, and 7 in a worker"
    module.progress.read, module.Timer.scale = None, 7
    assert told(found) == "Timer.scale is 0.0 here, and 7 in a worker"


LAZY = """
    import functools
    class Single:
        table = None
        @classmethod
        def get(cls):
            if cls.table is None:
                cls.table = {"a": 1}
            return cls.table
    words = stops = None
    def get():
        global words
        if words is None:
            words = {"a": 1}
        return words
    def stop():
        global stops
        if stops is None:
            stops = ["a"]
        return stops
    @functools.lru_cache
    def config(): return {"k": 1}
    def by_words(x): return get().get(x)
    def by_stops(x): return x in stop()
    def by_config(x): return config().get("m", 1)
    def by_single(x): return Single.get().get(x)
    def lent(): return stop()
    def adds(x):
        known = get()
        if x not in known:
            known[x] = x
        if len(lent()) < 9:
            lent().append(x)
        if len(Single.get()) < 9:
            Single.get()[x] = x
        return known[x]
"""


@pytest.mark.parametrize(
    ("reader", "change", "text"),
    [
        ("by_words", "get()['c'] = 2", "words['c'] is 2 here, and missing in a worker"),
        ("by_stops", "stop().append('b')", "stops[1] is 'b' here, and missing in a worker"),
        ("by_config", "config()['m'] = 5", "config()['m'] is 5 here, and missing in a worker"),
        ("by_single", "Single.get()['b'] = 5", "Single.table['b'] is 5 here, and missing in a"),
    ],
)
def test_what_is_made_at_the_first_use_is_compared_whole(
    reader: str, change: str, text: str, make: Make
) -> None:
    module = make(LAZY)
    exec(change, vars(module))
    found = observed(getattr(module, reader))
    assert found is not None
    exec(Path(module.__file__ or "").read_text(), vars(module))  # as a worker
    watch = Watch(found)
    watch.look()
    getattr(module, reader)("a")
    with pytest.raises(DriftError, match=re.escape(text)):
        watch.look()


def test_what_code_adds_to_by_what_functions_return_is_compared_where_both_have_it(
    make: Make,
) -> None:
    module = make(LAZY)
    for x in ("b", "c"):
        module.adds(x)
    found = observed(module.adds)
    assert found is not None
    exec(Path(module.__file__ or "").read_text(), vars(module))  # as a worker
    watch = Watch(found)
    watch.look()
    module.adds("b")
    watch.look()


def test_a_ring_is_not_what_leads_to_another_object(make: Make) -> None:
    module = make(
        """
        class Node:
            def __init__(self, value):
                self.value, self.next = value, self
        ring = Node(1)
        ring.next = Node(1)
        ring.next.next = ring
        def f(x): return ring.next.next.value
        """
    )
    found = observed(module.f)
    assert not Watch(found).look()  # type: ignore[arg-type]
    module.ring.next = module.ring
    assert told(found).startswith("ring.next is Node(")


HELD = """
    import abc, ast, collections, csv, ctypes, datetime, enum, io, json, operator, pickle, weakref
    import functools, string, struct, xml.parsers.expat
    import numpy as np
    K = 2
    class Visitor(ast.NodeVisitor):
        def visit_Name(self, node): return K
    def by_visitor(x): return Visitor().visit(ast.parse("x"))
    class Reader(io.RawIOBase):
        def readable(self): return True
        def readinto(self, out): return K
    buffered = io.BufferedReader(Reader())
    def by_reader(x): return Reader().read()
    def by_buffered(x): return buffered.read()
    class Zone(datetime.tzinfo):
        def utcoffset(self, date): return K
    def by_zone(x): return datetime.datetime.fromtimestamp(0, Zone())
    class Encoder(json.JSONEncoder):
        digits = 2
        def encode(self, x): return super().encode(round(x, self.digits))
    def by_encoder(x): return json.dumps(x, cls=Encoder)
    encoder = Encoder()
    def by_encoder_object(x): return encoder.encode(x)
    class Dialect(csv.excel):
        delimiter = ","
    def by_dialect(x): return csv.reader(io.StringIO("a;b"), dialect=Dialect)
    class Mode(enum.Enum):
        A = 1
        @classmethod
        def _missing_(cls, value): return K
    def by_mode(x): return Mode(x)
    class Value:
        def __init__(self, x): self.x = x
        def scaled(self): return self.x * K
        @property
        def inner(self): return K
    get = operator.methodcaller("scaled")
    take = operator.attrgetter("x.inner")
    bound = functools.partial(getattr, name="inner")
    def by_method_caller(x): return get(Value(x))
    def by_getter(x): return take(Value(x))
    def by_bound(x): return bound(Value(x))
    each = np.frompyfunc(lambda x: x * K, 1, 1)
    def by_ufunc(x): return each([x])
    functions = np.array([lambda x: x * K, len], dtype=object)
    def by_array(x): return functions[0](x)
    key = functools.cmp_to_key(lambda a, b: K)
    def by_key(x): return sorted([x], key=key)
    callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: K)
    def by_callback(x): return callback()
    expat = xml.parsers.expat.ParserCreate()
    expat.StartElementHandler = lambda name, given: K
    def by_expat(x): return expat.Parse(x)
    masked = np.ma.masked_array([1, 2, 3], mask=[0, 0, 0])
    def by_mask(x): return masked.sum()
    data = bytearray(b"ab")
    view = memoryview(data)
    def by_view(x): return view[0]
    class Meta(type):
        known = {}
        def __new__(meta, name, bases, space):
            made = super().__new__(meta, name, bases, space)
            meta.known[name] = made
            return made
    class Base(metaclass=Meta): pass
    def by_meta(x): return Meta.known.get(x, Base)()
    class Number(abc.ABC): pass
    def by_register(x): return isinstance(x, Number)
    class Kept:
        k = 2
    kept = [Kept(), Kept()]
    by_name = weakref.WeakValueDictionary(a=kept[0])
    by_object = weakref.WeakKeyDictionary()
    group = weakref.WeakSet()
    single = weakref.ref(kept[0])
    def by_weak_values(x): return by_name[x].k
    def by_weak_keys(x): return by_object[x]
    def by_weak_set(x): return x in group
    def by_reference(x): return single().k
    class Words(dict):
        unknown = 2
    class Text(str): pass
    class Rows(np.ndarray): pass
    words, text, rows = Words(a=1), Text("a"), np.array([1]).view(Rows)
    text.length = rows.scale = 2
    def by_words(x): return words.get(x, words.unknown)
    def by_text(x): return text.length
    def by_rows(x): return rows * rows.scale
    lists, recent = collections.defaultdict(list), collections.deque([], 2)
    def by_factory(x): return lists.copy()[x]
    def by_recent(x): return recent.copy().maxlen
    layout, line = struct.Struct("<i"), string.Template("$a")
    def by_layout(x): return layout.unpack(x)
    def by_template(x): return line.substitute(a=x)
    rules = {"a": "x * K"}
    def by_eval(x): return eval(rules["a"])
    def by_eval_of_a_constant(x): return eval("x + K")
    class Flag(enum.Flag):
        A, B = 1, 2
    def by_flag(x): return Flag(x) & Flag.B
    accepted = int | str
    def by_union(x): return isinstance(x, accepted)
"""


@pytest.mark.parametrize(
    ("reader", "change", "text"),
    [
        *(
            (f"by_{name}", "K = 9", "K is 2 here, and 9 in a worker")
            for name in """
            visitor reader buffered zone mode method_caller getter bound ufunc array key callback
            expat eval eval_of_a_constant
            """.split()  # noqa: SIM905
        ),
        ("by_encoder", "Encoder.digits = 9", "Encoder.digits is 2 here, and 9 in a worker"),
        ("by_encoder_object", "encoder.digits = 9", "encoder.digits is 2 here, and 9 in a"),
        ("by_dialect", "Dialect.delimiter = ';'", "Dialect.delimiter is ',' here, and ';' in a"),
        ("by_mask", "masked.mask[1] = True", "masked"),
        ("by_mask", "masked.fill_value = 7", "masked.fill_value is 999999 of dtype int64 here"),
        ("by_view", "data[0] = 0", "view is array([97, 98]) of uint8, shape (2,) here, and"),
        ("by_meta", "class New(Base): pass", "Meta.known['New'] is missing here, and class"),
        ("by_register", "Number.register(str)", "Number.register() is set() here, and {class"),
        ("by_weak_values", "kept[0].k = 9", "by_name['a'].k is 2 here, and 9 in a worker"),
        ("by_weak_values", "by_name['b'] = kept[1]", "by_name['b'] is missing here, and Kept"),
        ("by_weak_keys", "by_object[kept[0]] = 9", "by_object[Kept"),
        ("by_weak_set", "group.add(kept[0])", "group is set() here, and {Kept"),
        ("by_reference", "kept[0].k = 9", "single().k is 2 here, and 9 in a worker"),
        ("by_words", "words.unknown = 9", "words.unknown is 2 here, and 9 in a worker"),
        ("by_text", "text.length = 9", "text.length is 2 here, and 9 in a worker"),
        ("by_rows", "rows.scale = 9", "rows.scale is 2 here, and 9 in a worker"),
        ("by_factory", "lists.default_factory = int", "lists.default_factory is class list here"),
        ("by_recent", "recent = collections.deque([], 9)", "recent.maxlen is 2 here, and 9 in"),
        ("by_layout", "layout = struct.Struct('>i')", "layout.format is '<i' here, and '>i' in"),
        ("by_template", "line = string.Template('$a!')", "line.template is '$a' here, and '$a!'"),
        ("by_union", "accepted = int | float", "accepted is int | str here, and int | float in"),
    ],
)
def test_what_libraries_and_objects_in_c_read_is_seen(
    reader: str, change: str, text: str, make: Make
) -> None:
    module = make(HELD)
    found = observed(getattr(module, reader))
    assert found is not None
    assert not Watch(found).look()
    exec(change, vars(module))
    assert told(found).startswith(text)


def test_combinations_of_flags_are_no_difference(make: Make) -> None:
    module = make(HELD)
    assert module.Flag.A | module.Flag.B
    found = observed(module.by_flag)
    exec(Path(module.__file__ or "").read_text(), vars(module))  # as a worker
    assert not Watch(found).look()  # type: ignore[arg-type]
