"""Every likelihood: densities against torch and scipy, Hessians against autograd, draws by moments, what is refused.

Monte-Carlo means lie within 4.5 standard errors; seeds are fixed.
"""

import math
import re

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Normal as TorchNormal
from torch.distributions import Poisson as TorchPoisson
from torch.distributions import StudentT as TorchStudentT
from torch.nn.functional import softplus

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.problem.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    NoisyDirichlet,
    Poisson,
    StudentT,
)

KEY = Noise.seed(0)
Z = 4.5
D = torch.float64


def normal(*shape: int, name: str = "x") -> torch.Tensor:
    return KEY.split(name).normal(torch.empty(shape, dtype=D))


def case(likelihood: Likelihood, outputs: tuple[int, ...], targets: torch.Tensor) -> tuple:
    learned = {n: x.double() + 0.3 for n, x in likelihood.init().items()}
    return likelihood, 0.8 * normal(*outputs, name=str(outputs)), targets, learned


def classes(*shape: int, below: int = 3) -> torch.Tensor:
    return KEY.split("classes").integers(math.prod(shape), below).reshape(shape)


CASES = {
    "categorical": case(Categorical(), (5, 3), classes(5)),
    "categorical of a sequence": case(Categorical(), (5, 2, 3), classes(5, 2)),
    "bernoulli": case(Bernoulli(), (5, 4), classes(5, 4, below=2)),
    "bernoulli, one output": case(Bernoulli(), (5, 1), classes(5, below=2)),
    "gaussian": case(Gaussian(noise=0.4), (5, 2), normal(5, 2, name="y")),
    "gaussian, vector": case(Gaussian(noise=(0.4, 2.0)), (5, 2), normal(5, 2, name="y")),
    "gaussian, learned": case(Gaussian(noise=0.4, learned=True), (5, 3, 2), normal(5, 3, 2, name="y")),
    "gaussian, learned vector": case(Gaussian(noise=(0.4, 2.0), learned=True), (5, 3, 2), normal(5, 3, 2, name="y")),
    "heteroscedastic": case(Heteroscedastic(floor=0.1), (5, 6), normal(5, 3, name="y")),
    "heteroscedastic, one target": case(Heteroscedastic(), (5, 2), normal(5, name="y")),
    "heteroscedastic of a sequence": case(Heteroscedastic(), (5, 2, 4), normal(5, 2, 2, name="y")),
    "student t": case(StudentT(df=3.5, scale=0.4), (5, 2), 3 * normal(5, 2, name="y")),
    "student t, learned vector": case(StudentT(scale=(0.4, 2.0), learned=True), (5, 2), 3 * normal(5, 2, name="y")),
    "poisson": case(Poisson(), (5, 2), classes(5, 2, below=7)),
    "noisy dirichlet": case(NoisyDirichlet(alpha=0.05), (5, 3), classes(5)),
    "noisy dirichlet of a sequence": case(NoisyDirichlet(), (5, 2, 3), classes(5, 2)),
}
every = pytest.mark.parametrize("name", CASES)


def expected_density(name: str) -> torch.Tensor | None:
    likelihood, outputs, y, learned = CASES[name]
    if name.startswith("bernoulli"):
        return TorchBernoulli(logits=outputs).log_prob(y.reshape(outputs.shape).double())
    if name.startswith("gaussian"):
        return TorchNormal(
            outputs, torch.tensor(likelihood.noise).double() * (math.exp(0.3) if learned else 1)
        ).log_prob(y)
    if name.startswith("heteroscedastic"):
        d = outputs.shape[-1] // 2
        mean, sd = outputs[..., :d], softplus(outputs[..., d:]) + likelihood.floor
        return TorchNormal(mean, sd).log_prob(y.reshape(mean.shape))
    if name.startswith("student"):
        scale = torch.tensor(likelihood.scale).double() * (math.exp(0.3) if learned else 1)
        return TorchStudentT(likelihood.df, outputs, scale).log_prob(y)
    if name == "poisson":
        return TorchPoisson(outputs.exp()).log_prob(y.double())
    if name.startswith("noisy"):
        alpha = torch.nn.functional.one_hot(y, 3).double() + likelihood.alpha
        s = (1 / alpha + 1).log()
        return TorchNormal(alpha.log() - s / 2, s.sqrt()).log_prob(outputs).sum(-1)
    return torch.distributions.Categorical(logits=outputs).log_prob(y)


