"""FoRDE: the kernel, its derivative through input gradients, lengthscales, and what it must equal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.core.tree import leaves, ravel, stack
from basinet.engine import Descent, Lift, Step
from basinet.methods.forde import FoRDE, covariance, kernels, metric, slope
from basinet.methods.map import MAP
from basinet.optim import Adam
from basinet.problem import Batch
from basinet.repulsion.input_gradients import evidence, input_gradients, unit
from basinet.testing import check_method
from basinet.testing.exact import conjugate

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, progress=False)
NOISE = Noise.seed(5)


class Tanh(nn.Module):
    """Two layers whose input gradient is known: W2 diag(1 - h^2) W1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Linear(*shape, dtype=torch.float64) for shape in ((4, 6), (6, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Conv(nn.Sequential):
    """What makes a double backward pass hard: convolutions, batch norm, dropout, pooling."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
            nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(16, 3),
        )  # fmt: skip
        self.double()


def classes(n: int = 12, shape: tuple[int, ...] = (4,)) -> bn.Data:
    """Of three classes, where the last has no examples."""
    return bn.Data(NOISE.split("x").normal(torch.empty(n, *shape, dtype=torch.float64)), torch.arange(n) % 2)


def batch_of(data: bn.Data, total: int = 100) -> Batch:
    return Batch(data.inputs, data.targets, torch.arange(data.n), torch.tensor(0), total, data.weights)


def problem_of(net: Any = Tanh, likelihood: Any = None) -> bn.Problem:
    return bn.Problem(net, likelihood or bn.likelihoods.Categorical())


def start(problem: bn.Problem, members: int) -> tuple[Descent, Noise]:
    keys = NOISE.split("members").spread(members)
    points = stack([problem.init(Noise(key)) for key in keys.key])
    return Descent(points.params, points.buffers, ()), keys


def directions_of(problem: bn.Problem, state: Descent, batch: Batch) -> Tensor:
    """(M, 1, B, F), as in evaluation."""

    def member(params: Any, buffers: Any) -> Tensor:
        def values(outputs: Tensor) -> Tensor:
            return evidence(problem.likelihood, outputs, batch.targets, None)

        return unit(input_gradients(problem, params, buffers, batch.inputs, values).gradients)

    return lift(member)(state.params, state.buffers)


def by_definition(z: Tensor, fixed: Tensor | None = None) -> Tensor:
    """log sum_j k(theta_i, theta_j) of each member, (M,), from (M, P, R), pair by pair; others and bandwidths fixed."""
    fixed = z.detach() if fixed is None else fixed
    m = len(z)
    distance = torch.stack([torch.stack([(z[i] - fixed[j]).square().sum(-1) for j in range(m)]) for i in range(m)])
    still = torch.stack([torch.stack([(a - b).square().sum(-1) for b in fixed]) for a in fixed])
    bandwidth = torch.from_numpy(np.median(still.numpy(), axis=0)) / math.log(m) + 1e-12  # (M, P), of j
    return (-distance / bandwidth).exp().mean(-1).sum(1).log()


@pytest.mark.parametrize("members", [2, 3, 4, 10])
def test_the_slope_is_the_derivative_of_the_definition(members: int) -> None:
    z = NOISE.normal(torch.empty(members, 1, 7, 5, dtype=torch.float64)).requires_grad_()
    expected = torch.autograd.grad(by_definition(z[:, 0]).sum(), z)[0]
    torch.testing.assert_close(slope(z.detach(), torch.ones(1, 7)), expected, rtol=1e-9, atol=1e-12)


def test_with_a_metric_distances_are_those_of_a_root_of_it() -> None:
    s = NOISE.normal(torch.empty(4, 1, 7, 5, dtype=torch.float64)).requires_grad_()
    w = NOISE.split("w").normal(torch.empty(5, 3, dtype=torch.float64))
    expected = torch.autograd.grad(by_definition((s @ w)[:, 0]).sum(), s)[0]
    torch.testing.assert_close(slope(s.detach(), torch.ones(1, 7), w @ w.T), expected, rtol=1e-9, atol=1e-12)


def test_two_members_have_kernel_one_quarter_and_each_with_itself_one() -> None:
    z = NOISE.normal(torch.empty(50, 2, 5, dtype=torch.float64))
    expected = torch.tensor([[1.0, 0.25], [0.25, 1.0]]).double().expand(50, 2, 2)
    torch.testing.assert_close(kernels(z @ z.mT)[0], expected, rtol=0, atol=1e-11)
    z = NOISE.normal(torch.empty(50, 7, 5))
    many = kernels(z @ z.mT)[0]
    assert bool((many.diagonal(dim1=-2, dim2=-1) == 1).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_members_do_not_push_each_other(dtype: torch.dtype) -> None:
    one = unit(NOISE.normal(torch.empty(1, 1, 9, 300, dtype=dtype)))
    assert not slope(one.expand(4, 1, 9, 300), torch.ones(1, 9, dtype=dtype)).any()
    rounded = 1 + 2 * torch.finfo(dtype).eps * NOISE.normal(torch.empty(9, 4, 4, dtype=dtype))
    assert bool((kernels(rounded)[0] == 1).all()) and not kernels(rounded)[1].any()
    other = unit(NOISE.split("other").normal(one))
    z = torch.cat([other, one, one, one])  # of which each is pushed by the first alone
    exact = z.double().requires_grad_()
    expected = torch.autograd.grad(by_definition(exact[:, 0]).sum(), exact)[0].to(dtype)
    slopes = slope(z, torch.ones(1, 9, dtype=dtype))  # rounding over a bandwidth of 1e-12 would be 1e5 in float32
    torch.testing.assert_close(slopes, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("repulsion", [1.0, "paper"])
def test_finite_differences_of_the_whole_gradient(repulsion: Any) -> None:
    problem, batch = problem_of(), batch_of(classes())
    state, keys = start(problem, 3)
    grads = FoRDE(repulsion=repulsion, lengthscales="identity").gradient(
        state, Step(batch, problem, keys, None, Lift())
    )[0]

    def directions(params: Any) -> Tensor:
        """Of one member, by the formula."""
        h = torch.tanh(batch.inputs @ params["first.weight"].T + params["first.bias"])
        g = (params["last.weight"][batch.targets] * (1 - h**2)) @ params["first.weight"]
        return g / g.norm(dim=-1, keepdim=True)

    fixed = torch.stack([directions({n: x[i] for n, x in state.params.items()}) for i in range(3)])
    strength = 1 / (100 if repulsion == 1 else 12)  # 1 / N, 1 / B

    def objective(i: int, params: Any) -> float:
        """Of member i, while the others stand still."""
        z = fixed.clone()
        z[i] = directions(params)
        energy = problem.potential(params, {}, batch)[0] / 100
        return float(energy + strength * by_definition(z, fixed)[i])

    for i in range(3):
        mine = {n: x[i] for n, x in state.params.items()}
        step = {n: 1e-5 * NOISE.split(n).split(i).normal(x) for n, x in mine.items()}
        ahead, behind = ({n: x + sign * step[n] for n, x in mine.items()} for sign in (1, -1))
        expected = (objective(i, ahead) - objective(i, behind)) / 2
        derivative = sum(float((grads[n][i] * step[n]).sum()) for n in mine)
        assert derivative == pytest.approx(expected, rel=1e-6)


def test_the_size_of_logits_does_not_matter() -> None:
    problem, batch = problem_of(), batch_of(classes())
    state, _ = start(problem, 3)
    larger = state._replace(params=state.params | {"last.weight": 7.0 * state.params["last.weight"]})
    directions = [directions_of(problem, s, batch)[:, 0].movedim(0, 1) for s in (state, larger)]
    one, other = (kernels(s @ s.mT)[0] for s in directions)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_rotation_of_the_inputs_does_not_matter() -> None:
    problem, batch = problem_of(), batch_of(classes())
    state, keys = start(problem, 3)
    q = torch.linalg.qr(NOISE.normal(torch.empty(4, 4, dtype=torch.float64)))[0]
    turned = state._replace(params=state.params | {"first.weight": state.params["first.weight"] @ q})
    recipe = FoRDE(lengthscales="identity")
    one = recipe.gradient(state, Step(batch, problem, keys, None, Lift()))[0]
    other = recipe.gradient(turned, Step(batch._replace(inputs=batch.inputs @ q), problem, keys, None, Lift()))[0]
    torch.testing.assert_close(one["last.weight"], other["last.weight"], rtol=0, atol=1e-10)
    torch.testing.assert_close(one["first.weight"] @ q, other["first.weight"], rtol=0, atol=1e-10)


def test_pca_of_inputs_without_a_preferred_direction_is_identity() -> None:
    problem, batch = problem_of(), batch_of(classes())
    state, keys = start(problem, 3)
    centred = classes(50).inputs - classes(50).inputs.mean(0)
    white = bn.Data(3.0 * torch.linalg.qr(centred)[0] + 5.0, classes(50).targets)
    gradients = []
    for scales in ("identity", "pca", 0.5):
        recipe = FoRDE(lengthscales=scales)
        known = recipe.context(problem, white)
        assert (known is None) == (scales == "identity")
        gradients.append(ravel(recipe.gradient(state, Step(batch, problem, keys, known, Lift()))[0], 1))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-9)
    torch.testing.assert_close(gradients[0], gradients[2], rtol=0, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_lengthscales_are_a_function_of_the_covariance(alpha: float) -> None:
    inputs = classes(50).inputs @ NOISE.normal(torch.empty(4, 4, dtype=torch.float64)) + 100.0
    c = torch.cov(inputs.T, correction=0)
    torch.testing.assert_close(covariance(bn.Data(inputs, torch.zeros(50))), c, rtol=0, atol=1e-10)
    unitless = c / c.diagonal().mean()
    expected = torch.linalg.inv(alpha * torch.linalg.inv(unitless) + (1 - alpha) * torch.eye(4).double())
    torch.testing.assert_close(metric(c, alpha), expected, rtol=0, atol=1e-9)
    recipe = FoRDE(lengthscales=alpha if alpha < 1 else "pca")
    known = recipe.context(problem_of(), bn.Data(inputs, torch.zeros(50)))
    assert known is not None
    torch.testing.assert_close(known, expected, rtol=0, atol=1e-9)


def test_the_covariance_is_of_examples_with_weight_and_of_streams_too() -> None:
    data, extra = classes(30), 1e3 + classes(10).inputs
    weights = torch.cat([torch.ones(30), torch.zeros(10)]).double()
    masked = bn.Data(torch.cat([data.inputs, extra]), torch.zeros(40), weights=weights)
    expected = covariance(data)
    torch.testing.assert_close(covariance(masked), expected, rtol=0, atol=1e-12)
    stream = bn.Data.stream([(data.inputs[i : i + 7], data.targets[i : i + 7]) for i in range(0, 30, 7)], n=30)
    torch.testing.assert_close(covariance(stream), expected, rtol=0, atol=1e-12)


def test_constant_inputs_do_not_count_and_must_not_be_all() -> None:
    inputs = torch.cat([classes(50).inputs, torch.ones(50, 2).double()], 1)
    for alpha in (0.2, 1.0):
        matrix = metric(covariance(bn.Data(inputs, torch.zeros(50))), alpha)
        assert not matrix[4:].any() and not matrix[:, 4:].any() and bool(matrix[:4, :4].diagonal().gt(0).all())
    with pytest.raises(ValueError, match=r"do not vary.*identity"):
        metric(torch.zeros(3, 3, dtype=torch.float64), 1.0)


@pytest.mark.parametrize("recipe", [FoRDE(), FoRDE(lengthscales="identity", repulsion=0.0)])
def test_one_member_is_MAP(recipe: FoRDE) -> None:
    options: dict[str, Any] = {"epochs": 3, "batch_size": 5, "optimizer": Adam(lr=0.01)}
    data = classes(20, (1, 8, 8))
    mine = bn.fit(type(recipe)(**options, repulsion=recipe.repulsion), problem_of(Conv), data, members=1, engine=ENGINE)
    plain = bn.fit(MAP(**options), problem_of(Conv), data, engine=ENGINE)
    for a, b in zip(leaves(mine.parts[0].family), leaves(plain.parts[0].family)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "how", [Lift(1), Lift(2), Lift(2, recompute=True), Lift(compile=True), Lift(2, recompute=True, compile=True)]
)
def test_chunks_of_convolutions_norms_and_dropout_give_what_a_stack_gives(how: Lift) -> None:
    problem, batch = problem_of(Conv), batch_of(classes(6, (1, 8, 8)))
    state, keys = start(problem, 3)
    one = FoRDE().gradient(state, Step(batch, problem, keys, None, Lift()))
    other = FoRDE().gradient(state, Step(batch, problem, keys, None, how))
    for a, b in zip(leaves(one), leaves(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    plain = FoRDE(repulsion=0.0).gradient(state, Step(batch, problem, keys, None, Lift()))[0]
    assert float((plain["0.weight"] - one[0]["0.weight"]).abs().max()) > 1e-4


def test_examples_of_weight_zero_do_not_count() -> None:
    problem, data = problem_of(), classes(8)
    state, keys = start(problem, 3)
    six = Step(batch_of(data.take(slice(0, 6)), 6), problem, keys, None, Lift())
    few = FoRDE().gradient(state, six)[0]
    weights = torch.tensor([1.0] * 6 + [0.0] * 2).double()
    masked = batch_of(bn.Data(data.inputs, data.targets, weights=weights), 8)
    grads = FoRDE().gradient(state, Step(masked, problem, keys, None, Lift()))[0]
    zero = FoRDE().gradient(state, Step(masked._replace(weights=0 * weights), problem, keys, None, Lift()))[0]
    push = FoRDE(repulsion=0.0).gradient(state, Step(masked, problem, keys, None, Lift()))[0]
    n = "first.weight"
    pull = FoRDE(repulsion=0.0).gradient(state, six)[0]
    torch.testing.assert_close((grads[n] - push[n]) * 8, (few[n] - pull[n]) * 6, rtol=0, atol=1e-12)
    torch.testing.assert_close(zero[n], state.params[n] / 8, rtol=0, atol=1e-12)  # the prior alone


def test_saturated_and_dead_networks_stay_finite() -> None:
    problem = problem_of(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).float())
    batch = batch_of(classes().to(dtype=torch.float32))
    state, keys = start(problem, 4)
    state.params["0.bias"][1] -= 100.0  # no unit of member 1 is ever on: its gradient is zero everywhere
    state.params["0.weight"][2] *= 1e-10
    grads, info = FoRDE(lengthscales="identity").gradient(state, Step(batch, problem, keys, None, Lift()))
    assert all(bool(x.isfinite().all()) for x in leaves((grads, info.loss)))
    pulled = FoRDE(repulsion=0.0).gradient(state, Step(batch, problem, keys, None, Lift()))[0]
    assert all(torch.equal(grads[n][1], pulled[n][1]) for n in grads)
    state.params["2.weight"].zero_()  # a head of zeros, as some networks begin: all gradients are zero, and equal
    grads, pulled = (
        FoRDE(repulsion=r).gradient(state, Step(batch, problem, keys, None, Lift()))[0] for r in ("paper", 0.0)
    )
    assert all(torch.equal(grads[n], pulled[n]) for n in grads)


def test_regression_with_one_input_compares_slopes_as_they_are() -> None:
    exact = conjugate(d=1)
    recipe = FoRDE(epochs=100, batch_size=None, repulsion=1.0, optimizer=bn.optim.SGD(lr=0.1))
    w = bn.fit(recipe, exact.problem, exact.data, members=2, engine=ENGINE).sample(1)["weight"].flatten()
    assert float(w.var(correction=0) * exact.precision) == pytest.approx(0.4 * math.log(2), rel=1e-6)


@pytest.mark.parametrize("likelihood", [bn.likelihoods.Gaussian(learned=True), bn.likelihoods.Bernoulli()])
def test_numbers_and_labels_are_fitted(likelihood: Any) -> None:
    data = classes(20)
    targets = (data.inputs[:, :3] > 0).to(torch.long if isinstance(likelihood, bn.likelihoods.Bernoulli) else None)
    targets = targets.double() if isinstance(likelihood, bn.likelihoods.Gaussian) else targets
    recipe = FoRDE(epochs=5, batch_size=10)
    posterior = bn.fit(recipe, problem_of(Tanh, likelihood), bn.Data(data.inputs, targets), members=3, engine=ENGINE)
    assert math.isfinite(bn.score(posterior, bn.Data(data.inputs, targets))["nll"])


def test_members_look_at_different_features_of_digits() -> None:
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(50,)), bn.likelihoods.Categorical())
    data, cosines = splits.train.take(slice(0, 300)), []
    for recipe in (MAP(epochs=40, batch_size=32), FoRDE(epochs=40, batch_size=32)):
        posterior = bn.fit(recipe, problem, data, members=4, engine=bn.Engine(device="cpu", progress=False))
        gradients = bn.input_gradients(posterior, splits.test)
        cosines.append(float(bn.metrics.mean_of_pairs(bn.metrics.gradient_cosine(gradients))))
        assert bn.score(posterior, splits.test)["accuracy"] > 0.8
    assert 1 - cosines[1] > 1.3 * (1 - cosines[0])


def test_what_it_refuses() -> None:
    for bad in (-1.0, math.inf, "strong"):
        with pytest.raises(ValueError, match="repulsion"):
            FoRDE(repulsion=bad)  # type: ignore[arg-type]
    for bad in (-0.1, 1.5, "PCA"):
        with pytest.raises(ValueError, match="lengthscales"):
            FoRDE(lengthscales=bad)  # type: ignore[arg-type]
    words = bn.Data(torch.zeros(20, 3, dtype=torch.long), torch.arange(20) % 2)
    net = problem_of(lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2)))
    with pytest.raises(ValueError, match=r"got int64.*embedding\(ids\)"):
        bn.fit(FoRDE(), net, words, members=2, engine=ENGINE)
    with pytest.raises(ValueError, match="members=10"):
        bn.fit(FoRDE(), problem_of(), classes())
    large = bn.Data(torch.zeros(4, 20_000), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"20,000 inputs.*identity"):
        FoRDE().context(problem_of(), large)


@pytest.mark.slow
def test_the_conformance_suite() -> None:
    checks = check_method(FoRDE(epochs=4, batch_size=16))
    assert len(checks) >= 11


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch's own
@pytest.mark.parametrize("net", [Tanh, Conv])
def test_the_compiled_gradient_is_the_same(net: Any) -> None:
    problem = problem_of(net)
    data = classes(6) if net is Tanh else classes(6, (1, 8, 8))
    recipe, (state, keys), how = FoRDE(), start(problem, 3), Lift(compile=True)
    known = recipe.context(problem, data)

    def step(state: Descent, batch: Batch, key: Tensor) -> Any:
        return recipe.gradient(state, Step(batch, problem, Noise(key), known, how))

    compiled = torch.compile(step, dynamic=False, fullgraph=True, backend="aot_eager")
    batch = batch_of(data)
    one, other = step(state, batch, keys.key), compiled(state, batch, keys.key)
    for a, b in zip(leaves(one), leaves(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
