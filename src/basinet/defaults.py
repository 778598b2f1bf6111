"""What is used if nothing is given: a network, a likelihood and a prior for data of a kind.

    real numbers   a TableNet that predicts mean and noise (Heteroscedastic), whose factor validation data set; or the
                   mean alone, with one noise for all rows (Gaussian); of the target, of its logarithm or a power of it
                   (Warped): where there are validation data, `pilot` chooses
    classes        an MLP and Categorical, or a TableNet where validation data prefer it; of images an MLP
    labels         an MLP and Bernoulli

Weights have the prior N(0, 1), those of a TableNet N(0, 3^2). What keeps a network from fitting the noise of a small
table is that training stops when the validation NLL no longer falls: a prior strong enough to do that would be too
strong with more data or less noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from .networks import MLP, TableNet
from .networks.table import QUANTILES, bins_for, numbers_among
from .problem import Problem
from .problem.likelihoods import (
    Bernoulli,
    Categorical,
    ClassLikelihood,
    Gaussian,
    Heteroscedastic,
    LabelLikelihood,
    Likelihood,
    NoisyDirichlet,
    RealLikelihood,
    StudentT,
    Warped,
)
from .problem.priors import Normal, Prior
from .problem.warps import warps_for

Maker = Callable[[int, int], nn.Module]  # (inputs, outputs) -> network
Kind = Literal["classes", "labels", "real"]

FEATURES = 8  # of a number's embedding
MOST = 500  # numbers that are embedded: beyond, as in images, neighbours tell more than the value of one
LARGEST = 10**7  # units of a layer in a file that is believed
SHARED_NOISE = Gaussian(noise=0.5, learned=True)  # of a user's own networks, which have one output for each target
CANDIDATES = (Heteroscedastic(learned=True), SHARED_NOISE)  # for real numbers, between which validation chooses
LIKELIHOODS: dict[Kind, tuple[Likelihood, ...]] = {  # the default first; real targets have standard deviation 1
    "classes": (Categorical(), NoisyDirichlet()),
    "labels": (Bernoulli(),),
    "real": (*CANDIDATES, StudentT(scale=0.5, learned=True)),
}
PRIOR, WIDE = Normal(scale=1.0), Normal(scale=3.0)  # wide: of networks for tables, whose embeddings have to bend
OF_KIND = {"classes": ClassLikelihood, "labels": LabelLikelihood, "real": RealLikelihood}


@dataclass(frozen=True, kw_only=True)
class DefaultNetwork:
    """The built-in network for some data, in numbers: enough to build it again for a posterior that was saved."""

    kind: Kind
    inputs: int
    outputs: int  # of the network: twice as many as targets, where it also predicts their noise
    numbers: tuple[int, ...] = ()  # which inputs are numbers
    features: int = 0  # that each of them becomes
    hidden: tuple[int, ...] = ()  # widths of its layers
    bins: int = QUANTILES  # of each of those numbers, at most

    @staticmethod
    def of(
        inputs: Tensor,
        outputs: int,
        kind: Kind,
        likelihood: Likelihood,
        hidden: Sequence[int] | None = None,
        embeds: bool | None = None,  # numbers; None: for real targets
    ) -> DefaultNetwork:
        """For training inputs (N, ...) and as many outputs as the targets have."""
        embeds = kind == "real" if embeds is None else embeds
        numbers = numbers_among(inputs) if embeds else ()
        return DefaultNetwork(
            kind=kind,
            inputs=inputs[0].numel(),
            outputs=network_outputs(outputs, likelihood),
            numbers=numbers,
            features=FEATURES if embeds and len(numbers) <= MOST else 0,
            hidden=tuple(hidden or ((128, 128, 128) if embeds else (200, 200))),
            bins=bins_for(inputs, numbers) if len(numbers) <= MOST else QUANTILES,
        )

    @staticmethod
    def read(content: Any) -> DefaultNetwork:
        """From what `vars` of one gives, as JSON keeps it."""
        network = DefaultNetwork(
            **{**content, "numbers": tuple(content["numbers"]), "hidden": tuple(content["hidden"])}
        )
        sizes = (
            network.inputs,
            network.outputs,
            network.bins,
            *network.hidden,
            1 + network.features,
            *(1 + i for i in network.numbers),
        )
        whole = all(type(size) is int and 0 < size < LARGEST for size in sizes) and bool(network.hidden)
        if network.kind not in OF_KIND or not whole or any(i >= network.inputs for i in network.numbers):
            raise ValueError(f"expected a network of a kind with sizes of layers, got {content}")
        return network

    def build(self, inputs: Tensor | None = None) -> nn.Module:
        """The network; for training inputs, with scales and bins from them, which a posterior that was saved has."""
        if self.kind != "real" and not self.features:
            return MLP(self.inputs, self.outputs, hidden=self.hidden)
        network = TableNet(self.inputs, self.outputs, self.numbers, self.hidden, self.features, self.bins)
        return network if inputs is None else network.fitted(inputs)


class Design(NamedTuple):
    """What the user says about a problem; None: the default."""

    make: Maker | None = None  # the user's own network
    likelihood: Likelihood | None = None
    prior: Prior | None = None
    hidden: Sequence[int] | None = None  # widths of the built-in network
    embeds: bool | None = None  # whether that is a TableNet; None: for real targets


def problem_for(inputs: Tensor, outputs: int, kind: Kind, design: Design = Design()) -> Problem:  # noqa: B008
    """A network, likelihood and prior for training inputs (N, ...) and as many outputs as the targets have.

    A user's own network gives one output for each target: real numbers then have one noise for all, unless a
    likelihood says otherwise.
    """
    make, likelihood, prior, hidden, embeds = design
    if likelihood is not None and not isinstance(likelihood, OF_KIND[kind]):
        known = " or ".join(type(x).__name__ for x in LIKELIHOODS[kind])
        raise ValueError(f"expected a likelihood of {kind}, {known}, got {type(likelihood).__name__}")
    embeds = kind == "real" if embeds is None else embeds
    prior = prior or (WIDE if embeds and make is None else PRIOR)
    if make is not None:
        own = make
        likelihood = likelihood or (SHARED_NOISE if kind == "real" else LIKELIHOODS[kind][0])
        width = network_outputs(outputs, likelihood)
        return Problem(lambda: own(inputs[0].numel(), width), likelihood, prior)
    likelihood = likelihood or LIKELIHOODS[kind][0]
    network = DefaultNetwork.of(inputs, outputs, kind, likelihood, hidden, embeds)
    scales = dict(network.build(inputs).named_buffers())  # and bins: found once

    def build() -> nn.Module:
        module = network.build()
        module.load_state_dict(scales, strict=False)
        return module

    return Problem(build, likelihood, prior)


def candidates_for(
    inputs: Tensor,
    outputs: int,
    kind: Kind,
    design: Design = Design(),  # noqa: B008  # it cannot be changed
    *,
    targets: Tensor | None = None,
    zero: float | None = None,
    table: bool = True,
) -> tuple[Problem, ...]:
    """What `pilot` chooses from, the default first.

    For real targets, noise that is predicted or of one size, and for training targets (N, 1) changes of variable that
    suit them; `zero` is where zero lies among the targets. For the classes of a `table`, an MLP or a TableNet.
    """
    rows = kind == "classes" and table and inputs.dim() == 2 and len(numbers_among(inputs)) <= MOST
    if rows and design.make is None and design.embeds is None:
        return tuple(problem_for(inputs, outputs, kind, design._replace(embeds=e)) for e in (False, True))
    if kind != "real" or design.make is not None or design.likelihood is not None:
        return (problem_for(inputs, outputs, kind, design),)
    plain = [problem_for(inputs, outputs, kind, design._replace(likelihood=x)) for x in CANDIDATES]
    warps = warps_for(targets, zero) if targets is not None and outputs == 1 else ()
    warped = [Problem(p.network, Warped(of=x, warp=warp), p.prior) for warp in warps for p, x in zip(plain, CANDIDATES)]
    return (*plain, *warped)


def network_outputs(outputs: int, likelihood: Likelihood) -> int:
    """How many outputs the network has: twice as many as targets, where it also predicts their noise."""
    of = likelihood.of if isinstance(likelihood, Warped) else likelihood
    return 2 * outputs if isinstance(of, Heteroscedastic) else outputs


def embeds_numbers(problem: Problem) -> bool:
    """Whether the network of a problem is the built-in one for tables."""
    return isinstance(problem.network.module, TableNet)


def said(problem: Problem) -> str:
    """Prior and likelihood of a problem in a line."""
    return f"prior {_brief(problem.prior)}, likelihood {_brief(problem.likelihood)}"


def _brief(value: Prior | Likelihood) -> str:
    """A dataclass by its name and its fields that say something."""
    if isinstance(value, Warped):
        return f"{_brief(value.of)} of the target's {type(value.warp).__name__}"
    values = {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]
    return f"{type(value).__name__}({', '.join(f'{name}={v}' for name, v in values.items() if v not in (None, False))})"
