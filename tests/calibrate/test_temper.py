"""Temperature scaling: T against a grid, T = 1 for calibrated predictions, any posterior, saved and loaded."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.calibrate.temperature import Temperature, tempered
from basinet.core.noise import Noise
from basinet.predict import make_predictive

ENGINE = bn.Engine(device="cpu", progress=False)
KEY = Noise.seed(21)


def identity(scale: float = 1.0) -> nn.Module:
    """A network whose outputs are its inputs times a number."""
    module = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        module.weight.copy_(scale * torch.eye(3))
    return module


def calibrated(n: int) -> bn.Data:
    """Classes drawn from the softmax of the inputs."""
    x = 2 * KEY.split("x").normal(torch.empty(n, 3, dtype=torch.float64))
    return bn.Data(x, bn.likelihoods.Categorical().sample(x, {}, KEY.split("y")))


PROBLEM = bn.Problem(lambda: nn.Linear(3, 3, bias=False).double(), bn.likelihoods.Categorical())
VAL = calibrated(500)


def ensemble(scales=(1.5, 3.0, 0.7)) -> bn.Posterior:
    return bn.mix([bn.Posterior.of(identity(s), PROBLEM) for s in scales])


@pytest.mark.parametrize("scale", [1.0, 4.0, 0.3])
def test_the_temperature_of_calibrated_logits_is_their_scale(scale):
    data = calibrated(4000)
    recalibrated = bn.temper(bn.Posterior.of(identity(scale), PROBLEM), data)
    p = data.inputs.softmax(-1)
    variance = (p * data.inputs.square()).sum(-1) - (p * data.inputs).sum(-1).square()
    error = scale * float(variance.sum()) ** -0.5  # 1/T is a parameter of an exponential family
    assert recalibrated.temperature.of == "members" and recalibrated.temperature.values.shape == (1,)
    assert abs(float(recalibrated.temperature.values) - scale) < 4.5 * error < 0.2 * scale


def nll_of_member(outputs: torch.Tensor, t: float) -> float:
    """Of outputs (S, n, C)."""
    return -float((outputs / t).softmax(-1).mean(0)[torch.arange(VAL.n), VAL.targets].log().mean())


def nll_of_average(probs: torch.Tensor, t: float) -> float:
    p = probs ** (1 / t)
    return -float((p / p.sum(-1, keepdim=True))[torch.arange(VAL.n), VAL.targets].log().mean())


GRID = torch.linspace(math.log(0.2), math.log(8), 500).exp().tolist()  # in steps of 0.7 %


def test_each_member_has_the_temperature_that_a_grid_finds():
    posterior = bn.fit(bn.PEP(low=0.3, high=3.0), PROBLEM, val=VAL, start=ensemble(), engine=ENGINE)  # with samples
    recalibrated = bn.temper(posterior, VAL)
    outputs = posterior.predict(VAL.inputs).outputs
    for k, t in enumerate(recalibrated.temperature.values.tolist()):
        best = min(GRID, key=lambda t, k=k: nll_of_member(outputs[k], t))
        assert math.isclose(t, best, rel_tol=5e-3)
        assert math.isclose(bn.score(recalibrated[k], VAL)["nll"], nll_of_member(outputs[k], t), rel_tol=1e-9)
    assert bn.score(recalibrated, VAL)["n"] == VAL.n
    assert recalibrated.predict(VAL.inputs).outputs.shape == (3, 25, 500, 3)


def test_the_average_has_the_temperature_that_a_grid_finds():
    posterior = ensemble()
    recalibrated = bn.temper(posterior, VAL, of="average")
    probs = posterior.predict(VAL.inputs).probs
    best = min(GRID, key=lambda t: nll_of_average(probs, t))
    temperature = recalibrated.temperature.values
    assert temperature.shape == () and math.isclose(temperature, best, rel_tol=5e-3)
    scores = bn.score(recalibrated, VAL)
    assert math.isclose(scores["nll"], nll_of_average(probs, float(recalibrated.temperature.values)), rel_tol=1e-9)
    assert scores["nll"] < bn.score(posterior, VAL)["nll"]
    assert scores["accuracy"] == bn.score(posterior, VAL)["accuracy"]
    p = probs ** (1 / float(recalibrated.temperature.values))
    assert torch.allclose(recalibrated.predict(VAL.inputs).probs, p / p.sum(-1, keepdim=True))
    weighted = bn.mix([ensemble((1.5,)), ensemble((3.0,))], weights=[3, 1])
    p = (0.75 * (1.5 * VAL.inputs).softmax(-1) + 0.25 * (3 * VAL.inputs).softmax(-1)) ** 0.5
    at_two = tempered(weighted.predict(VAL.inputs), Temperature("average", torch.tensor(2.0)))
    assert torch.allclose(at_two.probs, p / p.sum(-1, keepdim=True))


def test_temperature_one_changes_nothing():
    plain = ensemble().predict(VAL.inputs)
    for of, values in (("members", torch.ones(3)), ("average", torch.tensor(1.0))):
        same = tempered(plain, Temperature(of, values))
        assert torch.allclose(same.probs, plain.probs) and torch.allclose(same.entropy, plain.entropy)
    assert torch.allclose(tempered(plain, Temperature("members", torch.ones(3))).between, plain.between)


@pytest.mark.parametrize("of", ["members", "average", "classes"])
def test_it_saves_loads_slices_and_moves(of, tmp_path):
    recalibrated = bn.temper(ensemble(), VAL, of)
    recalibrated.save(tmp_path / of)
    loaded = bn.load(tmp_path / of, lambda: nn.Linear(3, 3, bias=False).double())
    probs = recalibrated.predict(VAL.inputs).probs
    assert torch.equal(loaded.predict(VAL.inputs).probs, probs)
    assert torch.equal(recalibrated.to("cpu").predict(VAL.inputs).probs, probs)
    assert loaded.temperature.of == of and torch.equal(loaded.temperature.values, recalibrated.temperature.values)
    assert bn.score(loaded, VAL) == bn.score(recalibrated, VAL)
    part = recalibrated[[2, 0]]
    if of == "members":
        assert part.temperature.values.tolist() == recalibrated.temperature.values[[2, 0]].tolist()
        assert torch.equal(part.predict(VAL.inputs).outputs, recalibrated.predict(VAL.inputs).outputs[[2, 0]])
    else:
        assert part.temperature == recalibrated.temperature
    again = bn.temper(recalibrated, VAL, of)
    assert torch.equal(again.temperature.values, recalibrated.temperature.values)  # replaced, not added


def test_mixing_keeps_the_temperatures_of_members_and_refuses_that_of_an_average():
    recalibrated = bn.temper(ensemble((1.5, 3.0)), VAL)
    mixed = bn.mix([recalibrated, ensemble((0.7,))])
    assert mixed.temperature.values.tolist() == [*recalibrated.temperature.values.tolist(), 1.0]
    expected = torch.cat([recalibrated.predict(VAL.inputs).outputs, ensemble((0.7,)).predict(VAL.inputs).log_probs])
    assert torch.allclose(mixed.predict(VAL.inputs).outputs, expected)
    for of in ("average", "classes"):
        with pytest.raises(ValueError, match=r"mix first, then bn.temper"):
            bn.mix([bn.temper(ensemble(), VAL, of), ensemble()])


def test_labels_have_a_temperature_too():
    problem = bn.Problem(lambda: nn.Linear(3, 3, bias=False).double(), bn.likelihoods.Bernoulli())
    x = KEY.split("labels").normal(torch.empty(2000, 3, dtype=torch.float64))
    data = bn.Data(x, bn.likelihoods.Bernoulli().sample(x, {}, KEY.split("drawn")))
    posterior = bn.mix([bn.Posterior.of(identity(s), problem) for s in (2.0, 3.0)])
    temperatures = bn.temper(posterior, data).temperature.values
    assert torch.allclose(temperatures, torch.tensor([2.0, 3.0]).double(), rtol=0.15)
    average = bn.temper(posterior, data, "average")
    p = posterior.predict(x).probs
    odds = (p / (1 - p)) ** (1 / float(average.temperature.values))
    assert torch.allclose(average.predict(x).probs, odds / (1 + odds))
    assert bn.score(average, data)["nll"] < bn.score(posterior, data)["nll"]


def vector_information(x: torch.Tensor) -> torch.Tensor:
    """The Fisher information of factors and shifts at the identity, with the prior's."""
    logs = x.log_softmax(-1)
    p = logs.exp()
    total = torch.eye(6, dtype=x.dtype) / 0.2**2
    for row, q in zip(logs, p):
        jacobian = torch.cat((row.diag(), torch.eye(3, dtype=x.dtype)), 1)  # of the three logits
        total += jacobian.T @ (q.diag() - q[:, None] * q) @ jacobian
    return total


