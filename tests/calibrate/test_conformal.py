"""Conformal posteriors: coverage over many splits is as stated, for numbers and classes, saved and loaded."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.calibrate.conformal_sets import OF_NUMBERS, class_scores
from basinet.core.noise import Noise

KEY = Noise.seed(41)
SPLITS = 24


def band(n: int, m: int, k: int) -> tuple[float, float]:
    """Mean and standard deviation of the share of m new examples held, where the k-th of n scores is the threshold:
    the share is beta-binomial with parameters k and n + 1 - k."""
    mean = k / (n + 1)
    return mean, math.sqrt(mean * (1 - mean) / (n + 2) * ((n + 1) / m + 1))


def z_of(covered: list[float], n: int, m: int, level: float) -> float:
    mean, sd = band(n, m, math.ceil(round((n + 1) * level, 9)))
    return (sum(covered) / len(covered) - mean) / (sd / math.sqrt(len(covered)))


def line(slope: float = 1.0) -> nn.Module:
    module = nn.Linear(1, 1).double()
    with torch.no_grad():
        module.weight.fill_(slope)
        module.bias.fill_(0.1)
    return module


REAL = bn.Problem(lambda: nn.Linear(1, 1).double(), bn.likelihoods.Gaussian(noise=0.4))
NUMBERS = bn.mix([bn.Posterior.of(line(s), REAL) for s in (0.5, 1.5)])  # wrong in mean, spread and shape


def numbers(n: int, seed: int = 0) -> bn.Data:
    """Skewed noise that grows with |x|."""
    key = KEY.split("numbers").split(seed)
    x = key.split("x").normal(torch.empty(n, 1, dtype=torch.float64))
    return bn.Data(x, x + (0.2 + x.abs()) * (key.split("e").uniform(x) ** -0.3 - 1))


@pytest.mark.parametrize("kind", OF_NUMBERS)
@pytest.mark.parametrize(("n", "level"), [(60, 0.9), (19, 0.5)])
def test_intervals_contain_as_many_targets_as_stated(kind, n, level):
    covered, m = [], 500
    for split in range(SPLITS):
        calibrated = bn.conformal(NUMBERS, numbers(n, 2 * split), kind, level)
        test = numbers(m, 2 * split + 1)
        low, high = calibrated.predict(test.inputs).conformal_interval
        assert low.shape == high.shape == test.targets.shape and bool((low <= high).all())
        covered.append(float(((low <= test.targets) & (test.targets <= high)).double().mean()))
    assert abs(z_of(covered, n, m, level)) < 4


def test_intervals_by_hand():
    data = numbers(19)
    plain = NUMBERS.predict(data.inputs)
    gap = (data.targets - plain.mean).abs().flatten()
    assert bn.conformal(NUMBERS, data, "split").conformal.threshold == float(gap.sort().values[17])
    sd = plain.variance.sqrt().flatten()
    calibrated = bn.conformal(NUMBERS, data, "scaled")
    assert calibrated.conformal.threshold == pytest.approx(float((gap / sd).sort().values[17]))
    assert calibrated.conformal.n == 19 and calibrated.conformal.level == 0.9
    low, high = calibrated.predict(data.inputs).conformal_interval
    assert torch.allclose(high - plain.mean, plain.mean - low)
    assert torch.allclose(high - low, 2 * calibrated.conformal.threshold * plain.variance.sqrt())
    a, b = plain.interval(0.9)
    outside = torch.maximum(a - data.targets, data.targets - b).flatten().sort().values[17]
    quantiles = bn.conformal(NUMBERS, data, "cqr")
    assert quantiles.conformal.threshold == pytest.approx(float(outside))
    low, high = quantiles.predict(data.inputs).conformal_interval
    assert torch.allclose(low, a - outside) and torch.allclose(high, b + outside)
    assert bn.conformal(NUMBERS, data).conformal == calibrated.conformal  # scaled is the default


def test_an_interval_that_would_be_empty_is_a_point():
    data = numbers(99)
    exact = bn.Data(data.inputs, NUMBERS.predict(data.inputs).mean)
    low, high = bn.conformal(NUMBERS, exact, "cqr").predict(data.inputs).conformal_interval
    assert bool((low <= high).all())


def test_an_interval_contains_all_elements_of_a_target_or_counts_as_a_miss():
    problem = bn.Problem(lambda: nn.Linear(1, 3).double(), bn.likelihoods.Gaussian(noise=1.0))
    posterior = bn.Posterior.of(nn.Linear(1, 3).double(), problem)
    covered = []
    for split in range(SPLITS):
        key = KEY.split("many").split(split)
        x, y = key.split("x").normal(torch.empty(340, 1).double()), key.split("y").normal(torch.empty(340, 3).double())
        calibrated = bn.conformal(posterior, bn.Data(x[:40], y[:40]), "split", 0.8)
        low, high = calibrated.predict(x[40:]).conformal_interval
        covered.append(float(((low <= y[40:]) & (y[40:] <= high)).all(1).double().mean()))
    assert abs(z_of(covered, 40, 300, 0.8)) < 4


def test_counts_have_intervals():
    problem = bn.Problem(lambda: nn.Linear(1, 1).double(), bn.likelihoods.Poisson())
    posterior = bn.Posterior.of(line(), problem)
    x = KEY.split("counts").normal(torch.empty(400, 1).double())
    y = bn.likelihoods.Poisson().sample(1 + x, {}, KEY.split("counted"))
    for kind in OF_NUMBERS:
        calibrated = bn.conformal(posterior, bn.Data(x[:200], y[:200]), kind)
        low, high = calibrated.predict(x[200:]).conformal_interval
        held = float(((low <= y[200:]) & (y[200:] <= high)).double().mean())
        assert held > 0.9 - 4 * band(200, 200, 181)[1]  # whole numbers tie: no upper bound


def identity(scale: float = 1.0) -> nn.Module:
    module = nn.Linear(6, 6, bias=False).double()
    with torch.no_grad():
        module.weight.copy_(scale * torch.eye(6))
    return module


CLASSES = bn.Problem(lambda: nn.Linear(6, 6, bias=False).double(), bn.likelihoods.Categorical())
ORACLE = bn.Posterior.of(identity(), CLASSES)
SURE = bn.mix([bn.Posterior.of(identity(s), CLASSES) for s in (3.0, 5.0)])  # far too sure


def classes(n: int, seed: int = 0) -> bn.Data:
    """Classes drawn from the softmax of the inputs."""
    key = KEY.split("classes").split(seed)
    x = 2 * key.split("x").normal(torch.empty(n, 6, dtype=torch.float64))
    return bn.Data(x, bn.likelihoods.Categorical().sample(x, {}, key.split("y")))


def held(sets: Tensor, targets: Tensor) -> float:
    return float(sets[torch.arange(len(targets)), targets].double().mean())


@pytest.mark.parametrize(
    ("posterior", "kind", "options"),
    [
        (ORACLE, "lac", {}),
        (SURE, "lac", {}),
        (ORACLE, "aps", {}),
        (SURE, "aps", {}),
        (SURE, "raps", {"penalty": (2, 0.1)}),
        (ORACLE, "raps", {"penalty": (1, 0.5)}),
        (SURE, "raps", {}),
    ],
    ids=["oracle lac", "lac", "oracle aps", "aps", "raps", "oracle raps", "tuned raps"],
)
def test_sets_contain_the_truth_as_often_as_stated(posterior, kind, options):
    n, m, level = 100, 500, 0.9
    covered, full, used = [], [], 100 if options or kind != "raps" else 80
    for split in range(SPLITS):
        val, test = classes(n, 2 * split), classes(m, 2 * split + 1)
        calibrated = bn.conformal(posterior, val, kind, level, empty=True, seed=split, **options)
        assert calibrated.conformal.n == used
        covered.append(held(calibrated.predict(test.inputs).conformal_set, test.targets))
        never = bn.conformal(posterior, val, kind, level, seed=split, **options).predict(test.inputs).conformal_set
        assert bool(never.any(-1).all())
        full.append(held(never, test.targets))
    assert abs(z_of(covered, used, m, level)) < 4
    assert all(a <= b for a, b in zip(covered, full))


def test_the_score_is_uniform_where_probabilities_are_true():
    """APS's oracle: where probabilities are true, the score of the truth is uniform, and the threshold is the level."""
    data = classes(20_000)
    calibrated = bn.conformal(ORACLE, data, "aps", empty=True)
    scores = class_scores(ORACLE.predict(data.inputs).probs, calibrated.conformal).gather(-1, data.targets[:, None])
    shares = torch.histc(scores, 10, 0, 1) / len(scores)
    assert (
        float(((shares - 0.1) ** 2 / 0.1).sum() * len(scores)) < 30
    )  # chi-square with 9 degrees of freedom: p = 0.0004
    assert abs(calibrated.conformal.threshold - 0.9) < 4 * math.sqrt(0.09 / 20_000)


