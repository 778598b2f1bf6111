"""Methods of other kinds fit the contract: a coupled chain, a filter, and layers that are swapped for random ones.

They exist only here. Each is held to what theory says of it on linear regression, whose posterior is known.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from stopping import Killed, Stop
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import Params, Point, leaves, ravel, unravel
from basinet.engine import Descent, Engine, GradientMethod, Info, Method, Report, Review, Schedule, Step
from basinet.families import Empirical, Full
from basinet.optim import Adam, Cosine, Optimizer
from basinet.testing.exact import conjugate

BOTH = pytest.mark.parametrize("strategy", ["stacked", "loop"])
ROOM = 5_000  # bytes in which the activations of two chains fit, and of four do not
RATE = 0.574  # of proposals that the best step size accepts (Roberts and Rosenthal 1998)


class Position(NamedTuple):
    """Where a chain is, and what all chains have learned together."""

    params: Params
    buffers: Params
    energy: Tensor  # U there; infinite before the first gradient
    slopes: Params
    log_size: Tensor  # of the step, the same for all chains
    rate: Tensor  # moving average of the share of proposals that all chains accepted
    gradients: Tensor  # taken so far
    warm: Tensor  # of them in the warm-up; 0 while that lasts


@dataclass(frozen=True, kw_only=True)
class Langevin(Method):
    """The Metropolis-adjusted Langevin algorithm: one update is one gradient.

        y = x - h^2/2 dU(x) + h z,   accepted with probability min(1, p(y) q(x | y) / (p(x) q(y | x)))

    The step size h is found by all chains together: the warm-up ends when they accept RATE of their proposals, which
    depends on the data. Samples are kept from then on, and a chain is done when it has as many as were asked for.
    """

    coupled: ClassVar[bool] = True
    restarts: ClassVar[bool] = False  # a proposal that is not finite is rejected

    planned: int = 4000
    samples_kept: int = 30
    settle: int = 60  # updates after the warm-up before the first sample
    thin: int = 4

    def schedule(self, n: int) -> Schedule:
        return Schedule(self.planned, None, self.samples_kept, report=10)

    def init(self, point: Point, problem: bn.Problem, noise: Noise) -> Position:
        like = next(iter(point.params.values()))
        slopes = {n: torch.zeros_like(x) for n, x in point.params.items()}
        none = torch.zeros((), dtype=torch.long)
        number = like.new_zeros(())
        return Position(*point, number + math.inf, slopes, number.clone(), number.clone(), none, none.clone())

    def update(self, state: Position, step: Step) -> tuple[Position, Info]:
        batch, problem = step.batch, step.problem
        x, g, h = (
            ravel(state.params, 1),
            ravel(state.slopes, 1),
            state.log_size.exp()[:, None],
        )  # (M, d), (M, d), (M, 1)
        begun = state.gradients > 0
        z = step.lift(lambda key, x: Noise(key).split("move").normal(x))(step.noise.key, x)
        y = torch.where(begun[:, None], x - h.square() / 2 * g + h * z, x)
        proposed = _apart(y, state.params)

        def energy(params: Params) -> Tensor:
            return problem.potential(params, {}, batch)[0]

        slopes, after = step.lift(torch.func.grad_and_value(energy))(proposed)
        g_y = ravel(slopes, 1)
        forth = (y - x + h.square() / 2 * g).square().sum(1)
        back = (x - y + h.square() / 2 * g_y).square().sum(1)
        log_ratio = state.energy - after + (forth - back) / (2 * h[:, 0].square())
        chance = torch.where(begun, log_ratio.clamp(max=0.0).exp().nan_to_num(0.0), 1.0)  # (M,)
        u = step.lift(lambda key, e: Noise(key).split("accept").uniform(e))(step.noise.key, after)
        accepted = u < chance

        def chosen(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(accepted.reshape(-1, *[1] * (new.dim() - 1)), new, old)

        warming, together = state.warm == 0, chance.mean()  # what all chains share
        count = state.gradients + 1
        rate = torch.where(begun, 0.9 * state.rate + 0.1 * together, state.rate)
        log_size = torch.where(warming & begun, state.log_size + (together - RATE) / count.sqrt(), state.log_size)
        ended = warming & (count >= 20) & ((rate - RATE).abs() < 0.03)
        warm = torch.where(ended, count, state.warm)
        since = count - warm - self.settle
        keep = (warm > 0) & (since > 0) & (since % self.thin == 0)
        params = {n: chosen(proposed[n], p) for n, p in state.params.items()}
        new = Position(
            params,
            state.buffers,
            chosen(after, state.energy),
            {n: chosen(slopes[n], s) for n, s in state.slopes.items()},
            log_size,
            rate,
            count,
            warm,
        )
        return new, Info(new.energy / step.scale, keep=keep, sample=params)

    def point(self, state: Position) -> Point:
        return Point(state.params, state.buffers)

    def needs_gradients(self, state: Position) -> int:
        """How many gradients the chain takes in all, once the warm-up is over."""
        return int(state.warm) + self.settle + self.thin * self.samples_kept

    def review(self, state: Position, report: Report) -> Review:
        done = int(state.warm) > 0 and int(state.gradients) >= self.needs_gradients(state)
        curves = {"log_size": float(state.log_size)}
        return Review(state, done, curves, "" if int(state.warm) else "warming up")

    def finish(self, state: Position, samples: Any, problem: Any, data: Any, val: Any, noise: Noise) -> Empirical:
        counts = torch.tensor([int(state.warm), int(state.gradients), self.needs_gradients(state)])
        return Empirical(samples, {"counts": counts.expand(self.samples_kept, 3)}, self.samples_kept)


def _apart(flat: Tensor, like: Params) -> Params:
    """Rows (M, d) as params with leaves (M, ...)."""
    sizes = [x[0].numel() for x in like.values()]
    return {n: part.reshape(like[n].shape) for n, part in zip(like, flat.split(sizes, 1))}


class Belief(NamedTuple):
    """What a filter knows, and what it has seen."""

    params: Params
    buffers: Params
    covariance: Tensor  # (d, d)
    seen: Tensor  # (n,), how often each example was
    when: Tensor  # (n,), the clock at which it last was


@dataclass(frozen=True, kw_only=True)
class PlainFilter(Method):
    """The extended Kalman filter: one pass over the data, in order; exact where outputs are linear in params."""

    size: int = 7
    examples: int = 40  # that there are

    def schedule(self, n: int) -> Schedule:
        return Schedule(-(-n // self.size), self.size, report=1, order="given")

    def init(self, point: Point, problem: bn.Problem, noise: Noise) -> Belief:
        scales = problem.prior.scales(point.params)  # type: ignore[attr-defined]
        mean = {n: torch.zeros_like(x) for n, x in point.params.items()}
        variances = ravel({n: torch.full_like(x, float(scales[n]) ** 2) for n, x in mean.items()})
        none = torch.zeros(self.examples, dtype=torch.long)
        return Belief(mean, point.buffers, variances.diag(), none, none - 1)

    def update(self, state: Belief, step: Step) -> tuple[Belief, Info]:
        batch, problem = step.batch, step.problem
        mean = ravel(state.params)

        def outputs(flat: Tensor) -> Tensor:
            return problem.outputs(unravel(flat, state.params), state.buffers, batch.inputs)[0].reshape(-1)

        h, predicted = torch.func.jacrev(outputs)(mean), outputs(mean)  # (B, d), (B,)
        variance = problem.likelihood.distribution(predicted, {}).variance  # type: ignore[attr-defined]
        spread = h @ state.covariance @ h.mT + variance * torch.eye(len(h), dtype=mean.dtype)
        gain = torch.linalg.solve(spread, h @ state.covariance).mT  # (d, B)
        error = batch.targets.reshape(-1) - predicted
        covariance = state.covariance - gain @ h @ state.covariance
        params = unravel(mean + gain @ error, state.params)
        ones = torch.ones_like(batch.index)
        seen = state.seen.index_add(0, batch.index, ones)
        when = state.when.index_copy(0, batch.index, ones * batch.step)
        symmetric = (covariance + covariance.mT) / 2
        return Belief(params, state.buffers, symmetric, seen, when), Info(error.square().mean())

    def point(self, state: Belief) -> Point:
        return Point(state.params, state.buffers)

    def finish(self, state: Belief, samples: Any, problem: Any, data: Any, val: Any, noise: Noise) -> Full:
        factor = torch.linalg.cholesky(state.covariance)
        return Full(state.params, factor, {"seen": state.seen, "when": state.when})


class Local(nn.Module):
    """A linear layer whose weights are N(weight, exp(log_sd)^2), drawn in its outputs: independent for each example."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.log_sd = nn.Parameter(torch.full_like(layer.weight, -1.0))

    def forward(self, x: Tensor) -> Tensor:
        mean = F.linear(x, self.weight)
        return mean + F.linear(x.square(), (2 * self.log_sd).exp()).sqrt() * torch.randn_like(mean)


