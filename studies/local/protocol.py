"""How the study runs: the set and network, how members train, what is put around them, how mixtures are scored.

A preset is a protocol by name; `--with NAME=VALUE` changes a field of it. Fields that only say how mixtures are scored
come last: changing one of them trains nothing and predicts nothing again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import nn

import basinet as bn

SCORING = ("largest", "subsets", "samples", "stratified", "weights")  # fields that change no prediction


@dataclass(frozen=True)
class Protocol:
    """The study on one set."""

    data: str  # name of the set
    network: str = "mlp"  # mlp, or wide: WRN-16-4; FILE.py:NAME is a function (inputs, outputs) of your own
    norm: str = "filter"  # of the wide network: filter (response norm) or batch
    hidden: int = 100  # units of the two hidden layers of the mlp
    members: int = 30  # that are trained
    epochs: int = 30  # of training
    batch: int = 128  # examples per step
    optimizer: str = "sgd"  # sgd (Nesterov, momentum .9) or adam
    rate: float = 0.1  # peak of the step size, which falls to zero along a cosine
    decay: float = 5e-4  # weight decay of the mean loss for which the prior stands: its precision is decay x N
    augment: bool = False  # crops and flips while members train, and never after
    train: int = 48_000  # images to train on
    val: int = 2_000  # images to tune on
    test: int = 10_000  # images to score on
    outside: tuple[str, ...] = ()  # sets that are new to the networks; their images are one set together
    n_outside: int = 2_500  # images of each of them
    iterates: int = 30  # that SWA and SWAG collect
    every: int | None = None  # steps between iterates; None: an epoch
    rank: int = 20  # of SWAG
    swing: float = 0.025  # step size of SWA and SWAG, of which 4, 1, 1/4, 1/16 and 1/64 times are tried
    maps: int = 10  # of LA-NF's flow
    flow_epochs: int = 20  # of LA-NF
    dropout: float = 0.1  # rate of MC dropout
    scale: float = 1.0  # of every covariance, after it was fitted
    each: int = 200  # most samples of one member
    largest: int = 20  # K runs from 1 to this many members
    subsets: int = 30  # of the members, drawn at random for each K
    samples: int = 200  # of a mixture in all
    stratified: bool = True  # every first n samples have the members equally often, as far as n allows
    weights: str = "equal"  # of members: equal, or learned on the validation images for each subset

    def __post_init__(self) -> None:
        if self.members < self.largest:
            raise ValueError(
                f"mixtures of up to {self.largest} members need as many, and members={self.members}: train more, or "
                f"lower the largest, --with largest={self.members}"
            )
        if self.optimizer not in ("sgd", "adam"):
            raise ValueError(f"expected optimizer sgd or adam, got {self.optimizer!r}")
        if self.norm not in ("filter", "batch"):
            raise ValueError(f"expected norm filter or batch, got {self.norm!r}")
        if self.weights not in ("equal", "learned"):
            raise ValueError(f"expected weights equal or learned, got {self.weights!r}")
        for name in ("members", "epochs", "batch", "train", "val", "test", "iterates", "each", "largest", "subsets"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} of at least 1, got {getattr(self, name)}")
        if not (self.decay > 0 and self.rate > 0 and self.swing > 0 and self.scale >= 0):
            raise ValueError("expected decay, rate and swing above 0, and scale of at least 0")

    @property
    def own(self) -> bool:
        """Whether the network is the user's."""
        return ":" in self.network

    def recorded(self) -> dict[str, Any]:
        """The fields, and what the file of a network of the user's says: it may be edited and keep its name."""
        digest = {"network_digest": _digest(Path(self.network.rpartition(":")[0]))} if self.own else {}
        return asdict(self) | digest

    def trained(self) -> dict[str, Any]:
        """The fields on which predictions depend."""
        return {name: value for name, value in self.recorded().items() if name not in SCORING}

    def step_size(self, peak: float) -> bn.optim.Optimizer:
        """The optimiser of training, with another peak."""
        wave = bn.optim.Cosine(peak=peak)
        if self.optimizer == "adam":
            return bn.optim.Adam(lr=wave)
        return bn.optim.SGD(lr=wave, momentum=0.9, nesterov=True)

    def problem(self, inputs: int, outputs: int, n: int) -> bn.Problem:
        """The networks under the prior, for n training images of `inputs` numbers."""
        prior = bn.priors.Normal(scale=(self.decay * n) ** -0.5)
        return bn.Problem(self._maker(inputs, outputs), bn.likelihoods.Categorical(), prior)

    def _maker(self, inputs: int, outputs: int) -> Any:
        if self.network == "mlp":
            return lambda: bn.networks.MLP(inputs, outputs, hidden=(self.hidden, self.hidden))
        if self.network == "wide":
            return lambda: bn.networks.WideResNet(16, 4, outputs, norm=self.norm)  # type: ignore[arg-type]
        if self.own:
            from basinet.cli.network import user_network

            make = user_network(self.network)

            def own() -> nn.Module:
                return make(inputs, outputs)

            return own
        raise ValueError(f"expected network mlp, wide or FILE.py:NAME, got {self.network!r}")


def _digest(file: Path) -> str:
    if not file.is_file():
        raise ValueError(f"expected --with network=FILE.py:NAME, and there is no file {file}")
    return sha256(file.read_bytes()).hexdigest()[:16]


PRESETS = {
    "digits": Protocol(
        data="digits",
        optimizer="adam",
        rate=3e-3,
        epochs=150,
        decay=1e-3,
        train=1_078,
        val=360,
        test=359,
        iterates=40,
        swing=0.05,
    ),
    "fashion_mnist": Protocol(
        data="fashion_mnist",
        hidden=50,
        optimizer="adam",
        rate=2e-3,
        epochs=15,
        decay=1 / (0.09 * 20_000),  # a prior of scale .3
        train=20_000,
        test=4_000,
        outside=("mnist",),
        n_outside=2_000,
        iterates=16,
        every=78,
        rank=16,
        each=60,
    ),
    "cifar10": Protocol(
        data="cifar10",
        network="wide",
        augment=True,
        outside=("svhn", "cifar100"),
        n_outside=1_000,
        every=100,
        each=100,
    ),
    "cifar10-paper": Protocol(
        data="cifar10",
        network="wide",
        epochs=100,
        augment=True,
        outside=("svhn", "cifar100"),
        n_outside=10_000,
        iterates=100,
        rank=100,
    ),
}
