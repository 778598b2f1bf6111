"""Parameter ensembling by perturbation: noise of one size around a trained point (Mehrtash et al. 2020).

    theta_j = theta* + sigma z_j,   p(y | x) = 1/m sum_j p(y | x, theta_j),   sigma = argmax L(sigma)
    L(sigma) = 1/n sum_i log 1/m sum_j p(y_i | x_i, theta_j)   over n validation examples, the same z_j for every sigma

One number is learned, from validation data alone. To second order L(sigma) - L(0) is sigma^2 / 2 times the Laplacian of
the log likelihood plus the trace of the empirical Fisher matrix (`basinet.curvature.traces`), which is positive where
theta* is over-fitted. A grid and golden section on log sigma find the maximum: with the same z_j, L is smooth. The z_j
of the search come in pairs z, -z: else sigma times the gradient times their mean, which is not zero for a few of them,
would be larger than the effect. Of an odd number m the last pair counts as one.

Noise can have a structure: sigma times the root mean square of each tensor (`relative`), and of low rank, S z with S
the leading left singular vectors of a matrix (`rank`). With `accept` sigma is not the best but the largest with
L(sigma) >= L(0) - accept: for the low-rank weights of adapters this is their training-free Bayesian form (Shi et al.
2024, who have noise of one size in the span of the adapter).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..core.golden import STEP, Search, golden_section
from ..core.largest import largest
from ..core.noise import Noise
from ..core.tree import Point, nbytes, size, stack, tree_map
from ..core.where import select
from ..cost.prediction import activations
from ..data import Data, Stream, examples, pieces, some, weighed
from ..engine import Based, Demand, Finished, Predicting, Schedule
from ..families import Delta, Perturbed
from ..predict import CACHE, Draws, counting, forward, make_predictive, nll
from ..problem import Problem
from ..problem.likelihoods import Gaussian

if TYPE_CHECKING:
    from ..testing import Bench, Check

WORST = -1e300  # in place of a log likelihood that is not finite, for which JSON has no word
ENOUGH = 100  # draws of a search whose gain is not chance
EVALUATE = 1000  # validation examples of which all outputs are held at once
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True, kw_only=True)
class PEP(Based):
    """Noise on the weights of a trained network, its size chosen on validation data.

    The size is the best one, or the largest that loses at most `accept`; the noise is in all directions or of low rank,
    of one size for all tensors or in proportion to theirs.
    """

    usual: ClassVar[bool] = True
    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "frozen"
    needs: ClassVar[frozenset[str]] = frozenset({"val"})
    samples: ClassVar[int] = 25  # as the paper on small networks; it took 10 on ImageNet

    where: str | tuple[str, ...] | None = None
    """Patterns of names to perturb; None: convolution kernels, else matrices."""
    noise: Literal["gaussian", "uniform"] = "gaussian"
    """The distribution of the noise on the weights; sigma is its standard deviation."""
    relative: bool = False
    """Whether sigma is in units of each tensor's root mean square, in place of one size for all."""
    rank: int | None = None
    """Rank of the noise of each matrix, in the span of that many leading singular vectors; None: any."""
    accept: float | None = None
    """Take the largest sigma that loses at most this much log likelihood per validation example; None: the sigma that
    has the most."""
    draws: int = 10
    """Perturbed networks that L(sigma) averages, m; in pairs z, -z; the paper took 5 on ImageNet."""
    low: float = 1e-4
    """Where the search for sigma begins; the range is widened where the maximum is at an end."""
    high: float = 0.1
    """Where it ends; the paper found 0.001 to 0.003 on ImageNet, 0.004 to 0.074 on small networks."""
    iterations: int = 5
    """Steps of golden section or bisection, after a grid of half powers of ten: 5 find sigma to some 10 %."""

    def __post_init__(self) -> None:
        if self.noise not in ("gaussian", "uniform"):
            raise ValueError(f"expected noise 'gaussian' or 'uniform', got {self.noise!r}")
        if self.draws < 1:
            raise ValueError(f"expected at least 1 draw, got {self.draws}")
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(f"expected 0 < low < high, got low={self.low} and high={self.high}")
        if self.iterations < 1:
            raise ValueError(f"expected at least 1 iteration of the search, got {self.iterations}")
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"expected a rank of at least 1, or None, got {self.rank}")
        if self.accept is not None and not 0 <= self.accept < math.inf:
            raise ValueError(f"expected accept as a log likelihood of at least 0, or None, got {self.accept}")

    def adapt(self, problem: Problem) -> Problem:
        """As the base sees it, whose network is perturbed."""
        names = self.perturbed(problem)  # names that match nothing are refused before anything is computed
        vectors = [n for n in names if len(problem.network.params[n]) < 2]
        if self.rank is not None and vectors:
            raise ValueError(
                f"rank={self.rank} is that of a matrix, and {', '.join(vectors)} are vectors: leave them out of where="
            )
        return super().adapt(problem)

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def perturbed(self, problem: Problem) -> tuple[str, ...]:
        """The names of the tensors that get noise."""
        params = problem.network.params
        if self.where is not None:
            return select(params, self.where)
        modules = dict(problem.network.module.named_modules())
        kernels = {f"{n}.weight" for n, m in modules.items() if isinstance(m, nn.modules.conv._ConvNd)}
        norms = {n for n, m in modules.items() if isinstance(m, NORMS)}
        matrices = [n for n, shape in params.items() if len(shape) > 1 and n.rpartition(".")[0] not in norms]
        chosen = tuple(n for n in matrices if n in kernels) or tuple(matrices)
        if not chosen:
            raise ValueError(
                f"the network has neither convolution kernels nor weight matrices among {', '.join(params)}: say with "
                "where= which to perturb"
            )
        return chosen

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        assert val is not None  # `needs` says so
        each, rows = nbytes(point), min(EVALUATE, val.n)
        with torch.no_grad():
            few = tree_map(lambda x: x[:1], some(val).inputs)
            outputs = problem.outputs(point.params, point.buffers, few)[0]
        networks = 2 * self._pairs
        drawn = networks * each if networks * each <= CACHE else 3 * each
        held = 4 * networks * rows * nbytes(outputs)  # outputs, their log-probabilities, and both in double precision
        grid = math.ceil(math.log(self.high / self.low) / STEP)
        passes = ((grid + 2 + self.iterations) * networks + self.samples) * val.n
        what = f"{networks} perturbed networks"
        numbers = size({n: point.params[n] for n in self.perturbed(problem)})
        running = activations(problem, point, some(val).inputs, networks, rows)
        return Demand(each, drawn + held + running, passes, 0.0, what, Predicting(self.samples, self.samples, numbers))

    def finish(
        self, state: Point, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        assert val is not None  # `needs` says so
        like = next(iter(state.params.values()))
        weights = {n: state.params[n] for n in self.perturbed(problem)}
        units = {n: x.square().mean().sqrt() if self.relative else x.new_ones(()) for n, x in weights.items()}
        span = {n: _leading(x, self.rank) for n, x in weights.items()} if self.rank is not None else {}

        def around(sigma: float) -> Perturbed:
            size = {n: sigma * unit for n, unit in units.items()}
            return Perturbed(state.params, size, state.buffers, self.noise == "uniform", span)

        rows: dict[float, _Row] = {}

        def ensemble(sigma: float) -> float:
            pair, keys = stack([around(sigma), around(-sigma)]), noise.split("search").key.expand(2, 2)
            rows[sigma] = _row(Draws(problem, pair, keys, self._pairs), val, self.draws)
            return rows[sigma].ensemble

        point = Delta(state.params, state.buffers)
        rows[0.0] = _row(Draws(problem, stack([point]), noise.key[None], 1), val, 1)
        base = rows[0.0].ensemble
        if base == WORST:
            raise FloatingPointError(
                "the log likelihood of the validation data at the starting point is not finite: check that they are "
                "scaled like the training data"
            )
        nothing = base + torch.finfo(like.dtype).eps * max(1.0, abs(base))  # what rounding may gain
        if self.accept is None:
            search = golden_section(ensemble, self.low, self.high, self.iterations, at_zero=nothing)
            sigma = search.best if search.values[search.best] > nothing else 0.0
        else:
            search = largest(ensemble, self.low, self.high, self.iterations, base - self.accept)
            sigma = search.best if search.values[search.best] >= base - self.accept else 0.0
        lost = False
        if sigma and self.accept is None and self.draws < ENOUGH:  # draws that the search has not seen
            [fresh] = nll([around(sigma)], problem, val, "sample", self.samples, noise.split("fresh"))
            lost = not -fresh > base
            sigma = 0.0 if lost else sigma
        order = sorted(rows)
        curves: dict[str, list[Any]] = {
            "sigma": order,
            "ensemble": [rows[s].ensemble for s in order],  # mean log likelihood of a validation example
            "mean": [sum(rows[s].each) / len(rows[s].each) for s in order],
            "each": [rows[s].each for s in order],  # of every perturbed network alone; of the point at sigma 0
            "chosen": [sigma],
        }
        return Finished(
            around(sigma), curves, tuple(_notes(search, sigma, rows[sigma].ensemble - base, lost, self.accept))
        )

    @property
    def _pairs(self) -> int:
        return -(-self.draws // 2)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        """y ~ N(x'theta, s^2) with |x| = r: the ensemble is N(x'theta*, s^2 + sigma^2 r^2), so that the best sigma^2 is
        (mean squared residual - s^2) / r^2, or 0."""
        r, members = 2.0, 8
        angle = torch.linspace(0, 2 * math.pi, 41, dtype=torch.float64)[:-1]
        x = r * torch.stack((angle.cos(), angle.sin()), 1)
        y = Noise.seed(5).normal(angle)
        best = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
        residual = float((y - x @ best).square().mean())
        module = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        module.load_state_dict({"weight": best[None]})
        recipe = cls(draws=4000, low=0.05, high=2.0, iterations=12)
        for s, says in ((0.5, "(mean residual^2 - s^2) / r^2, to 4.5 standard errors"), (2.0, "0")):
            problem = Problem(lambda: nn.Linear(2, 1, bias=False, dtype=torch.float64), Gaussian(noise=s))
            fitted = bench.fit(recipe, problem, None, members, val=Data(x, y), start=module)
            sigmas = torch.tensor(fitted.info["curves"]["chosen"], dtype=torch.float64)[:, 0]
            expected = torch.tensor(max(0.0, residual - s**2) ** 0.5 / r, dtype=torch.float64)
            error = min(4.5 * float(sigmas.std()) / members**0.5, 0.03 * float(expected))
            yield bench.close(f"sigma of a linear model, |x| constant, s = {s}", says, sigmas.mean(), expected, error)


class _Row(NamedTuple):
    """Mean log likelihoods of a validation example, at one sigma."""

    ensemble: float
    each: list[float]


def _row(draws: Draws, val: Data | Stream, count: int) -> _Row:
    """The log likelihood of the average of `count` draws, and of each alone. Where there is one more, the networks of
    the last pair have half the weight."""
    kept, likelihood = draws.kept(), draws.problem.likelihood
    mass = torch.full((len(draws), draws.samples), 1 / count, dtype=torch.float64)
    mass[:, -1] *= 1 - (mass.numel() - count) / 2
    together, each, n = 0.0, torch.zeros(mass.numel(), dtype=torch.float64), 0
    for piece in pieces(val, EVALUATE):
        outputs, learned = forward(draws, piece.inputs, kept)
        exponents, weights = weighed(piece)
        alone = make_predictive(outputs, likelihood, learned).log_joint(piece.targets, exponents).double()
        alone = alone.flatten(0, 1)  # (m, B)
        joint = torch.logsumexp(alone + mass.to(alone.device).log().reshape(-1, 1), 0)
        together += float((joint if weights is None else counting(joint, weights)).sum())
        each += (alone if weights is None else counting(alone, weights)).sum(1).cpu()
        n += examples(piece)
    finite = [x / n if math.isfinite(x) else WORST for x in (together, *each.tolist())]
    return _Row(finite[0], finite[1:])


def _leading(x: Tensor, rank: int) -> Tensor:
    """The leading left singular vectors of a tensor as a matrix of its rows, (rows, r)."""
    return torch.linalg.svd(x.flatten(1), full_matrices=False).U[:, :rank].contiguous()


def _notes(search: Search, sigma: float, gain: float, lost: bool, accept: float | None) -> Iterable[str]:
    """What a user should know about the search."""
    low, high = min(search.values), max(search.values)
    if accept is not None:
        change = f"it {'gains' if gain >= 0 else 'loses'} {abs(gain):.2g}"
        allowed = f"loses at most {accept:.2g} in log likelihood per validation example"
        if sigma == 0:
            yield f"no sigma from {low:.2g} to {high:.2g} {allowed}: sigma is 0, and the network stays as it was"
        elif search.edge is not None:
            yield f"sigma {sigma:.3g}, the largest tried, {allowed} ({change}): larger ones may do so too; raise high="
        else:
            yield f"sigma {sigma:.3g} is the largest that {allowed}: {change}"
        return
    if lost:
        chance = "came from the draws of the search, and fresh draws do not have it"
        yield f"the gain at sigma {search.best:.2g} {chance}: sigma is 0"
        return
    if sigma == 0:
        gained = "raises the validation likelihood: sigma is 0, and the network stays as it was"
        yield f"no sigma from {low:.2g} to {high:.2g} {gained}"
        return
    if search.edge is not None:
        end = "lower" if search.edge == "low" else "upper"
        yield (
            f"the maximum is at the {end} end of sigma from {low:.2g} to {high:.2g}, after widening the range: "
            f"sigma {sigma:.3g} is the best of those tried, and need not be the best"
        )
    elif search.widened:
        yield f"the maximum was at an end of the range of sigma, which was widened to {low:.2g} ... {high:.2g}"
    yield f"sigma {sigma:.3g} gains {gain:.2g} in log likelihood per validation example"
