"""Results of load tests as one HTML page: no script, nothing loaded from elsewhere, light and dark."""

from collections.abc import Sequence
from html import escape

from repogen import __version__
from repogen.load.metrics import Result
from repogen.load.samples import Conditions, Samples
from repogen.report import charts
from repogen.report.text import gauge_words, milliseconds, step_table, with_interval

STYLE = """
:root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#1c1c1a;--soft:#5f5e5a;--line:#dddcd6;
--c1:#2166c2;--c2:#c2410c;--c3:#7a7974;--c4:#0f766e;--good:#166534;--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--page:#161615;--card:#20201f;--ink:#f0efeb;--soft:#a8a7a1;--line:#3a3a37;
--c1:#6ea8fe;--c2:#fb923c;--c3:#9a9993;--c4:#2dd4bf;--good:#4ade80;--bad:#f87171}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 20px 64px}h1{font-size:24px;margin:0 0 4px}
h2{font-size:19px;margin:40px 0 12px}h3{font-size:15px;margin:0 0 8px}p{margin:0 0 12px}.soft{color:var(--soft)}
svg+.soft,.legend+.soft{margin:8px 0 0}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,460px),1fr));gap:16px;margin:16px 0}
.grid.one{grid-template-columns:1fr}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px;min-width:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:12px;margin:0 0 16px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}.verdict{font-weight:600}.good{color:var(--good)}.bad{color:var(--bad)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:0}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}.mid{text-anchor:middle}.end{text-anchor:end}
.axis{stroke:var(--soft);fill:none}.grid-line,svg .grid{stroke:var(--line);fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}
.line.c3{stroke:var(--c3);stroke-width:1.25}.dot.c1,.fill.c1{fill:var(--c1)}.dot.c2,.fill.c2{fill:var(--c2)}
.dot.c3,.fill.c3{fill:var(--c3)}.fill.c4{fill:var(--c4)}.dot.hover{opacity:0}.dot.hover:hover{opacity:1}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0 0;padding:0;font-size:13px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.fill-c1{background:var(--c1)}.fill-c2{background:var(--c2)}.fill-c3{background:var(--c3)}.fill-c4{background:var(--c4)}
"""


def as_html(runs: Sequence[tuple[Result, Sequence[Samples]]]) -> str:
    """Return the page for one or more runs."""
    results = [result for result, _ in runs]
    names = ", ".join(dict.fromkeys(result.model for result in results))
    together = _comparison(results) if len(results) > 1 else ""
    parts = "".join(_run(result, samples) for result, samples in runs)
    title = f"Load test of {names}"
    started = results[0].conditions[0].started if results and results[0].conditions else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="soft">{escape(started)} · repogen {__version__}</p>'
        f"{together}{parts}</main></body></html>\n"
    )


def _comparison(results: Sequence[Result]) -> str:
    header = ["model", "load", "batch", "answers/s", "P50", "P90", "P99", "P99.9", "max", "mean&nbsp;batch", "verdict"]
    rows = [
        [
            escape(one.model),
            escape(one.load),
            escape(one.batch),
            f"{one.summary.rate:,.1f}",
            milliseconds(one.summary.p50),
            milliseconds(one.summary.p90),
            with_interval(one.summary.p99, one.summary.p99_low, one.summary.p99_high),
            milliseconds(one.summary.p999),
            milliseconds(one.summary.max),
            f"{one.served.mean_batch:.2f}",
            _verdict(one, short=True),
        ]
        for one in results
    ]
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    by_model = {one.model: [other for other in results if other.model == one.model] for one in results}
    curves = "".join(_card(f"{model}: latency against rate", charts.against_rate(of)) for model, of in by_model.items())
    table = f'<div class="card wide"><table><tr>{head}</tr>{body}</table></div>'
    return f'<h2>All runs</h2><p class="soft">Latency in ms.</p>{table}<div class="grid">{curves}</div>'


def _run(result: Result, samples: Sequence[Samples]) -> str:
    pictures = (
        ("Latency over time", charts.over_time(samples)),
        ("Distribution", charts.distribution(samples)),
        ("Batches that Triton formed", charts.batches(result)),
        ("Where the server's time went", charts.phases(result) + _machine(result)),
        ("Where the time went, step by step", charts.steps(result)),
    )
    cards = "".join(_card(name, picture) for name, picture in pictures)
    notes = "".join(f"<p>{escape(note)}</p>" for note in (*result.summary.notes, result.served.note) if note)
    failed = "".join(f"<p>{count:,} failed: {escape(words)}</p>" for words, count in result.summary.failures)
    return (
        f"<h2>{escape(result.model)}, {escape(result.load)}</h2><p>{_verdict(result)}</p>{_tiles(result)}"
        f'<div class="grid">{cards}</div>{_steps(result)}{failed}{notes}<div class="card">'
        f"<h3>Conditions</h3><dl>{_conditions(result)}</dl></div>"
    )


def _steps(result: Result) -> str:
    """Return what each step of an ensemble did, in figures."""
    if not result.served.members:
        return ""
    _, header, rows = step_table(result)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
    name = "Steps: mean ms a request, by Triton's statistics of the measured window"
    return f'<div class="grid one">{_card(name, table)}</div>'


def _verdict(result: Result, *, short: bool = False) -> str:
    kind = "good" if result.verdict.valid else "bad"
    words = str(result.verdict).partition(":")[0] if short else str(result.verdict)
    return f'<span class="verdict {kind}">{escape(words[:1].upper() + words[1:])}</span>'


def _tiles(result: Result) -> str:
    seen = result.summary
    span = f"P99 ms, 95 %: {milliseconds(seen.p99_low)}..{milliseconds(seen.p99_high)}" if seen.p99_low else "P99 ms"
    tiles = [
        (milliseconds(seen.p50), "P50 ms"),
        (milliseconds(seen.p99), span),
        (milliseconds(seen.p999), "P99.9 ms"),
        (milliseconds(seen.max), "slowest ms"),
        (f"{seen.rate:,.1f}", "answers a second"),
        (f"{seen.requests:,}", "requests"),
        (f"{seen.errors:,}", "errors"),
    ]
    return f'<div class="tiles">{"".join(f"<div class=tile><b>{b}</b><span>{s}</span></div>" for b, s in tiles)}</div>'


def _card(name: str, body: str) -> str:
    return f'<section class="card"><h3>{escape(name)}</h3>{body}</section>' if body else ""


def _machine(result: Result) -> str:
    words = ", ".join(gauge_words(result.served.gauges))
    return f'<p class="soft">{escape(words)}</p>' if words else ""


def _conditions(result: Result) -> str:
    if not result.conditions:
        return ""
    told = result.conditions[0]
    lateness = f"P50 {result.summary.lateness_p50 * 1000:.0f} us, P99 {result.summary.lateness_p99 * 1000:.0f} us"
    rows = {
        "server": told.url,
        "measured": f"{result.summary.seconds:.1f} s after {told.warm_up:g} s of warm-up, ended by {told.ended}",
        "requests": f"batch {told.batch}, {told.shapes} shape{'s' * (told.shapes != 1)}, seed {told.seed}, "
        f"deadline {told.deadline:g} s{', streamed' * told.stream}",
        "sent late": lateness,
        "generators": "; ".join(_generator(one) for one in result.conditions),
        "software": told.software,
    }
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows.items())


def _generator(told: Conditions) -> str:
    return f"{told.host} (process {told.pid}, {told.cpu:.0%} of a core{', real-time' * told.first})"
