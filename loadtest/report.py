"""The report: a table of exact percentiles, and one HTML file with the distributions. It needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadtest import plot
from loadtest.figures import LEAST_CALLS, LIMITS, NULL, OURS

HEADS = ("verb", "names", "events/s", "calls", "p50, ms", "null", "ratio", "p99, ms", "null", "ratio")
Rows = Sequence[Mapping[str, Any]]

_STYLE = """
:root{--ink:#1f2328;--soft:#656d76;--line:#d0d7de;--page:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#8d96a0;--line:#30363d;--page:#0d1117}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:2rem auto;max-width:72rem;
padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}p{max-width:52rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}
.bad{color:#cf222e;font-weight:600}.good{color:#1a7f37;font-weight:600}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1.5rem}
figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font-size:11px}svg .grid{stroke:var(--line)}svg .curve{fill:none;stroke-width:1.8}
svg .null{stroke-dasharray:4 3;stroke-width:1.2}
"""


def cells(row: Mapping[str, Any]) -> list[str]:
    """One line of the table: ms, and how many times the null's."""
    ours, null, ratio = row[OURS], row[NULL], row["ratio"]
    made = [row["verb"], str(row["names"] or ""), "" if row["churn"] is None else str(row["churn"]), str(ours["calls"])]
    for key in ("p50", "p99"):
        made.append(f"{ours[key]:.2f}")
        made += [f"{null[key]:.2f}", f"{ratio[key]:.2f}"] if null else ["", ""]
    return made


def table(rows: Rows) -> str:
    """Markdown; times in ms."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---" + "|--:" * (len(HEADS) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(cells(row)) + " |" for row in rows)])


def beside_idle(rows: Rows) -> list[str]:
    """How the p99 of each verb under watch events compares with that without any, in the same run."""
    idle = {(row["verb"], row["names"]): row[OURS]["p99"] for row in rows if row["churn"] == 0}
    return [
        f"{row['verb']} of {row['names']} names at {row['churn']} events/s: p99 is "
        f"{row[OURS]['p99'] / idle[row['verb'], row['names']]:.2f} x that at 0."
        for row in rows
        if row["churn"] and (row["verb"], row["names"]) in idle
    ]


def limits() -> str:
    """The gate in words."""
    each = "; ".join(f"{verb}: {limit.p50:g} and {limit.p99:g}" for verb, limit in LIMITS.items())
    return (
        f"Limits of the ratios of p50 and p99: {each}. They are twice as high while events come. A p50 of "
        f"fewer than {LEAST_CALLS['p50']:,} calls is not judged, nor a p99 of fewer than {LEAST_CALLS['p99']:,}."
    )


def page(found: Mapping[str, Any], title: str) -> str:
    """The HTML text. `found`: Figures.as_json, with `failures` where the run has ended."""
    return "\n".join(_page(found, title))


def _page(found: Mapping[str, Any], title: str) -> Iterator[str]:
    name = html.escape(f"Load test of {title}")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
    yield '<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy"'
    yield " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<style>{_STYLE}</style></head><body><h1>{name}</h1>"
    yield from _verdict(found)
    yield "<p>Times are milliseconds of the whole round trip, the client's part included. Percentiles are exact, by "
    yield "nearest rank: each is a time that was measured.</p><div class=wide><table><thead><tr>"
    yield "".join(f"<th>{head}</th>" for head in HEADS) + "</tr></thead><tbody>"
    for row in found["rows"]:
        yield "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(row)) + "</tr>"
    yield "</tbody></table></div>"
    if any(row[NULL] for row in found["rows"]):
        yield "<p><i>null</i> is a server that decides nothing: the same HTTP stack sends back the bytes that ours "
        yield f"answered, in the same run and in turns. {html.escape(limits())}</p>"
    yield "".join(f"<p>{html.escape(line)}</p>" for line in beside_idle(found["rows"]))
    yield "<h2>Distributions</h2><p>A point says: this share of the calls took at most so long. Both axes are "
    yield 'logarithmic; dashed lines are the null\'s.</p><div class="plots">'
    for verb, curves in plot.curves(found["times"]).items():
        yield f"<figure><figcaption>{html.escape(verb)}</figcaption>{plot.svg(curves, html.escape(verb))}</figure>"
    yield "</div>"
    kept = {key: found.get(key) for key in ("rows", "failed", "failures", "sent")}
    text = json.dumps(kept).replace("<", "\\u003c")
    yield f'<script type="application/json" id="figures">{text}</script></body></html>'


def _verdict(found: Mapping[str, Any]) -> Iterator[str]:
    failures = found.get("failures")
    if failures is None:
        yield "<p>The run goes on.</p>"
    elif failures:
        yield "<p class=bad>Failed</p><ul>" + "".join(f"<li>{html.escape(why)}</li>" for why in failures) + "</ul>"
    else:
        yield "<p class=good>Passed</p>"
    for rate, seen in (found.get("sent") or {}).items():
        yield f"<p>{html.escape(str(rate))} watch events/s asked for, {seen:.0f} sent.</p>"
