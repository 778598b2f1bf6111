"""The figures that advice cites, from the records of studies.

They travel with the package as `figures.json`, by their source. After new records

    python -m basinet.advice results

writes them anew; a test holds the file to the records.
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
MIXTURE = "mixture of the four"


@cache
def shipped() -> dict[str, Figures]:
    """The figures that came with the package, by their source."""
    return json.loads((files("basinet.advice") / FILE).read_text(encoding="utf-8"))


def figures_of(folder: Path) -> dict[str, Figures]:
    """The figures, by their source, from a folder of records."""

    def records(name: str) -> list[Record]:
        return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]

    found = {
        source: figure(records(source.partition(":")[0].removeprefix("results/"))) for source, figure in OF.items()
    }
    return {source: {name: float(f"{value:.6g}") for name, value in values.items()} for source, values in found.items()}


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
    found: Figures = {}
    for name, method in names.items():
        curve = next(r for r in records if (r["data"], r["method"]) == ("fashion_mnist", method))["curve"]
        for word in ("one", "five", "twenty"):
            row = next(row for row in curve if row["size"] == SIZES[word])
            found |= {f"{name}_{word}": row["nll"], f"{name}_{word}_auroc": row["auroc"]}
    return found


def _resnets(records: list[Record]) -> Figures:
    """Four networks alone, each against its temperature, and the mixture of them."""
    nll = {(r["network"], r["method"]): r for r in records if r["kind"] == "row" and r["n_report"] == 5000}
    alone = sorted({network for network, _ in nll} - {MIXTURE})
    found: Figures = {"networks": len(alone), "images": 5000}
    base, temper, laplace, pep = (
        [nll[n, method]["nll"] for n in alone] for method in ("base", "temperature", "last layer full", "PEP")
    )
    for name, values in (("base", base), ("temper", temper), ("laplace", laplace), ("pep", pep)):
        found |= {f"{name}_low": min(values), f"{name}_high": max(values)}
    for name, values in (("laplace", laplace), ("pep", pep)):
        over = [x - t for x, t in zip(values, temper)]
        found |= {f"{name}_over_low": min(over), f"{name}_over_high": max(over)}
    mixed = {"base": "base", "temper": "temperature", "laplace": "last layer full", "pep": "PEP"}
    found |= {f"mixture_{name}": nll[MIXTURE, method]["nll"] for name, method in mixed.items()}
    gain = nll[MIXTURE, "temperature"]
    return found | {"mixture_gain": -gain["over_base"], "gain_low": -gain["high"], "gain_high": -gain["low"]}


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
    found: Figures = {}
    for data in ("digits", "fashion_mnist"):
        for method in ("MAP", "SWAG"):
            curve = next(r for r in records if (r["data"], r["method"]) == (data, method))["curve"]
            found[f"{data}_{method.lower()}"] = curve[0]["nll"]
    return found


def _paired(records: list[Record], a: str, b: str, score: str) -> dict[str, tuple[float, float, int]]:
    """Of each UCI set the mean over splits of a less b, that in standard errors, and the training rows."""
    of: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for r in records:
        of[r["data"], r["method"]][r["split"]] = r
    found = {}
    for data in {data for data, _ in of}:
        apart = [of[data, a][split][score] - of[data, b][split][score] for split in of[data, a]]
        mean, error = statistics.mean(apart), statistics.stdev(apart) / len(apart) ** 0.5
        found[data] = mean, mean / error, of[data, a][0]["n_train"]
    return found


def _uci_ensemble(records: list[Record]) -> Figures:
    found = _paired(records, "deep ensemble", "MAP", "ll").values()
    return {"better": sum(m > 0 for m, _, _ in found), "sets": len(found), "clearly": sum(z > 2 for _, z, _ in found)}


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
    """Today's defaults on tables: five networks against one, and against the best of the boosted trees, on sets that
    have records of all."""
    of: dict[str, dict[str, Record]] = {}
    for r in records:
        of.setdefault(r["data"], {})[r["method"]] = r["scores"]
    ours, one = "deep ensemble", "MAP"
    of = {data: each for data, each in of.items() if ours in each and one in each and len(each) > 2}
    trees = {data: [s for method, s in each.items() if method not in (ours, one)] for data, each in of.items()}
    return {
        "sets": len(of),
        "nll_one": sum(each[ours]["nll"] < each[one]["nll"] for each in of.values()),
        "rmse_one": sum(each[ours]["rmse"] < each[one]["rmse"] for each in of.values()),
        "nll_trees": sum(each[ours]["nll"] < min(s["nll"] for s in trees[data]) for data, each in of.items()),
        "rmse_trees": sum(each[ours]["rmse"] < min(s["rmse"] for s in trees[data]) for data, each in of.items()),
    }


def _compare(records: list[Record]) -> Figures:
    """Laplace around one network less the network, on sets of classes and labels and on regressions."""
    nll = {(r["data"], r["method"]): r for r in records}
    gaps = {d: nll[d, "Laplace"]["nll"] - nll[d, "MAP"]["nll"] for d, method in nll if method == "MAP"}
    classes = [gap for data, gap in gaps.items() if nll[data, "MAP"].get("accuracy") is not None]
    real = [gap for data, gap in gaps.items() if nll[data, "MAP"].get("accuracy") is None]
    return {
        "classes": len(classes),
        "better": sum(gap < 0 for gap in classes),
        "most": -min(classes),
        "worst": max(classes),
        "real": len(real),
        "change": max(map(abs, real)),
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
