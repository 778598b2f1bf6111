"""Normal posteriors from curvature: the same in every structure where it is diagonal, and what is not positive."""

from __future__ import annotations

import math

import pytest
import torch

from basinet.core.noise import Noise
from basinet.curvature.evidence import Evidence
from basinet.curvature.gaussians import JITTER, CurvedDiagonal, CurvedFull, CurvedKronecker, CurvedLowRank
from basinet.curvature.structures import Diagonals, Directions, Matrix

PARAMS = {"weight": torch.zeros(2, 3, dtype=torch.float64), "bias": torch.zeros(2, dtype=torch.float64)}
VALUES = torch.linspace(0.5, 4.0, 8, dtype=torch.float64)
H = {"weight": VALUES[:6].reshape(2, 3), "bias": VALUES[6:]}
PRIOR = {"weight": 2.0, "bias": 0.5}
RUN = None  # what is counted does not matter here
CURVED = {
    "diagonal": CurvedDiagonal(Diagonals(H, RUN)),
    "kronecker": CurvedKronecker({}, {}, {n: h.reshape(2, -1) for n, h in H.items()}),
    "full": CurvedFull(Matrix(torch.diag(VALUES), RUN), PARAMS),
}


def full(matrix: torch.Tensor) -> CurvedFull:
    return CurvedFull(Matrix(matrix, RUN), {"head": torch.zeros(len(matrix), dtype=torch.float64)})


@pytest.mark.parametrize("structure", CURVED)
def test_density_volume_and_eigenvalues_are_those_of_a_diagonal(structure):
    family, volume = CURVED[structure].posterior(PARAMS, 0.7, PRIOR, {})
    prior = torch.cat([torch.full((6,), 2.0), torch.full((2,), 0.5)]).double()
    precision = 0.7 * VALUES + prior
    expected = torch.distributions.Normal(0.0, precision.rsqrt()).log_prob(torch.ones(8).double()).sum()
    log_prob = family.log_prob({n: torch.ones_like(x) for n, x in PARAMS.items()})
    torch.testing.assert_close(log_prob, expected, rtol=1e-12, atol=0)
    assert volume == pytest.approx(float((precision / prior).log().sum()), rel=1e-12)
    values = torch.cat(list(CURVED[structure].eigenvalues(PRIOR).values())).sort().values
    torch.testing.assert_close(values, (VALUES / prior).sort().values, rtol=1e-12, atol=0)


def test_low_rank_has_the_prior_in_all_other_directions():
    directions = Directions(torch.tensor([9.0]).double(), {"head": torch.eye(3)[:1].double()}, RUN)
    centre = {"head": torch.zeros(3).double()}
    family, volume = CurvedLowRank(directions).posterior(centre, 2.0, {"head": 4.0}, {})
    rows = {"head": torch.eye(3).double()}
    torch.testing.assert_close(family.quad(rows), torch.diag(torch.tensor([1 / 22, 0.25, 0.25]).double()))
    assert volume == pytest.approx(float(torch.tensor(22 / 4).log()), rel=1e-6)
    with pytest.raises(ValueError, match="one prior precision for all parameters, got several"):
        CurvedLowRank(directions).posterior(centre, 1.0, {"a": 1.0, "b": 2.0}, {})


def test_the_factor_of_a_large_matrix_is_that_of_its_inverse():
    rows = Noise.seed(1).normal(torch.empty(300, 301, dtype=torch.float64))
    matrix = rows @ rows.mT / 300
    factor = full(matrix).posterior({"head": torch.zeros(300).double()}, 2.0, {"head": 0.5}, {})[0].factor
    precision = 2 * matrix + 0.5 * torch.eye(300, dtype=torch.float64)
    assert torch.equal(factor, factor.tril())
    torch.testing.assert_close(factor @ factor.mT @ precision, torch.eye(300).double(), rtol=0, atol=1e-12)


