"""What the JSON of a run says, as text and in the pages that show it.

    python -m tests.benchmarks.table docs/benchmarks.json            # on the terminal
    python -m tests.benchmarks.table docs/benchmarks.json --write    # into README.md and docs

A page shows a table between two comments, `<!-- benchmarks: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.peers import TITLES, Setting
from tests.benchmarks.results import Results
from tests.benchmarks.targets import IN_PROCESS, OURS, RATE, RATIOS, checks
from tests.benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")

Row = list[str]


def measured(results: Results) -> list[Workload]:
    """The workloads of a run, in their order."""
    return [workload for workload in WORKLOADS if workload.name in results.runs]


def number(value: float | None, unit: str = "") -> str:
    """Three figures, with k or M for thousands and millions of what has no unit."""
    if value is None:
        return "-"
    for factor, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= factor and not unit:
            return f"{value / factor:.3g} {letter}"
    if abs(value) >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:.3g}{' ' + unit if unit else ''}"


def speeds(results: Results) -> list[Row]:
    """Records per second of grain_jax and the best setting of each peer."""
    peers = ("grain", "torch", "stateful", "spdl", "floor")
    rows = [["workload, records/s", "grain_jax, 2 workers", "in process", *map(TITLES.get, peers)]]
    for workload in measured(results):
        if workload.driver == "memory" or workload.driver == "device":
            continue
        ours = [results.median(workload.name, one, RATE) for one in (OURS, IN_PROCESS)]
        best = [results.best(workload.name, peer) for peer in peers]
        theirs = [one and results.median(workload.name, one, RATE) for one in best]
        rows.append([workload.title, *map(number, ours), *map(number, theirs)])
    return rows


def ratios(results: Results) -> list[Row]:
    """What each target is and what was reached; bold where it is not met."""
    rows = [["workload", "reached (target)"]]
    for workload in measured(results):
        found = [str(one) if one.met else f"**{one}**" for one in checks(results, workload)]
        rows.append([workload.title, "; ".join(found) or "no target"])
    return rows


def settings(results: Results) -> list[Row]:
    """Every figure of every setting."""
    head = "workload|setting|records/s|±|MB/s|first batch|second `iter()`|CPU µs a record|PSS, MB"
    rows = [head.split("|")]
    for workload in measured(results):
        for setting in results.settings(workload.name):
            rows.append([workload.name, setting.title, *_figures(results, workload.name, setting)])
    return rows


def _figures(results: Results, workload: str, setting: Setting) -> Row:
    def of(figure: str, factor: float = 1.0) -> float | None:
        median = results.median(workload, setting, figure)
        return None if median is None else median * factor

    rate, size = of(RATE), of("bytes_per_record", 1e-6)
    return [
        number(rate),
        f"{results.spread(workload, setting, RATE):.0%}",
        number(rate * size if rate is not None and size is not None else None),
        number(of("first_batch"), "s"),
        number(of("second_iter", 1e3), "ms"),
        number(of("cpu_seconds_per_record", 1e6)),
        number(of("pss", 1e-6)),
    ]


def others(results: Results) -> list[Row]:
    """Ratios of which not every workload has a target."""
    names = ("grain", "torch", "spdl", "twice the floor", "first batch", "automatic")
    rows = [["workload", *names]]
    for workload in measured(results):
        found = [RATIOS[name].of(results, workload.name) for name in names]
        if any(value is not None for value in found):
            rows.append([workload.name, *map(number, found)])
    return rows


def about(results: Results) -> str:
    """The machine, the versions and the command, in a sentence."""
    facts = results.about
    versions = ", ".join(
        f"{TITLES[peer]} {version}"
        for peer, version in facts["versions"].items()
        if peer != "floor"
    )
    left_out = ", ".join(TITLES[peer] for peer in facts["missing"])
    return (
        f"`{facts['command']}` on {facts['machine']}, Python {facts['python']}; {versions}, "
        f"NumPy {facts['versions']['floor']}. Medians of {facts['rounds']} rounds"
        + (f"; not installed: {left_out}." if left_out else ".")
    )


TABLES: dict[str, Callable[[Results], list[Row]]] = {
    "speeds": speeds,
    "ratios": ratios,
    "settings": settings,
    "others": others,
}


def markdown(rows: list[Row]) -> str:
    """A table of a Markdown page; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def plain(rows: list[Row]) -> str:
    """A table for the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def filled(page: str, results: Results) -> str:
    """The page, with the tables that it names brought up to date."""

    def replace(found: re.Match[str]) -> str:
        name = found["name"]
        text = about(results) if name == "about" else markdown(TABLES[name](results))
        return f"{found['begin']}\n{text}\n{found['end']}"

    pattern = r"(?P<begin><!-- benchmarks: (?P<name>\w+) -->)\n.*?(?P<end><!-- end -->)"
    return re.sub(pattern, replace, page, flags=re.DOTALL)


def show(results: Results) -> str:
    """What the terminal shows at the end of a run."""
    parts = [about(results), *(plain(table(results)) for table in TABLES.values())]
    faults = results.faults()
    parts.append("\n".join(["NOT RIGHT:", *faults]) if faults else "every stream was exact")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--write", action="store_true", help="into README.md and docs")
    args = parser.parse_args()
    results = Results.load(args.json)
    if not args.write:
        print(show(results))
        return
    for page in PAGES:
        page.write_text(filled(page.read_text(), results))


if __name__ == "__main__":
    main()
