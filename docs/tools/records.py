"""A Markdown extension: lines such as {{theory MAP}} become what was measured, from the records in results/.

{{theory NAME}}  what theory says of a method, how far off it was, and what is allowed
{{record NAME}}  the method's scores on small sets, beside those of one network
{{fields NAME}}  the hyperparameters of a method, with defaults and descriptions
{{source PATH}}  a program of the repository
{{methods}}      all methods in one sentence each, with links
{{won}}          the best row on each set of the study `compare`, with the training steps it took
{{around}}       each method around trained networks against these, in that study
{{tempered}}     one network, ensembles and PEP with and without a temperature, on few images of Fashion-MNIST
{{fidelity SET}} agreement with long chains
{{closeness SET}} predictive means and spreads of numbers beside those of long chains
{{started}}      chains that start from a deep ensemble, beside it
{{table2}}       table 2 of the PEP paper, ours beside the published scores
{{variational}}  log likelihood of variational methods less that of MAP, by set
{{ready}}        how soon training starts on a GPU
{{tables SCORE}} the default ensemble beside one network and boosted trees, in the study `tables`
{{networks}}     the default ensemble beside other networks for tables, on first splits of that study
{{classes}}      the defaults for classes beside boosting, in the study `classes`
{{sums}}         how often each row of that study was best or not significantly different from the best
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

RESULTS = Path(__file__).parents[2] / "results"
LABELS = {  # the rows of the records that a method has
    "Anchored": ("anchored ensemble",),
    "Laplace": ("Laplace", "mixture of Laplaces"),
    "MAP": ("MAP", "deep ensemble"),
    "SWAG": ("SWAG", "MultiSWAG"),
    "Snapshot": ("snapshots",),
}
AROUND = {  # rows of the study `compare`, and the row whose networks each starts from
    "Laplace": "MAP",
    "mixture of Laplaces": "deep ensemble",
    "SWAG": "MAP",
    "MultiSWAG": "deep ensemble",
}
WORTH = 5e-4  # nats per example: a smaller difference is written as .000, and not called one
TREES = ("scikit-learn boosting", "LightGBM", "CatBoost")
OUR_NETWORKS, OTHER_NETWORKS = ("deep ensemble", "MAP", "TabM-like"), ("RealMLP", "TabM")
BRIEF = {"scikit-learn boosting": "scikit-learn"}
STARTED = {"rmse": ".2f", "ll": ".2f", "passes": ",.0f"}  # fields of the records, and how they are written
SETS = {
    "uci_wine_red": "wine (red)",
    "wine_red": "wine (red)",
    "wine_red by grades": "wine (red) by grades",
    "breast_cancer": "breast cancer",
    "fashion_mnist": "Fashion-MNIST",
}


def read(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def theory(method: str) -> list[str]:
    """What `basinet check` measures of a method, without the invariants that all share."""
    rows = [r for r in read("theory") if r["subject"] == method]
    if not rows:
        return ["`basinet check " + method + "` measures it."]
    table = [[r["name"], r["says"], f"{r['measured']:.2g}", f"{r['tolerance']:.2g}"] for r in rows]
    return markdown_table(["what is measured", "theory says", "off by", "allowed"], table)


def fields_of(method: str) -> list[str]:
    """The hyperparameters, as `basinet methods NAME` shows them."""
    from basinet.core.documented import documented_fields
    from basinet.methods import find

    cls = find(method)
    described = documented_fields(cls)
    rows = [[f"`{f.name}`", f"`{f.default!r}`", described.get(f.name, "")] for f in fields(cls)]
    return markdown_table(["hyperparameter", "default", "what it is"], rows)


def source(path: str) -> list[str]:
    """A program, as a block of code. (A snippet inside of such a block would be taken for code by formatters.)"""
    return ["```python", *(RESULTS.parent / path).read_text().splitlines(), "```"]


def methods() -> list[str]:
    """Every method that the package has, in its own words."""
    from basinet.core.documented import summary
    from basinet.methods import discover

    rows = [[f"[{name}]({cls.__module__.split('.')[-1]}.md)", summary(cls)] for name, cls in discover().items()]
    return markdown_table(["method", "what it is"], rows)


def record(method: str) -> list[str]:
    """Scores of a method with every default, beside one network: of the study `compare`, and of `record.py`; and how
    close it comes to a posterior that was sampled."""
    lines = [*studied(method), "", *measured(method), "", *near(method)]
    return (
        lines
        if any(lines)
        else [
            "No study has put it on real data yet. Its tests fit it to one of scikit-learn's sets, and",
            f"`basinet compare digits --methods {method},MAP` shows it beside one network on your machine.",
        ]
    )


def near(method: str) -> list[str]:
    """Its total variation from long chains on the digits, beside one network's."""
    rows = [r for r in read("fidelity") if r["set"] == "digits"]
    value = {r["method"]: r["total_variation"] for r in rows}
    own = [r for r in rows if r["recipe"]["type"] == f"method/{method}" and r["method"] in value]
    own = [r for r in own if r["method"] != "half of the chains" and not r.get("tempered")]
    if not own:
        return []
    words = ", ".join(f"{r['method']} {r['total_variation']:.3f} (members: {r['members']})" for r in own)
    one, halves = value["MAP"], value["half of the chains"]
    return [
        f"Total variation from the posterior of a small network on the digits, sampled by long chains: {words}.",
        f"One network has {one:.3f}, half of the chains {halves:.3f} ([study](../studies/fidelity.md)).",
    ]