def test_vector_scaling_of_calibrated_logits_is_the_identity():
    data = calibrated(4000)
    scaling = bn.temper(bn.Posterior.of(identity(), PROBLEM), data, "classes").temperature
    assert scaling.of == "classes" and scaling.values.shape == (2, 3)
    gap = scaling.values.flatten() - torch.tensor([1.0, 1, 1, 0, 0, 0]).double()
    squared = float(gap @ vector_information(data.inputs) @ gap)
    assert squared < 27.5  # chi-square with at most six degrees of freedom: p = 0.0001
    assert float(gap.abs().max()) < 0.2


def test_vector_scaling_undoes_factors_and_shifts():
    """Of members whose class log-odds were scaled and shifted by class, up to what softmax does not see."""
    data = calibrated(4000)
    module = nn.Linear(3, 3).double()
    with torch.no_grad():
        module.weight.copy_(torch.eye(3))
        module.bias.copy_(torch.tensor([1.0, -0.5, 0.0]))
    biased = bn.Posterior.of(module, bn.Problem(lambda: nn.Linear(3, 3).double(), bn.likelihoods.Categorical()))
    scores = {of: bn.score(bn.temper(biased, data, of), data)["nll"] for of in ("average", "classes")}
    truth = bn.score(bn.Posterior.of(identity(), PROBLEM), data)["nll"]
    assert scores["classes"] < truth + 1e-3 < scores["average"] - 0.05