def test_what_rounding_made_negative_is_put_right():
    rounded = torch.diag(torch.tensor([1.0, -0.3 * JITTER, 2.0], dtype=torch.float64))
    tiny = {"head": 1e-30}
    family, _ = full(rounded).posterior({"head": torch.zeros(3).double()}, 1.0, tiny, {})
    assert bool(family.factor.isfinite().all()) and bool((family.factor.diagonal() > 0).all())
    values = CurvedDiagonal(Diagonals({"head": rounded.diagonal()}, RUN))
    assert bool(values.posterior({"head": torch.zeros(3).double()}, 1.0, tiny, {})[0].scale["head"].isfinite().all())


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_what_is_negative_is_refused_by_name(structure):
    values = torch.tensor([1.0, -1e-3, 2.0], dtype=torch.float64)
    curved = full(torch.diag(values)) if structure == "full" else CurvedDiagonal(Diagonals({"head": values}, RUN))
    with pytest.raises(ValueError, match=r"precision of head is not positive definite.*least eigenvalue is -0\.001"):
        curved.posterior({"head": torch.zeros(3).double()}, 1.0, {"head": 1e-9}, {})


def test_curvature_that_is_not_finite_is_refused_by_name():
    with pytest.raises(FloatingPointError, match="the curvature of head is NaN or infinite"):
        full(torch.full((3, 3), torch.nan, dtype=torch.float64)).posterior({}, 1.0, {"head": 1.0}, {})


def test_the_best_factors_are_a_maximum_for_each_group():
    values = {"a": torch.tensor([5.0, 0.1]).double(), "b": torch.tensor([40.0]).double()}
    evidence = Evidence(-7.0, 3.0, (1.0, 1.0), {"a": 0.8, "b": 6.0})

    def value(factors: dict[str, float]) -> float:
        volume = sum(float(torch.log1p(values[n] / factors[n]).sum()) for n in values)
        return evidence.value(volume, factors)

    apart, _ = evidence.best(values, {"a": "a", "b": "b"}, with_noise=False)
    one, _ = evidence.best(values, {"a": "", "b": ""}, with_noise=False)
    some, _ = evidence.best(values, {"b": "b"}, with_noise=False)
    assert one["a"] == one["b"] and some == {"a": 1.0, "b": pytest.approx(apart["b"])}
    assert value(apart) > value(one) > value({"a": 1.0, "b": 1.0})
    for name in values:
        for by in (0.99, 1.01):
            assert value(apart) > value(apart | {name: by * apart[name]})
    # at the best factor m, the prior explains what the data leave: m q = sum_i e_i / (e_i + m)
    assert apart["b"] * 6.0 == pytest.approx(40 / (40 + apart["b"]), rel=1e-6)


@pytest.mark.parametrize("shares", [(1.0, 1.0), (2.0, 0.5)])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("power", [1, 2])
def test_steps_of_any_length_come_to_the_same_maximum(shares, together, power):
    values = {"a": torch.tensor([5.0, 0.1]).double(), "b": torch.tensor([40.0]).double()}
    values = {"": torch.cat(list(values.values()))} if together else values
    evidence = Evidence(-70.0, 30.0, shares, {"a": 0.8, "b": 6.0}, log_noise=0.4, power=power)
    groups = {"a": "", "b": ""} if together else {"a": "a", "b": "b"}
    best, r = evidence.best(values, groups, with_noise=True)
    factors, far = {"a": 1.0, "b": 1.0}, evidence.whole(values, {"a": 1.0, "b": 1.0})
    for _ in range(60):
        before = factors
        factors, step = evidence.better(values, groups, factors, with_noise=True, leap=0.2)
        assert all(abs(math.log(factors[n] / before[n])) <= 0.2 + 1e-12 for n in factors) and abs(math.log(step)) <= 0.4
        evidence = Evidence(  # the same where the noise is now: its precision times r, and the curvature with it
            evidence._fit(step) / shares[0],
            30.0,
            shares,
            evidence.distance,
            evidence.log_noise - 0.5 * math.log(step),
            power,
        )
        values = {n: step**power * e for n, e in values.items()}
        near = evidence.whole(values, factors)
        assert near >= far - 1e-9
        far = near
    assert factors == pytest.approx(best, rel=1e-4)
    assert evidence.log_noise == pytest.approx(0.4 - 0.5 * math.log(r), abs=1e-4)
