"""Classes that a script registers with JAX are nodes of trees in workers, too."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cases import scripts

MODES = ["fork_imported", "fork_first", "fresh"]

# Two arrays as leaves, and a text that is none.
CLASSES = {
    "flax.struct.dataclass": """
import flax.struct
@flax.struct.dataclass
class Pair:
    a: object
    b: object
    tag: str = flax.struct.field(pytree_node=False, default="t")
""",
    "register_dataclass": """
@functools.partial(jax.tree_util.register_dataclass, data_fields=["a", "b"], meta_fields=["tag"])
@dataclasses.dataclass
class Pair:
    a: object
    b: object
    tag: str = "t"
""",
    "register_pytree_node_class": """
@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, a, b, tag="t"):
        self.a, self.b, self.tag = a, b, tag
    def tree_flatten(self):
        return (self.a, self.b), self.tag
    @classmethod
    def tree_unflatten(cls, tag, children):
        return cls(*children, tag)
""",
    "register_pytree_with_keys_class": """
@jax.tree_util.register_pytree_with_keys_class
class Pair:
    def __init__(self, a, b, tag="t"):
        self.a, self.b, self.tag = a, b, tag
    def tree_flatten_with_keys(self):
        key = jax.tree_util.GetAttrKey
        return ((key("a"), self.a), (key("b"), self.b)), self.tag
    @classmethod
    def tree_unflatten(cls, tag, children):
        return cls(*children, tag)
""",
    "register_pytree_node": """
class Pair:
    def __init__(self, a, b, tag="t"):
        self.a, self.b, self.tag = a, b, tag
jax.tree_util.register_pytree_node(
    Pair, lambda p: ((p.a, p.b), p.tag), lambda tag, children: Pair(*children, tag))
""",
    "register_pytree_with_keys": """
class Pair:
    def __init__(self, a, b, tag="t"):
        self.a, self.b, self.tag = a, b, tag
key = jax.tree_util.GetAttrKey
jax.tree_util.register_pytree_with_keys(
    Pair, lambda p: (((key("a"), p.a), (key("b"), p.b)), p.tag),
    lambda tag, children: Pair(*children, tag))
""",
    "a module's class, registered by the script": """
with open("pairs.py", "w") as file:
    file.write("class Pair:\\n    def __init__(self, a, b, tag='t'):\\n"
               "        self.a, self.b, self.tag = a, b, tag\\n")
from pairs import Pair
jax.tree_util.register_pytree_node(
    Pair, lambda p: ((p.a, p.b), p.tag), lambda tag, children: Pair(*children, tag))
""",
    "a module's class, registered there": """
with open("pairs.py", "w") as file:
    file.write("import jax\\nclass Pair:\\n    def __init__(self, a, b, tag='t'):\\n"
               "        self.a, self.b, self.tag = a, b, tag\\n"
               "jax.tree_util.register_pytree_node(Pair, lambda p: ((p.a, p.b), p.tag),\\n"
               "    lambda tag, children: Pair(*children, tag))\\n")
from pairs import Pair
""",
}

HEAD = """
import dataclasses, functools, os, sys
import jax
import numpy as np
import grain_jax as grain
sys.path.insert(0, os.getcwd())
"""

USE = """
class Make(grain.transforms.Map):
    def map(self, x):
        return Pair(np.full(2, x), {"c": float(x)})

class Double(grain.transforms.Map):
    def map(self, pair):
        assert "jax" in sys.modules
        return jax.tree.map(lambda leaf: leaf * 2, pair)

def show(batch):
    assert type(batch) is Pair
    return batch.a.tolist(), batch.b["c"].tolist(), batch.tag

for workers in (0, 2):
    with grain.load(range(4), num_epochs=1, transformations=[Make(), Double()], batch_size=2,
                    worker_count=workers) as loader:
        print([show(batch) for batch in loader])
    with grain.load(range(4), num_epochs=1, transformations=[Make(), Double()], batch_size=2,
                    worker_count=workers) as loader:
        with grain.prefetch_to_device(loader) as batches:
            print([show(batch) for batch in batches])
"""

DATASET = """
for workers in (0, 2):
    stream = grain.MapDataset.range(4).map(Make().map).to_iter_dataset().map(Double().map)
    if workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    with iter(stream.batch(2)) as batches:
        print([show(batch) for batch in batches])
