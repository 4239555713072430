"""One measurement in a process of its own: prints a line of JSON.

As `python -m tests.benchmarks.measure images grain_jax-2w --seconds 2`, or with `grain-2w-16t`:
Grain with 2 workers and 16 threads each.
"""

from __future__ import annotations

import argparse
import json
import warnings

from tests.benchmarks import drivers
from tests.benchmarks.peers import Setting
from tests.benchmarks.workloads import BY_NAME


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=BY_NAME)
    parser.add_argument("setting", type=Setting.parse, help="peer, workers, threads: grain-2w-16t")
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(json.dumps(drivers.measure(BY_NAME[args.workload], args.setting, args.seconds)))


if __name__ == "__main__":
    main()
