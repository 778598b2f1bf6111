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
SMALL = 2000  # training rows of a UCI set that is small
SIZES = {"one": 1, "two": 2, "three": 3, "five": 5, "ten": 10, "twenty": 20}
TREES = ("scikit-learn boosting", "LightGBM", "CatBoost")
MIXTURE = "mixture of the four"


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


def _swag(records: list[Record]) -> Figures:
    """One member: the mode, and SWAG from there on."""
    figures: Figures = {}
    for data in ("digits", "fashion_mnist"):
        for method in ("MAP", "SWAG"):
            curve = next(r for r in records if (r["data"], r["method"]) == (data, method))["curve"]
            figures[f"{data}_{method.lower()}"] = curve[0]["nll"]
    return figures


def _paired(records: list[Record], a: str, b: str, score: str) -> dict[str, tuple[float, float, int]]:
    """Of each UCI set the mean over splits of a less b, that in standard errors, and the training rows."""
    of: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for r in records:
        of[r["data"], r["method"]][r["split"]] = r
    differences = {}
    for data in {data for data, _ in of}:
        apart = [of[data, a][split][score] - of[data, b][split][score] for split in of[data, a]]
        mean, error = statistics.mean(apart), statistics.stdev(apart) / len(apart) ** 0.5
        differences[data] = mean, mean / error, of[data, a][0]["n_train"]
    return differences


def _uci_ensemble(records: list[Record]) -> Figures:
    differences = _paired(records, "deep ensemble", "MAP", "ll").values()
    return {
        "better": sum(m > 0 for m, _, _ in differences),
        "sets": len(differences),
        "clearly": sum(z > 2 for _, z, _ in differences),
    }


def _uci_anchored(records: list[Record]) -> Figures:
    scores = _paired(records, "anchored ensemble", "deep ensemble", "ll").values()
    errors = _paired(records, "anchored ensemble", "deep ensemble", "rmse").values()
    small, large = ([x for x in scores if (x[2] < SMALL) == is_small] for is_small in (True, False))
    return {
        "rmse": sum(m < 0 for m, _, _ in errors),
        "sets": len(errors),
        "small": len(small),
        "small_better": sum(m > 0 for m, _, _ in small),
        "small_clearly": sum(z > 2 for _, z, _ in small),
        "large": len(large),
        "large_worse": sum(m < 0 for m, _, _ in large),
    }


def _tables(records: list[Record]) -> Figures:
    """Today's defaults on tables: ten networks against one, and against the best of the boosted trees, by means over
    the splits that have records of all. Sets without such splits do not count, nor records of an earlier default."""
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
        figures[f"{score}_one"] = sum(x < mean(data, "MAP", score) for data, x in ours.items())
        figures[f"{score}_trees"] = sum(x < min(mean(data, m, score) for m in TREES) for data, x in ours.items())
    return figures


def _compare(records: list[Record]) -> Figures:
    """Laplace around one network less the network, on sets of classes and labels and on regressions."""
    nll = {(r["data"], r["method"]): r for r in records}
    gaps = {d: nll[d, "Laplace"]["nll"] - nll[d, "MAP"]["nll"] for d, method in nll if method == "MAP"}
    classes = [gap for data, gap in gaps.items() if nll[data, "MAP"].get("accuracy") is not None]
    real = [gap for data, gap in gaps.items() if nll[data, "MAP"].get("accuracy") is None]
    return {
        "real": len(real),
        "better": sum(gap < 0 for gap in real),
        "most": -min(real),
        "worst": max(real),
        "classes": len(classes),
        "change": max(map(abs, classes)),
    }


OF: dict[str, Callable[[list[Record]], Figures]] = {
    "results/size.jsonl: fashion_mnist": _size("fashion_mnist"),
    "results/size.jsonl: digits": _size("digits"),
    "results/local.jsonl: fashion_mnist": _local,
    "results/resnets.jsonl: 5,000 images": _resnets,
    "results/pep.jsonl: digits": _pep("digits"),
    "results/pep.jsonl: fashion_mnist": _pep("fashion_mnist"),
    "results/swag.jsonl: one member": _swag,
    "results/uci.jsonl: deep ensemble against MAP": _uci_ensemble,
    "results/uci.jsonl: anchored against deep ensemble": _uci_anchored,
    "results/tables.jsonl: deep ensemble": _tables,
    "results/compare.jsonl: Laplace against MAP": _compare,
}


def write(folder: Path, place: Path) -> None:
    """Writes the figures of a folder of records."""
    place.write_text(json.dumps(figures_of(folder), indent=1, sort_keys=True) + "\n", encoding="utf-8")
