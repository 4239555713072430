"""Report: what an inspection has found, as a page."""

from __future__ import annotations

import html

from grain_jax._product.inspecting import Inspection

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #6b7280; --line: #e2e5e9; --back: #fff;
  --bar: #3b76d6; --hot: #d9534f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3ad; --line: #2d333b;
  --back: #14171a; --bar: #6ea1f5; --hot: #f0807b; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.lead { border-left: 4px solid var(--hot); padding: .2rem 1rem; }
table { border-collapse: collapse; width: 100%; } .wide { overflow-x: auto; }
td, th { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; }
svg { width: 100%; height: auto; } text { fill: var(--ink); font-size: 12px; }
.bar { fill: var(--bar); } .hot { fill: var(--hot); } .axis { stroke: var(--line); }
pre { overflow-x: auto; background: color-mix(in srgb, var(--line) 35%, transparent);
  padding: 1rem; border-radius: 6px; } small { color: var(--soft); }
"""

_WIDTH, _LEFT, _ROW = 900, 190, 26


def page(found: Inspection) -> str:
    """Returns a page of HTML that needs nothing else."""
    stats = found.stats
    rows = "".join(
        f"<tr><td>{html.escape(step.name)}</td><td>{step.where}</td><td>{step.calls}</td>"
        f"<td>{step.seconds:.3f}</td><td>{step.share:.1%}</td><td>{step.records}</td>"
        f"<td>{'-' if step.bytes is None else f'{step.bytes / 1e6:.1f}'}</td></tr>"
        for step in stats.steps
    )
    head = "".join(
        f"<th>{name}</th>"
        for name in ("step", "where", "calls", "seconds", "share", "records", "MB")
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>grain_jax: {html.escape(found.bottleneck)}</title><style>{_STYLE}</style></head><body>
<h1>Bottleneck: {html.escape(found.bottleneck)} ({found.share:.0%})</h1>
<p class="lead">{html.escape(found.suggestion)}: about {found.would_be:.4g} elements a second in
place of {found.rate:.4g}.</p>
<p>{stats.elements} elements in {stats.seconds:.1f} s; the loop waited for data
{stats.wait_share:.0%} of its time. First element after {found.first:.2f} s.</p>
<h2>Shares</h2>{_shares(found)}
<h2>Time line</h2>{_timeline(found)}<small>The last seconds of the run: when the loop waited, and
when each process was at work.</small>
<h2>Steps</h2><div class="wide"><table><tr>{head}</tr>{rows}</table></div>
<h2>Pipeline</h2><pre>{html.escape(found.explanation)}</pre>
</body></html>
"""


def _shares(found: Inspection) -> str:
    """Returns a bar for each step."""
    bars = []
    for number, step in enumerate(found.stats.steps):
        y, width = number * _ROW, step.share * (_WIDTH - _LEFT - 60)
        hot = "hot" if step.share == max(one.share for one in found.stats.steps) else "bar"
        bars.append(
            f'<text x="0" y="{y + 17}">{html.escape(_short(step.name))}</text>'
            f'<rect class="{hot}" x="{_LEFT}" y="{y + 4}" width="{width:.1f}" height="16" rx="3"/>'
            f'<text x="{_LEFT + width + 6:.1f}" y="{y + 17}">{step.share:.0%}</text>'
        )
    height = max(1, len(bars)) * _ROW
    label = "Share of each step"
    return _drawing(height, label, "".join(bars))


def _timeline(found: Inspection) -> str:
    """Returns a line for the loop and for each process."""
    end = max((span[1] for spans in found.spans.values() for span in spans), default=1.0)
    begin = max(0.0, end - 5.0)
    scale = (_WIDTH - _LEFT) / max(1e-9, end - begin)
    lines = []
    for number, (name, spans) in enumerate(found.spans.items()):
        y = number * _ROW
        kind = "hot" if name == "loop waits" else "bar"
        lines.append(f'<text x="0" y="{y + 17}">{html.escape(name)}</text>')
        lines += [
            f'<rect class="{kind}" x="{_LEFT + (max(begin, first) - begin) * scale:.1f}" '
            f'y="{y + 4}" width="{max(0.5, (last - max(begin, first)) * scale):.1f}" height="16"/>'
            for first, last in spans
            if last > begin
        ]
    height = max(1, len(found.spans)) * _ROW + 18
    lines += [
        f'<text x="{_LEFT}" y="{height - 2}">{begin:.1f} s</text>',
        f'<text x="{_WIDTH - 40}" y="{height - 2}">{end:.1f} s</text>',
    ]
    return _drawing(height, "When the loop waited and processes worked", "".join(lines))


def _drawing(height: int, label: str, inside: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{inside}</svg>'


def _short(name: str) -> str:
    return name if len(name) < 28 else f"{name[:26]}…"
