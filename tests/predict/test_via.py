"""Ways of predicting, through Posterior.predict: closed forms against exact answers, defaults, mixtures, errors.

Monte-Carlo tolerances are 4.5 standard errors.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import basinet as bn
from basinet.compare import table
from basinet.core.noise import Noise
from basinet.core.tree import Point, stack
from basinet.engine import Member, Method
from basinet.engine.method import Schedule
from basinet.families import Delta, Diagonal, Empirical, Family, Full, Kronecker, Partial
from basinet.posterior import Part, Posterior
from basinet.predict import ClosedClassPredictive, NormalPredictive, linear, via
from basinet.problem.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Poisson
from basinet.tables.targets import Classes
from basinet.testing.exact import PARAMETER, conjugate

KEY, Z = Noise.seed(0), 4.5


@dataclass(frozen=True, kw_only=True)
class WithVia(Method):
    """A method that says how its posteriors predict."""

    via: str = "probit"  # how

    def schedule(self, n):
        return Schedule(0, None)

    def finish(self, state, samples, problem, data, val, noise):
        return diagonal(state, 0.3)


def normal(name: str, *shape: int) -> Tensor:
    return KEY.split(name).normal(torch.empty(shape, dtype=torch.float64))


def diagonal(point: Point, sd: float) -> Diagonal:
    scale = {n: sd * (0.5 + KEY.split(n).uniform(x)) for n, x in point.params.items()}
    return Diagonal(point.params, scale, point.buffers)


def posterior(problem: bn.Problem, families: list[Family], recipe: Method | None = None) -> Posterior:
    members = tuple(Member(0, k) for k in range(len(families)))
    return Posterior((Part(problem, stack(families), members, recipe),))


def net(outputs: int = 3, inputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def members(problem: bn.Problem, count: int = 3, sd: float = 0.2) -> list[Diagonal]:
    return [diagonal(problem.init(Noise.seed(k)), sd) for k in range(count)]


CLASSES = bn.Problem(net, Categorical())
LABELS = bn.Problem(lambda: net(2), Bernoulli())
REAL = bn.Problem(lambda: net(2), Gaussian(noise=(0.3, 0.5)))
INPUTS = normal("inputs", 6, 4)


def moments(problem: bn.Problem, families: list[Diagonal], full: bool = True) -> tuple[Tensor, Tensor]:
    pairs = [zip(*linear.moments(problem, f, f.mean(), INPUTS, full=full)) for f in families]
    mean, spread = zip(*((torch.cat(m), torch.cat(c)) for m, c in pairs))
    return torch.stack(mean), torch.stack(spread)


# regression


def test_the_conjugate_predictive_is_exact():
    exact = conjugate()
    family = Full({PARAMETER: exact.mean.reshape(1, -1)}, torch.linalg.cholesky(exact.covariance), {})
    x = normal("new", 7, 3)
    predictive = posterior(exact.problem, [family]).predict(x, via="linear")
    mean, variance = (v.unsqueeze(-1) for v in exact.predictive(x))
    y = normal("targets", 7, 1)
    assert isinstance(predictive, NormalPredictive)
    torch.testing.assert_close(predictive.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(predictive.variance, variance, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(predictive.aleatoric, torch.full_like(mean, 0.25))
    torch.testing.assert_close(predictive.epistemic, variance - 0.25)
    known = torch.distributions.Normal(mean, variance.sqrt())
    torch.testing.assert_close(predictive.log_prob(y), known.log_prob(y)[:, 0])
    torch.testing.assert_close(predictive.quantile(0.1), known.icdf(torch.tensor(0.1).double()))
    torch.testing.assert_close(predictive.interval(0.8)[1], known.icdf(torch.tensor(0.9).double()))
    torch.testing.assert_close(predictive.cdf(y), known.cdf(y))
    torch.testing.assert_close(predictive.to_distribution().log_prob(y), known.log_prob(y))
    assert bn.score(predictive, y)["nll"] == pytest.approx(-float(known.log_prob(y).mean()))


def test_several_outputs_are_correlated():
    families = members(REAL)
    predictive = posterior(REAL, families).predict(INPUTS, via="linear")
    mean, covariance = moments(REAL, families)
    noise = torch.diag(torch.tensor([0.09, 0.25], dtype=torch.float64))
    y = normal("targets", 6, 2)
    each = MultivariateNormal(mean, covariance + noise).log_prob(y)
    torch.testing.assert_close(predictive.log_prob(y), torch.logsumexp(each, 0) - math.log(3))
    mask = torch.tensor([[True, True], [True, False], [False, True], [False, False], [True, True], [False, True]])
    log_probs = predictive.log_prob(y, mask)
    for b in range(6):
        here = mask[b].nonzero()[:, 0]
        if len(here) == 0:
            assert float(log_probs[b]) == pytest.approx(0.0)
            continue
        part = MultivariateNormal(mean[:, b, here], (covariance + noise)[:, b][:, here][:, :, here])
        assert float(log_probs[b]) == pytest.approx(float(torch.logsumexp(part.log_prob(y[b, here]), 0) - math.log(3)))
    one = predictive[1]
    count = 20_000
    drawn = one.sample(count)
    total = covariance[1] + noise
    variance = total.diagonal(dim1=1, dim2=2)
    assert float(((drawn.mean(0) - mean[1]) / (variance / count).sqrt()).abs().max()) < Z
    centred = drawn - mean[1]
    error = ((total.square() + variance[:, :, None] * variance[:, None, :]) / count).sqrt()
    off = torch.einsum("sbi,sbj->bij", centred, centred) / count - total
    assert float((off / error).abs().max()) < Z


def test_members_obey_the_law_of_total_variance():
    families = members(REAL)
    mean, covariance = moments(REAL, families)
    spread = covariance.diagonal(dim1=2, dim2=3)
    predictive = posterior(REAL, families).predict(INPUTS, via="linear")
    torch.testing.assert_close(predictive.within, spread.mean(0))
    torch.testing.assert_close(predictive.between, mean.var(0, correction=0))
    torch.testing.assert_close(predictive.variance, predictive.aleatoric + predictive.between + predictive.within)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    mixed = bn.mix([posterior(REAL, [f]) for f in families], weights=weights.tolist()).predict(INPUTS, via="linear")
    centre = torch.tensordot(weights, mean, 1)
    torch.testing.assert_close(mixed.mean, centre)
    torch.testing.assert_close(mixed.within, torch.tensordot(weights, spread, 1))
    torch.testing.assert_close(mixed.between, torch.tensordot(weights, (mean - centre).square(), 1))


def test_a_part_in_closed_form_mixes_with_one_of_samples():
    families = members(REAL)
    narrow, sampled = posterior(REAL, families[:1]), posterior(REAL, families[1:])
    closed, drawn = narrow.predict(INPUTS, via="linear"), sampled.predict(INPUTS, samples=5, via="sample")
    mixed = bn.mix([posterior(REAL, families[:1], WithVia()), sampled])
    predictive = mixed.predict(INPUTS, samples=5)
    assert isinstance(predictive, NormalPredictive) and predictive.outputs.shape == (3, 5, 6, 2)
    y = normal("targets", 6, 2)
    expected = torch.logaddexp(closed.log_prob(y) - math.log(3), drawn.log_prob(y) + math.log(2 / 3))
    torch.testing.assert_close(predictive.log_prob(y), expected)
    torch.testing.assert_close(predictive.within, closed.within / 3 + drawn.within * 2 / 3)
    torch.testing.assert_close(predictive.mean, closed.mean / 3 + drawn.mean * 2 / 3)


def test_learned_noise_is_that_of_the_mean():
    problem = bn.Problem(lambda: net(1), Gaussian(noise=0.7, learned=True))
    families = [diagonal(problem.init(Noise.seed(k)), 0.2) for k in range(2)]
    predictive = posterior(problem, families).predict(INPUTS, via="linear")
    torch.testing.assert_close(predictive.aleatoric, torch.full((6, 1), 0.49, dtype=torch.float64))


def test_many_outputs_are_drawn_and_not_held():
    problem = bn.Problem(lambda: net(via.MOST + 1), Gaussian())
    predictive = posterior(problem, members(problem, 2)).predict(INPUTS, samples=3, via="linear")
    assert not isinstance(predictive, NormalPredictive) and predictive.outputs.shape == (2, 3, 6, via.MOST + 1)


@pytest.mark.parametrize("likelihood", [Heteroscedastic(), Poisson()])
def test_other_numbers_are_drawn(likelihood):
    problem = bn.Problem(lambda: net(2), likelihood)
    families = members(problem, 1)
    predictive = posterior(problem, families).predict(INPUTS, samples=4000, via="linear")
    mean, covariance = moments(problem, families)
    error = (covariance[0].diagonal(dim1=1, dim2=2) / 4000).sqrt()
    assert float(((predictive.outputs[0].mean(0) - mean[0]) / error).abs().max()) < Z


# classes and labels


def test_probit_is_the_formula_and_bridge_too():
    families = members(CLASSES)
    mean, covariance = moments(CLASSES, families)
    predictive = posterior(CLASSES, families).predict(INPUTS, via="probit")
    assert isinstance(predictive, ClosedClassPredictive) and predictive.outputs.shape == (3, 1, 6, 3)
    variance = covariance.diagonal(dim1=2, dim2=3)
    expected = (mean / (1 + math.pi / 8 * variance).sqrt()).softmax(-1)
    torch.testing.assert_close(predictive.member_probs, expected)
    torch.testing.assert_close(predictive.probs, expected.mean(0))
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(predictive.log_prob(targets), predictive.probs.log().gather(1, targets[:, None])[:, 0])
    bridged = posterior(CLASSES, families).predict(INPUTS, via="bridge")
    torch.testing.assert_close(bridged.member_probs, via.bridge(mean, covariance).exp())
    with pytest.raises(ValueError, match="no samples, so there is no within part"):
        _ = bridged.within


def test_classes_at_several_places_are_bridged_one_by_one():
    problem = bn.Problem(lambda: nn.Linear(4, 3).double(), Categorical())
    family = diagonal(problem.init(Noise.seed(0)), 0.3)
    steps = normal("steps", 5, 2, 4)
    for how in ("probit", "bridge"):
        both = posterior(problem, [family]).predict(steps, via=how).probs
        for t in range(2):
            one = posterior(problem, [family]).predict(steps[:, t], via=how).probs
            torch.testing.assert_close(both[:, t], one)


def test_bridge_refuses_outputs_without_classes():
    problem = bn.Problem(lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double(), Categorical())
    family = diagonal(problem.init(Noise.seed(0)), 0.3)
    with pytest.raises(ValueError, match=r"one for each class, got \(5,\)"):
        posterior(problem, [family]).predict(normal("places", 5, 4), via="bridge")


def test_linear_samples_average_to_the_integral_of_two_classes():
    problem = bn.Problem(lambda: nn.Linear(4, 1).double(), Bernoulli())
    family = diagonal(problem.init(Noise.seed(0)), 1.0)
    count = 4000
    predictive = posterior(problem, [family]).predict(INPUTS, samples=count, via="linear")
    mean, variance = (x[0] for x in moments(problem, [family], full=False))
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    exact = torch.trapezoid(density * (mean + variance.sqrt() * z).sigmoid(), z).unsqueeze(-1)
    error = predictive.outputs.sigmoid().std(1)[0] / math.sqrt(count)
    assert float(((predictive.probs - exact) / error).abs().max()) < Z
    torch.testing.assert_close(predictive.entropy, predictive.aleatoric + predictive.between + predictive.within)
    closed = posterior(problem, [family]).predict(INPUTS, via="probit")
    assert float((closed.probs - exact).abs().max()) < 0.02


def test_a_linear_network_gives_the_same_samples_linear_or_not():
    problem = bn.Problem(lambda: nn.Linear(4, 3).double(), Categorical())
    approximation = posterior(problem, [diagonal(problem.init(Noise.seed(k)), 0.5) for k in range(3)])
    one, other = (approximation.predict(INPUTS, samples=12, via=how).outputs for how in ("sample", "linear"))
    assert one.shape == (3, 12, 6, 3)
    torch.testing.assert_close(one, other)


def test_probit_beside_samples_has_members_and_no_samples():
    families = members(CLASSES)
    probit = posterior(CLASSES, families[:1], WithVia())
    sampled = posterior(CLASSES, families[1:])
    predictive = bn.mix([probit, sampled]).predict(INPUTS, samples=8)
    assert isinstance(predictive, ClosedClassPredictive) and predictive.outputs.shape == (3, 1, 6, 3)
    expected = torch.cat([probit.predict(INPUTS).member_probs, sampled.predict(INPUTS, samples=8).member_probs])
    torch.testing.assert_close(predictive.member_probs, expected)
    labels = members(LABELS)
    mixed = bn.mix([posterior(LABELS, labels[:1], WithVia()), posterior(LABELS, labels[1:])]).predict(INPUTS, samples=8)
    torch.testing.assert_close(
        mixed.member_probs[1:], posterior(LABELS, labels[1:]).predict(INPUTS, samples=8).member_probs
    )


def test_a_thousand_classes_work():
    problem = bn.Problem(lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1000)), Categorical())
    point = problem.init(Noise.seed(0))
    last = {n: x for n, x in point.params.items() if n.startswith("2.")}
    rest = Delta({n: x for n, x in point.params.items() if n not in last}, point.buffers)
    kron = Kronecker(last, {}, {}, {n: torch.full((1000, x[0].numel()), 0.01) for n, x in last.items()}, {})
    approximation = posterior(problem, [Partial(rest, kron)])
    x = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    drawn, probit = approximation.predict(x, samples=3, via="linear"), approximation.predict(x, via="probit")
    assert drawn.outputs.shape == (1, 3, 20, 1000) and probit.probs.shape == (20, 1000)
    torch.testing.assert_close(probit.probs.sum(-1), torch.ones(20))


# defaults, files, scores


@pytest.mark.parametrize(
    ("problem", "recipe_via", "given"),
    [
        (CLASSES, "probit", "probit"),
        (CLASSES, "bridge", "bridge"),
        (LABELS, "probit", "probit"),
        (LABELS, "bridge", "probit"),
        (REAL, "probit", "linear"),
        (REAL, "bridge", "linear"),
        (REAL, "sample", "sample"),
    ],
)
def test_the_recipe_says_how_and_a_caller_may_say_otherwise(problem, recipe_via, given):
    approximation = posterior(problem, members(problem, 2), WithVia(via=recipe_via))
    torch.testing.assert_close(approximation.predict(INPUTS).outputs, approximation.predict(INPUTS, via=given).outputs)
    other = "sample" if given != "sample" else "linear"
    assert approximation.predict(INPUTS).outputs.shape != approximation.predict(INPUTS, via=other).outputs.shape


def test_the_way_is_saved_with_the_posterior(tmp_path):
    approximation = posterior(CLASSES, members(CLASSES, 2), WithVia(via="bridge"))
    approximation.save(tmp_path / "saved")
    back = bn.load(tmp_path / "saved", net)
    assert back.recipe == WithVia(via="bridge")
    assert torch.equal(back.predict(INPUTS).outputs, approximation.predict(INPUTS).outputs)
    assert torch.equal(approximation[1:].predict(INPUTS).outputs, approximation.predict(INPUTS).outputs[1:])


@pytest.mark.parametrize("how", ["sample", "linear", "probit", "bridge"])
def test_scores_of_a_posterior_are_those_of_its_predictive(how):
    approximation = posterior(CLASSES, members(CLASSES), WithVia(via=how))
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    streamed = bn.score(approximation, bn.Data(INPUTS, targets), samples=4)
    assert streamed == pytest.approx(bn.score(approximation.predict(INPUTS, samples=4), targets))
    assert ("within" in streamed) == ("epistemic" in streamed) == (how in ("sample", "linear"))
    assert {"nll", "entropy", "between"} <= streamed.keys()
    plain = posterior(CLASSES, members(CLASSES))
    assert bn.score(plain, bn.Data(INPUTS, targets), samples=4, via=how) == pytest.approx(streamed)


def test_tables_leave_out_what_closed_forms_do_not_have():
    approximation = posterior(CLASSES, members(CLASSES), WithVia())
    target = Classes(name="y", values=("a", "b", "c"))
    columns = target.predictions(approximation.predict(INPUTS), 0.9)
    assert set(columns) == {"class", "entropy", "p_a", "p_b", "p_c"}
    assert {"aleatoric", "epistemic"} <= set(target.predictions(approximation.predict(INPUTS, via="linear"), 0.9))
    scores = bn.score(approximation, bn.Data(INPUTS, torch.tensor([0, 1, 2, 0, 1, 2])))
    costs = {
        "fit_seconds": 0.0,
        "predict_seconds": 0.0,
        "front_fit": True,
        "front_predict": True,
        "draws": 1,
        "steps": 0,
    }
    heads, rows = table([{"method": "WithVia", "reference": "WithVia", "members": 3, "seeds": 1, **scores, **costs}])
    assert rows[0][heads.index("epistemic")] == "-"


def test_numbers_are_scored_in_closed_form():
    approximation = posterior(REAL, members(REAL), WithVia())
    targets = normal("targets", 6, 2)
    predictive = approximation.predict(INPUTS)
    scores = bn.score(approximation, bn.Data(INPUTS, targets))
    assert scores["nll"] == pytest.approx(-float(predictive.log_prob(targets).mean()))
    assert scores["within"] == pytest.approx(float(predictive.within.mean()))


def test_norm_statistics_are_frozen_and_the_module_is_left_alone():
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 3)).double()
    before = {n: x.clone() for n, x in module.state_dict().items()}
    problem = bn.Problem(module, Categorical())
    point = problem.network.read(module)
    buffers = point.buffers | {"1.running_mean": normal("mean", 5), "1.running_var": 0.5 + normal("var", 5).square()}
    family = diagonal(Point(point.params, buffers), 0.2)
    approximation = posterior(problem, [family])
    for how in ("linear", "probit", "bridge"):
        whole = approximation.predict(INPUTS, via=how).outputs
        alone = torch.cat([approximation.predict(INPUTS[b : b + 1], via=how).outputs for b in range(6)], 2)
        torch.testing.assert_close(whole, alone)
        torch.testing.assert_close(approximation.predict(INPUTS, via=how, batch_size=4).outputs, whole)
    assert all(torch.equal(before[n], x) for n, x in module.state_dict().items()) and module.training
    assert not any(p.requires_grad != q for p, q in zip(module.parameters(), [True] * 6))


def test_dicts_go_through():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.last = nn.Embedding(5, 3), nn.Linear(3, 2)

        def forward(self, ids, mask):
            return {"logits": self.last((self.words(ids) * mask.unsqueeze(-1)).sum(1))}

    problem = bn.Problem(lambda: Words().double(), Categorical())
    family = diagonal(problem.init(Noise.seed(0)), 0.2)
    inputs = {"ids": torch.tensor([[0, 1, 2], [3, 4, 0]]), "mask": torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])}
    approximation = posterior(problem, [family])
    for how, samples in (("linear", 20), ("probit", 1), ("bridge", 1)):
        assert approximation.predict(inputs, via=how).outputs.shape == (1, samples, 2, 2)


def test_the_covariance_of_all_members_is_scaled(tmp_path):
    approximation = posterior(REAL, members(REAL))
    wide = approximation.scaled(2.0).scaled(1.5)
    one, other = approximation.predict(INPUTS, via="linear"), wide.predict(INPUTS, via="linear")
    torch.testing.assert_close(other.within, 3 * one.within)
    torch.testing.assert_close(other.mean, one.mean)
    torch.testing.assert_close(other.between, one.between)
    assert wide.info["covariance_scale"] == 3.0 and "covariance_scale" not in approximation.info
    wide.save(tmp_path / "saved")
    back = bn.load(tmp_path / "saved", lambda: net(2))
    assert torch.equal(back.predict(INPUTS, via="linear").within, other.within)
    flat = approximation.scaled(0.0).predict(INPUTS, samples=4)
    assert float(flat.within.max()) < 1e-20
    points = posterior(CLASSES, [Empirical(stack([f.centre for f in members(CLASSES)]), {}, 3)])
    with pytest.raises(ValueError, match="Empirical is not Gaussian"):
        points.scaled(2.0)


# errors


def test_ways_that_do_not_fit_are_refused():
    points = Empirical(stack([f.centre for f in members(CLASSES)]), {}, 3)
    with pytest.raises(
        ValueError, match=r"via='probit' needs a Gaussian family .* these members are Empirical: use via='s"
    ):
        posterior(CLASSES, [points]).predict(INPUTS, via="probit")
    with pytest.raises(
        ValueError, match=r"via='probit' is for Categorical or NoisyDirichlet or Bernoulli .* got Gaussian"
    ):
        posterior(REAL, members(REAL)).predict(INPUTS, via="probit")
    with pytest.raises(
        ValueError, match="via='bridge' is for Categorical or NoisyDirichlet likelihoods, got Bernoulli"
    ):
        posterior(LABELS, members(LABELS)).predict(INPUTS, via="bridge")
    with pytest.raises(ValueError, match="expected via as one of sample, linear, probit, bridge, got 'glm'"):
        posterior(CLASSES, members(CLASSES), WithVia(via="glm")).predict(INPUTS)
    with pytest.raises(ValueError, match="expected a batch_size of at least 1, got 0"):
        posterior(CLASSES, members(CLASSES)).predict(INPUTS, via="linear", batch_size=0)


def test_a_point_predicts_the_same_whatever_the_way():
    points = [Delta(f.centre, f.buffers) for f in members(CLASSES)]
    approximation = posterior(CLASSES, points)
    for how in ("linear", "probit", "bridge"):
        torch.testing.assert_close(approximation.predict(INPUTS, via=how).probs, approximation.predict(INPUTS).probs)
