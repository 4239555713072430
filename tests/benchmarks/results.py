"""What a run of the suite has found out, as the JSON holds it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import Setting


@dataclasses.dataclass
class Results:
    """Figures of every measurement, by workload and setting, in the order of the rounds."""

    about: dict[str, Any]
    runs: dict[str, dict[str, list[dict[str, Any]]]] = dataclasses.field(default_factory=dict)

    def add(self, workload: str, setting: Setting, figures: dict[str, Any]) -> None:
        """Keeps the figures of one measurement."""
        self.runs.setdefault(workload, {}).setdefault(str(setting), []).append(figures)

    def save(self, path: Path) -> None:
        """Writes the JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Reads the JSON."""
        return cls(**json.loads(path.read_text()))

    def settings(self, workload: str) -> list[Setting]:
        """Those in which a workload was measured."""
        return [Setting.parse(text) for text in self.runs.get(workload, {})]

    def values(self, workload: str, setting: Setting, figure: str) -> list[float]:
        """A figure in each round in which it was taken."""
        runs = self.runs.get(workload, {}).get(str(setting), [])
        return [run[figure] for run in runs if run.get(figure) is not None]

    def median(self, workload: str, setting: Setting, figure: str) -> float | None:
        """The median of a figure; None where it was never taken."""
        values = self.values(workload, setting, figure)
        return statistics.median(values) if values else None

    def spread(self, workload: str, setting: Setting, figure: str) -> float:
        """Half of what lies between the least and the greatest, as a part of the median."""
        values = self.values(workload, setting, figure)
        middle = statistics.median(values) if values else 0
        return (max(values) - min(values)) / 2 / middle if middle else 0.0

    def best(
        self, workload: str, *peers: str, figure: str = "records_per_second"
    ) -> Setting | None:
        """The setting of these peers that has the greatest median; the least of `first_batch`."""
        sign = -1 if figure == "first_batch" else 1
        found = [
            (sign * median, str(setting))
            for setting in self.settings(workload)
            if setting.peer in peers
            and (median := self.median(workload, setting, figure)) is not None
        ]
        return Setting.parse(max(found)[1]) if found else None

    def faults(self) -> list[str]:
        """What was not right, a line each: streams that differ, and measurements that failed."""
        return [
            f"{workload}, {setting}: {run.get('wrong') or run.get('failed')}"
            for workload, settings in self.runs.items()
            for setting, runs in settings.items()
            for run in runs
            if run.get("wrong") or run.get("failed")
        ]
