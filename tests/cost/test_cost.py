"""Cost: estimated bytes against those that a separate process holds, how they grow, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import basinet as bn
from basinet.cli import app
from basinet.core.tree import nbytes
from basinet.cost.cost import NUMBERS, TIMED, Meter
from basinet.cost.demand import Predicting
from basinet.cost.prediction import predicting
from basinet.cost.recipe import differences
from basinet.engine.engine import Pace
from basinet.engine.memory import readable
from basinet.engine.probe import Plan
from basinet.methods import discover
from basinet.methods.laplace import STRUCTURES

ENGINE = bn.Engine(device="cpu", progress=False, compile=False)
KEY = bn.Noise.seed(7)


def classes(n: int, inputs: int, outputs: int) -> bn.Data:
    x = KEY.split("x").normal(torch.empty(n, inputs))
    return bn.Data(x, torch.arange(n) % outputs)


def mlp(inputs: int, outputs: int, *hidden: int) -> bn.Problem:
    return bn.Problem(lambda: bn.networks.MLP(inputs, outputs, hidden=hidden), bn.likelihoods.Categorical())


def estimated(method: bn.methods.Method, problem: bn.Problem, data: bn.Data, members: int = 1, **more: Any) -> bn.Cost:
    start = bn.Posterior.of(problem.network.module, problem) if "start" not in more else more.pop("start")
    given = {"val": data, "engine": ENGINE, "timed": False, **more}
    return bn.cost(method, problem, data, members, start=start, **given)


PEAK = """
import ctypes, gc, json, torch, basinet as bn

