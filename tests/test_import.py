"""Importing the package is cheap: what is heavy loads when it is first used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = [
    "array_record",
    "cloudpickle",
    "jax",
    "jaxlib",
    "orbax",
    "tensorflow",
    "tensorflow_datasets",
]
FACADES = [
    "constants",
    "errors",
    "experimental",
    "multiprocessing",
    "python",
    "samplers",
    "sharding",
    "sources",
    "transforms",
]


def loaded_after(statements: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `statements`."""
    script = f"{statements}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_after("import grain_jax") & {*HEAVY, "numpy"}


@pytest.mark.parametrize(
    "facade",
    FACADES,
)
def test_importing_a_facade_loads_nothing_heavy(facade: str) -> None:
    assert not loaded_after(f"import grain_jax; grain_jax.{facade}") & set(HEAVY)


def test_describing_and_running_in_process_loads_nothing_heavy() -> None:
    loaded = loaded_after(
        "import grain_jax as grain\n"
        "ds = grain.MapDataset.range(10).map(lambda x: x + 1).to_iter_dataset()\n"
        "assert list(ds) == list(range(1, 11))"
    )
    assert not loaded & (set(HEAVY) - {"cloudpickle"})
