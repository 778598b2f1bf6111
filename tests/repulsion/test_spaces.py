"""Directions in each space against a dense computation of formulas; one member, equal members, chunks, bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.lift import lift as lifted
from basinet.core.noise import Noise
from basinet.core.tree import Params, leaves, ravel, stack, take, tree_map, unravel
from basinet.engine import Descent, Lift, Step
from basinet.engine.step import INSIDE
from basinet.layers.features import Tapped
from basinet.methods.map import MAP
from basinet.methods.svgd import SVGD
from basinet.methods.wgd import WGD
from basinet.problem import Batch
from basinet.repulsion.scores import score_at
from basinet.repulsion.spaces import PRIOR_KERNEL, PRIOR_RIDGE

M, B, N = 4, 6, 30
KERNEL = {"bandwidth": 1.5}
SPACES: list[dict[str, Any]] = [
    {"space": "weights"},
    {"space": "function", "extra": 3},
    {"space": "function", "extra": 3, "prior_draws": 7},
    {"space": "function", "prior_draws": None},
    {"space": "features", "layer": "1"},
]
BOTH = pytest.mark.parametrize("cls", [WGD, SVGD])
EACH = pytest.mark.parametrize("space", SPACES, ids=lambda s: "-".join(str(v) for v in s.values()))


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
        self.double()


class Noisy(nn.Sequential):
    """What makes members hard to keep apart: running statistics and dropout."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 2))
        self.double()


def problem(net: Any = Net, **options: Any) -> bn.Problem:
    likelihood = bn.likelihoods.Gaussian(noise=0.3, learned=True)
    return bn.Problem(net, likelihood, bn.priors.Normal(scale=0.7), **options)


def batch(step: int = 0, total: int = N) -> Batch:
    noise = Noise.seed(5)
    inputs = noise.split("x").normal(torch.empty(B, 2, dtype=torch.float64))
    return Batch(inputs, inputs.flip(1).sin(), torch.arange(B), torch.tensor(step), total)


def state_of(asked: bn.Problem, recipe: Any, members: int = M) -> tuple[Descent, Noise]:
    keys = Noise.seed(1).spread(members)
    points = [asked.init(Noise(key)) for key in keys.key]
    points = [tree_map(lambda x: x.double() if x.is_floating_point() else x, p) for p in points]
    return stack([recipe.init(p, asked, Noise(k)) for p, k in zip(points, keys.key)]), Noise.seed(2).spread(members)


def direction(recipe: Any, asked: bn.Problem, given: Batch, members: int = M, lift: Lift | None = None) -> Any:
    adapted = recipe.adapt(asked)
    state, noise = state_of(adapted, recipe, members)
    return recipe.gradient(state, Step(given, adapted, noise, lift=lift or Lift()))


def as_MAP(asked: bn.Problem, given: Batch, members: int = M) -> Any:
    state, noise = state_of(asked, MAP(), members)

    def one(state: Descent, key: Tensor) -> Any:
        grads, info = MAP().gradient(state, Step(given, asked, Noise(key), lift=INSIDE))
        prior = {n: grads[n] + d * state.params[n] for n, d in info.quadratic.items()}  # left to the optimiser's step
        return grads | prior, info

    return lifted(one)(state, noise.key)


def dense(recipe: Any, z: Tensor, force: Tensor) -> Tensor:
    """phi_i of the method's formula, from z and the force -dU/dz, (M, D): by loops, and automatic gradients."""
    h2 = recipe.bandwidth**2

    def k(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-(x - y).square().sum() / (2 * h2))

    slope = torch.func.grad(k)  # in its first argument
    rows = []
    for i in range(len(z)):
        if isinstance(recipe, SVGD):
            terms = [k(z[j], z[i]) * force[j] + recipe.repulsion * slope(z[j], z[i]) for j in range(len(z))]
            rows.append(sum(terms) / len(z))
        else:
            density = sum(k(z[i], z[j]) for j in range(len(z)))
            rows.append(force[i] - recipe.repulsion * sum(slope(z[i], z[j]) for j in range(len(z))) / density)
    return torch.stack(rows)