DRAWN = (classes(2000), classes(2000, 1))


def test_a_penalty_makes_large_sets_smaller():
    """A model that is far too unsure on half of the inputs, but ranks well: only ranks say when to stop."""
    val, test = (bn.Data(d.inputs * (1 - 0.95 * (torch.arange(2000) % 2))[:, None], d.targets) for d in DRAWN)
    sizes = []
    for options in ({"kind": "aps"}, {"kind": "raps", "penalty": (1, 0.2)}, {"kind": "raps"}):
        calibrated = bn.conformal(ORACLE, val, **options)
        sets = calibrated.predict(test.inputs).conformal_set
        assert held(sets, test.targets) > 0.9 - 4 * band(1600, 2000, 1441)[1]
        sizes.append(float(sets.sum(-1).double().mean()))
    assert sizes[1] < sizes[0] - 0.3 and sizes[2] <= sizes[1] + 0.1
    assert calibrated.conformal.free >= 1 and calibrated.conformal.penalty in (0.001, 0.01, 0.1, 0.2, 0.5)


def test_thresholds_make_the_smallest_sets():
    """At an accuracy of .8, thresholds reach the stated coverage with fewer classes; aps, never empty, covers more."""
    inputs = [2.15 * classes(4000, seed).inputs for seed in (2, 3)]
    val, test = (bn.Data(x, bn.likelihoods.Categorical().sample(x, {}, KEY.split(i))) for i, x in enumerate(inputs))
    accuracy = float((ORACLE.predict(test.inputs).probs.argmax(-1) == test.targets).double().mean())
    size, share = {}, {}
    for kind in ("lac", "aps", "raps"):
        sets = bn.conformal(ORACLE, val, kind).predict(test.inputs).conformal_set
        size[kind], share[kind] = float(sets.sum(-1).double().mean()), held(sets, test.targets)
    assert abs(accuracy - 0.8) < 0.02
    assert abs(share["lac"] - 0.9) < 4 * band(4000, 4000, 3601)[1]
    assert size["lac"] < min(size["aps"], size["raps"]) - 0.1 and share["aps"] > share["lac"]


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
def test_an_input_has_the_same_set_alone_and_in_a_batch(kind):
    """Before, 74 of 359 had a different one: the random part was a hash of the bits of probabilities."""
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10), bn.likelihoods.Categorical())
    engine = bn.Engine(device="cpu", progress=False)
    posterior = bn.fit(bn.MAP(epochs=2), problem, splits.train, members=3, engine=engine)
    calibrated = bn.conformal(posterior, splits.val, kind)
    together = calibrated.predict(splits.test.inputs)
    alone = [calibrated.predict(x[None]) for x in splits.test.inputs]
    assert not torch.equal(together.probs, torch.cat([p.probs for p in alone]))  # they are rounded otherwise
    assert torch.equal(together.conformal_set, torch.cat([p.conformal_set for p in alone]))


