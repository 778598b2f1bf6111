"""Advice: what it cites exists and says so, budgets are kept, and facts decide."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import basinet as bn
from basinet.advice import Evidence, evidence
from basinet.advice.advise import facts_of
from basinet.advice.rules import RULES
from basinet.cli import app
from basinet.methods import find
from basinet.testing import Bench

RESULTS = Path(__file__).parents[1] / "results"
ENGINE = bn.Engine(device="cpu", progress=False, compile=False)
KEY = bn.Noise.seed(3)


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def of_size(data: str) -> dict[str, float]:
    curve = {row["size"]: row for r in records("size.jsonl") if r["data"] == data for row in r["curve"]}
    names = {"one": 1, "five": 5, "twenty": 20}
    return {n: curve[s]["nll"] for n, s in names.items()} | {f"ece_{n}": curve[s]["ece"] for n, s in names.items()}


def of_uci(a: str, b: str, score: str) -> dict[str, tuple[float, float, int]]:
    """For each set the mean over splits of a minus b, in units of its standard error too, and the training rows."""
    each: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for r in records("uci.jsonl"):
        each[r["data"], r["method"]][r["split"]] = r
    found = {}
    for data in {d for d, _ in each}:
        rows = [(x[score] - each[data, b][s][score], x["n_train"]) for s, x in each[data, a].items()]
        apart = [x for x, _ in rows]
        mean, error = statistics.mean(apart), statistics.stdev(apart) / math.sqrt(len(apart))
        found[data] = (mean, mean / error, rows[0][1])
    return found


def of_pep(data: str) -> dict[str, float]:
    (record,) = [
        r
        for r in records("pep.jsonl")
        if (r["kind"], r["data"]) == ("curve", data) and r["recipe"]["fields"]["noise"] == "gaussian"
    ]

    def mean(name: str) -> float:
        return statistics.mean(m["scores"][name]["nll"] for m in record["members"])

    return {"base": mean("base"), "pep": mean("pep"), "temper": mean("temperature"), "images": record["n_test"]}


def of_anchored() -> dict[str, float]:
    scores = of_uci("anchored ensemble", "deep ensemble", "ll")
    errors = of_uci("anchored ensemble", "deep ensemble", "rmse")
    small = [x for x in scores.values() if x[2] < 2000]
    large = [x for x in scores.values() if x[2] >= 2000]
    assert all(x[0] < 0 for x in large)  # "lower on all"
    return {
        "rmse": sum(x[0] < 0 for x in errors.values()),
        "sets": len(errors),
        "small": len(small),
        "small_better": sum(x[0] > 0 for x in small),
        "small_clearly": sum(x[1] > 2 for x in small),
        "large": len(large),
    }


def of_ensemble() -> dict[str, float]:
    found = of_uci("deep ensemble", "MAP", "ll").values()
    return {"better": sum(x[0] > 0 for x in found), "sets": len(found), "clearly": sum(x[1] > 2 for x in found)}


MEASURED: dict[str, Callable[[], dict[str, float]]] = {
    "results/size.jsonl: data fashion_mnist": lambda: of_size("fashion_mnist"),
    "results/size.jsonl: data digits": lambda: of_size("digits"),
    "results/uci.jsonl: deep ensemble against MAP": of_ensemble,
    "results/uci.jsonl: anchored ensemble against deep ensemble": of_anchored,
    "results/pep.jsonl: kind curve, data digits, gaussian noise": lambda: of_pep("digits"),
    "results/pep.jsonl: kind curve, data cifar10 resnet20": lambda: of_pep("cifar10 resnet20"),
}


@pytest.mark.parametrize("given", evidence.ALL, ids=lambda e: e.source)
def test_what_is_cited_exists_and_says_what_is_claimed(given):
    if given.source.startswith("theory: "):
        method, check = re.fullmatch(r"theory: basinet check (\w+): (.*)", given.source).groups()
        made = next(c for c in find(method).theory(Bench(method)) if c.name == check)
        assert made.passed and not given.figures
        return
    found = MEASURED[given.source]()
    assert given.figures
    for name, value in given.figures.items():
        assert value == pytest.approx(found[name], abs=5.1e-4), name  # as many digits as are said
    assert "{" not in str(given) and str(given).endswith(f"[{given.source}]")


def test_every_reason_of_every_rule_is_among_those_that_are_checked():
    for name in (n for n in vars(evidence) if isinstance(getattr(evidence, n), Evidence)):
        assert getattr(evidence, name) in evidence.ALL
    base = facts_of(problem(), classes(), classes(), None, bn.Budget())
    for rule in RULES:
        for facts in (base, base._replace(classes=None, real=True), base._replace(val=False)):
            assert rule.reasons(facts) and all(reason in evidence.ALL for reason in rule.reasons(facts))


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


def regression(*layers: nn.Module, likelihood: Any = None) -> bn.Problem:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.Tanh(), nn.Linear(8, 1))

    return bn.Problem(net, likelihood or bn.likelihoods.Gaussian(noise=0.5, learned=True))


def classes(n: int = 60) -> bn.Data:
    x, noise = (KEY.split(name).normal(torch.empty(n, 6)) for name in ("x", "noise"))
    return bn.Data(x, (x + 2 * noise)[:, :3].argmax(-1))


def numbers(n: int = 60) -> bn.Data:
    x = KEY.split("x").normal(torch.empty(n, 6))
    return bn.Data(x, x[:, :1])


def names(found: list[bn.Advice]) -> list[tuple[str, int]]:
    return [(type(a.method).__name__, a.members) for a in found]


def two(problem: bn.Problem, data: bn.Data, budget: Any = None, **more: Any) -> list[tuple[str, int]]:
    return names(bn.advise(problem, data, budget, engine=ENGINE, **more))


def test_facts_decide():
    start = bn.Posterior.of(problem().network.module, problem())
    assert two(problem(), classes()) == [("MAP", 5), ("Laplace", 1)]
    assert two(regression(), numbers()) == [("Anchored", 5), ("MAP", 5)]
    assert two(regression(), numbers(2500)) == [("MAP", 5), ("Anchored", 5)]
    assert two(regression(nn.BatchNorm1d(8)), numbers()) == [("MAP", 5), ("Laplace", 1)]
    assert two(regression(nn.Dropout(0.1)), numbers()) == [("MAP", 5), ("Laplace", 1)]
    assert two(problem(), classes(), start=start, val=classes()) == [("PEP", 1), ("Laplace", 1)]
    assert two(problem(), classes(), start=start) == [("Laplace", 1), ("MAP", 5)]  # PEP needs validation data
    other = problem(prior=bn.priors.StudentT())
    assert two(other, classes()) == [("MAP", 5), ("MAP", 1)]  # no Laplace around another prior than a normal one


def test_budgets_are_kept():
    each = bn.MAP().schedule(60).steps
    assert two(problem(), classes(), bn.Budget(steps=4 * each)) == [("MAP", 3), ("Laplace", 1)]
    assert two(problem(), classes(), bn.Budget(steps=each)) == [("Laplace", 1), ("MAP", 1)]
    start = bn.Posterior.of(problem().network.module, problem())
    assert two(problem(), classes(), bn.Budget(steps=1), start=start, val=classes()) == [("PEP", 1), ("Laplace", 1)]
    few = bn.advise(problem(), classes(), bn.Budget(passes=4), start=start, val=classes(), engine=ENGINE)
    assert names(few) == [("Laplace", 1), ("MAP", 3)] and all(a.passes <= 4 for a in few)
    one = bn.advise(problem(), classes(), bn.Budget(passes=1), val=classes(), engine=ENGINE)
    assert names(one) == [("Laplace", 1), ("MAP", 1)] and all(a.passes == 1 for a in one)
    assert one[0].method.via == "probit"
    with pytest.raises(ValueError, match=r"nothing fits into Budget\(.*one network takes 3,000 training steps"):
        two(problem(), classes(), bn.Budget(steps=10))
    with pytest.raises(ValueError, match=r"nothing fits .* takes [\d.e-]+ s"):
        two(problem(), classes(), 1e-9)


def test_advice_can_be_followed():
    data = classes()
    trained = bn.fit(bn.MAP(epochs=20), problem(), data, engine=ENGINE)
    for start in (None, trained, bn.Posterior.of(problem().network.module, problem())):
        for advice in bn.advise(problem(), data, bn.Budget(steps=8000), val=data, start=start, engine=ENGINE):
            around = start if advice.around_start else None
            posterior = bn.fit(
                advice.method, problem(), data, val=data, members=advice.members, start=around, engine=ENGINE
            )
            assert len(posterior) == advice.members
            assert advice.cost.method == advice.method and advice.cost.fits
            if advice.then:
                assert bn.score(eval(advice.then, {"bn": bn, "posterior": posterior, "val": data}), data)["nll"] > 0


def test_advice_reads_well():
    (first, second) = bn.advise(problem(), classes(), val=classes(), engine=ENGINE)
    text = str(second)
    assert text.startswith("one network and Laplace over its last layer: Laplace, members=1")
    assert "cost: 3,000 training steps" in text and "3 passes a prediction" in text
    assert "then: bn.temper(posterior, val)" in text and "[results/pep.jsonl" in text
    assert "then:" not in str(first) and "results/size.jsonl" in str(first)


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"steps": -1}, {"passes": 0.5}, {"seconds": "long"}])
def test_a_budget_is_positive(wrong):
    with pytest.raises(ValueError, match="expected"):
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
    assert "1. noise around your network (PEP)" in result.output and "2. Laplace over the last layer" in result.output
    result = CliRunner().invoke(app, ["advise", "wine", "--steps", "5"])
    assert result.exit_code == 2 and "nothing fits into" in result.output
