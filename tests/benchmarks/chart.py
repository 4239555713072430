"""A bar chart of what grain_jax reaches, as multiples of its peers.

As `python -m tests.benchmarks.chart docs/benchmarks.json docs/benchmarks.png`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.benchmarks.results import Results
from tests.benchmarks.table import measured
from tests.benchmarks.targets import RATIOS

BARS = {
    "grain": ("Grain, its best setting", "#4285f4"),
    "torch": ("torch, its best DataLoader", "#ee6c4d"),
    "spdl": ("SPDL", "#8d99ae"),
}


def draw(results: Results, path: Path) -> None:
    """Writes a PNG: one group of bars for each workload that a peer takes part in."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = [
        (workload.name, {name: RATIOS[name].of(results, workload.name) for name in BARS})
        for workload in measured(results)
    ]
    rows = [(name, ratios) for name, ratios in rows if any(ratios.values())][::-1]
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.42 * len(rows)))
    height = 0.8 / len(BARS)
    for i, (name, (title, colour)) in enumerate(BARS.items()):
        places = [at + (1 - i) * height for at in range(len(rows))]
        values = [ratios[name] or 0 for _, ratios in rows]
        bars = axes.barh(places, values, height, label=title, color=colour)
        texts = [f"{value:.3g} x" if value else "" for value in values]
        axes.bar_label(bars, texts, padding=2, fontsize=7)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("records per second of grain_jax with 2 workers, as a multiple of")
    axes.legend(loc="lower right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    # Without the version of Matplotlib in it, the same figures give the same file.
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("png", type=Path)
    args = parser.parse_args()
    draw(Results.load(args.json), args.png)


if __name__ == "__main__":
    main()
