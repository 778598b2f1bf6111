"""The figures that advice cites, from the records of studies.

They travel with the package as `figures.json`, by their source. After new records

    python -m basinet.advice results

rewrites them; a test holds the file to the records.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Figures = dict[str, float]

FILE = "figures.json"
SIZES = {"one": 1, "two": 2, "three": 3, "five": 5, "ten": 10, "twenty": 20}
NEAR = 0.03  # of log likelihood per row, within which two methods are taken for equal
TREES = ("scikit-learn boosting", "LightGBM", "CatBoost")
MIXTURE = "mixture of the four"
SAME = 0.001  # nats: rows that differ by less are as good as each other


@cache
def shipped() -> dict[str, Figures]:
    """The figures that came with the package, by their source."""
    return json.loads((files("basinet.advice") / FILE).read_text(encoding="utf-8"))


def figures_of(folder: Path) -> dict[str, Figures]:
    """The figures, by their source, from a folder of records."""

    def records(name: str) -> list[Record]:
        return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]

    figures = {
        source: figure(records(source.partition(":")[0].removeprefix("results/"))) for source, figure in OF.items()
    }
    return {
        source: {name: float(f"{value:.6g}") for name, value in values.items()} for source, values in figures.items()
    }


def _size(data: str) -> Callable[[list[Record]], Figures]:
    """NLL and ECE against the number of members; shares of what twenty gain."""

    def of(records: list[Record]) -> Figures:
        curve = {row["size"]: row for r in records if r["data"] == data and "curve" in r for row in r["curve"]}
        nll = {name: curve[size]["nll"] for name, size in SIZES.items()}
        shares = {f"share_{name}": (nll["one"] - nll[name]) / (nll["one"] - nll["twenty"]) for name in SIZES}
        return nll | {f"ece_{name}": curve[size]["ece"] for name, size in SIZES.items()} | shares

    return of


def _local(records: list[Record]) -> Figures:
    """Fashion-MNIST: one, five and twenty members, plain and with something around each."""
    names = {
        "plain": "deep ensemble",
        "temper": "temperature",
        "pep": "PEP",
        "laplace": "Laplace, last layer, full",
        "all_layers": "Laplace, all layers, Kronecker",
    }
    figures: Figures = {}
    for name, method in names.items():
        curve = next(r for r in records if (r["data"], r["method"]) == ("fashion_mnist", method))["curve"]
        for word in ("one", "five", "twenty"):
            row = next(row for row in curve if row["size"] == SIZES[word])
            figures |= {f"{name}_{word}": row["nll"], f"{name}_{word}_auroc": row["auroc"]}
    return figures


def _resnets(records: list[Record]) -> Figures:
    """Four networks alone, each against its temperature, and the mixture of them."""
    nll = {(r["network"], r["method"]): r for r in records if r["kind"] == "row" and r["n_report"] == 5000}
    alone = sorted({network for network, _ in nll} - {MIXTURE})
    figures: Figures = {"networks": len(alone), "images": 5000}
    base, temper, laplace, pep = (
        [nll[n, method]["nll"] for n in alone] for method in ("base", "temperature", "last layer full", "PEP")
    )
    for name, values in (("base", base), ("temper", temper), ("laplace", laplace), ("pep", pep)):
        figures |= {f"{name}_low": min(values), f"{name}_high": max(values)}
    for name, values in (("laplace", laplace), ("pep", pep)):
        over = [x - t for x, t in zip(values, temper)]
        figures |= {f"{name}_over_low": min(over), f"{name}_over_high": max(over)}
    mixed = {"base": "base", "temper": "temperature", "laplace": "last layer full", "pep": "PEP"}
    figures |= {f"mixture_{name}": nll[MIXTURE, method]["nll"] for name, method in mixed.items()}
    gain = nll[MIXTURE, "temperature"]
    return figures | {"mixture_gain": -gain["over_base"], "gain_low": -gain["high"], "gain_high": -gain["low"]}


def _pep(data: str) -> Callable[[list[Record]], Figures]:
    """Means over networks: as they are, with noise of the best size, with a temperature."""

    def of(records: list[Record]) -> Figures:
        [record] = [
            r
            for r in records
            if (r["kind"], r["data"]) == ("curve", data) and r["recipe"]["fields"]["noise"] == "gaussian"
        ]
        words = {"base": "base", "pep": "pep", "temper": "temperature"}
        means = {w: statistics.mean(m["scores"][name]["nll"] for m in record["members"]) for w, name in words.items()}
        return means | {"images": record["n_test"], "networks": len(record["members"])}

    return of


def _tables(records: list[Record]) -> Figures:
    """Today's default ensemble on tables against the best of the boosted trees, by means over the splits that have
    records of all. Sets without such splits do not count, nor records of an earlier default."""
    today = next((r.get("default") for r in reversed(records) if r["method"] == "deep ensemble"), None)
    scores = {  # the last of each
        (r["data"], r["method"], r["split"]): r["scores"]
        for r in records
        if r["method"] in TREES or r.get("default") == today
    }
    splits: dict[str, list[int]] = defaultdict(list)
    for data, method, split in scores:
        if method == "MAP" and all((data, m, split) in scores for m in ("deep ensemble", *TREES)):
            splits[data].append(split)

    def mean(data: str, method: str, score: str) -> float:
        return statistics.mean(scores[data, method, split][score] for split in splits[data])

    figures: Figures = {"sets": len(splits), "splits": sum(map(len, splits.values()))}
    for score in ("nll", "rmse"):
        ours = {data: mean(data, "deep ensemble", score) for data in splits}
        figures[f"{score}_trees"] = sum(x < min(mean(data, m, score) for m in TREES) for data, x in ours.items())
    return figures


def _gaps(records: list[Record], row: str, other: str) -> dict[str, tuple[float, bool]]:
    """Of each set of the study `compare` the NLL of a row less that of another, and whether its targets are numbers."""
    of = {(r["data"], r["method"]): r for r in records}
    pairs = {data: (of[data, row], of[data, other]) for data, method in of if method == row}
    return {data: (own["nll"] - base["nll"], own.get("accuracy") is None) for data, (own, base) in pairs.items()}


def _laplace(records: list[Record]) -> Figures:
    """Laplace around one network less the network, on sets of classes and labels and on regressions."""
    gaps = _gaps(records, "Laplace", "MAP").values()
    real, classes = ([gap for gap, number in gaps if number is kind] for kind in (True, False))
    return {
        "real": len(real),
        "better": sum(gap < 0 for gap in real),
        "most": -min(real),
        "worst": max(real),
        "classes": len(classes),
        "change": max(map(abs, classes)),
    }


def _ensemble(records: list[Record]) -> Figures:
    """Five networks less one, on regressions."""
    real = [gap for gap, number in _gaps(records, "deep ensemble", "MAP").values() if number]
    return {"real": len(real), "better": sum(gap < 0 for gap in real), "most": -min(real), "worst": max(real)}


def _anchored(records: list[Record]) -> Figures:
    """Five anchored networks less five plain ones, on regressions."""
    real = [gap for gap, number in _gaps(records, "anchored ensemble", "deep ensemble").values() if number]
    return {"real": len(real), "better": sum(gap < 0 for gap in real), "most": -min(real), "worst": max(real)}


def _swag(records: list[Record]) -> Figures:
    """SWAG less the network that it starts from, on all sets."""
    gaps = [gap for gap, _ in _gaps(records, "SWAG", "MAP").values()]
    steps = {(r["data"], r["method"]): r["steps"] for r in records}
    return {
        "sets": len(gaps),
        "same": sum(abs(gap) < SAME for gap in gaps),
        "better": sum(gap <= -SAME for gap in gaps),
        "worse": sum(gap >= SAME for gap in gaps),
        "most": -min(gaps),
        "worst": max(gaps),
        "times": max(taken / steps[data, "MAP"] for (data, method), taken in steps.items() if method == "SWAG"),
    }


def _vbll(records: list[Record]) -> Figures:
    """One network with VBLL against one network, the same layers, by means over the splits that have both."""
    ll = {(r["data"], r["split"], r["method"]): r["ll"] for r in records if "rmse" in r["reference"]}
    apart: dict[str, list[float]] = defaultdict(list)
    for data, split, method in ll:
        if method == "VBLL" and (data, split, "MAP") in ll:
            apart[data].append(ll[data, split, "VBLL"] - ll[data, split, "MAP"])
    gaps = [statistics.mean(values) for values in apart.values()]
    return {
        "sets": len(gaps),
        "near": NEAR,
        "equal": sum(abs(gap) <= NEAR for gap in gaps),
        "most": max(gaps),
        "least": min(gaps),
        "fewest": min(map(len, apart.values())),
        "splits": max(map(len, apart.values())),
    }


OF: dict[str, Callable[[list[Record]], Figures]] = {
    "results/size.jsonl: fashion_mnist": _size("fashion_mnist"),
    "results/size.jsonl: digits": _size("digits"),
    "results/local.jsonl: fashion_mnist": _local,
    "results/resnets.jsonl: 5,000 images": _resnets,
    "results/pep.jsonl: digits": _pep("digits"),
    "results/pep.jsonl: fashion_mnist": _pep("fashion_mnist"),
    "results/tables.jsonl: deep ensemble": _tables,
    "results/compare.jsonl: deep ensemble against MAP": _ensemble,
    "results/compare.jsonl: anchored against deep ensemble": _anchored,
    "results/compare.jsonl: Laplace against MAP": _laplace,
    "results/compare.jsonl: SWAG against MAP": _swag,
    "results/variational.jsonl: VBLL against MAP": _vbll,
}


def write(folder: Path, place: Path) -> None:
    """Writes the figures of a folder of records."""
    place.write_text(json.dumps(figures_of(folder), indent=1, sort_keys=True) + "\n", encoding="utf-8")
