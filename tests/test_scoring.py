"""Scores of predictives and posteriors, and curves over the number of members."""

import subprocess
import sys
import textwrap

import pytest
import torch

import basinet as bn
from basinet.families import Diagonal
from basinet.posterior import Part, Posterior
from basinet.predict import ClassPredictive, CountPredictive, LabelPredictive, RealPredictive


@pytest.fixture(scope="module")
def classes() -> ClassPredictive:
    torch.manual_seed(0)
    return ClassPredictive(3 * torch.randn(6, 4, 50, 3, dtype=torch.float64), bn.likelihoods.Categorical())


@pytest.fixture(scope="module")
def real() -> RealPredictive:
    torch.manual_seed(1)
    return RealPredictive(torch.randn(6, 4, 50, 1, dtype=torch.float64), bn.likelihoods.Gaussian(noise=0.7))


@pytest.fixture(scope="module")
def labels() -> torch.Tensor:
    return torch.randint(0, 3, (50,), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def numbers() -> torch.Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_class_scores_are_those_of_the_averaged_probabilities(classes, labels):
    probs = classes.outputs.softmax(-1).mean((0, 1))
    onehot = torch.nn.functional.one_hot(labels, 3)
    scores = bn.score(classes, labels)
    assert scores["n"] == 50
    assert scores["nll"] == pytest.approx(float(-probs[range(50), labels].log().mean()), abs=1e-12)
    assert scores["brier"] == pytest.approx(float((probs - onehot).square().sum(-1).mean()), abs=1e-12)
    assert scores["accuracy"] == pytest.approx(float((probs.argmax(-1) == labels).double().mean()))
    assert scores["adaptive_ece"] == pytest.approx(float(bn.metrics.ece(probs, labels, 15, spacing="mass")), abs=1e-12)
    each = [float(bn.metrics.classwise_ece(probs, labels)), float(bn.metrics.classwise_ece(probs, labels, bins=4))]
    assert [scores["classwise_ece"], bn.score(classes, labels, bins=4)["classwise_ece"]] == pytest.approx(each)
    assert each[0] != pytest.approx(each[1])
    best, top = probs.max(-1)  # the risk of the k most certain, averaged over k
    wrong = (top != labels).double()[best.argsort(descending=True)]
    assert scores["aurc"] == pytest.approx(float((wrong.cumsum(0) / torch.arange(1, 51)).mean()), abs=1e-12)
    assert scores["entropy"] == pytest.approx(float(-(probs * probs.log()).sum(-1).mean()), abs=1e-12)
    assert scores["entropy"] == pytest.approx(scores["aleatoric"] + scores["between"] + scores["within"], abs=1e-12)
    assert scores["epistemic"] == pytest.approx(scores["between"] + scores["within"], abs=1e-12)


def test_real_scores_are_those_of_the_mixture(real, numbers):
    scores = bn.score(real, numbers)
    means = real.outputs[..., 0].flatten(0, 1)
    density = torch.distributions.Normal(means, 0.7).log_prob(numbers).exp().mean(0)
    assert scores["nll"] == pytest.approx(float(-density.log().mean()), abs=1e-12)
    assert scores["rmse"] == pytest.approx(float((means.mean(0) - numbers).square().mean().sqrt()), abs=1e-12)
    assert scores["variance"] == pytest.approx(0.49 + float(means.var(0, correction=0).mean()), abs=1e-12)
    low, high = real.interval(0.9)
    inside = (low[:, 0] <= numbers) & (numbers <= high[:, 0])
    assert scores["coverage_90"] == pytest.approx(float(inside.double().mean()))
    assert scores["width_90"] == pytest.approx(float((high - low).mean()), abs=1e-12)
    assert scores["mae"] == pytest.approx(float((means.mean(0) - numbers).abs().mean()), abs=1e-12)
    u = torch.distributions.Normal(means, 0.7).cdf(numbers).mean(0)
    levels = torch.linspace(0.01, 0.99, 20, dtype=torch.float64)
    shares = (u <= levels[:, None]).double().mean(1)
    assert scores["quantile_error"] == pytest.approx(float((shares - levels).abs().mean()), abs=1e-12)
    # the energy form of the CRPS: E|X - y| - E|X - X'| / 2, by draws
    draws = real.sample(4000, seed=5)[..., 0]
    energy = (draws - numbers).abs().mean(0) - (draws[:2000] - draws[2000:]).abs().mean(0) / 2
    assert scores["crps"] == pytest.approx(float(energy.mean()), abs=4 * 0.01)


def test_streamed_scores_equal_those_of_a_predictive(monkeypatch):
    splits = bn.datasets.load("wine")
    problem = bn.Problem(lambda: bn.networks.MLP(13, 3, hidden=(8,)), bn.likelihoods.Categorical())
    maps = bn.fit(bn.MAP(epochs=5), problem, splits.train, members=3)
    point = maps.parts[0].family
    spread = {n: torch.full_like(x, 0.1) for n, x in point.params.items()}
    posterior = Posterior((Part(problem, Diagonal(point.params, spread, point.buffers), maps.members),))
    whole = bn.score(posterior.predict(splits.test.inputs, samples=7), splits.test.targets)
    monkeypatch.setattr("basinet.scoring.BUDGET", 3 * 7 * 3 * 4 * 5 * 5)  # five inputs per chunk
    assert bn.score(posterior, splits.test, samples=7) == pytest.approx(whole, rel=1e-5, abs=1e-6)
    monkeypatch.setattr("basinet.predict.draws.CACHE", 0)  # draws are made again for each chunk, from the same keys
    assert bn.score(posterior, splits.test, samples=7) == pytest.approx(whole, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_5000_draws_on_10000_inputs_are_scored_in_bounded_memory():
    program = """
        import resource, torch, basinet as bn
        from basinet.engine import Member
        from basinet.families import Diagonal
        from basinet.posterior import Part, Posterior
        problem = bn.Problem(lambda: bn.networks.MLP(20, 10, hidden=(16,)), bn.likelihoods.Categorical())
        start = [problem.init(bn.Noise.seed(k)) for k in range(100)]
        mean = {n: torch.stack([p.params[n] for p in start]) for n in start[0].params}
        family = Diagonal(mean, {n: torch.full_like(x, 0.2) for n, x in mean.items()}, {})
        posterior = Posterior((Part(problem, family, tuple(Member(0, k) for k in range(100))),))
        data = bn.Data(torch.randn(10_000, 20), torch.randint(0, 10, (10_000,)))
        bn.score(posterior, data.take(slice(0, 10)), samples=2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        scores = bn.score(posterior, data, samples=50)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, scores["within"], scores["between"])
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    megabytes, within, between = map(float, run.stdout.split())
    assert megabytes < 1000  # the outputs alone would take 1,907
    assert within > 0 and between > 0


def test_targets_that_do_not_fit_are_refused(classes, real, labels, numbers):
    with pytest.raises(ValueError, match=r"expected 50 targets.*got 49"):
        bn.score(classes, labels[:49])
    with pytest.raises(ValueError, match=r"targets in 0 \.\.\. 2.*got 0 \.\.\. 5"):
        bn.score(classes, torch.tensor([0, 5] * 25))
    with pytest.raises(ValueError, match="floating-point targets"):
        bn.score(real, labels)
    problem = bn.Problem(lambda: bn.networks.MLP(4, 3), bn.likelihoods.Categorical())
    posterior = bn.Posterior.of(bn.networks.MLP(4, 3), problem)
    with pytest.raises(TypeError, match=r"scored on bn\.Data"):
        bn.score(posterior, labels)


def test_a_size_curve_starts_at_the_mean_of_members_and_ends_at_the_ensemble(classes, labels):
    rows = bn.size_curve(classes, labels, sizes=[1, 3, 6], subsets=30, seed=0)
    assert [(r["size"], r["subsets"]) for r in rows] == [(1, 6), (3, 20), (6, 1)]  # all subsets where they are few
    singles = [bn.score(classes[i], labels) for i in range(6)]
    for name in ("nll", "brier", "ece", "accuracy"):
        mean = sum(s[name] for s in singles) / 6
        assert rows[0][name] == pytest.approx(mean, abs=1e-9)
        assert all(r[f"{name}_members"] == pytest.approx(mean, abs=1e-9) for r in rows)
        assert rows[2][name] == pytest.approx(bn.score(classes, labels)[name], abs=1e-9)
        assert rows[2][f"{name}_sd"] == 0
    assert rows[2]["nll"] < rows[1]["nll"] < rows[0]["nll"]  # Jensen, for every subset


def test_size_curve_subsets_are_different_and_repeat_with_the_seed(classes, labels):
    a = bn.size_curve(classes, labels, sizes=[3], subsets=7, seed=1)
    assert a[0]["subsets"] == 7
    assert a == bn.size_curve(classes, labels, sizes=[3], subsets=7, seed=1)
    assert a != bn.size_curve(classes, labels, sizes=[3], subsets=7, seed=2)


def test_size_curve_of_regression_and_its_errors(real, numbers):
    rows = bn.size_curve(real, numbers, sizes=[1, 6])
    assert rows[1]["crps"] == pytest.approx(bn.score(real, numbers)["crps"], abs=1e-9)
    assert rows[1]["rmse"] == pytest.approx(bn.score(real, numbers)["rmse"], abs=1e-9)
    with pytest.raises(ValueError, match=r"sizes among 1 \.\.\. 6"):
        bn.size_curve(real, numbers, sizes=[7])
    with pytest.raises(ValueError, match="at least one subset"):
        bn.size_curve(real, numbers, subsets=0)


def test_equicorrelated_errors_average_as_theory_says():
    v, c, n, points = 2.0, 0.5, 8, 200_000
    generator = torch.Generator().manual_seed(0)
    common = c**0.5 * torch.randn(points, generator=generator, dtype=torch.float64)
    own = (v - c) ** 0.5 * torch.randn(n, points, generator=generator, dtype=torch.float64)
    predictive = RealPredictive((common + own)[:, None, :, None], bn.likelihoods.Gaussian(noise=1.0))
    measured = bn.score(predictive[:2], torch.zeros(points, dtype=torch.float64))["rmse"] ** 2
    theory = (v + c) / 2
    assert abs(measured - theory) < 4.5 * theory * (2 / points) ** 0.5
    error = float(predictive.mean.square().mean())
    theory = (v + (n - 1) * c) / n
    assert abs(error - theory) < 4.5 * theory * (2 / points) ** 0.5


def masked(inputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> bn.Data:
    """Data whose weights have the shape of the targets."""
    return bn.Data(inputs, targets, weights=mask.double())


def test_label_scores_are_those_of_two_classes_per_label():
    torch.manual_seed(4)
    logits, labels = 2 * torch.randn(3, 2, 200, 4, dtype=torch.float64), torch.randint(0, 2, (200, 4))
    predictive = LabelPredictive(logits, bn.likelihoods.Bernoulli())
    probs, scores = logits.sigmoid().mean((0, 1)), bn.score(predictive, labels)
    assert scores["nll"] == pytest.approx(-float(predictive.log_prob(labels).mean()))
    assert scores["brier"] == pytest.approx(2 * float((probs - labels).square().mean()))
    assert scores["accuracy"] == pytest.approx(float(((probs > 0.5) == labels).double().mean()))
    two = torch.stack((1 - probs, probs), -1)
    each = [float(bn.metrics.ece(two[:, k], labels[:, k])) for k in range(4)]
    assert scores["ece"] == pytest.approx(sum(each) / 4)
    each = [float(bn.metrics.adaptive_ece(two[:, k], labels[:, k])) for k in range(4)]
    assert scores["adaptive_ece"] == pytest.approx(sum(each) / 4)
    assert scores["entropy"] == pytest.approx(float(predictive.entropy.mean()), abs=1e-9)
    rows = bn.size_curve(predictive, labels, sizes=[1, 3])
    assert rows[1]["ece"] == pytest.approx(scores["ece"]) and rows[1]["nll"] < rows[0]["nll"]
    with pytest.raises(ValueError, match="Bernoulli expects targets among 0 or 1"):
        bn.score(predictive, labels + 1)
    assert bn.score(predictive, torch.ones_like(labels))["n"] == 200  # one outcome alone can be scored


@pytest.mark.slow
def test_count_scores_are_those_of_the_mixture():
    torch.manual_seed(5)
    outputs = torch.randn(3, 2, 100, 1, dtype=torch.float64)
    predictive, y = CountPredictive(outputs, bn.likelihoods.Poisson()), torch.randint(0, 5, (100,))
    scores = bn.score(predictive, y)
    rates = outputs.exp().mean((0, 1))[:, 0]
    assert scores["rmse"] == pytest.approx(float((rates - y).square().mean().sqrt()))
    draws = predictive.sample(8000)[..., 0]
    energy = (draws - y).abs().mean(0) - (draws[:4000] - draws[4000:]).abs().mean(0) / 2
    assert scores["crps"] == pytest.approx(float(energy.mean()), abs=0.02)
    assert scores["variance"] == pytest.approx(float(predictive.variance.mean()))
    assert bn.score(predictive, predictive.sample(1)[0])["coverage_90"] >= 0.8
    many = CountPredictive(outputs[:, :, :1].expand(3, 2, 3_000, 1), bn.likelihoods.Poisson())
    drawn = many.sample(1, seed=1)[0]  # randomised PIT of true draws is uniform; F(y) alone is not, at a mean near 1
    right = bn.score(many, drawn)
    assert right["quantile_error"] < 4 * 0.5 / 3_000**0.5  # four standard errors of one level
    assert right["quantile_error"] == bn.score(many, drawn, seed=0)["quantile_error"]
    assert right["quantile_error"] != bn.score(many, drawn, seed=1)["quantile_error"]
    assert bn.size_curve(predictive, y, sizes=[3])[0]["crps"] == pytest.approx(scores["crps"])
    with pytest.raises(ValueError, match="Poisson expects targets among 0, 1, 2"):
        bn.score(predictive, torch.full((100,), -1))


def test_scores_of_heavy_tails_are_finite():
    torch.manual_seed(6)
    predictive = RealPredictive(torch.randn(3, 2, 50, 2), bn.likelihoods.StudentT(df=3.0))
    scores = bn.score(predictive, torch.randn(50, 2))
    assert scores["crps"] > 0 and all(abs(v) < 100 for v in scores.values())


def test_masked_examples_and_elements_are_not_scored(real):
    torch.manual_seed(7)
    whole = RealPredictive(torch.randn(3, 2, 50, 2, dtype=torch.float64), bn.likelihoods.Gaussian(noise=0.7))
    y, mask = torch.randn(50, 2, dtype=torch.float64), torch.ones(50, 2)
    mask[:, 1] = 0
    mask[40:] = 0
    first = RealPredictive(whole.outputs[:, :, :40, :1], whole.likelihood)
    expected = bn.score(first, y[:40, :1])
    assert bn.score(whole, masked(torch.zeros(50, 1), y, mask)) == pytest.approx(expected)
    rows = bn.Data(torch.zeros(50, 1), y, (torch.arange(50) < 40).double())  # one weight per example
    assert bn.score(whole, rows) == pytest.approx(
        bn.score(RealPredictive(whole.outputs[:, :, :40], whole.likelihood), y[:40])
    )


def test_masked_sequences_of_classes_and_streams():
    torch.manual_seed(8)
    sequences = ClassPredictive(torch.randn(2, 2, 20, 5, 3, dtype=torch.float64), bn.likelihoods.Categorical())
    y, mask = torch.randint(0, 3, (20, 5)), torch.rand(20, 5) < 0.6
    scores = bn.score(sequences, masked(torch.zeros(20, 1), y, mask))
    probs = sequences.probs[mask]
    assert scores["accuracy"] == pytest.approx(float((probs.argmax(-1) == y[mask]).double().mean()))
    assert scores["n"] == int(mask.any(1).sum())
    problem = bn.Problem(lambda: torch.nn.Linear(3, 4), bn.likelihoods.Bernoulli())
    posterior = bn.Posterior.of(torch.nn.Linear(3, 4), problem)
    x, labels, here = torch.randn(60, 3), torch.randint(0, 2, (60, 4)), torch.rand(60, 4) < 0.5
    data = masked(x, labels, here)
    assert bn.score(posterior, data) == pytest.approx(bn.score(posterior.predict(x), data), rel=1e-5)


def test_scores_do_not_depend_on_how_probabilities_are_binned_in_memory(monkeypatch):
    from basinet import scoring

    outputs = torch.randn(2, 3, 40, 6, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(40) % 6
    predictive = ClassPredictive(outputs, bn.likelihoods.Categorical())
    whole = bn.score(predictive, targets)
    assert whole["classwise_ece"] == pytest.approx(float(bn.metrics.classwise_ece(predictive.probs, targets)), rel=1e-5)
    monkeypatch.setattr(scoring, "BLOCK", 20)  # three rows at a time
    assert bn.score(predictive, targets) == pytest.approx(whole, rel=1e-12)
