"""First-order repulsive deep ensembles: members are pushed to look at different features of each input.

    theta_i <- theta_i - step x grad [U(theta_i) + repulsion x log sum_j k(theta_i, theta_j)]
    k(theta_i, theta_j) = mean_b exp(-d_ijb / h_jb),   d_ijb = (s_ib - s_jb)' Sigma^-1 (s_ib - s_jb)
    s_ib = g_ib / |g_ib|,   g_ib = gradient of the true class's logit of member i with respect to input b
    h_jb = median over i of d_ijb (of an even number, the midpoint), divided by log M

(Trinh et al. 2024, "Input-gradient space particle inference for neural network ensembles"). theta_j, j other than i,
and h stand still in the derivative, as in the authors' code. With Sigma = I all directions count the same. With "pca"
Sigma^-1 = C, the covariance of the inputs in units of their mean variance: principal components count by their
eigenvalues, so that members differ where data vary (d is the mean squared difference, over the data, of two linear
functions). Between the two, Sigma = alpha C^-1 + (1 - alpha) I. No eigenvectors are needed.

One forward pass of a member gives its loss and, by a first backward pass to the inputs, its directions s; a second
backward pass goes through both to the parameters. What members exchange is their directions, F numbers per example.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, take
from ..data import Data, Stream, pieces, some
from ..engine import Descent, GradientMethod, Info, Schedule, Step
from ..engine.method import Entry
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Problem
from ..repulsion.input_gradients import counting, evidence, flat_inputs, input_gradients, unit
from ..repulsion.prior import with_prior
from ..testing.exact import conjugate

if TYPE_CHECKING:
    from ..testing import Bench, Check

LARGEST = 16_384  # inputs per example whose covariance is taken: 2 GiB in doubles
FLOOR = 1e-12  # added to bandwidths, as in the authors' code
ROUNDING = 100  # times the precision of a number: squared distances below it, relative to squared lengths, are zero


@dataclass(frozen=True, kw_only=True)
class FoRDE(GradientMethod):
    """An ensemble whose members are pushed apart in the directions of their input gradients, so that they look at
    different features.

    Classes: the gradient of the true class's logit; labels: of their logits, absent ones with a minus, summed; real
    numbers and counts: of each output, with one kernel each, averaged (of a predicted mean and noise, the mean). With a
    single input a direction is only a sign: gradients are then compared as they are, not normalised. Inputs that are
    not floating point take no part; token ids must be embedded before. Standardise inputs of different units.

    `repulsion` is relative to the posterior: 1 makes members the particles of an approximation of it, by gradient flow
    with a kernel density. That is weak: in every step all N examples pull and one kernel pushes. The authors' code has
    N / B times that (B examples per batch), which is where the published gains are from, and the default. At full batch
    the two agree. One member is MAP.
    """

    coupled: ClassVar[bool] = True

    epochs: int | None = None
    """Passes through the data; None: as many as make 3,000 to 6,000 steps, or 10 if that is more."""
    batch_size: int | None = 128
    """Examples per step, the same for all members; None: all."""
    repulsion: float | Literal["paper"] = "paper"
    """Strength: 1 is Bayes, 0 is a deep ensemble, "paper" is N / batch_size."""
    lengthscales: float | Literal["identity", "pca"] = "pca"
    """Sigma; a number is alpha: 0 identity, 1 pca, .2 tuned."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""

    def __post_init__(self) -> None:
        given, scales = self.repulsion, self.lengthscales
        if given != "paper" and (isinstance(given, str) or not 0 <= given < math.inf):
            raise ValueError(f"expected a finite repulsion of at least 0, where 1 is Bayes, or 'paper', got {given!r}")
        if scales not in ("identity", "pca") and (isinstance(scales, str) or not 0 <= scales <= 1):
            raise ValueError(f"expected lengthscales 'identity', 'pca' or alpha between 0 and 1, got {scales!r}")

    def context(self, problem: Problem, data: Data | Stream) -> Tensor | None:
        """Sigma^-1, (F, F), from the covariance of the inputs; None for the identity."""
        first = flat_inputs(take(some(data).inputs, slice(0, 1)))
        size = first.shape[1]
        words = {"identity": 0.0, "pca": 1.0}
        alpha = words[self.lengthscales] if isinstance(self.lengthscales, str) else self.lengthscales
        if size == 1 or alpha == 0:
            return None
        if size > LARGEST:
            raise ValueError(
                f"lengthscales from the covariance of {size:,} inputs per example need a matrix of {size:,} rows, and "
                f"{LARGEST:,} at most are taken: use FoRDE(lengthscales='identity')"
            )
        return metric(covariance(data), alpha).to(first.dtype)

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def gradient(self, state: Descent, step: Step) -> tuple[Any, Info]:
        batch, problem, likelihood = step.batch, step.problem, step.problem.likelihood

        def member(params: Params, buffers: Params, key: Tensor) -> tuple[tuple[Tensor, Tensor], Params]:
            def values(outputs: Tensor) -> Tensor:
                return evidence(likelihood, outputs, batch.targets, batch.weights)

            seen = input_gradients(problem, params, buffers, batch.inputs, values, Noise(key), "train")
            g = seen.gradients
            loss = problem.data_potential_of(seen.outputs, params, buffers, batch, Noise(key)) / step.scale
            return (loss, g if g.shape[-1] == 1 else unit(g)), seen.buffers

        (loss, directions), buffers, back = step.lift.pull(member)(state.params, state.buffers, step.noise.key)
        factor = batch.total / len(batch.targets) if self.repulsion == "paper" else self.repulsion
        push = slope(directions, counting(batch.weights, directions[0]), step.context)
        grads = back((torch.ones_like(loss), push * (factor / step.scale)))
        grads, loss = with_prior(grads, loss, state.params, step)
        return grads, Info(loss, buffers=buffers)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("FoRDE", cls(), 10),)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        descent = SGD(lr=0.1)  # without momentum, which carries near members through each other
        line, plane = conjugate(d=1), conjugate(d=2, correlation=0.0, lengths=(3.0, 3.0))
        two, three = 0.4 * math.log(2), 58 / 109 * math.log(3)
        for members, says, expected in ((1, "0", 0.0), (2, "2/5 log 2", two), (3, "58/109 log 3", three)):
            recipe = cls(epochs=300, batch_size=None, repulsion=1.0, optimizer=descent)
            slopes = bench.fit(recipe, line.problem, line.data, members).sample(1)["weight"].flatten()
            measured = (slopes - line.mean).square().amax() * line.precision
            name = f"one input, members={members}: largest squared distance from the mode, times the precision"
            yield bench.close(name, says, measured, torch.full((1, 1), expected, dtype=torch.float64), 1e-9)
        for repulsion in (0.5, 2.0):
            recipe = cls(epochs=300, batch_size=None, repulsion=repulsion, lengthscales="identity", optimizer=descent)
            w = bench.fit(recipe, plane.problem, plane.data, 2).sample(1)["weight"].reshape(2, -1)
            measured = 1 - torch.cosine_similarity(w, plane.mean.unsqueeze(0)).square()
            sine = two * repulsion / (plane.precision[0, 0] * plane.mean.square().sum())
            name, says = (
                f"two inputs, members=2, repulsion {repulsion:g}: squared sine of the angle to the mode",
                ("2/5 log 2 x repulsion / (precision x |mu|^2)"),
            )
            yield bench.close(name, says, measured, sine.expand(2), 1e-9)


