"""Ways by which code reads what the script has set in a module: each is seen."""

from __future__ import annotations

import pytest

from tests.execution.engine.conftest import Make
from tests.execution.engine.test_fills import told

# What the script does to a module, `m`, and the module's code with a step `f`.
WAYS = {
    "a method of a dict": (
        "m._d['k'] = 5",
        """
        _d = {'k': 2}
        get = _d.get
        def f(x):
            return get('k') * x
        """,
    ),
    "a view": (
        "m._d['k'] = 5",
        """
        _d = {'k': 2}
        K = _d.values()
        def f(x):
            return list(K)[0] * x
        """,
    ),
    "an order": (
        "m.D.move_to_end('a')",
        """
        import collections
        D = collections.OrderedDict(a=1, b=2)
        def f(x):
            return list(D)[0]
        """,
    ),
    "a mapping": (
        "m.D['j'] = 5",
        """
        import collections.abc as c
        class Cfg(c.MutableMapping):
            def __init__(s): s._s = {}
            def __getitem__(s, k): return s._s[k]
            def __setitem__(s, k, v): s._s[k] = v
            def __delitem__(s, k): del s._s[k]
            def __iter__(s): return iter(s._s)
            def __len__(s): return len(s._s)
        D = Cfg()
        D["k"] = 2
        def f(x):
            return x * sum(D.values())
        """,
    ),
    "an entry of a class": (
        "m.A.t['k'] = 5",
        """
        class A:
            t = {'k': 2}
            def __class_getitem__(c, n): return c.t[n]
        def f(x):
            return A['k'] * x
        """,
    ),
    "a field of a format": (
        "m.a.k = 5",
        """
        class A: pass
        a = A(); a.k = 2
        def f(x):
            return '{0.k}'.format(a)
        """,
    ),
    "all of an object": (
        "m.a.j = 5",
        """
        class A: pass
        a = A(); a.k = 2
        def f(x):
            return sum(vars(a).values()) * x
        """,
    ),
    "globals by a beginning": (
        "m.op_b = len",
        """
        def op_a(x): return x
        def f(x):
            return sorted(n for n in globals() if n.startswith('op_'))
        """,
    ),
    "methods by a beginning": (
        "m.H.on_b = lambda s: 2",
        """
        class H:
            def on_a(s): return 1
        h = H()
        def f(x):
            return [n for n in dir(h) if n.startswith('on_')]
        """,
    ),
    "a method of a text": (
        "m.H.on_b = lambda s: 7",
        """
        class H:
            def on_a(s): return 1
            def on_b(s): return 2
        h = H()
        def f(x):
            return getattr(h, 'on_' + 'ab'[x % 2])()
        """,
    ),
    "False": (
        "m.K = 3; m.f(0); m.K = 2",
        """
        K = 2
        T = False
        def f(x):
            global T
            if T is False:
                T = K
            return T * x
        """,
    ),
    "extra": (
        "m.L.extra['k'] = 5",
        """
        import logging
        L = logging.LoggerAdapter(logging.getLogger('z'), {'k': 2})
        def f(x):
            return L.extra['k'] * x
        """,
    ),
    "bases": (
        "m.A.__bases__ = (m.Q,)",
        """
        class P: k = 2
        class Q: k = 5
        class A(P): pass
        def f(x):
            return A.k * x
        """,
    ),
    "an address": (
        "m.S = m.ipaddress.ip_address('1.1.1.2')",
        """
        import ipaddress
        S = ipaddress.ip_address('1.1.1.1')
        def f(x):
            return str(S)
        """,
    ),
    "a literal": (
        "m.T = m.typing.Literal['b']",
        """
        import typing
        T = typing.Literal['a']
        def f(x):
            return typing.get_args(T)
        """,
    ),
    "arguments of an exception": (
        "m.E.args = ('b',)",
        """
        E = ValueError('a')
        def f(x):
            return str(E)
        """,
    ),
}

# Modules that have been used before, and in which nobody has set anything.
USED = {
    "a deque": """
        import collections
        T = collections.deque()
        def f(x):
            if not T:
                T.extend([1, 2, 3])
            return T[x % 3]
        """,
    "a bytearray": """
        T = bytearray()
        def f(x):
            if not T:
                T.extend([1, 2, 3])
            return T[x % 3]
        """,
    "a method of a cache": """
        _known = {}
        get = _known.get
        def f(x):
            if get(x) is None:
                _known[x] = x + 1
            return get(x)
        """,
    "a mapping that code adds to": """
        import collections.abc
        class Cache(collections.abc.MutableMapping):
            def __init__(self): self.held = {}
            def __getitem__(self, key): return self.held[key]
            def __setitem__(self, key, value): self.held[key] = value
            def __delitem__(self, key): del self.held[key]
            def __iter__(self): return iter(self.held)
            def __len__(self): return len(self.held)
        cache = Cache()
        def f(x): return cache.setdefault(x, x + 1)
        """,
    "counts of an object": """
        class Counts: pass
        counts = Counts()
        counts.k_all = 0
        def f(x):
            counts.k_all += 1
            vars(counts)["k_" + str(x)] = x
            return x
        """,
    "an order of the latest": """
        import collections
        D = collections.OrderedDict()
        def f(x):
            D[x] = x
            D.move_to_end(x)
            return D[x]
        """,
}


@pytest.mark.parametrize("name", WAYS)
def test_what_the_script_has_set(name: str, make: Make) -> None:
    change, text = WAYS[name]
    assert " here, and " in told(text, change, [], make)
    assert told(text, "", [], make) == ""


@pytest.mark.parametrize("name", USED)
def test_what_was_used_before(name: str, make: Make) -> None:
    assert told(USED[name], "", [4, 3, 4], make) == ""
