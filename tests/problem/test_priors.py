"""Priors: densities against torch.distributions, scales by hand, draws by their moments."""

import math

import pytest
import torch
from torch.distributions import Normal as TorchNormal

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.problem.priors import Normal

KEY = Noise.seed(0)
SHAPES = {
    "stem.weight": (6, 2, 3, 5),  # a convolution: fan_in 30, fan_out 90
    "stem.bias": (6,),
    "blocks.0.weight": (4, 7),
    "blocks.0.norm.weight": (4,),
    "blocks.10.weight": (2, 2),
    "head.weight": (3, 4),
}
PARAMS = {n: KEY.split(n).normal(torch.empty(s, dtype=torch.float64)) for n, s in SHAPES.items()}


def density(scales: dict[str, float], centre: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    means = {n: (centre or {}).get(n, torch.zeros(())) for n in PARAMS}
    return sum(TorchNormal(means[n].double(), scales[n]).log_prob(x).sum() for n, x in PARAMS.items())


def test_one_scale_for_all():
    torch.testing.assert_close(Normal(scale=0.7).log_prob(PARAMS), density(dict.fromkeys(PARAMS, 0.7)))


def test_a_scale_per_layer_by_the_longest_match():
    scale = {"": 2.0, "blocks": 0.5, "blocks.0": 0.3, "blocks.0.norm.weight": 4.0, "blocks.1": 9.0, "stem": 0.1}
    expected = {
        "stem.weight": 0.1,
        "stem.bias": 0.1,
        "blocks.0.weight": 0.3,
        "blocks.0.norm.weight": 4.0,
        "blocks.10.weight": 0.5,  # blocks.1 is another layer
        "head.weight": 2.0,
    }
    prior = Normal(scale=scale)
    assert prior.scales(PARAMS) == expected
    torch.testing.assert_close(prior.log_prob(PARAMS), density(expected))


@pytest.mark.parametrize(
    ("rule", "stem", "block", "head"),
    [
        ("xavier", math.sqrt(2 / (30 + 90)), math.sqrt(2 / 11), math.sqrt(2 / 7)),
        ("lecun", math.sqrt(1 / 30), math.sqrt(1 / 7), math.sqrt(1 / 4)),
        ("he", math.sqrt(2 / 30), math.sqrt(2 / 7), math.sqrt(2 / 4)),
    ],
)
def test_scales_by_fan(rule, stem, block, head):
    prior = Normal(scale=rule)
    scales = prior.scales(PARAMS)
    assert scales["stem.weight"] == pytest.approx(stem)
    assert scales["blocks.0.weight"] == pytest.approx(block)
    assert scales["head.weight"] == pytest.approx(head)
    assert scales["stem.bias"] == scales["blocks.0.norm.weight"] == 1.0
    torch.testing.assert_close(prior.log_prob(PARAMS), density(scales))


def test_fans_are_those_of_torch():
    for name in ("stem.weight", "head.weight"):
        fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(PARAMS[name])
        assert Normal(scale="xavier").scales(PARAMS)[name] == pytest.approx(math.sqrt(2 / (fan_in + fan_out)))


def test_the_centre_is_the_mean_and_zero_where_not_given():
    centre = {"head.weight": torch.full((3, 4), 2.0), "stem.bias": torch.arange(6.0)}
    prior = Normal(scale=0.4, centre=centre)
    torch.testing.assert_close(prior.log_prob(PARAMS), density(dict.fromkeys(PARAMS, 0.4), centre))
    assert float(prior.energy({"head.weight": centre["head.weight"]})) == 0


def test_the_energy_is_the_density_without_its_normaliser():
    prior = Normal(scale={"": 0.5, "head": 3.0})
    energy = sum(float(x.square().sum()) / 2 / (9 if n == "head.weight" else 0.25) for n, x in PARAMS.items())
    assert float(prior.energy(PARAMS)) == pytest.approx(energy)
    torch.testing.assert_close(prior.log_prob(PARAMS), -prior.energy(PARAMS) - prior.log_normaliser(PARAMS))


def test_the_gradient_of_the_energy_pulls_to_the_centre():
    centre = {"head.weight": torch.ones(3, 4, dtype=torch.float64)}
    prior = Normal(scale=0.5, centre=centre)
    gradient = torch.func.grad(prior.energy)(PARAMS)
    torch.testing.assert_close(gradient["head.weight"], 4 * (PARAMS["head.weight"] - 1))
    torch.testing.assert_close(gradient["stem.bias"], 4 * PARAMS["stem.bias"])


def test_densities_lift_over_members():
    prior = Normal(scale="he")
    stacked = {n: torch.stack([x, 2 * x]) for n, x in PARAMS.items()}
    lifted = lift(prior.log_prob)(stacked)
    torch.testing.assert_close(lifted[1], prior.log_prob({n: 2 * x for n, x in PARAMS.items()}))


def test_draws_have_the_mean_and_variance_of_the_prior():
    n, centre = 20_000, {"head.weight": torch.full((3, 4), 2.0, dtype=torch.float64)}
    prior = Normal(scale={"": 0.5, "head": 3.0}, centre=centre)
    draws = lift(lambda key: prior.sample(PARAMS, Noise(key)))(KEY.spread(n).key)
    for name, scale, mean in (("stem.bias", 0.5, 0.0), ("head.weight", 3.0, 2.0)):
        x = draws[name]
        assert x.dtype == torch.float64 and x.shape == (n, *SHAPES[name])
        z = (x.mean(0) - mean) / (scale / math.sqrt(n))
        assert float(z.abs().max()) < 4.5
        z = (x.var(0) / scale**2 - 1) / math.sqrt(2 / n)
        assert float(z.abs().max()) < 4.5
    assert torch.equal(prior.sample(PARAMS, KEY)["stem.bias"], prior.sample(PARAMS, KEY)["stem.bias"])


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, {"head": 0.0}])
def test_a_scale_that_is_not_a_standard_deviation_is_refused(scale):
    with pytest.raises(ValueError, match="positive, finite prior standard deviation, got"):
        Normal(scale=scale)


def test_an_unknown_rule_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown prior scale 'xavir'. Did you mean 'xavier'\? Known: he, lecun"):
        Normal(scale="xavir")


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (Normal(scale={"head": 1.0}), r"gives no scale for 'stem.weight': its layers are head. Add one, or ''"),
        (Normal(scale={"": 1.0, "hed": 1.0}), r"names a layer 'hed' that the model does not have. Did you mean 'head"),
        (Normal(centre={"heat.weight": torch.zeros(3, 4)}), r"centred on 'heat.weight', .* Did you mean 'head.weight'"),
        (Normal(centre={"head.weight": torch.zeros(4)}), r"centre for head.weight is \(4,\), expected \(3, 4\)"),
    ],
)
def test_a_prior_that_does_not_fit_the_model_gets_an_error_that_says_how(prior, message):
    with pytest.raises(ValueError, match=message):
        prior.check(PARAMS)


@pytest.mark.parametrize("prior", [Normal(), Normal(scale="he"), Normal(scale={"": 1.0, "head.weight": 2.0})])
def test_a_prior_that_fits_passes(prior):
    prior.check(PARAMS)