@dataclass(frozen=True, kw_only=True)
class LocalNoise(GradientMethod):
    """The normal distribution with independent weights that is nearest to the posterior, by local reparametrisation
    (Kingma et al. 2015): on a linear problem N(mu, diag(Lambda)^-1)."""

    steps: int = 600
    optimizer: Optimizer = Adam(lr=Cosine(peak=0.05))

    def schedule(self, n: int) -> Schedule:
        return Schedule(self.steps, None)

    def adapt(self, problem: bn.Problem) -> bn.Problem:
        return problem.through(problem.network.swapped(None, lambda name, layer: Local(layer)))  # type: ignore[arg-type]

    def loss(self, params: Params, state: Descent, step: Step) -> Info:
        energy, buffers = step.problem.data_potential(params, state.buffers, step.batch, step.noise, "train")
        scale = step.problem.prior.scale  # type: ignore[attr-defined]
        w, log_sd = params["weight"], params["log_sd"]
        divergence = (
            0.5 * (w.square() + (2 * log_sd).exp()) / scale**2 - log_sd
        ).sum()  # from the prior, and a constant
        return Info((energy + divergence) / step.scale, buffers=buffers)


EXACT = conjugate()


def fit(recipe: Method, members: int, strategy: Any = None, data: bn.Data = EXACT.data, **options: Any) -> bn.Posterior:
    settings = {name: options.pop(name) for name in ("memory", "checkpoint") if name in options}
    engine = Engine(device="cpu", strategy=strategy, compile=False, progress=False, **settings)
    return bn.fit(recipe, EXACT.problem, data, members=members, engine=engine, **options)