def studied(method: str) -> list[str]:
    rows = read("compare")
    labels = [label for label in LABELS.get(method, ()) if label != "MAP"]
    base = {r["data"]: r["nll"] for r in rows if r["method"] == "MAP"}
    score = {(r["data"], r["method"]): r for r in rows}
    if not labels:
        return []
    cells = [[title(s), f"{base[s]:.3f}", *(nll_cell(score[s, label]) for label in labels)] for s in base]
    words = "Test NLL with every default, mean of two seeds (`basinet study compare`, results/compare.jsonl). Bold: no"
    heads = ["set", "one network (MAP)", *labels]
    return [words, "row of that study was significantly better.", "", *markdown_table(heads, cells)]


def measured(method: str) -> list[str]:
    """One row of the method on each of the small sets, and a sentence where it differs from one network."""
    rows = [r for r in read("methods") if r["recipe"] == method]
    cells = [
        [title(r["data"]), r["label"], str(r["members"]), f"{r['nll']:.3f}", f"{r['reference_nll']:.3f}", gap(r)]
        for r in rows
        if "nll" in r
    ]
    heads = ["set", "row", "members", "NLL", "one network (MAP)", "difference (95 %)"]
    counts = ", ".join(f"{r['n']:,} of {title(r['data'])}" for r in rows if "n" in r)
    words = f"Test NLL with every default, one seed (`results/methods.jsonl`; test examples: {counts})."
    lines = [words, "", *markdown_table(heads, cells), ""] if cells else []
    return [*lines, *(sentence for r in rows if (sentence := judged(r)))]


def gap(row: dict[str, Any]) -> str:
    """By how much a row differs from one network, with its interval."""
    reference = row["recipe"] == "MAP"
    return "reference" if reference else f"{row['difference']:+.3f} ({row['low']:+.3f}, {row['high']:+.3f})"


def judged(row: dict[str, Any]) -> str:
    """What a reader should know of a row that failed, or that is significantly worse or better than one network."""
    where = title(row["data"])
    if "failed" in row:
        return f"**On {where} its training failed with every default**: {row['failed'].split(': ', 1)[1]}."
    if abs(row["difference"]) < WORTH:
        return ""
    if row["low"] > 0:
        return f"**On {where}, with its defaults, it is significantly worse than one network**: tune it first."
    return f"On {where} it is significantly better than one network." if row["high"] < 0 else ""


def nll_cell(row: dict[str, Any]) -> str:
    """A score, in bold where the row is the best or not significantly different from it."""
    return f"**{row['nll']:.3f}**" if tied(row) else f"{row['nll']:.3f}"


def tied(row: dict[str, Any]) -> bool:
    """Whether a row is the best, or its difference from it is not significant or not worth naming."""
    return row.get("difference") is None or row["difference"] < WORTH or row["low"] <= 0


def title(name: str) -> str:
    return SETS.get(name, name.removeprefix("uci_"))


def won() -> list[str]:
    """The best row of each set, and those that are not significantly different from it, with their training steps."""
    rows = read("compare")
    table = []
    for name in dict.fromkeys(r["data"] for r in rows):
        here = sorted((r for r in rows if r["data"] == name), key=lambda r: r["nll"])
        row = {r["method"]: r for r in here}
        others = [r["method"] for r in here[1:] if tied(r)]
        words = "all others" if len(others) == len(here) - 1 else ", ".join(others) or "none"
        cells = [f"{r['nll']:.3f} ({r['steps']:,.0f})" for r in (row["MAP"], row["deep ensemble"], here[0])]
        table.append([title(name), f"{here[0]['n']:,}", *cells[:2], f"{here[0]['method']} {cells[2]}", words])
    return markdown_table(["set", "n", "MAP", "deep ensemble", "best", "not significantly different"], table)


