"""The page: one HTML file with everything inside, that asks nothing of the network."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from . import colours
from .examples import Gallery, gallery
from .figure import Figure, View
from .figures import chosen, figures
from .run import Run
from .summary import summary
from .table import table
from .verdict import falling, tiles, verdict
from .words import listed

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
EARLY = """try {
  const chosen = localStorage.getItem("basinet-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing */ }"""
KINDS = {"classes": "classification", "labels": "multi-label classification", "real": "regression"}


def make_page(run: Run) -> str:
    """The whole report as HTML."""
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are infinite, or hardly less, are shown as such
        return _make_page(run)


def _make_page(run: Run) -> str:
    drawn = figures(run)
    shown = gallery(run)
    title = f"{run.data}: which posterior to trust"
    parts = [
        *_head(title),
        '<body><a class="skip" href="#summary">To the summary</a>',
        f'<header class="top"><div><h1>{escape(title)}</h1>',
        '<button type="button" class="theme" id="theme">Dark page</button></div>',
        f'<p class="facts">{escape(_facts(run))}</p>',
        f'<p class="facts">{escape(str(run.info["description"]))}</p>' if run.info.get("description") else "",
        "</header>",
        f"{_contents(drawn, shown)}<main>",
        *_notices(run),
        *_summary(run),
        *_table(run),
        *(_figure(figure) for figure in drawn),
        *_examples(run, shown),
        *_reproduce(run),
        f"</main><footer><p>Written by basinet {escape(_version())}. This file needs no network.</p></footer>",
        "<noscript><p>Figures and sorting need JavaScript; the words and the table do not.</p></noscript>",
        f'<script type="application/json" id="data">{_data(run, drawn, shown)}</script>',
        f"<script>{_plotly()}</script><script>{_asset('page.js')}</script></body></html>",
    ]
    return ("\n".join(parts) + "\n").encode("utf-8", "replace").decode()  # half a surrogate pair is no character


def _head(title: str) -> Iterator[str]:
    yield '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_asset("page.css")}</style>'
    yield f"<script>{EARLY}</script></head>"


def _facts(run: Run) -> str:
    record = run.rows[0].records[0]
    n_train = run.info.get("n_train") or record.get("n_train")
    seeds = run.info.get("seeds") or run.seeds
    facts = [
        KINDS[run.kind] + (f" of {run.info['target']}" if run.info.get("target") else ""),
        f"{n_train:,} training and {run.n_test:,} test examples" if n_train else f"{run.n_test:,} test examples",
        f"{len(run.rows)} rows",
        f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed",
    ]
    if run.info.get("parameters"):
        facts.insert(2, f"a network of {run.info['parameters']:,} parameters")
    return ", ".join(facts)


def _contents(drawn: Iterable[Figure], shown: Gallery | None) -> str:
    entries = [("summary", "Summary"), ("table", "Table")]
    entries += [(figure.key, figure.title.rstrip("?")) for figure in drawn]
    entries += [("examples", "Examples")] * (shown is not None) + [("reproduce", "How to reproduce it")]
    items = "".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, title in entries)
    return f'<nav aria-label="Contents"><details><summary>Contents</summary><ul>{items}</ul></details></nav>'


def _notices(run: Run) -> Iterator[str]:
    lines = list(run.notices)
    if not run.finished:
        planned, missing, failed = run.info.get("planned") or [], run.missing, run.failed
        done = (
            f"{len(planned) - len(missing) - len(failed)} of {len(planned)} planned" if planned else f"{len(run.rows)}"
        )
        lost = f", {len(failed)} failed" if failed else ""
        left = f" Still to come: {listed(missing, 30)}." if missing else ""
        said = f"Unfinished run: {done} rows are complete{lost}.{left} The same command resumes it."
        lines.insert(0, said)
    lines += [f"Failed: {label}: {reason}." for label, reason in run.failed.items()]
    lines += [f"Warning: {w}" for w in run.info.get("warnings") or []]
    if lines:
        said = "".join(f"<p>{escape(line)}</p>" for line in lines)
        yield f'<div class="notice" role="status" id="notices">{said}</div>'


def _summary(run: Run) -> Iterator[str]:
    yield '<section id="summary" aria-labelledby="summary-title"><h2 id="summary-title">Summary</h2>'
    loud = " loud" if falling(run) else ""
    yield f'<p class="verdict{loud}" id="verdict">{escape(verdict(run))}</p><ul class="tiles">'
    for tile in tiles(run):
        warn = ' class="warn"' if tile.warn else ""
        value = f"<b>{escape(tile.value)}</b><small>{escape(tile.note)}</small>"
        yield f"<li{warn}><span>{escape(tile.name)}</span>{value}</li>"
    yield '</ul><dl class="answers">'
    for question, answer in summary(run):
        loud = ' class="loud"' if answer.startswith("NO.") else ""
        yield f"<dt>{escape(question)}</dt><dd{loud}>{escape(answer)}</dd>"
    yield "</dl></section>"


def _table(run: Run) -> Iterator[str]:
    columns, rows = table(run)
    error = " ±: one standard error over seeds." if any(cell.error for _, cells in rows for cell in cells) else ""
    yield f"""<section id="table" aria-labelledby="table-title"><h2 id="table-title">All rows</h2>
<p class="hint">Press a heading to sort by it; tick a row to give it a colour in all figures. n = {run.n_test:,} test
examples. ★: the best of its column.{error}
<span class="more" hidden>There are more columns to the right: scroll.</span></p>
<div class="wide" tabindex="0" role="region" aria-labelledby="table-title"><table class="board"><thead><tr>"""
    heads = [("method", "the recipe's name", "")]
    heads += [(c.title, c.tip, ' aria-sort="ascending"' if c.key == "nll" else "") for c in columns]
    for title, tip, order in heads:
        yield f'<th scope="col"{order}><button type="button" title="{escape(tip)}">{escape(title)}</button></th>'
    yield "</tr></thead><tbody>"
    for row, cells in rows:
        name = escape(row.name)
        yield f"""<tr data-row="{name}"><th scope="row" data-value="{name}"><label><input type="checkbox">
<span title="{name}">{name}</span></label></th>"""
        for cell in cells:
            value = repr(cell.value) if math.isfinite(cell.value) else ""
            best = ' class="best"' if cell.best else ""
            error = f" <small>± {escape(cell.error)}</small>" if cell.error else ""
            yield f'<td data-value="{value}"{best}>{escape(cell.text)}{error}</td>'
        yield "</tr>"
    yield '</tbody></table></div><details><summary>What the columns are</summary><dl class="pairs">'
    yield "".join(f"<dt>{escape(title)}</dt><dd>{escape(tip)}</dd>" for title, tip, _ in heads)
    yield "</dl></details></section>"


def _figure(figure: Figure) -> str:
    options = "".join(f"<option>{escape(view.name)}</option>" for view in figure.views)
    label = escape(figure.choose or "view")
    chooser = f'<select aria-label="{label}">{options}</select>' if len(figure.views) > 1 else ""
    return f"""<section id="{figure.key}" aria-labelledby="{figure.key}-title"><figure data-key="{figure.key}">
<div class="head"><div><h2 id="{figure.key}-title">{escape(figure.title)}</h2><p>{escape(figure.see)}</p></div>
{chooser}</div><ul class="legend"></ul><div class="panels"></div><p class="note hint"></p>
<figcaption>{escape(figure.read)}</figcaption>
<details><summary>The numbers</summary><div class="numbers" tabindex="0"></div></details></figure></section>"""


def _examples(run: Run, shown: Gallery | None) -> Iterator[str]:
    if shown is None:
        return
    if run.kind == "classes":
        wrong, hint = "Confidently wrong", "Wrong answers, most confident first."
    else:
        wrong, hint = "Most surprising", "Targets that were predicted to be least likely."
    if run.kind == "real":
        hint += " Predicted: the mean and, in brackets, the 90 % interval."
    options = "".join(f"<option>{escape(name)}</option>" for name in shown.rows)
    fewer = f"{shown.left_out} further rows are left out to keep the page small." if shown.left_out else ""
    yield f"""<section id="examples" aria-labelledby="examples-title"><div class="head"><div>
<h2 id="examples-title">Test examples to look at</h2><p>What to check by eye: hard cases, wrong labels, gaps.
{fewer}</p></div><select id="examples-row" aria-label="row">{options}</select></div>
<h3>Most uncertain</h3><p class="hint">Where the row is least certain.</p><div id="examples-uncertain"></div>
<h3>{wrong}</h3><p class="hint">{hint}</p><div id="examples-wrong"></div></section>"""


def _reproduce(run: Run) -> Iterator[str]:
    yield '<section id="reproduce" aria-labelledby="reproduce-title"><h2 id="reproduce-title">How to reproduce it</h2>'
    if run.info.get("command"):
        command = shlex.join(str(word) for word in run.info["command"])
        yield f'<pre id="command" tabindex="0">{escape(command)}</pre>'
        yield '<button type="button" data-copy="command">Copy</button>'
    else:
        yield "<p>The folder does not record its command: an older version of basinet wrote it.</p>"
    record = run.rows[0].records[0]
    versions = run.info.get("versions") or record.get("versions") or {}
    pairs: dict[str, Any] = {
        "Seeds": ", ".join(str(s) for s in run.info.get("seeds") or run.seeds),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Budget": json.dumps(run.info["budget"]) if run.info.get("budget") else None,
        "Begun": run.info.get("created"),
        "Last row": max((str(r.get("time", "")) for row in run.rows for r in row.records), default=""),
        "Examples": ", ".join(
            f"{run.info[key]:,} {word}"
            for key, word in (("n_train", "training"), ("n_val", "validation"), ("n_test", "test"))
            if run.info.get(key) is not None
        ),
        "Folder": run.folder.name,
    }
    yield '<dl class="pairs">'
    yield "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in pairs.items() if value)
    yield "</dl>"
    if run.info.get("network"):
        network = escape(str(run.info["network"]))
        yield f'<details><summary>The network</summary><pre tabindex="0">{network}</pre></details>'
    recipes = "\n".join(f"{row.name}: {_recipe(row.records[0].get('recipe'))}" for row in run.rows)
    yield f'<details><summary>Every recipe</summary><pre tabindex="0">{escape(recipes)}</pre></details></section>'


def _recipe(coded: Any) -> str:
    """A recipe of a record as one would write it, without the fields that are empty."""
    if isinstance(coded, dict) and set(coded) == {"type", "fields"} and isinstance(coded["fields"], dict):
        name = str(coded["type"]).rpartition("/")[2]
        given = ", ".join(f"{key}={_recipe(value)}" for key, value in coded["fields"].items() if value is not None)
        return f"{name}({given})"
    if isinstance(coded, dict) and set(coded) == {"tuple"} and isinstance(coded["tuple"], list):
        return f"({', '.join(_recipe(v) for v in coded['tuple'])})"
    return repr(coded)


def _data(run: Run, drawn: Iterable[Figure], shown: Gallery | None) -> str:
    content = {
        "figures": {figure.key: {"title": figure.title, "views": [_view(v) for v in figure.views]} for figure in drawn},
        "gallery": None if shown is None else asdict(shown),
        "chosen": list(chosen(run)),
        "palette": {"light": colours.LIGHT, "dark": colours.DARK},
        "tones": colours.TONES,
        "grey": colours.GREY,
        "reference": colours.REFERENCE,
    }
    text = json.dumps(_rounded(content), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _view(view: View) -> dict[str, Any]:
    """A view as JSON, where what a series has not is left out: there are thousands."""
    content = asdict(view)
    for panel in content["panels"]:
        panel["series"] = [{key: value for key, value in series.items() if value} for series in panel["series"]]
    return content


def _rounded(value: Any) -> Any:
    """Numbers in five digits that count, and null for what is not finite: JSON has no word for it."""
    if isinstance(value, dict):
        return {str(key): _rounded(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError('the report needs plotly: pip install "basinet[report]"') from error
    return get_plotlyjs().replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _version() -> str:
    from ..core.version import VERSION

    return VERSION
