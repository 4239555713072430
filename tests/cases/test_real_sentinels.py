"""Objects that are told by their identity alone are themselves in steps, in every process."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cases.scripts import output

LIBRARY = """
    MISSING = object()
    class _Absent:
        pass
    ABSENT = _Absent()
    def lookup(known, key):
        return known.get(key, MISSING)
"""

SCRIPT = """
    import dataclasses
    import lib
    import grain_jax as grain
    from lib import MISSING, lookup

    OWN = object()
    class _Nothing:
        pass
    NOTHING = _Nothing()

    @dataclasses.dataclass
    class Row:
        a: int
        b: int = 3

    class Given(grain.transforms.Map):
        def __init__(self, own=OWN, nothing=NOTHING, missing=lib.MISSING, absent=lib.ABSENT):
            self.own, self.nothing, self.missing, self.absent = own, nothing, missing, absent
        def map(self, x):
            return (self.own is OWN, self.nothing is NOTHING, self.missing is lib.MISSING,
                    self.absent is lib.ABSENT, self.missing is self.own)

    class Used(grain.transforms.Map):
        def map(self, x):
            required = [f.name for f in dataclasses.fields(Row) if f.default is dataclasses.MISSING]
            return lookup({"a": 1}, x) is MISSING, required

    class Counts(grain.transforms.Map):
        # No sentinel: the copy of an iteration has a state of its own.
        class State:
            pass
        def __init__(self):
            self.state = self.State()
        def map(self, x):
            self.state.n = getattr(self.state, "n", 0) + 1
            return self.state.n

    if __name__ == "__main__":
        for step in (Given(), Used(), Counts()):
            loader = grain.load(list("ab"), num_epochs=1, transformations=[step], worker_count=N)
            print(list(loader), list(loader))
"""


@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
@pytest.mark.parametrize("workers", [0, 1])
def test_sentinels_are_themselves(tmp_path: Path, workers: int, mode: str) -> None:
    (tmp_path / "lib.py").write_text(textwrap.dedent(LIBRARY))
    text = SCRIPT.replace("=N)", f"={workers})")
    given = [(True, True, True, True, False)] * 2
    used = [(False, ["a"]), (True, ["a"])]
    assert output(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode) == [
        f"{given} {given}",
        f"{used} {used}",
        "[1, 2] [1, 2]",
    ]