def slope(directions: Tensor, weights: Tensor, metric: Tensor | None = None) -> Tensor:
    """The derivative of log sum_j k(theta_i, theta_j) in each member's own directions (M, E, B, F). How much a
    direction counts in the mean over them is in `weights` (E, B)."""
    with torch.autocast(directions.device.type, enabled=False):  # distances are differences of near numbers
        apart = directions - directions[:1]  # only differences count
        s, z = (x.movedim(0, -2) for x in (apart, apart if metric is None else apart @ metric))  # (E, B, M, F)
        kernel, steep = kernels(s @ z.mT)
        share = (weights / weights.sum().clamp(min=torch.finfo(s.dtype).tiny))[..., None, None]
        density = (share * kernel).sum((0, 1, -1)).clamp(min=1)  # (M,); less than 1, for itself, only without examples
        pull = -2 * share * steep / density[:, None]  # (E, B, M, M)
        return (pull.sum(-1, keepdim=True) * z - pull @ z).movedim(-2, 0)


def kernels(products: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel of all pairs of members i, j, (..., M, M), and the same over the bandwidth of j, from the inner
    products of their directions (..., M, M).

    Pairs that agree up to rounding have kernel 1, and do not push each other: 0 in the place of the second.
    """
    m, square = products.shape[-1], products.diagonal(dim1=-2, dim2=-1)
    both = square.unsqueeze(-1) + square.unsqueeze(-2)
    distance = both - 2 * products
    same = distance <= ROUNDING * torch.finfo(products.dtype).eps * both
    distance = torch.where(same, 0.0, distance)
    order = distance.sort(dim=-2).values
    median = (order[..., (m - 1) // 2, :] + order[..., m // 2, :]) / 2
    bandwidth = (median / math.log(max(m, 2)) + FLOOR).unsqueeze(-2)  # (..., 1, M); one member has no other
    kernel = (-distance / bandwidth).exp()
    return kernel, torch.where(same, 0.0, kernel / bandwidth)


def covariance(data: Data | Stream) -> Tensor:
    """That of the inputs as the network sees them (those with weight), (F, F), in doubles, in one pass."""
    origin = flat_inputs(take(some(data).inputs, slice(0, 1))).double()  # near the mean: squares lose no digits
    count, total, product = 0, torch.zeros_like(origin), origin.new_zeros(origin.shape[1], origin.shape[1])
    for piece in pieces(data, 4096):
        x = flat_inputs(piece.inputs).double() - origin
        if piece.weights is not None:
            x = x[(piece.weights.reshape(len(x), -1) > 0).any(1)]
        count, total, product = count + len(x), total + x.sum(0), product.addmm_(x.T, x)
    return product / count - (total / count).T @ (total / count)


def metric(covariance: Tensor, alpha: float) -> Tensor:
    """(alpha C^-1 + (1 - alpha) I)^-1 = C (alpha I + (1 - alpha) C)^-1, (F, F), where C is the covariance in units of
    the mean variance."""
    variance = covariance.diagonal().mean()
    if not bool(variance > 0):
        raise ValueError("the inputs do not vary, so they have no principal components: use lengthscales='identity'")
    c, identity = covariance / variance, torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return c if alpha == 1 else torch.linalg.solve(alpha * identity + (1 - alpha) * c, c)