@pytest.mark.parametrize("n", [15, 60, 500])
@pytest.mark.parametrize("scales", [(1.5, 3.0, 0.7), (4.0,), (0.3,)])
def test_vector_scaling_is_never_worse_than_a_temperature_on_its_own_data(n, scales):
    data = VAL.take(slice(0, n))
    average, classes = (bn.score(bn.temper(ensemble(scales), data, of), data)["nll"] for of in ("average", "classes"))
    assert classes <= average + 1e-12


def test_vector_scaling_is_where_the_gradient_vanishes():
    scaling = bn.temper(ensemble(), VAL, "classes").temperature.values.requires_grad_()
    logs = ensemble().predict(VAL.inputs).probs.log()
    t = float(bn.temper(ensemble(), VAL, "average").temperature.values)
    nll = nn.functional.cross_entropy(scaling[0] * logs + scaling[1], VAL.targets, reduction="sum")
    away = scaling - torch.tensor([[1 / t] * 3, [0.0] * 3]).double()
    (nll + away.square().sum() / (2 * 0.2**2)).backward()
    assert float(scaling.grad.abs().max()) < 1e-6


def test_a_class_without_probability_can_be_scaled():
    outputs = torch.tensor([[[[0.0, 1.0, -math.inf], [2.0, 0.0, -math.inf]]]]).double()
    plain = make_predictive(outputs, bn.likelihoods.Categorical(), {})
    scaled = tempered(plain, Temperature("classes", torch.tensor([[1.0, 1, 0], [0.0, 0, 0]]).double()))
    assert bool(scaled.probs.isfinite().all()) and scaled.outputs.shape == (1, 1, 2, 3)