def held(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

def net():
    return bn.networks.MLP({inputs}, {outputs}, hidden={hidden})

torch.set_num_threads(1)
x = torch.randn({n}, {inputs})
data = bn.Data(x, torch.arange({n}) % {outputs})
problem = bn.Problem(net, bn.likelihoods.Categorical())
start = bn.Posterior.of(net(), problem)
engine = bn.Engine(device="cpu", progress=False, compile=False)
few = bn.Problem(lambda: bn.networks.MLP(4, 3), bn.likelihoods.Categorical())
bn.fit(bn.Laplace(base=bn.MAP(epochs=1)), few, bn.Data(x[:30, :4], torch.arange(30) % 3), engine=engine)  # torch loads
method = {method}
val = data if {val} else None
cost = bn.cost(method, problem, data, {members}, val=val, start=start, engine=engine, timed=False)

def peak(run):  # what it gives, and the most that is held meanwhile beyond what was before, as the kernel counts it
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is from now on
    before = held("VmRSS")
    result = run()
    return result, held("VmHWM") - before

posterior, fitting = peak(lambda: bn.fit(method, problem, data, val=val, members={members}, start=start, engine=engine))
asking = max(peak(lambda: posterior.predict(x[:1000]).probs)[1] for _ in range(3))  # less where freed memory serves
estimated = [cost.fit_bytes, cost.predict_bytes, cost.kept_bytes]
print(json.dumps(dict(estimated=estimated, measured=[fitting, asking, posterior.nbytes()])))
"""
ENOUGH = 64 * 2**20  # bytes from which on: below, what torch itself sets aside counts as much


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads what a process holds from /proc")
@pytest.mark.parametrize(
    ("method", "network", "members", "val"),
    [
        ("bn.MAP(epochs=2)", (600, 10, (1000, 1000)), 2, False),
        ("bn.MAP(epochs=2)", (600, 10, (300, 300)), 20, False),
        ("bn.SWAG(iterates=20, every=1)", (400, 10, (700,)), 3, False),
        ("bn.SWAG(iterates=4, rank=3, every=1)", (600, 10, (1000, 1000)), 2, False),
        ("bn.Laplace(structure='full')", (32, 40, (120,)), 1, False),
        ("bn.Laplace(structure='full', where=None)", (30, 4, (90,)), 1, False),
        ("bn.Laplace(structure='kronecker', where=None)", (400, 10, (1300,)), 1, False),
        ("bn.Laplace(structure='kronecker')", (32, 900, (1100,)), 1, False),
        ("bn.Laplace(structure='kronecker')", (32, 900, (1100,)), 4, False),
        ("bn.Laplace(structure='eigen-corrected', where=None)", (400, 10, (1300,)), 1, False),
        ("bn.Laplace(structure='diagonal', where=None)", (900, 10, (2000,)), 1, False),
        ("bn.Laplace(structure='diagonal')", (32, 1500, (1300,)), 1, False),
        ("bn.Laplace(structure='low-rank', where=None, subset=64)", (400, 10, (400,)), 1, False),
        ("bn.Laplace(structure='kronecker')", (32, 900, (1100,)), 1, True),
        ("bn.Laplace(structure='diagonal', via='probit')", (32, 1500, (1300,)), 1, True),
    ],
)
def test_estimated_peaks_are_right_within_a_factor_of_two(method, network, members, val):
    """On other sizes than those on which the numbers of copies were settled."""
    inputs, outputs, hidden = network
    code = PEAK.format(n=1200, inputs=inputs, outputs=outputs, hidden=hidden, method=method, members=members, val=val)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    sizes = json.loads(process.stdout)
    fitting, asking, kept = zip(sizes["estimated"], sizes["measured"])
    assert kept[0] == pytest.approx(kept[1], rel=0.01)
    for said, peak in (fitting, asking):
        if max(said, peak) > ENOUGH:
            assert 0.5 <= said / peak <= 2.0, f"estimated {readable(said)}, measured {readable(peak)}"


def tiny() -> bn.Problem:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Dropout(0.2), nn.Linear(30, 3))

    return bn.Problem(net, bn.likelihoods.Categorical())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(n for n, c in discover().items() if c.__module__.startswith("basinet.")))
def test_estimates_of_what_is_kept_are_right_for_every_method(name):
    problem, data = tiny(), classes(60, 4, 3)
    quick = {"epochs": 5, "steps": 600, "draws": 4, "base": bn.MAP(epochs=1)}
    names = {f.name for f in fields(discover()[name])}
    recipe = discover()[name](**{n: x for n, x in quick.items() if n in names})
    cost = bn.cost(recipe, problem, data, 2, val=data, engine=ENGINE, timed=False)
    posterior = bn.fit(recipe, problem, data, val=data, members=2, engine=ENGINE)
    kept = sum(nbytes(part.family) + nbytes(part.inputs) for part in posterior.parts)
    assert 0.5 <= cost.kept_bytes / kept <= 2.0
    outputs = posterior.predict(data.inputs).outputs
    takes = recipe.demand(problem.init(KEY), recipe.adapt(problem), data, data).predict
    assert takes.draws == outputs.shape[1]


@pytest.mark.parametrize("where", [None, "last"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_laplace_keeps_is_estimated_to_the_byte(structure, where):
    problem, data = mlp(5, 4, 6, 7), classes(40, 5, 4)
    recipe = bn.Laplace(structure=structure, where=where, rank=3)
    start = bn.Posterior.of(problem.network.module, problem)
    posterior = bn.fit(recipe, problem, data, start=start, engine=ENGINE)
    extra = 8 if structure == "low-rank" else 0  # variances and one precision
    assert 0 <= posterior.nbytes() - estimated(recipe, problem, data).kept_bytes <= 2 * extra


def test_swag_keeps_mean_variance_and_rank_columns():
    problem, data = mlp(5, 3, 8), classes(40, 5, 3)
    recipe = bn.SWAG(iterates=6, rank=4, every=1)
    posterior = bn.fit(recipe, problem, data, start=bn.Posterior.of(problem.network.module, problem), engine=ENGINE)
    assert estimated(recipe, problem, data).kept_bytes == posterior.nbytes()


def growth(structure: str, small: bn.Problem, large: bn.Problem, where: Any = None, **sizes: Any) -> float:
    """How many times more a structure takes beyond its passes, on a larger network."""
    bytes_ = []
    for problem in (small, large):
        inputs, outputs = sizes["shape"](problem)
        data = classes(8, inputs, outputs)
        recipe = bn.Laplace(structure=structure, where=where, batch_size=1)
        bytes_.append(estimated(recipe, problem, data).fit_bytes)
    return bytes_[1] / bytes_[0]


def shape(problem: bn.Problem) -> tuple[int, int]:
    matrices = [x for x in problem.network.params.values() if len(x) > 1]
    return matrices[0][1], matrices[-1][0]


def test_structures_grow_as_they_should():
    small, large = mlp(64, 8, 64, 64), mlp(256, 32, 256, 256)  # 16 times the parameters
    p, q = (sum(torch.Size(s).numel() for s in x.network.params.values()) for x in (small, large))
    assert growth("full", small, large, shape=shape) == pytest.approx((q / p) ** 2, rel=0.01)
    assert growth("diagonal", small, large, shape=shape) == pytest.approx(q / p, rel=0.3)
    assert growth("kronecker", small, large, shape=shape) == pytest.approx(16, rel=0.3)  # squares of widths
    last = ((256 + 1) * 32 / ((64 + 1) * 8)) ** 2
    assert growth("full", small, large, "last", shape=shape) == pytest.approx(last, rel=0.01)


def test_a_last_layer_grows_with_the_square_of_its_classes_where_it_is_full():
    data = {c: classes(8, 16, c) for c in (8, 16)}
    full, kron, diag = (
        [estimated(bn.Laplace(structure=s, batch_size=1), mlp(16, c, 200), data[c]).fit_bytes for c in (8, 16)]
        for s in ("full", "kronecker", "diagonal")
    )
    assert full[1] / full[0] == pytest.approx(4, rel=0.01)
    assert kron[1] / kron[0] < 1.1  # A of 200 x 200 is most of it
    assert diag[1] / diag[0] < 2


def test_members_multiply_what_is_kept_and_not_what_finishing_one_takes():
    problem, data = mlp(16, 8, 64), classes(40, 16, 8)
    one, ten = (estimated(bn.Laplace(structure="full"), problem, data, m) for m in (1, 10))
    assert ten.kept_bytes == 10 * one.kept_bytes
    assert ten.fit_bytes - one.fit_bytes == 9 * one.kept_bytes
    outputs = 20 * 1000 * 8 * 4  # bytes of all outputs of a member: draws, inputs, classes, single precision
    assert ten.predict_bytes - one.predict_bytes == 9 * 4 * outputs
    train = [estimated(bn.MAP(), problem, data, m).fit_bytes for m in (1, 10)]
    assert train[1] == 10 * train[0]  # ten states at once


def test_work_grows_as_it_should():
    def demand(recipe: bn.methods.Method, n: int, *hidden: int) -> Any:
        problem, data = mlp(16, 8, *hidden), classes(n, 16, 8)
        fixed = getattr(recipe, "prior_precision", None) == "prior"  # nothing to look at validation data for
        return recipe.demand(problem.init(KEY), problem, data, None if fixed else data)

    full = bn.Laplace(structure="full", where=None, prior_precision="prior")
    assert demand(full, 80, 32).passes == 2 * demand(full, 40, 32).passes == 80 * (1 + 2 * 8)
    diagonal = replace(full, structure="diagonal", where="last")
    assert demand(diagonal, 80, 32).passes == 80  # the last layer needs no gradients behind it
    assert demand(replace(diagonal, prior_precision=None), 80, 32).passes > 80 * 20  # what it is tuned by
    assert demand(replace(full, curvature="fisher"), 40, 32).passes == 40 * 3
    cubes = demand(full, 1, 2000).flops / demand(full, 1, 1000).flops
    assert cubes == pytest.approx(8, rel=0.01)
    pep = [demand(bn.PEP(draws=m), 40, 32).passes - 25 * 40 for m in (4, 8)]  # without those of fresh draws
    assert pep[1] == 2 * pep[0]
    problem, data = mlp(16, 8, 32), classes(40, 16, 8)
    start = bn.Posterior.of(problem.network.module, problem)
    sigmas = bn.fit(bn.PEP(draws=4), problem, val=data, start=start, engine=ENGINE).info["curves"]["sigma"][0]
    assert pep[0] == (len(sigmas) - 1) * 4 * 40  # sigmas that are tried, and zero, which is one network


@pytest.mark.parametrize(
    ("via", "likelihood", "outputs", "expected"),
    [
        ("sample", bn.likelihoods.Categorical(), 10, (20, 20.0)),
        ("linear", bn.likelihoods.Categorical(), 10, (20, 3.0)),  # eight draws share what is before the last layer
        ("probit", bn.likelihoods.Categorical(), 10, (1, 1.0)),
        ("bridge", bn.likelihoods.Categorical(), 12, (4, 1.0)),
        ("linear", bn.likelihoods.Gaussian(noise=1.0), 4, (2, 1.0)),
        ("linear", bn.likelihoods.Gaussian(noise=1.0), 100, (20, 3.0)),  # too many to hold their covariance
    ],
)
def test_what_predicting_takes_follows_from_how(via, likelihood, outputs, expected):
    draw = Predicting(numbers=7, flops=3.0)
    last, every = (predicting(via, likelihood, outputs, 20, x, draw) for x in (True, False))
    assert last[:2] == expected and every.draws == last.draws and every.forwards >= last.forwards
    assert last[2:] == ((7, 3.0) if last.draws == 20 else (0, 0.0))  # closed forms draw nothing


def test_base_recipes_count():
    problem, data = mlp(300, 5, 300), classes(40, 300, 5)
    meter = Meter(problem, data, val=data, engine=ENGINE)
    base, whole = meter(bn.MAP(epochs=2)), meter(bn.PEP(base=bn.MAP(epochs=2)))
    assert whole.fit_bytes >= base.fit_bytes
    assert "MAP: a few steps" in whole.basis and "PEP: " in whole.basis
    alone = bn.cost(bn.PEP(), problem, val=data, start=bn.Posterior.of(problem.network.module, problem), engine=ENGINE)
    assert "MAP" not in alone.basis and "PEP: " in alone.basis


def test_seconds_are_counts_times_what_one_was_measured_to_take(monkeypatch):
    def pace(engine: Any, work: Any, roster: Any) -> Pace:
        return Pace(Plan("loop", False, ""), 1, 3.0 * len(roster.members) * work.schedule.steps)

    monkeypatch.setattr(bn.Engine, "pace", pace)  # a step takes three seconds,
    monkeypatch.setattr(sys.modules["basinet.cost.cost"], "_seconds", lambda run, device: 2.0)  # any call two
    problem, data, base = mlp(300, 5, 300), classes(40, 300, 5), bn.MAP(epochs=2, batch_size=10)
    meter = Meter(problem, data, val=data, inputs=7, engine=ENGINE)
    alone, whole = meter(base, 2), meter(bn.PEP(base=base), 2)
    demand = bn.PEP().demand(problem.init(bn.Noise.seed(0)), problem, data, data)
    predict, one = demand.predict, 2.0 / TIMED
    assert alone.fit_seconds == 2 * 8 * 3.0 and demand.passes > 0 and predict.numbers > 0
    assert whole.fit_seconds == pytest.approx(alone.fit_seconds + 2 * demand.passes * one, rel=1e-12)
    drawn = predict.draws * predict.numbers * 2.0 / NUMBERS
    assert whole.predict_seconds == pytest.approx(2 * (predict.forwards * 7 * one + drawn), rel=1e-12)


def test_nothing_is_fitted_and_nothing_changes():
    problem, data = tiny(), classes(30, 4, 3)
    state, random = {n: x.clone() for n, x in problem.network.module.state_dict().items()}, torch.get_rng_state()
    first, again = (bn.cost(bn.SWAG(), problem, data, 3, engine=ENGINE) for _ in range(2))
    assert replace(first, fit_seconds=0, predict_seconds=0, free_bytes=0) == replace(
        again, fit_seconds=0, predict_seconds=0, free_bytes=0
    )
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(x, state[n]) for n, x in problem.network.module.state_dict().items())


def test_a_stream_is_looked_at_and_not_read():
    problem, data = mlp(6, 3, 8), classes(40, 6, 3)
    read: list[int] = []

    def batches() -> Any:
        for i in range(4):
            read.append(i)
            yield data.inputs[i * 10 : (i + 1) * 10], data.targets[i * 10 : (i + 1) * 10]

    stream = bn.Data.stream(batches, n=1_000_000)
    cost = bn.cost(bn.MAP(epochs=1), problem, stream, 2, engine=ENGINE)
    assert cost.fit_seconds is not None and len(read) < 100  # of the 100,000 batches of an epoch
    assert estimated(bn.Laplace(), problem, stream, val=None).kept_bytes > 0


def test_a_head_of_imagenet_is_refused_with_numbers_and_the_structure_that_fits():
    problem = bn.Problem(lambda: nn.Linear(1280, 1000), bn.likelihoods.Categorical())
    data = bn.Data(KEY.split("big").normal(torch.empty(3, 1280)), torch.tensor([1, 2, 999]))
    cost = estimated(bn.Laplace(structure="full"), problem, data)
    assert cost.fit_bytes > 8 * (1281 * 1000) ** 2 and not cost.fits
    assert cost.instead == bn.Laplace(structure="kronecker")
    assert cost.fit_seconds is None and cost.predict_seconds is None
    assert estimated(cost.instead, problem, data).fits
    assert estimated(bn.Laplace(structure="diagonal"), problem, data).fits


def room(limit: int) -> bn.Engine:
    return bn.Engine(device="cpu", progress=False, compile=False, memory=limit)


def test_fit_refuses_before_the_base_is_trained_and_what_it_names_runs():
    problem, data = mlp(10, 10, 60), classes(60, 10, 10)
    limit = 8 * 2**20
    recipe = bn.Laplace(structure="full", where=None, batch_size=8)
    cost = estimated(recipe, problem, data, engine=room(limit))
    assert not cost.fits and cost.instead is not None
    events: list[Any] = []
    with pytest.raises(MemoryError) as caught:
        bn.fit(recipe, problem, data, engine=room(limit), observe=events.append)
    assert not events
    text = str(caught.value)
    assert "the full covariance of 1,270 parameters (8 matrices of 1,270 x 1,270) takes about 10" in text
    assert f"and {readable(limit)} may be used: {differences(recipe, cost.instead)} takes about" in text
    assert differences(recipe, cost.instead) == "structure='kronecker'"
    assert len(bn.fit(replace(cost.instead, base=bn.MAP(epochs=1)), problem, data, engine=room(limit))) == 1
    assert estimated(cost.instead, problem, data, engine=room(limit)).fit_bytes <= limit


def test_what_is_named_is_the_first_structure_that_fits_and_not_the_first_that_is_cheaper():
    problem, data = mlp(500, 4), classes(20, 500, 4)
    recipe = bn.Laplace(structure="full", batch_size=4)
    for limit, named in ((20 * 2**20, "kronecker"), (2 * 2**20, "diagonal")):
        cost = estimated(recipe, problem, data, engine=room(limit), inputs=1)
        assert not cost.fits and cost.instead == replace(recipe, structure=named)
    assert estimated(recipe, problem, data, engine=room(1000)).instead is None


def test_members_that_cannot_be_kept_are_refused_with_a_rank_and_a_number_that_fit(monkeypatch):
    problem, data = mlp(100, 3, 100), classes(40, 100, 3)
    recipe, each = bn.SWAG(iterates=20, every=1), nbytes(problem.init(KEY).params)
    monkeypatch.setattr(sys.modules["basinet.cost.recipe"], "free_bytes", lambda device: int(200 * each / 0.8))
    start = bn.Posterior.of(problem.network.module, problem)
    with pytest.raises(MemoryError, match=r"SWAG of 6 members, kept and stacked, .* rank=10 takes .* members=4 fit"):
        bn.fit(recipe, problem, data, members=6, start=start, engine=ENGINE)
    assert len(bn.fit(recipe, problem, data, members=4, start=start, engine=ENGINE)) == 4
    assert len(bn.fit(replace(recipe, rank=10), problem, data, members=6, start=start, engine=ENGINE)) == 6


def test_members_in_a_pool_are_not_refused(monkeypatch, tmp_path):
    problem, data = mlp(10, 3, 10), classes(30, 10, 3)
    recipe, start = bn.Laplace(structure="full"), bn.Posterior.of(problem.network.module, problem)
    bn.fit(recipe, problem, data, start=start, pool=tmp_path, engine=ENGINE)
    monkeypatch.setattr(sys.modules["basinet.cost.recipe"], "free_bytes", lambda device: 1000)
    with pytest.raises(MemoryError):
        bn.fit(recipe, problem, data, start=start, engine=ENGINE)
    assert len(bn.fit(recipe, problem, data, start=start, pool=tmp_path, engine=ENGINE)) == 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, d: bn.cost(bn.MAP, p, d), TypeError, r"expected a recipe such as MAP\(\), got the class"),
        (lambda p, d: bn.cost(bn.MAP(), p), ValueError, "expected data to estimate the cost from"),
        (lambda p, d: bn.cost(bn.MAP(), p, d, 0), ValueError, "expected members to be a positive integer, got 0"),
        (lambda p, d: bn.cost(bn.PEP(), p, d), ValueError, "PEP needs val"),
        (lambda p, d: bn.cost(bn.MAP(), p, d, inputs=0), ValueError, "at least 1 input"),
        (lambda p, d: bn.cost(bn.MAP(epochs=[1, 2]), p, d), ValueError, "expected a plain recipe, got one with lists"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(mlp(6, 3, 8), classes(30, 6, 3))


def invoke(*words_: str) -> Any:
    return CliRunner().invoke(app, ["cost", *words_], catch_exceptions=True)


def test_the_command_shows_all_structures_of_a_method_and_which_are_refused(tmp_path):
    model = tmp_path / "net.py"
    model.write_text("import torch\ndef make(inputs, outputs):\n    return torch.nn.Linear(inputs, outputs)\n")
    words_ = ("wine", "--method", "laplace", "--members", "2", "--set", "prior_precision=2.0")
    result = invoke(*words_, "--model", f"{model}:make")
    assert result.exit_code == 0, result.output
    for structure in STRUCTURES:
        assert f"structure='{structure}'" in result.output
    assert "42 parameters" in result.output and "refused" not in result.output and "fits" in result.output
    huge = tmp_path / "huge.py"
    huge.write_text("import torch\ndef make(inputs, outputs):\n    return torch.nn.Linear(inputs, outputs * 2_000)\n")
    result = invoke("wine", "--method", "laplace", "--members", "1", "--model", f"{huge}:make")
    assert result.exit_code == 0, result.output
    assert "structure='full' is refused: structure='kronecker' fits" in result.output


@pytest.mark.slow
def test_the_command_lists_all_methods_and_refuses_bad_arguments():
    result = invoke("wine", "--members", "2")
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in ("MAP", "SWAG", "Laplace", "PEP", "Snapshot"))
    result = invoke("wine", "--set", "epochs=3")
    assert result.exit_code == 2 and "expected --method with --set" in result.output
    assert invoke("wine", "--method", "nothing").exit_code == 2


def test_a_cost_prints_itself_readably():
    problem = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
    data = bn.Data(bn.Noise.seed(3).normal(torch.empty(20, 4)), torch.arange(20) % 3)
    lines = str(bn.cost(bn.Laplace(structure="full"), problem, data, 2, timed=False)).split("\n")
    assert lines[0].startswith("Laplace(structure=full), 2 members of 15 parameters, fits in the")
    assert [line.split()[0] for line in lines[1:]] == ["fit", "kept", "predict"]
    small = bn.Engine(device="cpu", memory=1000)
    text = str(bn.cost(bn.SWAG(), problem, data, timed=False, engine=small))
    assert "does not fit in the 1e+03 B that may be used" in text and "\n  fit " in text
