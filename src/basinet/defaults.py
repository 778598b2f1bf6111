"""What is taken where a person says nothing: a network, a likelihood and a prior for data of a kind.

    real numbers   a TableNet that predicts mean and noise (Heteroscedastic), whose factor validation data set
    classes        an MLP and Categorical
    labels         an MLP and Bernoulli

All weights have the prior N(0, 1). What keeps a network from fitting the noise of a small table is that training ends
when validation says so: a prior that did it would be too strong as soon as there are more data, or less noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from .networks import MLP, TableNet
from .networks.table import numbers_among
from .problem import Problem
from .problem.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Likelihood
from .problem.priors import Normal

Maker = Callable[[int, int], nn.Module]  # (inputs, outputs) -> network
Kind = Literal["classes", "labels", "real"]

FEATURES = 8  # of a number's embedding
MOST = 500  # numbers that are embedded: beyond, as in images, neighbours tell more than the value of one
LIKELIHOODS: dict[Kind, Likelihood] = {
    "classes": Categorical(),
    "labels": Bernoulli(),
    "real": Heteroscedastic(learned=True),
}


@dataclass(frozen=True, kw_only=True)
class DefaultNetwork:
    """The built-in network for some data, in numbers: enough to build it again for a posterior that was saved."""

    kind: Kind
    inputs: int
    outputs: int  # of the targets
    numbers: tuple[int, ...] = ()  # which inputs are numbers
    features: int = 0  # that each of them becomes

    @staticmethod
    def of(inputs: Tensor, outputs: int, kind: Kind) -> DefaultNetwork:
        """For training inputs (N, ...)."""
        count = inputs[0].numel()
        numbers = numbers_among(inputs) if kind == "real" else ()
        features = FEATURES if len(numbers) <= MOST else 0
        return DefaultNetwork(kind=kind, inputs=count, outputs=outputs, numbers=numbers, features=features)

    @staticmethod
    def read(content: Any) -> DefaultNetwork:
        """From what `vars` of one gives, as JSON keeps it."""
        return DefaultNetwork(**{**content, "numbers": tuple(content["numbers"])})

    def build(self, inputs: Tensor | None = None) -> nn.Module:
        """The network; for training inputs, with scales and bins from them, which a posterior that was saved has."""
        if self.kind != "real":
            return MLP(self.inputs, self.outputs, hidden=(200, 200))
        made = TableNet(self.inputs, 2 * self.outputs, self.numbers, features=self.features)
        return made if inputs is None else made.fitted(inputs)


def problem_for(inputs: Tensor, outputs: int, kind: Kind, make: Maker | None = None) -> Problem:
    """A network, likelihood and prior for training inputs (N, ...) and as many outputs as the targets have.

    A network of one's own (`make`) gives one output for each target: real numbers then have one noise for all.
    """
    if make is not None:
        own = make
        likelihood = Gaussian(noise=0.5, learned=True) if kind == "real" else LIKELIHOODS[kind]
        return Problem(lambda: own(inputs[0].numel(), outputs), likelihood, Normal(scale=1.0))
    network = DefaultNetwork.of(inputs, outputs, kind)
    fitted = network.build(inputs)  # scales and bins are found once
    scales = dict(fitted.named_buffers())

    def build() -> nn.Module:
        made = network.build()
        made.load_state_dict(scales, strict=False)
        return made

    return Problem(build, LIKELIHOODS[kind], Normal(scale=1.0))