def test_streams_and_masked_examples():
    expected = float(bn.temper(ensemble((2.0,)), VAL.take(slice(0, 300))).temperature.values)
    weights = torch.cat([torch.ones(300), torch.zeros(200)]).double()
    masked = bn.temper(ensemble((2.0,)), bn.Data(VAL.inputs, VAL.targets, weights))
    batches = [(VAL.inputs[i : i + 70], VAL.targets[i : i + 70]) for i in range(0, 300, 70)]
    batches = [(x[: 300 - 70 * i], y[: 300 - 70 * i]) for i, (x, y) in enumerate(batches)]
    streamed = bn.temper(ensemble((2.0,)), bn.Data.stream(batches, n=300))
    assert float(masked.temperature.values) == pytest.approx(expected, rel=1e-5)
    assert float(streamed.temperature.values) == pytest.approx(expected, rel=1e-5)
    few = bn.temper(ensemble((2.0,)), VAL.take(slice(0, 300)), "classes").temperature.values
    same = bn.temper(ensemble((2.0,)), bn.Data(VAL.inputs, VAL.targets, weights), "classes").temperature.values
    assert torch.allclose(few, same, rtol=1e-4)


def test_bad_input_is_refused():
    real = bn.Problem(lambda: nn.Linear(3, 1).double(), bn.likelihoods.Gaussian(noise=1.0))
    numbers = bn.Posterior.of(nn.Linear(3, 1).double(), real)
    with pytest.raises(ValueError, match="expected of='average' or of='members' or of='quantiles' under Gaussian"):
        bn.temper(numbers, VAL, "classes")
    with pytest.raises(TypeError, match="expected predictions of classes, got RealPredictive"):
        tempered(numbers.predict(VAL.inputs), Temperature("classes", torch.ones(2, 3)))
    with pytest.raises(TypeError, match="expected predictions of real numbers, got ClassPredictive"):
        tempered(ensemble().predict(VAL.inputs), Temperature("quantiles", torch.ones(1)))
    counts = bn.Problem(lambda: nn.Linear(3, 1).double(), bn.likelihoods.Poisson())
    with pytest.raises(TypeError, match=r"and the likelihood is Poisson: bn\.conformal calibrates intervals of counts"):
        bn.temper(bn.Posterior.of(nn.Linear(3, 1).double(), counts), VAL)
    with pytest.raises(ValueError, match="expected of='members' or of='average' or of='classes' under Categorical"):
        bn.temper(ensemble(), VAL, of="each")
    labels = bn.Problem(lambda: nn.Linear(3, 3, bias=False).double(), bn.likelihoods.Bernoulli())
    with pytest.raises(ValueError, match="expected of='members' or of='average' under Bernoulli, got of='classes'"):
        bn.temper(bn.Posterior.of(identity(), labels), bn.Data(VAL.inputs, (VAL.inputs > 0).double()), of="classes")
    with pytest.raises(TypeError, match="expected val as bn"):
        bn.temper(ensemble(), None)


def test_without_a_best_temperature_it_answers_and_warns(caplog):
    right = bn.Data(VAL.inputs, VAL.inputs.argmax(-1))
    for of in ("members", "average", "classes"):
        recalibrated = bn.temper(ensemble(), right, of)
        assert bn.score(recalibrated, right)["nll"] <= bn.score(ensemble(), right)["nll"] + 1e-12  # T = 1, not 0
        if of != "classes":
            assert bool((recalibrated.temperature.values == 1).all())
        assert (
            "500 validation examples still falls at T = " in caplog.text
            and "every example is classified" in caplog.text
        )
        caplog.clear()
    wrong = bn.Data(VAL.inputs, VAL.inputs.argmin(-1))
    recalibrated = bn.temper(ensemble(), wrong)
    assert bn.score(recalibrated, wrong)["nll"] == pytest.approx(math.log(3), rel=1e-3)  # all but equal probabilities
    assert "worse than equal probabilities" in caplog.text and "was it trained?" in caplog.text


def test_a_likelihood_with_more_than_a_softmax_is_tempered_in_its_probabilities():
    outputs = KEY.split("outputs").normal(torch.empty(2, 1, 5, 3, dtype=torch.float64))
    plain = make_predictive(outputs, bn.likelihoods.NoisyDirichlet(), {})
    divided = tempered(plain, Temperature("members", torch.tensor([2.0, 4.0])))
    expected = torch.stack([(outputs[0, 0] / 2).softmax(-1), (outputs[1, 0] / 4).softmax(-1)]).mean(0)
    assert torch.allclose(divided.probs, expected)