def around() -> list[str]:
    """Each row of that study that is around trained networks, against these: on how many sets it lowers the NLL, and by
    how much."""
    from basinet.advice.records import SAME

    score = {(r["data"], r["method"]): r["nll"] for r in read("compare")}
    sets = list(dict.fromkeys(data for data, _ in score))
    cells = []
    for label, start in AROUND.items():
        gaps = {data: score[data, label] - score[data, start] for data in sets}
        counts = [sum(g <= -SAME for g in gaps.values()), sum(abs(g) < SAME for g in gaps.values())]
        ends = [(data, gaps[data]) for data in (min(gaps, key=lambda d: gaps[d]), max(gaps, key=lambda d: gaps[d]))]
        said = [f"{gap:+.3f} ({title(data)})" for data, gap in ends]
        cells.append([label, start, *map(str, (*counts, len(sets) - sum(counts))), *said])
    return markdown_table(["row", "its start", "lower on", "the same on", "higher on", "lowest", "highest"], cells)


def tempered() -> list[str]:
    """Scores and passes of each row, and its difference from the best."""
    rows = sorted(read("tempered"), key=lambda r: r["nll"])
    table = []
    for r in rows:
        gap = "" if r is rows[0] else f"{r['difference']:.3f} ({r['low']:.3f} to {r['high']:.3f})"
        scores = [f"{r['nll']:.3f}", f"{r['ece']:.3f}", f"{r['accuracy']:.3f}"]
        table.append([r["method"], *scores, f"{r['draws']:.0f}", gap])
    return markdown_table(["row", "NLL", "ECE", "accuracy", "passes", "NLL above the best"], table)


def sums() -> list[str]:
    """How often a row was best, or as good as best."""
    rows = read("compare")
    best, good = Counter[str](), Counter[str]()
    for name in {r["data"] for r in rows}:
        here = [r for r in rows if r["data"] == name]
        best[min(here, key=lambda r: r["nll"])["method"]] += 1
        good.update(r["method"] for r in here if tied(r))
    total = len({r["data"] for r in rows})
    table = [[label, str(best[label]), f"{count} of {total}"] for label, count in good.most_common()]
    return markdown_table(["row", "best", "best, or not significantly different"], table)


def tables(score: str) -> list[str]:
    """The default ensemble on tables beside one network and the best of the boosted trees, by means over the splits
    that all have; the best in bold. The difference from the trees is paired by splits, with its standard error from
    three on."""
    cells = []
    for name, scores in split_scores().items():
        each = {m: [x[score] for x in splits] for m, splits in scores.items()}
        trees = min(TREES, key=lambda m: fmean(each[m]))
        means = [fmean(each[m]) for m in ("MAP", "deep ensemble", trees)]
        shown = [f"**{x:.3g}**" if x == min(means) else f"{x:.3g}" for x in means]
        apart = [x - y for x, y in zip(each["deep ensemble"], each[trees])]
        error = f" ± {stdev(apart) / len(apart) ** 0.5:.2g}" if len(apart) > 2 else ""
        ours = scores["deep ensemble"]
        inside = f"{fmean(x['coverage_90'] for x in ours):.1%}"
        words = [*shown[:2], f"{shown[2]} ({BRIEF.get(trees, trees)})", f"{fmean(apart):+.2g}{error}", inside]
        cells.append([name.replace("_", " "), str(len(ours)), f"{sum(x['n'] for x in ours):,.0f}", *words])
    word = {"nll": "NLL"}.get(score, score.upper())
    heads = [f"{word}, one network", "ensemble", "best trees", "ensemble less trees", "in 90 %"]
    return markdown_table(["set", "splits", "test rows", *heads], cells)


def split_scores() -> dict[str, dict[str, list[dict[str, float]]]]:
    """Of each set of the study `tables`, the scores of one network, of our default ensemble and of trees on the splits
    that all have. Records of today's default count, the last of each."""
    rows = read("tables")
    today = next(r["default"] for r in reversed(rows) if r["method"] == "deep ensemble")
    known = [r for r in rows if r["method"] in TREES or r.get("default") == today]
    scores = {(r["data"], r["split"], r["method"]): r["scores"] for r in known}
    methods = ("MAP", "deep ensemble", *TREES)
    shared: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name in dict.fromkeys(r["data"] for r in known):
        splits = [k for k in sorted({k for data, k, _ in scores}) if all((name, k, m) in scores for m in methods)]
        if splits:
            shared[name] = {m: [scores[name, k, m] for k in splits] for m in methods}
    return shared


