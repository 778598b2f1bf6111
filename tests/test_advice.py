"""Advice: what it cites exists and says so, budgets are kept, and facts decide."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import basinet as bn
from basinet.advice import Evidence, evidence
from basinet.advice.advise import facts_of
from basinet.advice.records import OF, figures_of, shipped, write
from basinet.advice.rules import RULES
from basinet.cli import app
from basinet.methods import find
from basinet.testing import Bench

RESULTS = Path(__file__).parents[1] / "results"
ENGINE = bn.Engine(device="cpu", progress=False, compile=False)
KEY = bn.Noise.seed(3)
SIZES = {"one": 1, "two": 2, "three": 3, "five": 5, "ten": 10, "twenty": 20}


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def of_size(data: str) -> dict[str, float]:
    curve = {row["size"]: row for r in records("size.jsonl") if r["data"] == data for row in r["curve"]}
    figures = {n: curve[s]["nll"] for n, s in SIZES.items()} | {f"ece_{n}": curve[s]["ece"] for n, s in SIZES.items()}
    gain = curve[1]["nll"] - curve[20]["nll"]
    return figures | {f"share_{n}": 1 - (curve[s]["nll"] - curve[20]["nll"]) / gain for n, s in SIZES.items()}


def of_pep(data: str) -> dict[str, float]:
    kept = [r for r in records("pep.jsonl") if (r["kind"], r["data"]) == ("curve", data)]
    (record,) = [r for r in kept if r["recipe"]["fields"]["noise"] == "gaussian"]

    def mean(name: str) -> float:
        return float(np.mean([m["scores"][name]["nll"] for m in record["members"]]))

    counts = {"images": record["n_test"], "networks": len(record["members"])}
    return {"base": mean("base"), "pep": mean("pep"), "temper": mean("temperature")} | counts


def of_resnets() -> dict[str, float]:
    rows = [r for r in records("resnets.jsonl") if r["kind"] == "row" and r["n_report"] == 5000]
    words = {"base": "base", "temper": "temperature", "laplace": "last layer full", "pep": "PEP"}
    names = [f"ResNet-{depth}" for depth in (20, 32, 44, 56)]
    nll = {
        w: np.array([r["nll"] for n in names for r in rows if (r["network"], r["method"]) == (n, m)])
        for w, m in words.items()
    }
    mixed = {w: r for w, m in words.items() for r in rows if r["network"].startswith("mixture") and r["method"] == m}
    figures = {"networks": 4, "images": 5000}
    for word, values in nll.items():
        over = values - nll["temper"]
        figures |= {f"{word}_low": values.min(), f"{word}_high": values.max(), f"mixture_{word}": mixed[word]["nll"]}
        figures |= {f"{word}_over_low": over.min(), f"{word}_over_high": over.max()}
    gain = mixed["temper"]
    figures |= {
        "mixture_gain": mixed["base"]["nll"] - gain["nll"],
        "gain_low": -gain["high"],
        "gain_high": -gain["low"],
    }
    return figures


def of_local() -> dict[str, float]:
    words = {"plain": "deep ensemble", "temper": "temperature", "pep": "PEP", "laplace": "Laplace, last layer, full"}
    words |= {"all_layers": "Laplace, all layers, Kronecker"}
    by = {r["method"]: r["curve"] for r in records("local.jsonl") if r["data"] == "fashion_mnist"}
    rows = {
        (w, n): next(x for x in by[m] if x["size"] == SIZES[n])
        for w, m in words.items()
        for n in SIZES
        if n in ("one", "five", "twenty")
    }
    figures = {f"{w}_{n}": row["nll"] for (w, n), row in rows.items()}
    return figures | {f"{w}_{n}_auroc": row["auroc"] for (w, n), row in rows.items()}


def of_tables(given: list[dict[str, Any]] | None = None) -> dict[str, float]:
    rows = records("tables.jsonl") if given is None else given
    [*_, newest] = [r.get("default") for r in rows if r["method"] == "deep ensemble"]
    ours, trees = ("MAP", "deep ensemble"), ("scikit-learn boosting", "LightGBM", "CatBoost")
    scores: dict[str, dict[int, dict[str, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    for r in rows:
        if r["method"] in trees or (r["method"] in ours and r.get("default") == newest):
            scores[r["data"]][r["split"]][r["method"]] = r["scores"]
    whole = {d: [each for each in by.values() if len(each) == 5] for d, by in scores.items()}
    whole = {d: by for d, by in whole.items() if by}
    figures: dict[str, float] = {"sets": len(whole), "splits": sum(len(by) for by in whole.values())}
    for name in ("nll", "rmse"):
        means = {d: {m: np.mean([each[m][name] for each in by]) for m in by[0]} for d, by in whole.items()}
        figures[f"{name}_trees"] = sum(all(x["deep ensemble"] < x[t] for t in trees) for x in means.values())
    return figures


def test_figures_of_tables_are_means_over_splits_of_the_newest_default():
    def row(method: str, nll: float, split: int = 0, data: str = "yacht", **more: Any) -> dict[str, Any]:
        scores = {"nll": nll, "rmse": nll}
        return {"data": data, "method": method, "split": split, "scores": scores, **more}

    trees = [row(m, 1.0, split) for m in ("scikit-learn boosting", "LightGBM", "CatBoost") for split in (0, 1)]
    old = [row("MAP", 5.0), row("deep ensemble", -9.0)]
    new = [row("MAP", x + 1, split, default="b") for split, x in ((0, 0.0), (1, 1.5))]
    new += [row("deep ensemble", x, split, default="b") for split, x in ((0, 0.0), (1, 1.5))]  # better on average alone
    others = [row("RealMLP", -5.0), row("TabM-like", -5.0, default="b"), row("MAP", 0.0, data="naval", default="b")]
    rows = [*trees, *old, *new, *others]
    figures = {"sets": 1, "splits": 2, "nll_trees": 1, "rmse_trees": 1}
    assert OF["results/tables.jsonl: deep ensemble"](rows) == figures == of_tables(rows)
    assert OF["results/tables.jsonl: deep ensemble"]([*trees, *new[:2]])["sets"] == 0


CLASSES = {"digits", "breast_cancer", "fashion_mnist", "weather"}


def apart(row: str, other: str) -> tuple[list[float], list[float]]:
    """NLL of a row less that of another, on regressions and on the other sets of the study compare."""
    nll = {(r["data"], r["method"]): r["nll"] for r in records("compare.jsonl")}
    sets = {d for d, _ in nll}
    return tuple([nll[d, row] - nll[d, other] for d in some] for some in (sets - CLASSES, sets & CLASSES))


def of_regressions(row: str, other: str) -> dict[str, float]:
    real, _ = apart(row, other)
    return {"real": len(real), "better": sum(x < 0 for x in real), "most": -min(real), "worst": max(real)}


def of_laplace() -> dict[str, float]:
    _, others = apart("Laplace", "MAP")
    return of_regressions("Laplace", "MAP") | {"classes": len(others), "change": max(map(abs, others))}


def of_swag() -> dict[str, float]:
    gaps = np.concatenate(apart("SWAG", "MAP"))
    counts = {"same": (abs(gaps) < 0.001).sum(), "better": (gaps <= -0.001).sum(), "worse": (gaps >= 0.001).sum()}
    steps = {m: np.array([r["steps"] for r in records("compare.jsonl") if r["method"] == m]) for m in ("SWAG", "MAP")}
    times = (steps["SWAG"] / steps["MAP"]).max()
    return {"sets": len(gaps), "most": -gaps.min(), "worst": gaps.max(), "times": times} | counts


def of_vbll() -> dict[str, float]:
    rows = {
        (r["data"], r["split"], r["method"]): r["ll"] for r in records("variational.jsonl") if r["data"] != "digits"
    }
    both = [(d, s) for d, s, method in rows if method == "VBLL" and (d, s, "MAP") in rows]
    gaps = {d: [rows[d, s, "VBLL"] - rows[d, s, "MAP"] for e, s in both if e == d] for d, _ in both}
    means, counts = [float(np.mean(x)) for x in gaps.values()], [len(x) for x in gaps.values()]
    equal = sum(abs(x) <= 0.03 for x in means)
    sizes = {"sets": len(gaps), "fewest": min(counts), "splits": max(counts)}
    return sizes | {"equal": equal, "near": 0.03, "most": max(means), "least": min(means)}


MEASURED: dict[str, Callable[[], dict[str, float]]] = {
    "results/size.jsonl: fashion_mnist": lambda: of_size("fashion_mnist"),
    "results/size.jsonl: digits": lambda: of_size("digits"),
    "results/local.jsonl: fashion_mnist": of_local,
    "results/resnets.jsonl: 5,000 images": of_resnets,
    "results/pep.jsonl: digits": lambda: of_pep("digits"),
    "results/pep.jsonl: fashion_mnist": lambda: of_pep("fashion_mnist"),
    "results/tables.jsonl: deep ensemble": of_tables,
    "results/compare.jsonl: deep ensemble against MAP": lambda: of_regressions("deep ensemble", "MAP"),
    "results/compare.jsonl: anchored against deep ensemble": lambda: of_regressions(
        "anchored ensemble", "deep ensemble"
    ),
    "results/compare.jsonl: Laplace against MAP": of_laplace,
    "results/compare.jsonl: SWAG against MAP": of_swag,
    "results/variational.jsonl: VBLL against MAP": of_vbll,
}


def test_the_figures_in_the_package_are_those_of_the_records():
    """Where this fails, records are new: python -m basinet.advice results writes the figures."""
    assert shipped() == figures_of(RESULTS)
    assert set(shipped()) == set(MEASURED) == {e.source for e in evidence.ALL if not e.source.startswith("theory: ")}


def test_they_are_written_as_they_are_read(tmp_path):
    write(RESULTS, tmp_path / "figures.json")
    assert json.loads((tmp_path / "figures.json").read_text()) == shipped()


def test_temperature_comes_before_noise_as_the_evidence_says():
    figures = shipped()
    assert all(
        figures[f"results/pep.jsonl: {data}"]["temper"] < figures[f"results/pep.jsonl: {data}"]["pep"]
        for data in ("digits", "fashion_mnist")
    )
    assert figures["results/resnets.jsonl: 5,000 images"]["pep_over_low"] > 0
    labels = [rule.label for rule in RULES]
    assert labels.index("a temperature on your network") < labels.index("noise around your network (PEP)")


@pytest.mark.parametrize("given", evidence.ALL, ids=lambda e: e.source)
def test_what_is_cited_exists_and_says_what_is_claimed(given):
    if given.source.startswith("theory: "):
        method, check = re.fullmatch(r"theory: basinet check (\w+): (.*)", given.source).groups()
        claim = next(c for c in find(method).theory(Bench(method)) if c.name == check)
        assert claim.passed and not given.figures
        return
    figures = MEASURED[given.source]()
    assert given.figures
    for name, value in given.figures.items():
        assert value == pytest.approx(figures[name], rel=1e-4, abs=1e-9), name
    assert "{" not in str(given) and str(given).endswith(f"[{given.source}]")


def test_every_reason_of_every_rule_is_among_those_that_are_checked():
    for name in (n for n in vars(evidence) if isinstance(getattr(evidence, n), Evidence)):
        assert getattr(evidence, name) in evidence.ALL
    base = facts_of(problem(), classes(), classes(), None, bn.Budget())
    for rule in RULES:
        numbers = base._replace(classes=None, real=True)
        for facts in (base, numbers, base._replace(val=False)):
            assert rule.reasons(facts) and all(reason in evidence.ALL for reason in rule.reasons(facts))


def test_the_order_of_the_rules_is_that_of_the_figures():
    figures = shipped()
    anchored = figures["results/compare.jsonl: anchored against deep ensemble"]
    assert anchored["better"] < anchored["real"] / 2 and anchored["worst"] > anchored["most"]
    labels = [rule.label for rule in RULES]
    assert labels.index("deep ensemble") < labels.index("anchored ensemble")
    members = figures["results/size.jsonl: fashion_mnist"]
    shares = [members[f"share_{name}"] for name in ("five", "three", "two")]  # as RULES asks for them
    assert next(rule.sizes for rule in RULES if rule.label == "deep ensemble") == (5, 3, 2)
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.8 and shares[-1] > 0.4
    alone = figures["results/compare.jsonl: deep ensemble against MAP"]
    assert alone["better"] > alone["real"] / 2 and labels.index("deep ensemble") < labels.index("one network")
    laplace = figures["results/compare.jsonl: Laplace against MAP"]
    assert laplace["better"] > laplace["real"] / 2 and laplace["most"] > laplace["worst"]
    assert labels.index("one network and Laplace over its last layer") < labels.index("one network")
    swag = figures["results/compare.jsonl: SWAG against MAP"]
    assert swag["same"] > swag["sets"] / 2 and not any("SWAG" in label for label in labels)
    vbll = figures["results/variational.jsonl: VBLL against MAP"]
    assert vbll["equal"] > vbll["sets"] / 2  # for one network; what it adds is the spread that one pass gives


def problem(*layers: nn.Module, prior: Any = None) -> bn.Problem:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.Tanh(), nn.Linear(8, 3))

    return bn.Problem(net, bn.likelihoods.Categorical(), prior or bn.priors.Normal(scale=1.0))


def test_recipes_that_do_not_know_of_terms_are_not_recommended():
    x, y = torch.zeros(4, 6), torch.arange(4) % 3
    plain = problem()
    given = bn.Problem(plain.network, plain.likelihood, terms=[bn.terms.Observations(x, y, plain.likelihood)])
    few = bn.Budget(passes=1)
    known = [advice.method for advice in bn.advise(plain, classes(), few, engine=ENGINE)]
    assert any(not method.terms for method in known)
    assert all(advice.method.terms for advice in bn.advise(given, classes(), few, engine=ENGINE))
    noisy = regression(likelihood=bn.likelihoods.Gaussian(noise=0.5))
    term = bn.terms.Observations(x, torch.zeros(4, 1), noisy.likelihood)
    real = bn.Problem(noisy.network, noisy.likelihood, terms=[term])
    data = bn.Data(classes().inputs, torch.zeros(len(classes()), 1))
    assert {type(advice.method) for advice in bn.advise(real, data, engine=ENGINE)} == {bn.MAP}


def regression(*layers: nn.Module, likelihood: Any = None, outputs: int = 1) -> bn.Problem:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.Tanh(), nn.Linear(8, outputs))

    return bn.Problem(net, likelihood or bn.likelihoods.Gaussian(noise=0.5, learned=True))


def classes(n: int = 60) -> bn.Data:
    x, noise = (KEY.split(name).normal(torch.empty(n, 6)) for name in ("x", "noise"))
    return bn.Data(x, (x + 2 * noise)[:, :3].argmax(-1))


def numbers(n: int = 60) -> bn.Data:
    x = KEY.split("x").normal(torch.empty(n, 6))
    return bn.Data(x, x[:, :1])


def names(advice: list[bn.Advice]) -> list[tuple[str, int]]:
    return [(type(a.method).__name__, a.members) for a in advice]


def two(problem: bn.Problem, data: bn.Data, budget: Any = None, **more: Any) -> list[tuple[str, int]]:
    return names(bn.advise(problem, data, budget, engine=ENGINE, **more))


def test_facts_decide():
    start = bn.Posterior.of(problem().network.module, problem())
    assert two(problem(), classes()) == [("MAP", 5), ("Laplace", 1)]
    assert two(regression(), numbers()) == [("MAP", 5), ("Anchored", 5)]
    assert two(regression(nn.BatchNorm1d(8)), numbers()) == [("MAP", 5), ("Laplace", 1)]
    assert two(regression(nn.Dropout(0.1)), numbers()) == [("MAP", 5), ("Laplace", 1)]
    assert two(problem(), classes(), start=start, val=classes()) == [("NoneType", 1), ("Laplace", 1)]
    assert two(problem(), classes(), start=start) == [("Laplace", 1), ("MAP", 5)]  # no validation data to temper on
    other = problem(prior=bn.priors.StudentT())
    started = bn.Posterior.of(other.network.module, other)
    assert two(other, classes(), start=started, val=classes()) == [("NoneType", 1), ("PEP", 1)]
    uneven = regression(likelihood=bn.likelihoods.Heteroscedastic(), outputs=2)
    first, second = bn.advise(uneven, numbers(), val=numbers(), engine=ENGINE)
    assert names([first, second]) == [("MAP", 5), ("Anchored", 5)]
    cited = first.reasons
    assert evidence.ENSEMBLE in cited and evidence.ANCHORED in second.reasons
    assert first.then == second.then == "bn.temper(posterior, val)"  # a factor on the spread
    assert (evidence.TABLES in cited) == (shipped()["results/tables.jsonl: deep ensemble"]["sets"] > 0)
    assert two(other, classes()) == [("MAP", 5), ("MAP", 1)]  # no Laplace around another prior than a normal one


def test_budgets_are_kept():
    each = bn.MAP().schedule(60).steps
    assert two(problem(), classes(), bn.Budget(steps=4 * each)) == [("MAP", 3), ("Laplace", 1)]
    assert two(problem(), classes(), bn.Budget(steps=each)) == [("Laplace", 1), ("MAP", 1)]
    start = bn.Posterior.of(problem().network.module, problem())
    assert two(problem(), classes(), bn.Budget(steps=1), start=start, val=classes()) == [
        ("NoneType", 1),
        ("Laplace", 1),
    ]
    few = bn.advise(problem(), classes(), bn.Budget(passes=4), start=start, val=classes(), engine=ENGINE)
    assert names(few) == [("NoneType", 1), ("Laplace", 1)] and all(a.passes <= 4 for a in few)
    one = bn.advise(problem(), classes(), bn.Budget(passes=1), val=classes(), engine=ENGINE)
    assert names(one) == [("Laplace", 1), ("MAP", 1)] and all(a.passes == 1 for a in one)
    assert one[0].method.via == "probit"
    real = bn.advise(regression(), numbers(), bn.Budget(passes=1), val=numbers(), engine=ENGINE)
    assert names(real) == [("Laplace", 1), ("VBLL", 1)] and all(a.passes == 1 for a in real)
    assert two(regression(), numbers(), bn.Budget(passes=1)) == [("Laplace", 1), ("MAP", 1)]  # its noise is set by val
    with pytest.raises(ValueError, match=r"nothing fits into Budget\(.*one network takes 3,000 training steps"):
        two(problem(), classes(), bn.Budget(steps=10))
    with pytest.raises(ValueError, match=r"nothing fits .* takes [\d.e-]+ s"):
        two(problem(), classes(), 1e-9)


def test_advice_can_be_followed(monkeypatch):
    monkeypatch.setattr("basinet.engine.method.ENOUGH", 100)  # steps, and up to the next number of them
    monkeypatch.setattr("basinet.engine.method.MOST", 100)
    data = classes()
    trained = bn.fit(bn.MAP(epochs=20), problem(), data, engine=ENGINE)
    for start in (None, trained, bn.Posterior.of(problem().network.module, problem())):
        for advice in bn.advise(problem(), data, bn.Budget(steps=300), val=data, start=start, engine=ENGINE):
            around, posterior = start if advice.around_start else None, start
            if advice.method is not None:
                posterior = bn.fit(
                    advice.method, problem(), data, val=data, members=advice.members, start=around, engine=ENGINE
                )
                assert advice.cost.method == advice.method
            assert len(posterior) == advice.members and advice.cost.fits
            if advice.then:
                known = {"bn": bn, "posterior": posterior, "start": start, "val": data}
                assert bn.score(eval(advice.then, known), data)["nll"] > 0


def test_advice_reads_well():
    (first, second) = bn.advise(problem(), classes(), val=classes(), engine=ENGINE)
    text = str(second)
    assert text.startswith("one network and Laplace over its last layer: Laplace, members=1")
    assert "cost: 3,000 training steps" in text and "3 passes per prediction" in text
    assert str(replace(second, passes=1.0)).count("1 pass per prediction") == 1
    assert "[results/compare.jsonl" in text and "then:" not in text
    assert "then: bn.temper(posterior, val)" in str(first) and "results/size.jsonl" in str(first)
    start = bn.Posterior.of(problem().network.module, problem())
    (tempered, _) = bn.advise(problem(), classes(), val=classes(), start=start, engine=ENGINE)
    lines = str(tempered).splitlines()
    assert lines[0] == "a temperature on your network" and "cost: 0 training steps" in lines[1]
    assert lines[2] == "  then: bn.temper(start, val)" and tempered.passes == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": 0}, "seconds above 0, or None, got 0"),
        ({"steps": -1}, "steps above 0, or None, got -1"),
        ({"passes": 0.5}, r"at least 1 pass .*, got 0\.5"),
        ({"seconds": "long"}, "seconds above 0, or None, got 'long'"),
    ],
)
def test_a_budget_is_positive(wrong, message):
    with pytest.raises(ValueError, match=message):
        bn.Budget(**wrong)


def test_advice_needs_data():
    with pytest.raises(TypeError, match="expected data as bn"):
        bn.advise(problem(), None)


def test_the_command_recommends_two_and_takes_weights(tmp_path):
    from safetensors.torch import save_file

    result = CliRunner().invoke(app, ["advise", "wine", "--steps", "15000"])
    assert result.exit_code == 0, result.output
    assert "1. deep ensemble: MAP, members=5" in result.output and "2. one network and Laplace" in result.output
    assert "because:" in result.output and "[results/size.jsonl" in result.output
    file = tmp_path / "weights.safetensors"
    save_file(bn.networks.MLP(13, 3, hidden=(200, 200)).state_dict(), file)
    result = CliRunner().invoke(app, ["advise", "wine", "--weights", str(file), "--passes", "30"])
    assert result.exit_code == 0, result.output
    assert "1. a temperature on your network" in result.output and "2. Laplace over the last layer" in result.output
    result = CliRunner().invoke(app, ["advise", "wine", "--steps", "5"])
    assert result.exit_code == 2 and "nothing fits into" in result.output