@every
def test_log_densities_are_those_of_torch(name):
    likelihood, outputs, y, learned = CASES[name]
    likelihood.check(outputs, y)
    log_density = likelihood.log_density(outputs, y, learned)
    torch.testing.assert_close(log_density, expected_density(name), rtol=1e-6, atol=1e-7)  # of noise learned in floats
    torch.testing.assert_close(likelihood.log_prob(outputs, y, learned), log_density.reshape(5, -1).sum(1))


@every
def test_gradients_are_finite_far_out(name):
    likelihood, outputs, y, learned = CASES[name]
    for scale in (0.0, 1.0, 50.0):
        for dtype in (torch.float32, torch.float64):
            target = y.to(dtype) if y.is_floating_point() else y
            own = {n: x.to(dtype) for n, x in learned.items()}
            gradient = torch.func.grad(lambda o, l, t=target: likelihood.log_prob(o, t, l).sum(), argnums=(0, 1))
            grad, of_learned = gradient(scale * outputs.to(dtype), own)
            assert all(bool(g.isfinite().all()) for g in (grad, *of_learned.values()))


@every
def test_hessians_are_those_of_autograd(name):
    likelihood, outputs, y, learned = CASES[name]
    hessian = likelihood.hessian(outputs, y, learned)
    expected = Likelihood.hessian(likelihood, outputs, y, learned)  # the default differentiates
    size = outputs[0].numel()
    assert hessian.shape == (5, size, size)
    torch.testing.assert_close(hessian, expected, rtol=1e-9, atol=1e-9)

    def energy(row):
        return -likelihood.log_prob(torch.cat([row.unsqueeze(0), outputs[1:]]), y, learned).sum()

    whole = torch.autograd.functional.hessian(energy, outputs[0]).reshape(size, size)
    torch.testing.assert_close(hessian[0], whole, rtol=1e-9, atol=1e-9)
    lifted = lift(lambda o, t: likelihood.hessian(o, t, learned))(torch.stack([outputs, outputs]), torch.stack([y, y]))
    torch.testing.assert_close(lifted[1], hessian)


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith(("heteroscedastic", "student", "noisy"))])
def test_hessians_that_do_not_depend_on_targets_need_none(name):
    likelihood, outputs, y, learned = CASES[name]
    torch.testing.assert_close(likelihood.hessian(outputs, None, learned), likelihood.hessian(outputs, y, learned))


@pytest.mark.parametrize("name", ["heteroscedastic", "student t", "student t, learned vector"])
def test_without_targets_the_hessian_is_its_expectation(name):
    likelihood, outputs, _, learned = CASES[name]
    n = 40_000
    rows = outputs[:1].expand(n, *outputs.shape[1:])
    drawn = likelihood.hessian(rows, likelihood.sample(rows, learned, KEY.split("expected")), learned)
    expected = likelihood.hessian(outputs[:1], None, learned)[0]
    error = drawn.std(0) / math.sqrt(n)
    z = (drawn.mean(0) - expected) / error.clamp(min=1e-9)  # some elements are the same for all targets
    assert float(z.abs().max()) < Z
    assert float(torch.linalg.eigvalsh(expected).min()) >= 0


def test_a_hessian_that_needs_targets_says_so():
    likelihood, outputs, _, learned = CASES["noisy dirichlet"]
    with pytest.raises(ValueError, match="NoisyDirichlet depends on the class: pass targets"):
        likelihood.hessian(outputs, None, learned)
    with pytest.raises(ValueError, match="no formula for its expected Hessian: pass targets, or write"):
        Likelihood.hessian(likelihood, outputs, None, learned)


@pytest.mark.parametrize("name", ["gaussian", "heteroscedastic, one target", "student t"])
def test_densities_integrate_to_one(name):
    likelihood, outputs, _, learned = CASES[name]
    row = outputs[:1, :2] if name == "heteroscedastic, one target" else outputs[:1, :1]

    def density(y):
        return math.exp(float(likelihood.log_prob(row, torch.tensor([[y]], dtype=D), learned)))

    total = sum(integrate.quad(density, a, b)[0] for a, b in ((-np.inf, -1), (-1, 1), (1, np.inf)))
    assert total == pytest.approx(1, abs=1e-8)


