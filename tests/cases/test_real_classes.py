"""Classes of a script are in workers what they are in the script: slots, names, properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import grain_jax as grain
from tests.cases import scripts

TEXT = """
import dataclasses, functools
import grain_jax as grain

@dataclasses.dataclass(slots=True)
class Sample:
    text: str
    n: int

class Plain:
    __slots__ = ("n",)
    def __init__(self, n):
        self.n = n
    def __repr__(self):
        return f"Plain({self.n}, {hasattr(self, '__dict__')})"

class Shapes:
    @dataclasses.dataclass
    class Box:
        w: int

class Name(grain.transforms.Map):
    @functools.cached_property
    def table(self):
        return {i: Plain(i) for i in range(2)}
    def map(self, i):
        @dataclasses.dataclass
        class Local:
            a: int
        return (f"{Shapes.Box(i)} {Local(i)} {self.table[i]}", Shapes.Box(i), Local(i),
                Sample("a", i), Plain(i))

for workers in (0, 2):
    for source in ([Sample("a", i) for i in range(2)], [Plain(i) for i in range(2)]):
        with grain.load(source, num_epochs=1, worker_count=workers) as loader:
            print(*loader)
    with grain.load(range(2), num_epochs=1, transformations=[Name()],
                    worker_count=workers) as loader:
        print(*loader)
"""


@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
def test_classes_of_a_script(mode: str, tmp_path: Path, no_process_left: None) -> None:
    lines = scripts.output(tmp_path, TEXT, GRAIN_JAX_ENGINE_MODE=mode)
    assert lines[:3] == [
        "Sample(text='a', n=0) Sample(text='a', n=1)",
        "Plain(0, False) Plain(1, False)",
        " ".join(
            f"('Shapes.Box(w={i}) Name.map.<locals>.Local(a={i}) Plain({i}, False)', "
            f"Shapes.Box(w={i}), Name.map.<locals>.Local(a={i}), Sample(text='a', n={i}), "
            f"Plain({i}, False))"
            for i in range(2)
        ),
    ]
    assert lines[3:] == lines[:3]


class Raise(grain.transforms.Map):
    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def map(self, element: Any) -> Any:
        try:
            pytest.skip("not here")
        except self.kind:
            return element
        except pytest.skip.Exception:
            pytest.fail(f"at {element}")


def test_classes_that_say_they_are_of_another_module(no_process_left: None) -> None:
    # Those of pytest name `builtins`, which has none of them.
    for kind, workers in ((pytest.skip.Exception, 1), (KeyError, 0), (KeyError, 1)):
        loader = grain.load([7], num_epochs=1, transformations=[Raise(kind)], worker_count=workers)
        with loader:
            if kind is pytest.skip.Exception:
                assert list(loader) == [7]
                continue
            with pytest.raises(pytest.fail.Exception, match="at 7"):
                list(loader)
