"""Tables, settings and registries that code fills where they are empty, or lack something.

The script has set them before: then code of the trainer finds them filled, and that of a worker,
which imports modules afresh, fills them in its own way.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import Any

import pytest

from grain_jax._execution.engine.drift import Watch
from grain_jax._execution.engine.observer import observe
from grain_jax._values.errors import DriftError
from tests.execution.engine.conftest import Make


def told(text: str, change: str, before: list[int], make: Make) -> str:
    """Returns the error of a worker, or "" where its records are the trainer's.

    Args:
      text: of a module with a step `f`.
      change: what the script does to the module, `m`.
      before: records that the trainer has read.
      make: the fixture.
    """
    here = make(text)
    exec(change, {"m": here})
    for x in before:
        here.f(x)
    found, _ = observe([here.f], [], [])
    assert found is not None
    sent = pickle.dumps(found)
    ours = [here.f(x) for x in range(3)]
    del sys.modules[here.__name__]
    there = importlib.import_module(here.__name__)
    watch = Watch(pickle.loads(sent))
    theirs: list[Any] = []
    try:
        watch.look()
        for x in range(3):
            theirs.append(there.f(x))
            watch.look()
    except DriftError as error:
        return str(error).splitlines()[1].strip()
    assert ours == theirs
    return ""


# What the script does to a module, `m`, and the module's code with a step `f`.
FILLED = {
    "update": (
        "m.TAB[99] = 1",
        """
        TAB = {}
        def f(x):
            if not TAB:
                TAB.update({i: i * 10 for i in range(5)})
            return TAB.get(x, -1)
        """,
    ),
    "length": (
        "m.TAB[99] = 1",
        """
        TAB = {}
        def f(x):
            if len(TAB) == 0:
                TAB.update({i: i * 10 for i in range(5)})
            return TAB.get(x, -1)
        """,
    ),
    "an early return": (
        "m.TAB[99] = 1",
        """
        TAB = {}
        def table():
            if TAB:
                return TAB
            TAB.update({i: i * 10 for i in range(5)})
            return TAB
        def f(x):
            return table().get(x, -1)
        """,
    ),
    "or": (
        "m.TAB[99] = 1",
        """
        TAB = {}
        def f(x):
            TAB or TAB.update({i: i * 10 for i in range(5)})
            return TAB.get(x, -1)
        """,
    ),
    "a helper": (
        "m.TAB[99] = 1",
        """
        TAB = {}
        def fill():
            TAB.update({i: i * 10 for i in range(5)})
        def f(x):
            if not TAB:
                fill()
            return TAB.get(x, -1)
        """,
    ),
    "a set": (
        "m.L.add(9)",
        """
        L = set()
        def f(x):
            if not L:
                L.update([1, 2, 3])
            return x in L
        """,
    ),
    "in": (
        "m.REG['k'] = 7",
        """
        REG = {}
        def f(x):
            if 'k' not in REG:
                REG['k'] = 5
            return x * REG['k']
        """,
    ),
    "in, early": (
        "m.REG['k'] = 7",
        """
        REG = {}
        def k():
            if 'k' in REG:
                return REG['k']
            REG['k'] = 5
            return REG['k']
        def f(x):
            return x * k()
        """,
    ),
    "get": (
        "m.REG['k'] = 7",
        """
        REG = {}
        def f(x):
            k = REG.get('k')
            if k is None:
                k = REG['k'] = 5
            return x * k
        """,
    ),
    "an entry of None": (
        "m.REG['k'] = 7",
        """
        REG = {'k': None}
        def f(x):
            if REG['k'] is None:
                REG['k'] = 5
            return x * REG['k']
        """,
    ),
    "not get": (
        "m.REG['k'] = 7",
        """
        REG = {}
        def f(x):
            if not REG.get('k'):
                REG['k'] = 5
            return x * REG['k']
        """,
    ),
    "KeyError": (
        "m.REG['k'] = 7",
        """
        REG = {}
        def f(x):
            try:
                return x * REG['k']
            except KeyError:
                REG['k'] = 5
                return x * REG['k']
        """,
    ),
    "setdefault": (
        "m.REG['k'] = 7",
        """
        REG = {}
        def f(x):
            return x * REG.setdefault('k', 5)
        """,
    ),
    "hasattr": (
        "m.CFG.scale = 7",
        """
        class C: pass
        CFG = C()
        def f(x):
            if not hasattr(CFG, 'scale'):
                CFG.scale = 2
            return x * CFG.scale
        """,
    ),
    "hasattr of a class": (
        "m.CFG.scale = 7",
        """
        class CFG: pass
        def f(x):
            if not hasattr(CFG, 'scale'):
                CFG.scale = 2
            return x * CFG.scale
        """,
    ),
    "hasattr of a function": (
        "m.f.scale = 7",
        """
        def f(x):
            if not hasattr(f, 'scale'):
                f.scale = 2
            return x * f.scale
        """,
    ),
    "getattr": (
        "m.CFG.scale = 7",
        """
        class C: pass
        CFG = C()
        def f(x):
            if getattr(CFG, 'scale', None) is None:
                CFG.scale = 2
            return x * CFG.scale
        """,
    ),
    "an attribute of None": (
        "m.CFG.scale = 7",
        """
        class C:
            scale = None
        CFG = C()
        def f(x):
            if CFG.scale is None:
                CFG.scale = 2
            return x * CFG.scale
        """,
    ),
    "self": (
        "m.CFG.scale = 7",
        """
        class C:
            def __init__(self): self.scale = None
            def get(self):
                if self.scale is None:
                    self.scale = 2
                return self.scale
        CFG = C()
        def f(x):
            return x * CFG.get()
        """,
    ),
    "AttributeError": (
        "m.CFG.scale = 7",
        """
        class C: pass
        CFG = C()
        def f(x):
            try:
                return x * CFG.scale
            except AttributeError:
                CFG.scale = 2
            return x * CFG.scale
        """,
    ),
    "a table in self": (
        "m.CFG.t[99] = 7",
        """
        class C:
            def __init__(self): self.t = {}
            def get(self, x):
                if not self.t:
                    self.t.update({i: i * 10 for i in range(5)})
                return self.t.get(x, -1)
        CFG = C()
        def f(x):
            return CFG.get(x)
        """,
    ),
    "a registry in self": (
        "m.CFG.t['k'] = 7",
        """
        class C:
            def __init__(self): self.t = {}
            def get(self, x):
                if 'k' not in self.t:
                    self.t['k'] = 5
                return self.t['k'] * x
        CFG = C()
        def f(x):
            return CFG.get(x)
        """,
    ),
    "a table of a class": (
        "m.C.t[99] = 7",
        """
        class C:
            t = {}
            @classmethod
            def get(cls, x):
                if not cls.t:
                    cls.t.update({i: i * 10 for i in range(5)})
                return cls.t.get(x, -1)
        def f(x):
            return C.get(x)
        """,
    ),
    "a number": (
        "m.S = 7",
        """
        S = None
        def f(x):
            global S
            if S is None:
                S = 5
            return x * S
        """,
    ),
    "globals": (
        "m.S = 7",
        """
        def f(x):
            global S
            if 'S' not in globals():
                S = 5
            return x * S
        """,
    ),
    "NameError": (
        "m.S = 7",
        """
        def f(x):
            global S
            try:
                return x * S
            except NameError:
                S = 5
            return x * S
        """,
    ),
    "a new table": (
        "m.S[99] = 7",
        """
        S = {}
        def f(x):
            global S
            if not S:
                S = {i: i * 10 for i in range(5)}
            return S.get(x, -1)
        """,
    ),
    "a flag": (
        "m.S[99] = 7; m.DONE = True",
        """
        S, DONE = {}, False
        def f(x):
            global DONE
            if not DONE:
                S.update({i: i * 10 for i in range(5)})
                DONE = True
            return S.get(x, -1)
        """,
    ),
    "a table that grows, too": (
        "m.TAB[99] = 7",
        """
        TAB = {}
        def f(x):
            if not TAB:
                TAB.update({'a': 1, 'b': 2})
            if x not in TAB:
                TAB[x] = len(str(x))
            return TAB[x] + TAB.get('a', 0)
        """,
    ),
}


@pytest.mark.parametrize("name", FILLED)
@pytest.mark.parametrize("before", [[], [4]])
def test_what_the_script_has_put_where_code_fills_it(
    name: str, before: list[int], make: Make
) -> None:
    change, text = FILLED[name]
    assert " here, and " in told(text, change, before, make)


@pytest.mark.parametrize("name", FILLED)
def test_what_code_has_filled_itself_is_equal(name: str, make: Make) -> None:
    assert told(FILLED[name][1], "", [4, 3], make) == ""
    assert told(FILLED[name][1], "", [], make) == ""
