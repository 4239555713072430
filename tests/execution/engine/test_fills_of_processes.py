"""What code fills where it is empty, and that depends on records, times or the process."""

from __future__ import annotations

import pytest

from tests.execution.engine.conftest import Make
from tests.execution.engine.test_fills import told

# A module with a step `f`, whose records depend on none of it.
OWN = {
    "scratch_z": """
        import numpy as np
        class C:
            buf = None
            def get(self, x):
                if self.buf is None:
                    self.buf = np.zeros(3)
                np.multiply(np.ones(3), x, out=self.buf)
                return self.buf.sum()
        c = C()
        def f(x): return c.get(x)
        """,
    "scratch_g": """
        import numpy as np
        BUF = None
        def f(x):
            global BUF
            if BUF is None:
                BUF = np.zeros(3)
            BUF[:] = x
            return BUF.sum()
        """,
    "counter": """
        S = {}
        def f(x):
            if 'n' in S:
                S['n'] += 1
            else:
                S['n'] = 1
            return x if S['n'] else 0
        """,
    "time": """
        import time
        S = {}
        def f(x):
            if 't' not in S:
                S['t'] = time.time()
            return x if S['t'] else 0
        """,
    "time_attr": """
        import time
        class C: pass
        c = C()
        def f(x):
            if not hasattr(c, 't0'):
                c.t0 = time.perf_counter()
            return x if c.t0 else 0
        """,
    "lazy_file": """
        import io
        class C:
            fh = None
            def read(self, x):
                if self.fh is None:
                    self.fh = io.StringIO()
                return len(self.fh.read()) + x
        c = C()
        def f(x): return c.read(x)
        """,
    "pid": """
        import os
        class C:
            pid = None
            def read(self, x):
                if self.pid is None:
                    self.pid = str(os.getpid())+str(id(self))
                return x if self.pid else 0
        c = C()
        def f(x): return c.read(x)
        """,
    "cache": """
        C = {}
        def f(x):
            if not C:
                print(end='')
            if x not in C:
                C[x] = x * 2
            return C[x]
        """,
    "last": """
        L = {}
        def f(x):
            prev = L.get('prev')
            L['prev'] = x
            return x
        """,
    "warned_d": """
        S = {'w': False}
        def f(x):
            if not S['w']:
                S['w'] = True
            return x
        """,
    "beside": """
        class C:
            def __init__(self): self.n, self.t, self.cache = 0, None, {}
            def get(self, x):
                self.n += 1
                self.cache[x] = self.n
                if self.t is None:
                    self.t = [2]
                return x * self.t[0]
        c = C()
        def f(x): return c.get(x)
        """,
    "lock": """
        import threading
        T, LOCK = None, threading.Lock()
        def f(x):
            global T
            if T is None:
                with LOCK:
                    if T is None:
                        T = [1, 2, 3]
            return T[0] + x
        """,
    "queue": """
        Q = []
        def f(x):
            if not Q:
                Q.extend(range(3))
            return Q.pop() * 0 + x
        """,
    "objs2": """
        class Tok:
            def __init__(self): self.n = 0; self.v = {}
            def enc(self, x):
                self.n += 1
                return self.v.setdefault(x, x * 3)
        R = {}
        def f(x):
            if 'tok' not in R:
                R['tok'] = Tok()
            return R['tok'].enc(x)
        """,
    "objs3": """
        import collections
        R = {}
        def f(x):
            if 'c' not in R:
                R['c'] = collections.Counter()
            R['c'][x] += 1
            return x if R['c'] else 0
        """,
    "objs6": """
        class O: pass
        R = O()
        def push(c, x):
            c.append(x)
        def f(x):
            if not hasattr(R, 'c'):
                R.c = []
            push(R.c, x)
            return x if R.c else 0
        """,
    "per_rec": """
        class O: pass
        R = O()
        def f(x):
            if getattr(R, 'cur', None) != x:
                R.cur = x
            return R.cur
        """,
}


@pytest.mark.parametrize("name", OWN)
def test_what_depends_on_records_or_processes_is_left_alone(name: str, make: Make) -> None:
    assert told(OWN[name], "", [4, 3, 4], make) == ""
    assert told(OWN[name], "", [], make) == ""
