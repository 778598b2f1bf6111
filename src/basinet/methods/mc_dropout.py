"""MC dropout: dropout stays on in prediction, and each mask is a draw (Gal & Ghahramani 2016).

    loss = E_mask[-sum_n log p(y_n | x_n, theta, mask)] / T + (sum over elements of theta^2 / (2 s^2 k)) / T_prior

With masks before a layer its weights are w = theta * mask / k, k = 1 - p the share kept, and under the prior N(0, s^2)
of w the expected energy is that of theta over k: the prior is weight decay 1 / (N s^2 k) on what is trained. That is
done where masks are put before layers here; in networks with dropout of their own, whose place is not known, theta has
the prior itself. In a linear model predictions have mean w'x and variance p / (1 - p) sum_i w_i^2 x_i^2, exactly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..core.model import Mode, Model
from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes, take
from ..data import Data, Stream
from ..engine import Demand, Descent, Finished, GradientMethod, Info, Predicting, Schedule, Step
from ..engine.method import Entry
from ..families import Family
from ..layers.altered import Altered
from ..layers.dropped import RATE, Dropped, takes_dropout
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Problem
from ..problem.priors import Laplace, Normal, ScaleMixture, StudentT
from ..variational import prior as priors

if TYPE_CHECKING:
    from ..testing import Bench, Check

DROPOUT = nn.modules.dropout._DropoutNd


@dataclass(frozen=True, kw_only=True)
class MCDropout(GradientMethod):
    """Dropout that stays on in prediction: each draw has masks of its own.

    A network with dropout layers keeps them where they are; in one without, they are put before its linear layers and
    convolutions. Only dropout is on in prediction (attention's own included), norm layers are not. A list of rates
    trains one member with each; `bn.weigh(posterior, val)` or a slice then takes those that validation prefers.
    """

    usual: ClassVar[bool] = True
    randomised: ClassVar[bool] = True
    mode: ClassVar[Mode] = "dropout"
    samples: ClassVar[int] = 50

    epochs: int | None = None
    """Passes through the data; None: until done, as in MAP."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL (of the network without dropout) until a member stops, at its best; None:
    60 where epochs is None, else never."""
    rate: float | None = None
    """Share that is dropped; None: that of the network's own layers, 0.1 in those put in."""
    insert: Literal["before", "after"] | None = None
    """Put dropout before each weight layer, or after each hidden one (before all but the first); None: before, if it
    has none."""
    learned: bool = False
    """Learn the rate of each layer that dropout is put before (concrete dropout)."""
    held: bool = False
    """Whether predictions use one mask for all inputs, so that a draw is one function of them."""

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < 1:
            raise ValueError(f"expected a rate between 0 and 1, the share that is dropped, got {self.rate}")
        if self.insert not in (None, "before", "after"):
            raise ValueError(f"expected insert 'before', 'after' or None, got {self.insert!r}")

    def adapt(self, problem: Problem) -> Problem:
        network = problem.network
        own = _own(network)
        layers = self._layers(network)
        if layers:
            rate = RATE_IN if self.rate is None else self.rate

            def make(name: str, layer: nn.Module) -> nn.Module:
                return Dropped(layer, rate, self.learned) if name in layers else layer

            return problem.through(Altered(network, None, make, ("train", "dropout")))
        if self.learned:
            raise ValueError(
                "learned=True is for dropout that is put into the network, which has layers of its own: give "
                "insert='before', or learned=False"
            )
        if self.rate is None:
            return problem

        def changed(name: str, layer: nn.Module) -> nn.Module:
            if name not in own:
                return layer
            other = copy.copy(layer)  # with the same parameters, where it is attention
            setattr(other, "p" if isinstance(layer, DROPOUT) else "dropout", self.rate)
            return other

        return problem.through(Altered(network, None, changed, ("train", "dropout")))

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        like = next(iter(point.params.values()))
        logits = {n: like.new_full((), _logit(self.rate or RATE_IN)) for n in self._rates(problem)}
        buffers = {n: x for n, x in point.buffers.items() if n not in logits}
        params = point.params | logits
        return Descent(params, buffers, self.optimizer.init(params))

    def loss(self, params: Params, state: Descent, step: Step) -> Info:
        problem = step.problem
        names = self._rates(problem)
        rates = {n: params[n].sigmoid() for n in names}
        own = {n: x for n, x in params.items() if n not in rates}
        energy, after = problem.data_potential(own, state.buffers | rates, step.batch, step.noise, "train")
        kept = self._kept(problem, rates)
        decay = None if rates else problem.decay(own)  # rates that are learned feel the prior, too
        if decay is None:
            energy = energy + _prior_energy(problem, own, kept)
        quadratic = {n: d / (kept.get(n, 1.0) * step.scale) for n, d in (decay or {}).items()}
        for name, rate in rates.items():  # the entropy of the masks: one for each input of the layer
            count = own[_weight(name)][0].numel()
            entropy = -(rate * rate.log() + (1 - rate) * (1 - rate).log())
            energy = energy - count * entropy / problem.prior_temperature
        buffers = {n: x for n, x in after.items() if n in state.buffers}
        return Info(energy / step.scale, buffers=buffers, quadratic=quadratic)

    def point(self, state: Descent) -> Point:
        rates = {n: x.sigmoid() for n, x in state.params.items() if n.rpartition(".")[2] == RATE and x.dim() == 0}
        params = {n: x for n, x in state.params.items() if n not in rates}
        return Point(params, state.buffers | rates)

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family | Finished:
        done = GradientMethod.finish(self, state, samples, problem, data, val, noise)
        family, curves = (done.family, dict(done.curves)) if isinstance(done, Finished) else (done, {})
        learned = {n: float(x) for n, x in family.mean().buffers.items() if n in self._rates(problem)}
        if learned:
            curves |= {"rates": list(learned.values()), "rate_names": [n.rpartition(".")[0] for n in learned]}
        return Finished(family, curves, tuple(self._lines(problem, learned, data)))

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        return Demand(nbytes(point), predict=Predicting(self.samples, self.samples))

    def _layers(self, network: Model) -> tuple[str, ...]:
        """The layers before which dropout is put."""
        own = _own(network)
        if own and self.insert is None:
            return ()
        every = [n for n, m in network.module.named_modules() if takes_dropout(m) and not _in_attention(network, n)]
        chosen = every[1:] if self.insert == "after" else every
        if not chosen:
            what = "hidden layer" if self.insert == "after" else "linear layer or convolution"
            raise ValueError(
                f"expected a network with dropout, or with a {what} to put dropout at, got "
                f"{type(network.module).__name__} with neither: add nn.Dropout where it belongs"
            )
        return tuple(chosen)

    def _rates(self, problem: Problem) -> tuple[str, ...]:
        """Buffers that hold rates that are learned."""
        network = problem.network
        return tuple(network.extra) if self.learned and isinstance(network, Altered) else ()

    def _kept(self, problem: Problem, rates: Params) -> dict[str, Any]:
        """The share that is kept before each weight behind dropout that was put in."""
        network = problem.network
        if not isinstance(network, Altered):
            return {}
        if rates:
            return {_weight(n): 1 - p for n, p in rates.items()}
        layers = self._layers(network.network)
        return dict.fromkeys((_weight(f"{n}.{RATE}" if n else RATE) for n in layers), 1 - (self.rate or RATE_IN))

    def _lines(self, problem: Problem, learned: dict[str, float], data: Data | None) -> Iterable[str]:
        network = problem.network
        layers = self._layers(network.network) if isinstance(network, Altered) else ()
        if layers:
            rates = [f"{n.rpartition('.')[0] or 'the layer'} {p:.3g}" for n, p in learned.items()]
            what = f"learned rates {', '.join(rates)}" if rates else f"dropout of rate {self.rate or RATE_IN:g}"
            yield f"{what}, before {', '.join(n or 'the layer' for n in layers)}"
        decay = problem.prior.precision(problem.network.init(Noise.seed(0)).params)
        if data is not None and decay and isinstance(problem.prior, Normal):
            low, high = (f(decay.values()) / data.n for f in (min, max))
            size = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
            yield f"the prior is weight decay {size} per example{', over the share kept' if layers else ''}"

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("MC dropout", cls(), 1), Entry("MC dropout ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact, p, count = bench.conjugate(), 0.3, 20_000
        x, y, prior = exact.data.inputs, exact.data.targets.reshape(-1), exact.problem.prior
        assert isinstance(prior, Normal) and isinstance(prior.scale, float)
        recipe = cls(epochs=1500, batch_size=None, rate=p, optimizer=SGD(lr=Cosine(peak=0.1), momentum=0.9))
        posterior = bench.fit(recipe, exact.problem, exact.data, 40)
        gram = x.T @ x / 0.5**2
        spread = gram.diagonal().diag() * p / (1 - p) + torch.eye(3, dtype=x.dtype) / (prior.scale**2 * (1 - p))
        mode = torch.linalg.solve(gram + spread, x.T @ y / 0.5**2)
        points: Any = posterior.parts[0].family
        weights = points.params["weight"][:, 0]  # (members, d)
        z = (weights.mean(0) - mode) / (weights.std(0) / math.sqrt(len(weights)))
        says = "argmin of the expected loss, in standard errors"
        yield bench.close("trained weights, masks before the layer", says, z, torch.zeros_like(z), 4.5)
        outputs = posterior[0].predict(x[:8], samples=count).outputs[0, :, :, 0]  # (S, B)
        weight = take(points, 0).params["weight"][0]
        mean, variance = x[:8] @ weight, p / (1 - p) * (weight * x[:8]).square().sum(1)
        z = (outputs.mean(0) - mean) / (variance / count).sqrt()
        yield bench.close("mean of predictions, linear model", "w'x, z", z, torch.zeros_like(z), 4.5)
        fourth = (outputs - mean).pow(4).mean(0)
        z = ((outputs - mean).square().mean(0) - variance) / ((fourth - variance.square()) / count).sqrt()
        yield bench.close("variance of predictions", "p / (1 - p) sum w^2 x^2, z", z, torch.zeros_like(z), 4.5)


def _prior_energy(problem: Problem, params: Params, kept: dict[str, Any]) -> Tensor:
    """The prior's energy of what masks make of the weights, on average: w / k for the share k that is kept, else 0. Of
    priors under which parameters are independent; of others that of the weights themselves."""
    prior, network = problem.prior, problem.split(params)[0]
    known = priors.gaussian(prior, network)
    if known is None and not isinstance(prior, (Laplace, ScaleMixture, StudentT)):
        return problem.prior_energy(params)

    def of(n: str, x: Tensor) -> Tensor:
        if known is None:
            return prior.energy({n: x})
        return 0.5 * ((x - known.centre.get(n, 0.0)) / known.scale[n]).square().sum()

    def masked(n: str, x: Tensor) -> Tensor:
        k = kept.get(n)
        return of(n, x) if k is None else k * of(n, x / k) + (1 - k) * of(n, torch.zeros_like(x))

    return torch.stack([masked(n, x) for n, x in network.items()]).sum() / problem.prior_temperature


RATE_IN = 0.1  # of dropout that is put in, where no rate is given


def _own(network: Model) -> tuple[str, ...]:
    """Modules of the network that have dropout."""
    modules = network.module.named_modules()
    return tuple(
        n
        for n, m in modules
        if (isinstance(m, DROPOUT) and m.p > 0) or (isinstance(m, nn.MultiheadAttention) and m.dropout > 0)
    )


def _in_attention(network: Model, name: str) -> bool:
    """Whether a layer is one that attention has and does not call."""
    outer = name.rpartition(".")[0]
    return bool(outer) and isinstance(network.module.get_submodule(outer), nn.MultiheadAttention)


def _weight(rate: str) -> str:
    """The weight behind the dropout of this rate."""
    return rate.removesuffix(RATE) + "weight"


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