def test_probabilities_sum_to_one():
    outputs = torch.tensor([[1.3]], dtype=D)
    counts = torch.arange(100).reshape(-1, 1)
    total = Poisson().log_prob(outputs.expand(100, 1), counts, {}).exp().sum()
    assert float(total) == pytest.approx(1, abs=1e-12)
    both = Bernoulli().log_prob(outputs.expand(2, 1), torch.tensor([[0], [1]]), {}).exp()
    assert both.tolist() == [pytest.approx(1 - both[1].item()), pytest.approx(1 / (1 + math.exp(-1.3)))]


def test_the_log_normal_of_a_noisy_label_matches_its_gamma():
    likelihood, y = NoisyDirichlet(alpha=0.3), torch.tensor([1])
    mean, variance = likelihood._moments(torch.zeros(1, 3, dtype=D), y)
    alpha = torch.tensor([[0.3, 1.3, 0.3]], dtype=D)
    torch.testing.assert_close((mean + variance / 2).exp(), alpha)  # the Gamma's mean
    torch.testing.assert_close((variance.exp() - 1) * (2 * mean + variance).exp(), alpha)  # and its variance
    best = likelihood.log_probs(mean, {}).exp()
    assert int(best.argmax()) == 1


@every
def test_draws_have_the_moments_of_the_likelihood(name):
    likelihood, outputs, _, learned = CASES[name]
    n = 20_000
    rows = outputs[:2].repeat_interleave(n, 0)
    drawn = likelihood.sample(rows, learned, KEY.split("draw")).reshape(2, n, -1).double()
    if name.startswith(("categorical", "noisy")):
        probs = outputs[:2].softmax(-1).reshape(2, -1, 3)
        for row, p in zip(drawn.transpose(1, 2).reshape(-1, n), probs.reshape(-1, 3)):
            assert stats.chisquare(row.long().bincount(minlength=3).numpy(), n * p.numpy()).pvalue > 1e-4
        return
    if name.startswith("bernoulli"):
        mean = outputs[:2].sigmoid().reshape(2, -1)
        variance = mean * (1 - mean)
    else:
        known = likelihood.distribution(outputs[:2], learned)
        mean, variance = known.mean.reshape(2, -1), known.variance.reshape(2, -1)
    z = (drawn.mean(1) - mean) / (variance / n).sqrt()
    assert float(z.abs().max()) < Z
    if not name.startswith("student"):  # whose fourth moment is infinite
        squares = (drawn - mean.unsqueeze(1)).square()
        z = (squares.mean(1) - variance) / (squares.std(1) / math.sqrt(n))
        assert float(z.abs().max()) < Z
    assert torch.equal(likelihood.sample(rows, learned, KEY), likelihood.sample(rows, learned, KEY))


def test_draws_of_student_t_have_its_distribution():
    likelihood, n = StudentT(df=3.0, scale=0.5), 20_000
    drawn = likelihood.sample(torch.full((n, 1), 2.0, dtype=D), {}, KEY)
    assert stats.kstest(drawn[:, 0].numpy(), stats.t(3.0, loc=2.0, scale=0.5).cdf).pvalue > 1e-4


@pytest.mark.parametrize("name", ["gaussian, learned vector", "student t, learned vector", "gaussian, learned"])
def test_learned_scales_of_many_members_meet_their_own_outputs(name):
    likelihood, outputs, _, learned = CASES[name]
    stacked = torch.stack([outputs, 2 * outputs]).reshape(1, 2, *outputs.shape)
    (key, x), *_ = learned.items()
    many = torch.stack([x, x - 1]).reshape(1, 2, *x.shape)
    parts = likelihood.distribution(stacked, {key: many})
    alone = likelihood.distribution(2 * outputs, {key: x - 1})
    torch.testing.assert_close(parts.scale[0, 1], alone.scale)
    torch.testing.assert_close(parts.loc[0, 1], alone.loc)


@every
def test_densities_lift_over_members(name):
    likelihood, outputs, y, learned = CASES[name]
    stack = {n: torch.stack([x, x - 0.5]) for n, x in learned.items()}
    lifted = lift(lambda o, l: likelihood.log_prob(o, y, l))(torch.stack([outputs, -outputs]), stack)
    alone = likelihood.log_prob(-outputs, y, {n: x[1] for n, x in stack.items()})
    torch.testing.assert_close(lifted[1], alone)