def networks() -> list[str]:
    """On first splits that other networks for tables have: RMSE, NLL and seconds of each, the best in bold; of trees
    the best of each score."""
    rows = [r for r in read("tables") if r["split"] == 0]
    today = next(r["default"] for r in reversed(rows) if r["method"] == "deep ensemble")
    last = {(r["data"], r["method"]): r for r in rows if r.get("default", today) == today}
    cells = []
    for name in dict.fromkeys(data for data, method in last if method in OTHER_NETWORKS):
        trees = {key: min(last[name, m]["scores"][key] for m in TREES) for key in ("rmse", "nll")}
        each = [*(last.get((name, m)) for m in (*OUR_NETWORKS, *OTHER_NETWORKS)), {"scores": trees}]
        best = {key: min(r["scores"][key] for r in each if r) for key in trees}
        cells.append([f"{title(name)} ({last[name, 'MAP']['scores']['n']:,.0f})", *(_cell(r, best) for r in each)])
    heads = ["set (test rows)", "ensemble", "one network", "`BatchEnsemble`", *OTHER_NETWORKS, "best trees"]
    return markdown_table(heads, cells)


def _cell(record: dict[str, Any] | None, best: dict[str, float]) -> str:
    """Scores, in bold where they are the best, and seconds where they are known; nothing where there is no record."""
    if record is None:
        return ""
    scores = {key: record["scores"][key] for key in best}
    shown = " / ".join(f"**{x:.3g}**" if x == best[key] else f"{x:.3g}" for key, x in scores.items())
    return f"{shown} ({record['cpu_seconds']:.0f} s)" if "cpu_seconds" in record else shown


def classes() -> list[str]:
    """The default for classes, one network and ten, beside a linear model and boosting: means over splits, the best NLL
    of a set in bold. The last record of each method counts."""
    last = {(r["data"], r["method"], r["split"]): r for r in read("classes")}
    cells = []
    for name in dict.fromkeys(data for data, _, _ in last):
        each = {
            m: [r["scores"] for (data, method, _), r in last.items() if (data, method) == (name, m)]
            for m in dict.fromkeys(method for data, method, _ in last if data == name)
        }
        best = min(each, key=lambda m: fmean(x["nll"] for x in each[m]))
        for method, scores in each.items():
            nll, accuracy, ece = (fmean(x[key] for x in scores) for key in ("nll", "accuracy", "ece"))
            shown = f"**{nll:.4f}**" if method == best else f"{nll:.4f}"
            count = f"{sum(x['n'] for x in scores):,.0f}"
            cells.append([title(name), str(len(scores)), count, method, shown, f"{accuracy:.1%}", f"{ece:.3f}"])
    return markdown_table(["set", "splits", "test rows", "method", "NLL", "accuracy", "ECE"], cells)


def ready() -> list[str]:
    """Seconds until the first step, and milliseconds of a step of all members: the last record of each row."""
    last = {(r["row"], r["members"], bool(r["compile"])): r for r in read("bench-ready")}
    cells = []
    for row, members, _ in dict.fromkeys((row, members, False) for row, members, _ in last):
        plain, compiled = last.get((row, members, False)), last.get((row, members, True))
        pair = [f"{r['ready_seconds']:.1f} s | {r['step_ms']:.1f} ms" if r else " | " for r in (plain, compiled)]
        cells.append(f"| {row} | {members} | {pair[0]} | {pair[1]} |")
    heads = ["network", "members", "ready after", "a step", "compiled: ready after", "a step"]
    return [*markdown_table(heads, []), *cells]


def fidelity(name: str) -> list[str]:
    """How close methods come to long chains on a set: the columns that its records have."""
    rows = [r for r in read("fidelity") if r["set"] == name]
    columns = {
        "agreement": "agreement",
        "total variation": "total_variation",
        "accuracy": "accuracy",
        "NLL": "nll",
        "ECE": "ece",
    }
    columns = {head: key for head, key in columns.items() if any(key in r for r in rows)}
    cells = [
        [r["method"], str(r["members"]), *(f"{r[k]:.3f}" if k in r else "" for k in columns.values())] for r in rows
    ]
    return markdown_table(["method", "members", *columns], cells)


