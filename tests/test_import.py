"""Importing the package is cheap: what is heavy loads when it is first used."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy as np
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
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
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


def test_importing_jax_for_the_device_stage_leaves_the_generators_alone() -> None:
    script = (
        "import random, sys\n"
        "import numpy as np\n"
        "import grain_jax as grain\n"
        "random.seed(3); np.random.seed(3)\n"
        "assert 'jax' not in sys.modules\n"
        "grain.prefetch_to_device\n"
        "assert 'jax' in sys.modules\n"
        "print(random.random(), np.random.rand())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    right = random.Random(3).random(), np.random.RandomState(3).rand()
    assert tuple(map(float, done.stdout.split())) == right
