"""Changes of variable: inverses and slopes, densities that integrate to one, and which are worth a trial."""

import math

import pytest
import torch

import basinet as bn
from basinet.pool import decode, encode
from basinet.problem.likelihoods import Gaussian, Heteroscedastic, StudentT, Warped
from basinet.problem.warps import Log, WarpedNormal, YeoJohnson, warps_for

KEY = bn.Noise.seed(7)
WARPS = [
    Log(origin=-0.8, size=2.0, centre=0.3, unit=1.4),
    *(YeoJohnson(power=a, origin=0.2, size=0.5, centre=0.1, unit=0.9) for a in (0.0, 0.4, 1.0, 1.7, 2.0)),
]
named = pytest.mark.parametrize("warp", WARPS, ids=str)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


@named
def test_the_inverse_leads_back_and_the_slope_is_the_derivative(warp):
    y = torch.linspace(-0.79, 4, 200, dtype=torch.float64)
    w = warp.forward(y)
    torch.testing.assert_close(warp.inverse(w), y, rtol=1e-10, atol=1e-12)
    slope = torch.func.vmap(torch.func.grad(warp.forward))(y)
    torch.testing.assert_close(warp.log_slope(y).exp(), slope, rtol=1e-10, atol=1e-12)
    assert bool((slope > 0).all())


@named
@pytest.mark.parametrize("scale", [0.05, 0.7])
def test_the_density_integrates_to_one_and_is_that_of_a_change_of_variables(warp, scale):
    known = WarpedNormal(doubles(0.4), doubles(scale), warp)
    levels = torch.linspace(-9, 9, 20001, dtype=torch.float64)
    y = warp.inverse(0.4 + scale * levels)  # a grid that is fine where there is probability
    mass = torch.trapezoid(known.log_prob(y).exp(), y)
    assert float(mass) == pytest.approx(1, abs=2e-5)
    torch.testing.assert_close(known.cdf(y), torch.special.ndtr(levels), rtol=1e-8, atol=1e-12)
    density = torch.func.vmap(torch.func.grad(lambda v: known.cdf(v)[0]))(y[2000:-2000:1000])
    torch.testing.assert_close(known.log_prob(y[2000:-2000:1000]).exp(), density, rtol=1e-7, atol=1e-12)
    mean = torch.trapezoid(y * known.log_prob(y).exp(), y)
    assert float(known.mean) == pytest.approx(float(mean), rel=1e-4)
    variance = torch.trapezoid((y - mean).square() * known.log_prob(y).exp(), y)
    assert float(known.variance) == pytest.approx(float(variance), rel=1e-3)


def test_a_logarithm_gives_the_moments_of_a_lognormal():
    known = WarpedNormal(doubles(0.5), doubles(0.8), Log())
    theory = torch.distributions.LogNormal(0.5, 0.8)
    assert float(known.mean) == pytest.approx(float(theory.mean), rel=1e-6)
    assert float(known.variance) == pytest.approx(float(theory.variance), rel=1e-5)
    y = doubles(0.1, 1.0, 7.0)
    torch.testing.assert_close(known.log_prob(y), theory.log_prob(y), rtol=1e-6, atol=1e-6)
    assert float(known.log_prob(doubles(-1.0))) == -math.inf and float(known.cdf(doubles(-1.0))) == 0


@named
def test_units_of_the_target_move_the_warp_along(warp):
    moved = warp.in_units(10.0, 3.0)
    y = torch.linspace(-0.7, 3, 20, dtype=torch.float64)
    torch.testing.assert_close(moved.forward(10 + 3 * y), warp.forward(y))
    torch.testing.assert_close(moved.log_slope(10 + 3 * y), warp.log_slope(y) - math.log(3))


def test_histograms_say_which_are_worth_a_trial():
    z = KEY.normal(torch.empty(2000, 1)).double()
    tried = warps_for(z.exp(), zero=0.0)
    assert [type(w) for w in tried] == [Log, YeoJohnson] and tried[1].power < 0.3
    assert float(tried[0].gain(z.exp())) == pytest.approx(0.5 * math.log(math.e * (math.e - 1)), abs=0.15)  # of theory
    for warp in tried:
        w = warp.forward(z.exp())
        assert abs(float(w.mean())) < 1e-9 and float(w.std(correction=0)) == pytest.approx(1)
    assert [type(w) for w in warps_for(z.exp())] == [YeoJohnson]  # nobody knows where zero is
    assert [type(w) for w in warps_for(z.exp(), zero=0.5)] == [YeoJohnson]  # some lie below
    assert [round(w.power) for w in warps_for(-z.exp(), zero=0.0)] == [2]
    assert warps_for(z, zero=-100.0) == () and warps_for(torch.ones(5, 1)) == ()


@pytest.mark.parametrize("of", [Gaussian(noise=0.3, learned=True), Heteroscedastic(learned=True)], ids=str)
def test_a_warped_likelihood_is_that_of_the_function(of):
    warp = WARPS[2]
    warped = Warped(of=of, warp=warp)
    outputs = KEY.split("outputs").normal(torch.empty(6, 2 if isinstance(of, Heteroscedastic) else 1)).double()
    y = KEY.split("targets").normal(torch.empty(6, 1)).double()
    learned = {k: v.double() for k, v in warped.init().items()}
    w = warp.forward(y)
    expected = of.log_density(outputs, w, learned) + warp.log_slope(y)
    torch.testing.assert_close(warped.log_density(outputs, y, learned), expected)
    torch.testing.assert_close(warped.hessian(outputs, y, learned), of.hessian(outputs, w, learned))
    torch.testing.assert_close(warped.hessian(outputs, None, learned), of.hessian(outputs, None, learned))
    by_autograd = super(Warped, warped).hessian(outputs, y, learned)
    torch.testing.assert_close(warped.hessian(outputs, y, learned), by_autograd)
    assert warped.spread == of.spread and decode(encode(warped, {}), {}) == warped


def test_what_is_not_a_warp_is_refused():
    with pytest.raises(ValueError, match="expected a power from 0 to 2"):
        YeoJohnson(power=-0.5)
    with pytest.raises(ValueError, match="size and unit above 0"):
        Log(unit=0.0)
    with pytest.raises(ValueError, match="expected a likelihood of real numbers and a warp"):
        Warped(of=bn.likelihoods.Categorical(), warp=Log())
    heavy = Warped(of=StudentT(), warp=Log())
    with pytest.raises(TypeError, match="normal noise to warp, got StudentT"):
        heavy.log_density(torch.zeros(2, 1), torch.ones(2, 1), {})