BAD = [
    (
        Bernoulli(),
        (2, 3),
        torch.tensor([[0, 1, 2], [0, 0, -1]]),
        "among 0 or 1, got 2 of 6 others, the first 2 at index (0, 2)",
    ),
    (
        Bernoulli(),
        (2, 1),
        torch.tensor([0.5, 1.0]),
        "the first 0.5 at index (0,): one output per label; for class indices",
    ),
    (Bernoulli(), (2, 3), torch.tensor([0, 1]), "expected targets (batch, 3) for outputs of that shape, got (batch)"),
    (Poisson(), (2, 1), torch.tensor([3, -1]), "among 0, 1, 2, ..., got 1 of 2 others, the first -1 at index (1,)"),
    (Poisson(), (2, 1), torch.tensor([3.0, 1.5]), "the first 1.5 at index (1,): counts are neither scaled nor centred"),
    (Poisson(), (2, 2), torch.tensor([3, 1]), "expected targets (batch, 2)"),
    (Heteroscedastic(), (2, 3), torch.zeros(2), "an even number of outputs on the last axis, a mean and a raw scale"),
    (Heteroscedastic(), (2,), torch.zeros(2), "end the network in twice as many outputs as targets"),
    (Heteroscedastic(), (2, 4), torch.zeros(2, 4), "expected targets (batch, 2)"),
    (
        Heteroscedastic(),
        (2, 2),
        torch.tensor([1, 2]),
        "Heteroscedastic expects floating-point targets, got torch.int64",
    ),
    (StudentT(), (2, 1), torch.tensor([1, 2]), "StudentT expects floating-point targets"),
    (
        StudentT(scale=(1.0, 2.0)),
        (2, 3),
        torch.zeros(2, 3),
        "StudentT has 2 scales, one for each number on the last axis",
    ),
    (Gaussian(noise=(1.0, 2.0)), (2,), torch.zeros(2), "got outputs (2,): give one number, or as many as the network"),
    (NoisyDirichlet(), (2, 3), torch.tensor([0, 3]), "NoisyDirichlet expects targets in 0 ... 2"),
    (NoisyDirichlet(), (2, 3), torch.tensor([0.0, 1.0]), "NoisyDirichlet expects integer class targets"),
]


@pytest.mark.parametrize(("likelihood", "outputs", "targets", "message"), BAD)
def test_targets_that_do_not_fit_are_refused(likelihood, outputs, targets, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        likelihood.check(torch.zeros(outputs), targets)


def test_targets_that_fit_in_any_type_pass():
    for targets in (torch.tensor([0, 1]), torch.tensor([False, True]), torch.tensor([0.0, 1.0])):
        Bernoulli().check(torch.zeros(2, 1), targets)
        Poisson().check(torch.zeros(2, 1), targets)
        assert Bernoulli().log_prob(torch.zeros(2, 1), targets, {}).tolist() == [pytest.approx(-math.log(2))] * 2
        assert Poisson().log_prob(torch.zeros(2, 1), targets, {}).tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(noise=(1.0, 0.0)), "positive, finite noise standard deviation, got (1.0, 0.0)"),
        (lambda: Gaussian(noise=()), "positive, finite noise standard deviation, got ()"),
        (lambda: StudentT(scale=-1.0), "expected a positive, finite noise scale, got -1.0"),
        (lambda: StudentT(df=2.0), "df > 2, where the variance exists, got 2.0"),
        (lambda: StudentT(df=math.inf), "expected finite degrees of freedom"),
        (lambda: Heteroscedastic(floor=-1.0), "expected a finite floor of at least 0, got -1.0"),
        (lambda: NoisyDirichlet(alpha=0.0), "expected a positive, finite alpha, got 0.0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_a_list_of_noises_becomes_a_tuple():
    assert Gaussian(noise=[1.0, 2.0]) == Gaussian(noise=(1.0, 2.0))
    assert Gaussian(noise=[1.0, 2.0], learned=True).init()["log_noise"].tolist() == [0.0, pytest.approx(math.log(2))]
