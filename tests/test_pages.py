"""What pages say of records is what the records say: counts and ranges in sentences, and words such as "better"."""

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest

from basinet.tables import uci

pytest.importorskip("markdown", reason="the packages of the documentation are not installed: make docs")

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("page_records", ROOT / "docs" / "tools" / "records.py")
page_records = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page_records)


def read(name):
    return [json.loads(line) for line in (ROOT / "results" / f"{name}.jsonl").read_text().splitlines()]


def page(name):
    return " ".join((ROOT / "docs" / f"{name}.md").read_text().split())


@pytest.fixture(scope="module")
def compared():
    """Records of the study `compare`, by set and method."""
    rows = [r for r in read("compare") if r["nll"] is not None]
    return {name: {r["method"]: r for r in rows if r["data"] == name} for name in {r["data"] for r in rows}}


def gains(compared, method):
    """By how much a method has a lower NLL than one network, of sets whose recorded scores differ by .0005 or more."""
    differences = {name: rows["MAP"]["nll"] - rows[method]["nll"] for name, rows in compared.items()}
    return {name: x for name, x in differences.items() if abs(x) >= page_records.WORTH}


def test_what_is_said_of_snapshots_is_recorded(compared):
    better = [name for name, x in gains(compared, "snapshots").items() if x > 0]
    assert len(better) < len(compared) / 2 and set(better) == {
        "uci_energy",
        "uci_concrete",
        "uci_kin8nm",
        "uci_protein",
    }
    assert "worse than one network on most sets**, though better on energy, concrete, kin8nm and protein" in page(
        "methods/snapshot"
    )
    assert "are worse than one network on most of them" in page("choosing")
    steps = {(rows["snapshots"]["steps"], rows["MAP"]["steps"]) for rows in compared.values()}
    assert (2500, 3000) in steps and "2,500 steps by default, where one network takes 3,000" in page("methods/snapshot")
    assert "| .8: 2,500 steps for all snapshots together, where one network takes 3,000 |" in page("choosing")


def test_what_is_said_of_laplace_is_recorded(compared):
    better = {name: x for name, x in gains(compared, "Laplace").items() if abs(x) > 0.015}
    assert set(better) == {"uci_energy", "uci_yacht", "uci_concrete", "uci_boston", "fashion_mnist"}
    low, high = (f"{x:.2f}".lstrip("0") for x in (min(better.values()), max(better.values())))
    assert f"it lowers the NLL on energy, yacht, concrete, boston and Fashion-MNIST (by {low} to {high}), and" in page(
        "choosing"
    )


def test_what_is_said_of_swag_is_recorded(compared):
    assert len(gains(compared, "SWAG")) < len(compared) / 2 and "at the mode on most sets" in page("methods/swag")
    steps = compared["digits"]["SWAG"]["steps"] - compared["digits"]["MAP"]["steps"]
    assert f"(on the digits {steps:.0f} steps after {compared['digits']['MAP']['steps']:,.0f})" in page("methods/swag")
    ratio = [
        f"{rows['SWAG']['steps'] / rows['MAP']['steps']:.1f}" for rows in (compared["digits"], compared["uci_power"])
    ]
    rows = f"{round(compared['uci_power']['SWAG']['n_train'], -2):,}"
    assert f"{ratio[0]} on the digits, {ratio[1]} on {rows} training rows" in page("choosing")


def test_what_is_said_of_new_inputs_is_recorded():
    rows = {r["method"]: r["curve"] for r in read("local") if r["data"] == "fashion_mnist"}

    def auroc(method):
        values = {x["size"]: x["auroc"] for x in rows[method]}
        return f"{values[1]:.2f} and {values[20]:.2f}".replace("0.", ".")

    said = f"the plain ensemble has {auroc('deep ensemble')}, with temperatures {auroc('temperature')}."
    assert said in page("choosing") and said.replace(" has ", " ").removesuffix(".") in page("studies/local")
    best = auroc("Laplace, all layers, Kronecker").replace(" and", " for one member and") + " for twenty"
    assert f"AUROC of {best};" in page("choosing") and f"AUROC of {best}," in page("studies/local")


def test_what_is_said_of_coverage_on_tables_is_recorded():
    splits = {name: each["deep ensemble"] for name, each in page_records.split_scores().items() if name in uci.NAMES}
    rows = {name: round(sum(x["n"] for x in each)) for name, each in splits.items()}
    inside = {name: round(sum(x["n"] * x["coverage_90"] for x in each)) for name, each in splits.items()}
    share = {name: 100 * inside[name] / rows[name] for name in splits}
    within = [f"{x:.1f}" for x in sorted(share.values()) if 85 <= x <= 95]
    few, many = math.ceil(0.85 * rows["yacht"]) - inside["yacht"], inside["energy"] - int(0.95 * rows["energy"])
    assert len(splits) == 9 and len(within) == 7 and (few, many) == (1, 3)
    yacht = f"{inside['yacht']} of yacht's {rows['yacht']} rows are inside ({share['yacht']:.1f} %, one row too few)"
    energy = f"{inside['energy']} of energy's {rows['energy']} ({share['energy']:.1f} %, three rows too many)"
    assert f"{yacht} and {energy}; on the other seven it is {within[0]} to {within[-1]} %" in page("studies/tables")


def test_the_number_of_sets_is_that_of_the_records(compared):
    assert f"with every default on {len(compared)} data sets" in page("choosing")


def test_the_sizes_of_test_parts_are_those_of_the_records():
    studies = [path.stem for path in (ROOT / "results").glob("*.jsonl") if not path.stem.startswith("bench-")]
    sizes = [r[key] for name in studies for r in read(name) for key in ("n_test", "n_report") if key in r]
    assert f"test parts of {min(sizes)} (yacht) to {max(sizes):,} examples" in page("studies/index")


@pytest.mark.parametrize(
    ("difference", "low", "high", "word"),
    [(-2e-8, -3e-8, -1e-8, ""), (2e-8, 1e-8, 3e-8, ""), (-0.01, -0.02, 0.001, "")]
    + [(-0.01, -0.02, -0.001, "significantly better"), (0.01, 0.001, 0.02, "significantly worse")],
)
def test_a_difference_is_named_where_it_is_significant_and_can_be_seen(difference, low, high, word):
    row = {"data": "digits", "recipe": "SWAG", "difference": difference, "low": low, "high": high, "nll": 0.1}
    assert word in page_records.judged(row) and bool(word) == bool(page_records.judged(row))
    assert page_records.tied(row) == (difference < page_records.WORTH or low <= 0)


@pytest.mark.parametrize("study", sorted(p.stem for p in (ROOT / "docs" / "studies").glob("*.md") if p.stem != "index"))
def test_every_study_has_a_picture(study):
    pictures = re.findall(r"!\[[^\]]+\]\(\.\./pictures/([\w-]+\.png)\)", page(f"studies/{study}"))
    assert pictures and len(set(pictures)) == len(pictures)
    assert all((ROOT / "docs" / "pictures" / name).exists() for name in pictures)