def test_without_a_penalty_it_is_aps():
    val = classes(200)
    aps, raps = bn.conformal(SURE, val, "aps"), bn.conformal(SURE, val, "raps", penalty=(0, 0.0))
    assert aps.conformal._replace(kind="raps") == raps.conformal
    assert bn.conformal(SURE, val).conformal.kind == "lac"  # the default
    assert bn.conformal(SURE, val, seed=1).conformal.threshold != aps.conformal.threshold


def test_a_set_contains_the_classes_at_all_places_or_counts_as_a_miss():
    problem = bn.Problem(lambda: nn.Linear(6, 6, bias=False).double(), bn.likelihoods.Categorical())
    posterior = bn.Posterior.of(identity(), problem)
    covered = []
    for split in range(SPLITS):
        data = classes(4 * 140, split)
        x, y = data.inputs.reshape(140, 4, 6), data.targets.reshape(140, 4)
        calibrated = bn.conformal(posterior, bn.Data(x[:40], y[:40]), "aps", 0.8, empty=True)
        sets = calibrated.predict(x[40:]).conformal_set
        covered.append(float(sets.gather(-1, y[40:, :, None]).all(1).double().mean()))
    assert abs(z_of(covered, 40, 100, 0.8)) < 4


@pytest.mark.parametrize(("posterior", "val", "kind"), [(NUMBERS, numbers(50), "cqr"), (SURE, classes(50), "raps")])
def test_it_saves_loads_and_moves(posterior, val, kind, tmp_path):
    calibrated = bn.conformal(posterior, val, kind)
    calibrated.save(tmp_path)
    size = 1 if kind == "cqr" else 6
    loaded = bn.load(tmp_path, lambda: nn.Linear(size, size, bias=kind == "cqr").double())
    assert loaded.conformal == calibrated.conformal
    attribute = "conformal_interval" if kind == "cqr" else "conformal_set"
    pairs = zip(getattr(calibrated.predict(val.inputs), attribute), getattr(loaded.predict(val.inputs), attribute))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert calibrated.to("cpu").conformal == calibrated.conformal
    manifest = json.loads((tmp_path / "posterior.json").read_text())
    assert "conformal" in json.dumps(manifest)


def test_an_unknown_calibration_in_a_manifest_is_refused(tmp_path):
    from basinet.pool import FileError
    from basinet.saving import _conformal

    good = bn.conformal(NUMBERS, numbers(50)).conformal._asdict()
    assert _conformal({"conformal": good}, tmp_path) == bn.conformal(NUMBERS, numbers(50)).conformal
    for bad in ({**good, "kind": "other"}, {"kind": "split"}, [1], {**good, "more": 1}):
        with pytest.raises(FileError, match="is not one that is known"):
            _conformal({"conformal": bad}, tmp_path)