"""

RIGHT = [([[0, 0], [2, 2]], [0.0, 2.0], "t"), ([[4, 4], [6, 6]], [4.0, 6.0], "t")]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_registered_class_is_a_node_in_workers(
    kind: str, tmp_path: Path, no_process_left: None
) -> None:
    lines = scripts.output(tmp_path, HEAD + CLASSES[kind] + USE)
    assert lines == [str(RIGHT)] * 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["flax.struct.dataclass", "register_pytree_node"])
def test_in_every_start_mode(kind: str, mode: str, tmp_path: Path, no_process_left: None) -> None:
    text = HEAD + CLASSES[kind] + USE + DATASET
    more = {"GRAIN_JAX_ENGINE_MODE": mode, "GRAIN_JAX_ENGINE_MEMORY": "file"}
    assert scripts.output(tmp_path, text, **more) == [str(RIGHT)] * 6


@pytest.mark.parametrize(
    "kind", ["register_dataclass", "register_pytree_with_keys", "register_pytree_with_keys_class"]
)
def test_the_ways_to_leaves_are_named_alike(kind: str, tmp_path: Path) -> None:
    body = """
    class Ways(grain.transforms.Map):
        def map(self, x):
            found, _ = jax.tree_util.tree_flatten_with_path(Pair(x, x))
            return " ".join(jax.tree_util.keystr(way) for way, _ in found)
    for workers in (0, 2):
        with grain.load([1], num_epochs=1, transformations=[Ways()],
                        worker_count=workers) as loader:
            print(*loader)
    """
    text = HEAD + CLASSES[kind] + textwrap.dedent(body)
    assert scripts.output(tmp_path, text) == [".a .b"] * 2


@pytest.mark.parametrize("mode", ["", *MODES])
def test_subclasses_of_named_tuples_are_nodes_by_themselves(mode: str, tmp_path: Path) -> None:
    body = """
    import collections, typing
    Plain = collections.namedtuple("Plain", "a b")
    class Point(collections.namedtuple("Point", "a b")):
        __slots__ = ()
        def total(self):
            return self.a + self.b
    class Typed(typing.NamedTuple):
        a: int
        b: int
        def total(self):
            return self.a + self.b
    class Derived(Typed):
        def total(self):
            return 10 * super().total()
    # One that has another form as a node is registered anew.
    class Other(collections.namedtuple("Other", "a b")):
        pass
    jax.tree_util.register_pytree_node(
        Other, lambda one: ((one.a,), one.b), lambda b, children: Other(*children, b))
    class Make(grain.transforms.Map):
        def map(self, i):
            return {"plain": Plain(i, 2 * i), "point": Point(i, 2 * i), "typed": Typed(i, 2 * i),
                    "derived": Derived(i, 2 * i), "other": Other(i, "b")}
    def show(batch):
        assert type(batch["plain"]) is Plain
        totals = [(type(batch[key]).__name__, batch[key].total().tolist())
                  for key in ("point", "typed", "derived")]
        return totals, batch["other"].a.tolist(), batch["other"].b
    for workers in (0, 2):
        with grain.load(range(4), num_epochs=1, transformations=[Make()], batch_size=4,
                        worker_count=workers) as loader:
            print(*map(show, loader))
    """
    totals = [("Point", [0, 3, 6, 9]), ("Typed", [0, 3, 6, 9]), ("Derived", [0, 30, 60, 90])]
    more = {"GRAIN_JAX_ENGINE_MODE": mode} if mode else {}
    lines = scripts.output(tmp_path, HEAD + textwrap.dedent(body), **more)
    assert lines == [str((totals, [0, 1, 2, 3], "b"))] * 2


def test_a_class_without_leaves(tmp_path: Path) -> None:
    body = """
    @jax.tree_util.register_static
    class Name(str):
        pass
    class Make(grain.transforms.Map):
        def map(self, x):
            return {"x": x, "name": Name("n")}
    for workers in (0, 2):
        with grain.load(range(2), num_epochs=1, transformations=[Make()], batch_size=2,
                        worker_count=workers) as loader:
            for batch in loader:
                print(batch["x"].tolist(), type(batch["name"]) is Name, batch["name"])
    """
    assert scripts.output(tmp_path, HEAD + textwrap.dedent(body)) == ["[0, 1] True n"] * 2


def test_what_cannot_be_registered_anew_is_an_error_before_the_first_batch(tmp_path: Path) -> None:
    body = """
    class Odd:
        def __init__(self, x):
            self.x = x
    jax.tree_util.default_registry.register_node(
        Odd, lambda odd: ((odd.x,), None), lambda _, children: Odd(*children), None)
    import threading
    LOCK = threading.Lock()
    class Locked:
        def __init__(self, x):
            self.x = x
    jax.tree_util.register_pytree_node(
        Locked, lambda one: ((one.x, LOCK)[:1], None), lambda _, children: Locked(*children))
    for kind in (Odd, Locked):
        class Make(grain.transforms.Map):
            made = kind
            def map(self, x):
                return self.made(x)
        with grain.load(range(2), transformations=[Make()], batch_size=2, worker_count=1) as loader:
            try:
                next(iter(loader))
            except TypeError as error:
                print(error)
    """
    lines = scripts.output(tmp_path, HEAD + textwrap.dedent(body))
    assert lines[0].startswith("Odd is registered as a node of trees in a way that JAX does not")
    assert "jax.tree_util.register_pytree_node" in lines[0]
    assert lines[1].startswith("how Locked is registered with jax.tree_util cannot be sent")
    assert "LOCK" in lines[1]


def test_without_such_classes_workers_do_not_import_jax(tmp_path: Path) -> None:
    body = """
    class Plain:
        pass
    class Look(grain.transforms.Map):
        def map(self, x):
            Plain()
            return "jax" in sys.modules
    with grain.load(range(2), num_epochs=1, transformations=[Look()], worker_count=1) as loader:
        print(list(loader))
    """
    assert scripts.output(tmp_path, HEAD + textwrap.dedent(body)) == ["[False, False]"]