def test_a_coupled_chain_is_exact_in_distribution_and_stops_when_it_has_what_it_needs():
    exact, chains, recipe = EXACT, 64, Langevin()
    posterior = fit(recipe, chains, "stacked")
    family = posterior.parts[0].family
    drawn = family.params["weight"][:, :, 0]  # type: ignore[attr-defined]  # (chains, kept, d)
    assert drawn.shape == (chains, recipe.samples_kept, 3)
    warm, taken, needed = family.buffers["counts"][:, 0].unbind(1)  # type: ignore[attr-defined]
    assert len(set(warm.tolist())) == 1 and warm[0] >= 20  # they found the step size together
    assert needed.tolist() == [int(warm[0]) + recipe.settle + recipe.thin * recipe.samples_kept] * chains
    ends = [curve[-1] for curve in posterior.info["curves"]["step"]]
    assert ends == taken.tolist() == [10 * math.ceil(int(needed[0]) / 10)] * chains  # at the next report
    assert ends[0] < recipe.planned / 4
    sizes = posterior.info["curves"]["log_size"]
    frozen = [size for step, size in zip(posterior.info["curves"]["step"][0], sizes[0]) if step >= int(warm[0])]
    assert len(set(frozen)) == 1 and sizes[0][0] != frozen[0] and sizes.count(sizes[0]) == chains
    # chains are independent from the end of the warm-up on: z of means over them, 3 + 6 numbers at 4.5
    off = drawn - exact.mean
    product = torch.einsum("cki,ckj->cij", off, off) / recipe.samples_kept - exact.covariance
    upper = torch.triu_indices(3, 3)
    for each in (off.mean(1), product[:, upper[0], upper[1]]):
        z = each.mean(0) / (each.std(0) / math.sqrt(chains))
        assert float(z.abs().max()) < 4.5


