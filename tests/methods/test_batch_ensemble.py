"""Ensembles of shared weights: their theory, what makes points differ, and that they are worth having."""

import pytest
import torch

import basinet as bn
from basinet.core.tree import take
from basinet.networks import MLP
from basinet.optim import SGD, Adam, Cosine
from basinet.problem import Batch
from basinet.testing import check_method

CPU = bn.Engine(device="cpu", dtype=torch.float64, progress=False)
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X[:, :1] * X[:, 1:2] + X[:, 2:]


def fitted(recipe, likelihood=None, **options):
    problem = bn.Problem(lambda: MLP(3, 1, hidden=(8,)), likelihood or bn.likelihoods.Gaussian(noise=0.1))
    return bn.fit(recipe, problem, bn.Data(X, Y), engine=CPU, **options)


def family(posterior):
    return take(posterior.parts[0].family, 0)


@pytest.mark.slow
def test_it_conforms():
    check_method(bn.BatchEnsemble(count=3))


def test_one_point_without_factors_is_map_and_several_are_equal():
    steps = {"epochs": 20, "batch_size": 10, "optimizer": SGD(lr=1e-3)}
    [mode] = fitted(bn.MAP(**steps)).points()
    one = family(fitted(bn.BatchEnsemble(count=1, sd=0.0, fixed=True, **steps)))
    for name, x in mode.params.items():
        assert torch.allclose(one.params[name][0], x, atol=1e-12)
    several = family(fitted(bn.BatchEnsemble(count=4, sd=0.0, fixed=True, **steps)))
    for x in several.params.values():
        assert torch.allclose(x, x[:1].expand_as(x), atol=1e-12)


def test_a_gradient_of_the_shared_weights_is_the_mean_of_the_points():
    """After one step of descent with the same factors, W has moved by the mean of s r^T times the gradient at each
    point."""
    step = {"epochs": 1, "batch_size": None, "count": 5, "fixed": True}
    before, after = (family(fitted(bn.BatchEnsemble(optimizer=SGD(lr=lr), **step))) for lr in (0.0, 1e-3))
    name = next(n for n, x in before.params.items() if x.dim() == 3)
    problem = bn.Problem(lambda: MLP(3, 1, hidden=(8,)), bn.likelihoods.Gaussian(noise=0.1))
    start, moved = before.params[name], after.params[name] - before.params[name]  # (5, 8, 3): s r^T * change of W
    factor = start / start[:1]  # s_k r_k^T over s_0 r_0^T
    grads = []
    for k in range(5):
        leaf = {n: x[k].clone().requires_grad_() for n, x in before.params.items()}
        batch = Batch(X, Y, torch.arange(40), torch.zeros(()), 40)
        energy = problem.potential(leaf, {}, batch)[0] / 40
        grads.append(torch.autograd.grad(energy, leaf[name])[0])
    pulled = torch.stack([f * g for f, g in zip(factor, grads)]).mean(0)  # s_0 r_0^T times the gradient of W
    ratio = moved[0] / pulled  # -lr (s_0 r_0^T)^2, of rank one and below zero
    assert (ratio < 0).all()
    assert torch.linalg.svdvals(ratio)[1] < 1e-8 * torch.linalg.svdvals(ratio)[0]


def test_points_differ_and_their_noise_is_that_of_validation():
    val = bn.Data(X[:10], Y[:10] + 3.0)  # far from what is learned
    posterior = fitted(
        bn.BatchEnsemble(count=3, epochs=20, batch_size=10, optimizer=Adam(lr=Cosine(peak=0.01))),
        bn.likelihoods.Gaussian(noise=0.1, learned=True),
        val=val,
    )
    assert len(posterior) == 1 and posterior.predict(X).outputs.shape[:2] == (1, 3)
    assert posterior.predict(X).epistemic.mean() > 1e-6
    noise = family(posterior).params["likelihood.log_noise"].exp()
    assert noise.shape == (3,) and (noise > 1).all()
    assert len(posterior.info["curves"]["noise_factor"][0]) == 3


@pytest.mark.parametrize(
    ("fields", "said"), [({"count": 0}, "count of at least 1 point"), ({"sd": -1.0}, "finite sd of at least 0")]
)
def test_impossible_recipes_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        bn.BatchEnsemble(**fields)


@pytest.mark.slow
def test_shared_weights_are_no_worse_than_one_network_on_diabetes():
    """NLL of 20 trainings each way differs by about .01; one network of 3,000 steps is far worse without stopping."""
    splits = bn.datasets.load("diabetes", seed=0)
    problem = bn.Problem(lambda: MLP(10, 1, hidden=(32,)), bn.likelihoods.Gaussian(noise=0.5, learned=True))
    one, several = (
        bn.score(bn.fit(r, problem, splits.train, val=splits.val, engine=bn.Engine(device="cpu")), splits.test)["nll"]
        for r in (bn.MAP(epochs=60), bn.BatchEnsemble(epochs=60))
    )
    assert several < one + 0.05
