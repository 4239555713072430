"""What the documentation shows runs."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import grain_jax as grain
from tests.test_api import PUBLIC
from tools import snippets
from tools.source_graph import ROOT


class Classifier(nnx.Module):
    """A convolution, whose gradient is not defined on a mesh of explicit axes."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.convolution = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.linear = nnx.Linear(4 * 64, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        features = nnx.relu(self.convolution(images))
        return self.linear(features.reshape(len(images), -1))


@nnx.jit
def train_step(model: Classifier, optimizer: Any, batch: dict[str, jax.Array]) -> jax.Array:
    def loss(model: Classifier) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(
            model(batch["image"]), batch["label"]
        )
        return (losses * batch["mask"]).sum() / batch["mask"].sum()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def test_a_convolution_trains_on_the_mesh_of_the_page_on_many_hosts() -> None:
    page = (ROOT / "docs" / "multihost.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    # One process, which is the program of this test.
    for written, meant in (
        ("jax.distributed.initialize()\n", ""),
        ("transformations=[Augment()]", "transformations=[]"),
        ("    ...  # global arrays", "    losses.append(train_step(model, optimizer, batch))  #"),
    ):
        assert code.count(written) == 1
        code = code.replace(written, meant)
    images = np.random.default_rng(0).random((20, 8, 8, 1), np.float32)
    model = Classifier(nnx.Rngs(0))
    losses: list[jax.Array] = []
    namespace = {
        "jax": jax,
        "grain": grain,
        "source": {"image": images, "label": np.arange(20) % 10},
        "global_batch": 8,
        "train_step": train_step,
        "model": model,
        "optimizer": nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        "losses": losses,
    }
    exec(code, namespace)
    assert len(losses) == 25  # 10 epochs of 20 records, in batches of 8
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_the_operator_of_the_page_on_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_process_left: None
) -> None:
    page = (ROOT / "docs" / "operators.md").read_text()
    operator, use, test, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "stride.py").write_text(operator)
    monkeypatch.syspath_prepend(tmp_path)
    namespace = dict(vars(importlib.import_module("stride")))
    exec(use, namespace)
    exec(test, namespace)
    namespace["test_every_third_element"]()
    namespace["test_every_third_of_a_filtered_stream_with_workers"]()


def test_the_source_of_the_page_on_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_process_left: None
) -> None:
    page = (ROOT / "docs" / "adding_sources.md").read_text()
    source, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "members.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    namespace = dict(vars(importlib.import_module("members")))
    exec(test, namespace)
    namespace["test_members"](tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", snippets.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_a_page_run_and_print_what_it_says(
    page: Path, tmp_path: Path, no_process_left: None
) -> None:
    snippets.run(page, tmp_path)


BLOCKS = """
```python
x = 1
print(x, "and more")
```
```output
1 and ...
```
<!-- not run: no -->
```python
1 / 0
```
<!--python
assert x == 1
-->
<!-- new script -->
```python
assert "x" not in globals()
```
<!-- file: there.txt -->
```text
there
```
<!-- run -->
```sh
grep there there.txt
```
```sh
false
```
"""


def test_which_blocks_are_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(BLOCKS)
    assert snippets.run(page, tmp_path) == 5  # three of Python, a file, a command


@pytest.mark.parametrize(
    ("written", "meant", "said"),
    [
        ("1 and ...", "2 and ...", "line 7: the page says\n2 and"),
        ("x == 1", "x == 2", "line 14, in <module>"),
        ('"x" not', '"x"', "line 18, in <module>"),
        ("grep there", "grep nowhere", "page.md, line 26"),
        ("x = 1", "import warnings; warnings.warn('old')\nx = 1", "UserWarning: old"),
    ],
)
def test_a_page_that_is_wrong_is_an_error(
    written: str, meant: str, said: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(BLOCKS.replace(written, meant))
    with pytest.raises(AssertionError, match=said):
        snippets.run(page, tmp_path)


def named() -> dict[str, Any]:
    """What is public and is no module, by module and name; `grain_jax.python` has other names."""
    found = {}
    for module, names in PUBLIC.items():
        for name in () if module == "grain_jax.python" else names.split():
            value = getattr(importlib.import_module(module), name)
            if not inspect.ismodule(value):
                found[f"{module}.{name}"] = value
    return found


def test_the_reference_has_every_public_name() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    described = set(re.findall(r"^\.\. auto(?:class|function|data):: (\w+)$", pages, re.MULTILINE))
    listed = set(re.findall(r"^   (\w+)$", pages, re.MULTILINE))
    assert {path.rpartition(".")[2] for path in named()} - described == set()
    assert described == listed & described


def test_every_public_name_has_a_docstring_with_an_example() -> None:
    lacking = []
    for path, value in named().items():
        if not inspect.isclass(value) and not inspect.isfunction(value):
            continue  # a value says itself what it is
        own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
        # An error has no use but to be caught; docs/troubleshooting.md shows how each is met.
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        if not own or (not re.search(r">>>|Example:", own) and not is_error):
            lacking.append(path)
    assert lacking == []


def test_every_method_has_a_docstring() -> None:
    lacking = []
    for path, value in named().items():
        if not inspect.isclass(value):
            continue
        for name in dir(value):
            method = getattr(value, name)
            ours = str(getattr(method, "__module__", "")).startswith("grain_jax")
            if not name.startswith("_") and callable(method) and ours:
                lacking += [] if inspect.getdoc(method) else [f"{path}.{name}"]
    assert lacking == []


def test_help_of_the_device_stage_leads_to_the_methods_of_its_iterator() -> None:
    said = grain.prefetch_to_device.__doc__
    assert said
    own = {name for name in dir(grain.DeviceIterator) if not name.startswith("_")}
    assert own - {"load", "save", "start_stats"} <= set(re.findall(r"`(\w+)`", said))