def test_chains_are_the_same_in_a_stack_in_chunks_and_one_by_one(caplog):
    recipe = Langevin(samples_kept=3, settle=5)
    whole, alone = fit(recipe, 4, "stacked"), fit(recipe, 4, "loop")
    with caplog.at_level(logging.INFO, "basinet"):
        chunks = fit(recipe, 4, "stacked", memory=ROOM)
    assert ", 2 at a time" in caplog.messages[0]
    for other in (alone, chunks):
        for a, b in zip(leaves(whole.parts[0].family), leaves(other.parts[0].family), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_a_killed_chain_resumes_with_its_samples(tmp_path: Path):
    unbroken = fit(Langevin(), 4)
    reports = len(unbroken.info["curves"]["step"][0])
    for at in (2, reports - 3):
        with pytest.raises(Killed):
            fit(Langevin(), 4, checkpoint=0.0, pool=tmp_path / str(at), observe=Stop(at, Killed))
        assert_same_bits(fit(Langevin(), 4, pool=tmp_path / str(at)), unbroken)


def assert_same_bits(a: bn.Posterior, b: bn.Posterior) -> None:
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)
    names = [n for n in b.info["curves"] if n != "seconds"]
    assert all(a.info["curves"][n] == b.info["curves"][n] for n in names)


@BOTH
@pytest.mark.parametrize("size", [7, 10, 64])  # the last batch is short, full, and the only one
def test_a_filter_goes_over_the_data_once_in_order_and_is_exact(strategy, size):
    exact = EXACT
    posterior = fit(PlainFilter(size=size), 2, strategy)
    for k in range(2):
        family = posterior[k].parts[0].family
        torch.testing.assert_close(family.centre["weight"][0, 0], exact.mean, rtol=0, atol=1e-10)
        covariance = family.factor[0] @ family.factor[0].mT
        torch.testing.assert_close(covariance, exact.covariance, rtol=0, atol=1e-10)
        assert family.buffers["seen"][0].tolist() == [1] * 40
        assert family.buffers["when"][0].tolist() == [i // size for i in range(40)]
    assert posterior.info["curves"]["step"] == [list(range(1, -(-40 // size) + 1))] * 2


@BOTH
def test_a_filter_goes_over_the_examples_of_each_member_in_their_order(strategy):
    exact = EXACT
    rows = torch.stack([torch.arange(39, -1, -1), torch.arange(40).roll(11)])
    data = bn.Data(exact.data.inputs, exact.data.targets, rows=rows)
    posterior = fit(PlainFilter(), 2, strategy, data)
    for k in range(2):
        family = posterior[k].parts[0].family
        torch.testing.assert_close(family.centre["weight"][0, 0], exact.mean, rtol=0, atol=1e-10)
        assert family.buffers["when"][0][rows[k]].tolist() == [i // 7 for i in range(40)]


@BOTH
@pytest.mark.parametrize("error", [Killed, KeyboardInterrupt])
def test_a_stopped_filter_resumes_to_the_same_bits(strategy, error, tmp_path):
    unbroken = fit(PlainFilter(), 2, strategy)
    for at in (1, 4, 6):
        pool = tmp_path / str(at)
        with pytest.raises(error):
            fit(PlainFilter(), 2, strategy, checkpoint=0.0, pool=pool, observe=Stop(at, error))
        again = fit(PlainFilter(), 2, strategy, pool=pool)
        assert_same_bits(again, unbroken)
        assert again[0].parts[0].family.buffers["seen"][0].tolist() == [1] * 40


def test_layers_swapped_for_random_ones_descend_the_same_in_a_stack_and_alone():
    recipe = LocalNoise(steps=40)
    stacked, loop = fit(recipe, 3, "stacked"), fit(recipe, 3, "loop")
    for a, b in zip(leaves(stacked.parts[0].family), leaves(loop.parts[0].family), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    start = fit(LocalNoise(steps=0), 3)
    assert not torch.equal(start.parts[0].family.params["log_sd"], stacked.parts[0].family.params["log_sd"])


def test_layers_swapped_for_random_ones_give_the_mean_field():
    members, exact = 32, EXACT
    family = fit(LocalNoise(), members, "stacked").parts[0].family
    means, variances = family.params["weight"][:, 0], (2 * family.params["log_sd"][:, 0]).exp()  # (members, d)
    z = (means.mean(0) - exact.mean) / (means.std(0) / math.sqrt(members))
    assert float(z.abs().max()) < 4.5 and float(means.std(0).max()) < 0.2 * float(
        exact.covariance.diagonal().min().sqrt()
    )
    expected = 1 / exact.precision.diagonal()  # which is less than the variances of the posterior
    torch.testing.assert_close(variances.mean(0), expected, rtol=0.03, atol=0)
    assert bool((1.3 * expected < exact.covariance.diagonal()).all())