@BOTH
def test_weights_follow_the_formula(cls):
    recipe, asked, given = cls(repulsion=1.7, **KERNEL), problem(temperature=0.5), batch()
    gradient, info = direction(recipe, asked, given)
    grads, plain = as_MAP(asked, given)
    state, _ = state_of(asked, recipe)
    z, scale = ravel(state.params, 1), N / 0.5
    expected = -dense(recipe, z, -ravel(grads, 1) * scale) / scale
    torch.testing.assert_close(ravel(gradient, 1), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(info.loss, plain.loss, rtol=0, atol=1e-12)


@BOTH
@pytest.mark.parametrize(("extra", "draws"), [(0, 9), (3, 9), (3, None), (3, 0)])
def test_functions_follow_the_formula(cls, extra, draws):
    recipe, asked, given = (
        cls(space="function", extra=extra, prior_draws=draws, **KERNEL),
        problem(temperature=0.5),
        batch(),
    )
    gradient, info = direction(recipe, asked, given)
    state, noise = state_of(asked, recipe)
    common = Noise(noise.key[0])
    x = given.inputs
    far = common.split("inputs").split(0).normal(torch.empty(extra, 2, dtype=torch.float64))
    points = torch.cat([x, x.mean(0) + 2 * x.std(0, correction=0) * far])

    def outputs(params: Params) -> Tensor:
        return asked.outputs(params, {}, points)[0].reshape(-1)

    z = torch.stack([outputs(take(state.params, i)) for i in range(M)])
    prior = torch.zeros_like(z)
    if draws != 0:
        network = asked.split(take(state.params, 0))[0]
        keys = common.split("prior").spread(draws or M).key
        drawn = [outputs(asked.prior.sample(network, Noise(key).split("params"))) for key in keys]
        prior = score_at([z], [torch.stack(drawn)], PRIOR_KERNEL, PRIOR_RIDGE)[0] / 0.5

    def log_likelihood(f: Tensor, params: Params) -> Tensor:
        noise = params["likelihood.log_noise"].exp()
        return torch.distributions.Normal(f.reshape(-1, 2)[:B], noise).log_prob(given.targets).sum() * N / B / 0.5

    rows = []
    data = torch.stack([torch.func.grad(log_likelihood)(z[i], take(state.params, i)) for i in range(M)])
    phi = dense(recipe, z, data + prior)
    pull = torch.stack([ravel(torch.func.grad(asked.log_prior)(take(state.params, i))) / 0.5 for i in range(M)])
    if cls is SVGD:  # on each member's own weights, as strongly as what moves z
        pull = torch.exp(-torch.cdist(z, z).square() / (2 * recipe.bandwidth**2)).mean(1, keepdim=True) * pull
    for i in range(M):
        params = take(state.params, i)
        jacobian = torch.func.jacrev(lambda v, params=params: outputs(unravel(v, params)))(ravel(params))
        own = ravel(torch.func.grad(lambda p, i=i: log_likelihood(z[i], p))(params))
        rows.append(phi[i] @ jacobian + own + (pull[i] if draws == 0 else 0))
    torch.testing.assert_close(ravel(gradient, 1), -torch.stack(rows) / (N / 0.5), rtol=0, atol=1e-11)
    torch.testing.assert_close(info.loss, as_MAP(asked, given)[1].loss, rtol=0, atol=1e-12)


@BOTH
def test_features_follow_the_formula(cls):
    recipe, asked, given = cls(space="features", layer="1", **KERNEL), problem(), batch()
    gradient, info = direction(recipe, asked, given)
    grads, plain = as_MAP(asked, given)
    state, _ = state_of(asked, recipe)

    def hidden(params: Params) -> Tensor:
        return (given.inputs @ params["0.weight"].T + params["0.bias"]).tanh().reshape(-1)

    def log_likelihood(h: Tensor, params: Params) -> Tensor:
        outputs = h.reshape(B, 3) @ params["2.weight"].T + params["2.bias"]
        noise = params["likelihood.log_noise"].exp()
        return torch.distributions.Normal(outputs, noise).log_prob(given.targets).sum() * N / B

    z = torch.stack([hidden(take(state.params, i)) for i in range(M)])
    force = torch.stack([torch.func.grad(log_likelihood)(z[i], take(state.params, i)) for i in range(M)])
    rows = torch.ones(M, 1, dtype=torch.float64)
    if cls is SVGD:  # what is not shared is as strong as what is
        rows = torch.exp(-torch.cdist(z, z).square() / (2 * recipe.bandwidth**2)).mean(1, keepdim=True)
    change = dense(recipe, z, force) - rows * force  # comes on top of what each would do alone
    for i in range(M):
        params = take(state.params, i)
        jacobian = torch.func.jacrev(lambda v, params=params: hidden(unravel(v, params)))(ravel(params))
        expected = rows[i] * ravel(take(grads, i)) - change[i] @ jacobian / N
        torch.testing.assert_close(ravel(take(gradient, i)), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(info.loss, plain.loss, rtol=0, atol=1e-12)


@BOTH
@EACH
@pytest.mark.parametrize("more", [{}, {"kernel": "linear"}, {"kernel": "imq"}, {"anneal": "linear"}])
def test_one_member_is_MAP(cls, space, more):
    if cls is WGD:
        more = more | {"estimate": "ssge"}
    asked, given = problem(Noisy), batch()
    gradient, info = direction(cls(**space | ({"layer": "2"} if "layer" in space else {}), **more), asked, given, 1)
    grads, plain = as_MAP(asked, given, 1)
    for a, b in zip(leaves((gradient, info.loss, info.buffers)), leaves((grads, plain.loss, plain.buffers))):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@BOTH
@EACH
@pytest.mark.parametrize("lift", [Lift(1), Lift(3), Lift(2, recompute=True), Lift(compile=True)])
def test_chunks_give_what_one_stack_gives(cls, space, lift):
    recipe, asked = cls(**space | ({"layer": "2"} if "layer" in space else {})), problem(Noisy)
    whole, parts = direction(recipe, asked, batch()), direction(recipe, asked, batch(), lift=lift)
    for a, b in zip(leaves(whole), leaves(parts), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@EACH
@pytest.mark.parametrize("kernel", ["rbf", "imq"])
@pytest.mark.parametrize("estimate", ["kde", "sge", "ssge"])
def test_equal_members_do_not_repel_each_other(space, kernel, estimate):
    recipe, weak = (WGD(**space, kernel=kernel, estimate=estimate, repulsion=r) for r in (100.0, 0.0))
    asked, given = recipe.adapt(problem()), batch()
    state, noise = state_of(asked, recipe)
    equal = tree_map(lambda x: x[:1].expand_as(x).contiguous(), state)
    repelled, plain = (r.gradient(equal, Step(given, asked, noise, lift=Lift()))[0] for r in (recipe, weak))
    for a, b in zip(leaves(repelled), leaves(plain)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@BOTH
@EACH
def test_norm_statistics_are_only_those_of_the_batch(cls, space):
    asked, given = problem(Noisy), batch()
    recipe = cls(**space | ({"layer": "2"} if "layer" in space else {}))
    _, info = direction(recipe, asked, given)
    _, plain = as_MAP(asked, given)
    assert set(info.buffers) == set(plain.buffers)
    for name, x in plain.buffers.items():
        torch.testing.assert_close(info.buffers[name], x, rtol=0, atol=1e-12)


@BOTH
@EACH
def test_data_twice_at_likelihood_temperature_two_move_members_alike(cls, space):
    given = batch()
    twice = given._replace(
        inputs=torch.cat([given.inputs] * 2), targets=torch.cat([given.targets] * 2), index=torch.arange(2 * B)
    )
    recipe = cls(**space, **KERNEL)
    if recipe.space == "weights":
        once, _ = direction(recipe, problem(), given)
        again, _ = direction(recipe, problem(temperature=2.0, temper="likelihood"), twice._replace(total=2 * N))
        for a, b in zip(leaves(once), leaves(again)):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    cold, warm = (direction(recipe, problem(temperature=t), given)[0] for t in (1.0, 1e3))
    assert all(torch.isfinite(x).all() for x in leaves((cold, warm)))


def test_annealing_scales_only_the_pull():
    for t, factor in ((0, 0.02), (24, 0.5), (70, 1.0)):
        recipe = WGD(epochs=20, batch_size=B, anneal="linear", repulsion=0.0)  # 100 steps
        grads, _ = direction(recipe, problem(), batch(t))
        plain, _ = as_MAP(problem(), batch(t))
        for a, b in zip(leaves(grads), leaves(plain)):
            torch.testing.assert_close(a, factor * b, rtol=0, atol=1e-12)
        on, off = (
            direction(WGD(epochs=20, batch_size=B, anneal=a), problem(), batch(t))[0] for a in ("linear", "none")
        )
        for a, b, g in zip(leaves(on), leaves(off), leaves(plain)):
            torch.testing.assert_close(a - factor * g, b - g, rtol=0, atol=1e-12)


def test_extra_inputs_are_fresh_and_must_be_real():
    recipe, asked = WGD(space="function", extra=2), problem()
    state, _ = state_of(asked, recipe)
    steps = [Step(batch(), asked, Noise.seed(s).spread(M), lift=Lift()) for s in (2, 3)]
    first, again = (recipe.gradient(state, step)[0] for step in steps)
    assert not torch.equal(first["0.weight"], again["0.weight"])
    tokens = bn.Problem(lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 2)), asked.likelihood)
    data = bn.Data(torch.arange(20).reshape(10, 2) % 5, torch.zeros(10, 2))
    engine = bn.Engine(device="cpu", progress=False)
    with pytest.raises(ValueError, match=r"drawn as real numbers.*torch.int64: use extra=0"):
        bn.fit(WGD(epochs=1, space="function", extra=2), tokens, data, members=2, engine=engine)
    bn.fit(WGD(epochs=1, space="function"), tokens, data, members=2, engine=engine)


class Odd(nn.Module):
    """Layers that are never called, that give no tensor, and one whose name is nested."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"first": nn.Linear(2, 3), "pair": Pair()})
        self.idle, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body["pair"](self.body["first"](x))[0])


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.tanh(), x


def test_layers_that_cannot_be_compared_are_named():
    asked = problem(Odd)
    data = bn.Data(torch.randn(8, 2), torch.randn(8, 2))

    def run(layer: str) -> Any:
        recipe = WGD(epochs=1, space="features", layer=layer)
        return bn.fit(recipe, asked, data, members=2, engine=bn.Engine(device="cpu", progress=False))

    with pytest.raises(ValueError, match=r"no layer 'body.frist'. Did you mean 'body.first'\? Known: body, body.first"):
        run("body.frist")
    with pytest.raises(ValueError, match="'idle' is not called"):
        run("idle")
    with pytest.raises(TypeError, match="one tensor, got tuple from Pair"):
        run("body.pair")
    assert len(run("body.first")) == 2


def test_a_tapped_network_is_the_network_and_leaves_it_alone():
    asked = problem(Noisy)
    point, x = asked.init(Noise.seed(0)), batch().inputs
    tapped = Tapped(asked.network, "2")
    params = asked.split(point.params)[0]
    outputs, after = asked.network(params, point.buffers, x, Noise.seed(1), "train")
    for shift in (0.0, 1.5):
        zero = torch.full((), shift, dtype=torch.float64)
        again, values, moved = tapped.tap(params, point.buffers, x, Noise.seed(1), zero)
        assert values.shape == (B, 5) and set(moved) == set(after)
        assert torch.equal(again, outputs) == (shift == 0.0)
        assert all(torch.equal(moved[n], after[n]) for n in after)
    assert torch.equal(tapped(params, point.buffers, x)[0], asked.network(params, point.buffers, x)[0])
    assert not any(part._forward_hooks for part in asked.network.module.modules())
    assert tapped.spec() == asked.network.spec()


def test_a_prior_that_cannot_be_drawn_from_is_refused():
    asked = bn.Problem(Net, bn.likelihoods.Gaussian(noise=0.3), bn.priors.LogUniform())
    with pytest.raises(ValueError, match="knows the prior by its draws: LogUniform is improper"):
        WGD(space="function", prior_draws=None).adapt(asked)
    for recipe in (WGD(), WGD(space="function")):
        recipe.adapt(asked)


@BOTH
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": "functions"}, r"unknown space 'functions'. Did you mean 'function'"),
        ({"space": "features"}, "expected layer="),
        ({"layer": "0"}, "only with space='features', got layer='0' with space='weights'"),
        ({"extra": 5}, "only with space='function', got extra=5"),
        ({"space": "function", "extra": -1}, "got extra=-1"),
        ({"space": "function", "extra": 2, "reach": 0.0}, "positive, finite reach"),
        ({"prior_draws": 5}, "with space='function'"),
        ({"prior_draws": None}, "with space='function'"),
        ({"space": "function", "prior_draws": 1}, "at least 2"),
        ({"kernel": "gauss"}, "unknown kernel 'gauss'"),
        ({"bandwidth": -1.0}, "positive, finite bandwidth"),
        ({"repulsion": -1.0}, "finite repulsion of at least 0"),
        ({"repulsion": float("nan")}, "finite repulsion of at least 0"),
        ({"anneal": "cosine"}, "unknown annealing"),
        ({"patience": 0}, "patience"),
    ],
)
def test_bad_recipes_are_refused(cls, options, message):
    with pytest.raises(ValueError, match=message):
        cls(**options)


def test_bad_estimates_are_refused():
    for options, message in (({"estimate": "kdes"}, "Did you mean 'kde'"), ({"ridge": -1.0}, "finite ridge")):
        with pytest.raises(ValueError, match=message):
            WGD(**options)
    with pytest.raises(ValueError, match="is not a density"):
        WGD(kernel="linear")


@BOTH
@EACH
def test_half_precision_of_the_network_does_not_reach_the_kernel(cls, space):
    asked = bn.Problem(Small, bn.likelihoods.Gaussian(noise=0.3))
    recipe = cls(**space)
    adapted = recipe.adapt(asked)
    keys = Noise.seed(1).spread(M)
    close = stack(
        [tree_map(lambda x: 1.0 + 1e-2 * x, recipe.init(asked.init(Noise(k)), asked, Noise(k))) for k in keys.key]
    )
    given = batch()
    given = given._replace(inputs=given.inputs.float(), targets=given.targets.float())
    full, _ = recipe.gradient(close, Step(given, adapted, keys, lift=Lift()))
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = recipe.gradient(close, Step(given, adapted, keys, lift=Lift()))
    a, b = ravel(full, 1), ravel(half, 1)
    assert torch.isfinite(b).all()
    if recipe.space == "weights":
        assert float((a - b).norm() / a.norm()) < 0.05


class Small(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@BOTH
@EACH
def test_a_compiler_can_follow(cls, space):
    torch.compiler.reset()  # it stops at eight compilations of one code, and the test has as many cases
    recipe = cls(**space, **({"estimate": "ssge"} if cls is WGD else {}), anneal="tanh")
    asked = recipe.adapt(problem())
    state, noise = state_of(asked, recipe)
    given = batch()

    def step(state: Descent, clock: Tensor) -> Any:
        return recipe.gradient(state, Step(given._replace(step=clock), asked, noise, lift=Lift(compile=True)))

    followed = torch.compile(step, fullgraph=True, backend="aot_eager")(state, torch.tensor(3))
    for a, b in zip(leaves(step(state, torch.tensor(3))), leaves(followed), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