def test_posteriors_that_predict_differently_lose_the_calibration():
    calibrated = bn.conformal(SURE, classes(200))
    others = (
        calibrated[:1],
        bn.mix([calibrated, ORACLE]),
        bn.temper(calibrated, classes(200)),
        bn.weigh(calibrated, classes(200)),
    )
    for other in (*others, SURE):
        with pytest.raises(ValueError, match=r"not calibrated: predict with bn.conformal\(posterior, val\)"):
            _ = other.predict(classes(5).inputs).conformal_set
    predictive = calibrated.predict(classes(5).inputs)
    assert predictive.conformal_set.dtype == torch.bool
    with pytest.raises(ValueError, match="not calibrated"):
        _ = predictive[:1].conformal_set
    assert torch.equal(predictive.probs, SURE.predict(classes(5).inputs).probs)
    assert bn.score(calibrated, classes(50)) == bn.score(SURE, classes(50))


def test_a_temperature_is_applied_first():
    tempered = bn.temper(SURE, classes(500), "average")
    calibrated = bn.conformal(tempered, classes(500, 1), "aps", empty=True)
    assert calibrated.temperature is tempered.temperature
    probs = tempered.predict(classes(100, 2).inputs).probs
    scores = class_scores(probs, calibrated.conformal)
    sets = calibrated.predict(classes(100, 2).inputs).conformal_set
    assert torch.equal(sets, scores <= calibrated.conformal.threshold)


def test_streams_and_masked_examples():
    data = numbers(90)
    expected = bn.conformal(NUMBERS, data.take(slice(0, 60))).conformal
    weights = torch.cat([torch.ones(60), torch.zeros(30)]).double()
    masked = bn.conformal(NUMBERS, bn.Data(data.inputs, data.targets, weights)).conformal
    batches = [(data.inputs[i : i + 25], data.targets[i : i + 25]) for i in (0, 25)]
    batches += [(data.inputs[50:60], data.targets[50:60])]
    streamed = bn.conformal(NUMBERS, bn.Data.stream(batches, n=60)).conformal
    assert masked == expected
    assert streamed._replace(threshold=0) == expected._replace(threshold=0)
    assert streamed.threshold == pytest.approx(expected.threshold, rel=1e-5)
    classy = classes(90)
    some = bn.conformal(SURE, bn.Data(classy.inputs, classy.targets, weights)).conformal
    assert some == bn.conformal(SURE, classy.take(slice(0, 60))).conformal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((NUMBERS, numbers(8)), "a level of 0.9 needs at least 9 calibration examples, got 8"),
        ((NUMBERS, numbers(50), "split", 0.99), "a level of 0.99 needs at least 99 calibration examples, got 50"),
        ((SURE, classes(44), "raps"), "needs at least 45 examples, got 44: use more, or penalty="),
        ((NUMBERS, numbers(50), "aps"), "expected a kind for the likelihood Gaussian, got 'aps'"),
        ((SURE, classes(50), "rapps"), "got 'rapps'. Did you mean 'raps'?"),
        ((SURE, classes(50), "aps", 90), "expected a level between 0 and 1, got 90"),
    ],
)
def test_bad_input_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        bn.conformal(*arguments)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="penalty= is for kind='raps', and kind is 'aps'"):
        bn.conformal(SURE, classes(50), "aps", penalty=(1, 0.1))
    with pytest.raises(ValueError, match=r"expected penalty=\(free ranks, cost of each further rank\), none negative"):
        bn.conformal(SURE, classes(50), "raps", penalty=(1, -0.1))
    with pytest.raises(ValueError, match=r"expected penalty=\(free ranks"):
        bn.conformal(SURE, classes(50), "raps", penalty=(0.1,))
    with pytest.raises(ValueError, match=r"Categorical expects targets in 0 \.\.\. 5"):
        bn.conformal(SURE, bn.Data(classes(50).inputs, classes(50).targets + 1))
    with pytest.raises(ValueError, match="penalty= and empty= are for sets of classes, and kind is 'scaled'"):
        bn.conformal(NUMBERS, numbers(50), empty=True)
    with pytest.raises(TypeError, match="expected val as bn"):
        bn.conformal(SURE, None)
    with pytest.raises(TypeError, match="expected a posterior, got Linear"):
        bn.conformal(line(), numbers(50))
    labels = bn.Problem(lambda: nn.Linear(6, 6, bias=False).double(), bn.likelihoods.Bernoulli())
    with pytest.raises(TypeError, match="which have conformal sets or intervals, got Bernoulli"):
        bn.conformal(bn.Posterior.of(identity(), labels), classes(50))
