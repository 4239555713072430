"""Containers that code adds to and reads are compared as they grow: here within one process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from grain_jax._execution.engine.drift import Watch
from grain_jax._execution.engine.observer import observe
from grain_jax._values.errors import DriftError
from tests.execution.engine.conftest import Make

# Functions of a key, and where they keep what they add.
VOCABULARIES = """
    import collections, numpy as np
    A, B, C, D, E = {}, {}, [], {}, {}
    def by_absence(x):
        if x not in A:
            A[x] = len(A)
        return A[x]
    def by_default(x): return B.setdefault(x, len(B))
    def by_list(x):
        if x not in C:
            C.append(x)
        return C.index(x)
    def by_array(x):
        if x not in D:
            D[x] = np.full(2, len(D))
        return D[x]
    def by_try(x):
        try:
            return E[x]
        except KeyError:
            E[x] = number = str(len(E))
            return number
    class Tokens:
        def __init__(self): self.ids = {}
        def number(self, x): return self.ids.setdefault(x, len(self.ids))
    tokens, table = Tokens(), {"plain": Tokens()}
    def by_object(x): return tokens.number(x)
    def by_table(x): return table["plain"].number(x)
    class Words(dict):
        def number(self, x): return self.setdefault(x, len(self))
    words = Words()
    def by_subclass(x): return words.number(x)
    class Names:
        ids = {}
        @classmethod
        def number(cls, x):
            found = cls.ids.get(x)
            if found is None:
                found = cls.ids[x] = len(cls.ids)
            return found
    def by_class(x): return Names.number(x)
    """

PLACES = {
    "by_absence": ("A", "A['a'] is 0 here, and missing in a worker"),
    "by_default": ("B", "B['a'] is 0 here, and missing in a worker"),
    "by_list": ("C", "C[0] is 'a' here, and 'b' in a worker"),
    "by_array": ("D", "D['b'] is array([1, 1]) of int64, shape (2,) here, and array([0, 0])"),
    "by_try": ("E", "E['b'] is '1' here, and '0' in a worker"),
    "by_object": ("tokens.ids", "tokens.ids['a'] is 0 here, and missing in a worker"),
    "by_table": ("table['plain'].ids", "table['plain'].ids['a'] is 0 here, and missing in a w"),
    "by_subclass": ("words", "words['b'] is 1 here, and 0 in a worker"),
    "by_class": ("Names.ids", "Names.ids['a'] is 0 here, and missing in a worker"),
}


def watching(function: Any) -> Watch:
    found, _ = observe([function], [], [])
    assert found is not None
    return Watch(pickle.loads(pickle.dumps(found)))


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("more", [0, 300])
def test_a_vocabulary_that_the_script_has_filled(name: str, more: int, make: Make) -> None:
    module = make(VOCABULARIES)
    place, text = PLACES[name]
    function = getattr(module, name)
    for word in ["a", "b", *map(str, range(more))]:
        function(word)
    watch = watching(function)
    exec(f"{place}.clear()", vars(module))  # as a worker has it

    def work() -> None:
        watch.look()
        function("b")
        watch.look()

    with pytest.raises(DriftError) as caught:
        work()
    line = str(caught.value).splitlines()[1].strip().partition(".")[2]
    assert line.startswith(text)


def test_one_that_is_filled_alike_is_right(make: Make) -> None:
    module = make(VOCABULARIES)
    for name, (place, _) in PLACES.items():
        function = getattr(module, name)
        watch = watching(function)  # empty, as those of workers
        function("b")
        function("a")
        assert not watch.look()
        watch = watching(function)  # filled as it was imported, say
        function("c")
        assert not watch.look(), place


CACHES = """
    import collections, time, uuid, numpy as np
    held, seen, log, counts, most, times, last, groups, pool = {}, set(), [], {}, {}, {}, {}, {}, []
    named = {}
    def identified(x):
        if x not in named:
            named[x] = uuid.uuid4().hex
        return len(named[x])
    def cached(x):
        if x not in held:
            held[x] = [x, x * 2.0, np.arange(x)]
        return held[x]
    def warned(x):
        if x not in seen:
            seen.add(x)
        return x
    def logged(x):
        if len(log) < 100:
            log.append(-x)
        return x
    def counted(x):
        counts[x % 2] = counts.get(x % 2, 0) + 1
        most[x % 2] = max(most.get(x % 2, 0), x)
        return x
    def throttled(x):
        if time.monotonic() - times.get(0, 0.0) > 1e-9:
            times[x % 1] = time.monotonic()
        return x
    def noted(x):
        last[x % 1] = x
        return x
    def grouped(x):
        groups.setdefault(x % 2, []).append(x)
        return x
    def pooled(x):
        buffer = pool.pop() if pool else [0]
        buffer[0] = x
        pool.append(buffer)
        return buffer[0]
    class Latest:
        def __init__(self): self.held = collections.OrderedDict()
        def get(self, x):
            if x in self.held:
                self.held.move_to_end(x)
            else:
                self.held[x] = [x]
                if len(self.held) > 2:
                    self.held.popitem(last=False)
            return self.held[x]
    latest = Latest()
    def bounded(x): return latest.get(x)
    def lengths(x):
        if len(held) > 100:
            held.clear()
        if x not in held:
            held[x] = x
        return held[x]
    """


@pytest.mark.parametrize(
    "name",
    """
    cached identified warned logged counted throttled noted grouped pooled bounded lengths
    """.split(),  # noqa: SIM905
)
def test_caches_counts_and_times_come_to_no_error(name: str, make: Make) -> None:
    module = make(CACHES)
    function = getattr(module, name)
    for x in range(6):
        function(x)
    watch = watching(function)
    module.latest.held.clear()  # as a worker has it
    for one, held in vars(module).items():
        if type(held) in (dict, list, set) and one[:2] != "__":
            held.clear()
    watch.look()
    for x in (5, 3, 1, 3, 4, 0, 2):
        function(x)
        watch.look()


def test_a_setting_that_code_would_fill_in(make: Make) -> None:
    module = make("scales = {}\ndef f(x):\n    return scales.setdefault(x, 1.0)\n")
    module.scales["a" * 100 + "b"] = 3.0
    watch = watching(module.f)
    module.scales.clear()
    assert watch.look()
    module.f("a" * 100 + "c")
    assert watch.look()
    module.f("a" * 100 + "b")
    with pytest.raises(DriftError, match=r"is 3\.0 here, and 1\.0 in a worker"):
        watch.look()


def test_an_object_that_a_method_makes_which_code_does_not_call(make: Make) -> None:
    module = make(
        """
        class Tokens:
            made = None
            def __init__(self): self.k = 1
            @classmethod
            def get(cls):
                if cls.made is None:
                    cls.made = cls()
                return cls.made
            def scale(self): return self.k
        tokens = Tokens()
        def f(x): return tokens.scale()
        """
    )
    module.Tokens.get()
    found, _ = observe([module.f, module.Tokens], [], [])
    assert found is not None
    module.Tokens.made = None
    assert not Watch(found).look()