def started() -> list[str]:
    """Chains that start from a deep ensemble beside the ensemble, as means over the splits of each set."""
    rows = [r for r in read("fidelity") if r["set"] == "started"]
    cells = []
    for data in dict.fromkeys(r["data"] for r in rows):
        both = [[r for r in rows if r["data"] == data and r["method"] == m] for m in ("deep ensemble", "MCLMC from it")]
        pairs = [f"{fmean(r[key] for r in some):{form}}" for key, form in STARTED.items() for some in both]
        cells.append([data, str(len(both[0])), *pairs])
    heads = [f"{name}, {which}" for name in ("RMSE", "log likelihood", "passes") for which in ("ensemble", "chains")]
    return markdown_table(["set", "splits", *heads], cells)


def closeness(name: str) -> list[str]:
    """How close predictive means and spreads come to those of long chains on a set of numbers, the closest first."""
    rows = [r for r in read("fidelity") if r["set"] == name]
    rows.sort(key=lambda r: r["mean_gap"])
    keys = ("mean_gap", "sd_gap", "weights_sd", "nll")
    cells = [[r["method"], str(r["members"]), *(f"{r[k]:.2f}" for k in keys)] for r in rows]
    return markdown_table(["method", "members", "gap of means", "gap of log sd", "sd about the weights", "NLL"], cells)


def table2() -> list[str]:
    """Rows of table 2 of the PEP paper that have records: mean and standard deviation over seeds, published in
    parentheses."""
    cells = []
    for r in (r for r in read("pep") if r["kind"] == "table" and r["published"]):
        scores = [
            f"{r['mean'][key]:.{digits}f} ± {r['sd'][key]:.{digits}f} ({r['published'][key]:.{digits}f})"
            for key, digits in (("nll", 3), ("brier", 3), ("ece", 2), ("error", 2))
        ]
        cells.append([r["preset"], r["method"], *scores])
    return markdown_table(["row", "method", "NLL", "Brier", "ECE, %", "error, %"], cells)


def variational() -> list[str]:
    """Log likelihood of one member of each method less that of MAP on the same splits: mean and, of several splits,
    standard error; the deep ensemble of five last."""
    rows = read("variational")
    ll = {(r["data"], r["split"], r["method"]): r["ll"] for r in rows}
    sets = list(dict.fromkeys(r["data"] for r in rows))
    methods = [m for m in dict.fromkeys(r["method"] for r in rows) if not m.endswith(" x5")]
    methods.sort(key=lambda m: (m != "MAP", m == "deep ensemble"))
    cells = []
    for method in methods:
        line = [method]
        for data in sets:
            splits = sorted({k for d, k, m in ll if d == data and m == method and (d, k, "MAP") in ll})
            values = [ll[data, k, method] - (0.0 if method == "MAP" else ll[data, k, "MAP"]) for k in splits]
            sign = "" if method == "MAP" else "+"
            error = f" ± {stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
            shown = f"{fmean(values):{sign}.2f}".replace("-0.00", "0.00") if values else ""
            line.append(shown.replace("+0.00", "0.00") + error)
        cells.append(line)
    counts = [len({r["split"] for r in rows if r["data"] == d and r["method"] == "MAP"}) for d in sets]
    heads = [f"{title(d)} ({n})" for d, n in zip(sets, counts)]
    return markdown_table(["method (splits)", *heads], cells)


def markdown_table(heads: list[str], rows: list[list[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *escaped]]


class Expand(Preprocessor):
    LINE = re.compile(r"^\{\{(\w+)(?: ([\w./]+))?\}\}$")
    PARTS: ClassVar = {
        "around": around,
        "closeness": closeness,
        "fidelity": fidelity,
        "fields": fields_of,
        "methods": methods,
        "ready": ready,
        "record": record,
        "source": source,
        "started": started,
        "sums": sums,
        "table2": table2,
        "networks": networks,
        "tables": tables,
        "tempered": tempered,
        "variational": variational,
        "classes": classes,
        "theory": theory,
        "won": won,
    }

    def run(self, lines: list[str]) -> list[str]:
        expanded: list[str] = []
        for line in lines:
            asked = self.LINE.match(line)
            if asked and asked[1] not in self.PARTS:
                raise ValueError(f"expected one of {', '.join(self.PARTS)}, got {line}")
            expanded += self.PARTS[asked[1]](*([asked[2]] if asked[2] else [])) if asked else [line]  # type: ignore[operator]
        return expanded


class Records(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # Markdown's own name
        md.preprocessors.register(Expand(md), "records", 100)


def makeExtension(**options: Any) -> Records:
    return Records(**options)
