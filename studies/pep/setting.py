"""The rows of the paper's table 2: sets, networks, step sizes, and which weights get noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from basinet.networks import MLP, pep_cifar_cnn, pep_mlp, pep_mnist_cnn

METHODS = ("baseline", "PEP", "temperature", "MC dropout", "SWA", "deep ensemble")
SCORES = ("nll", "brier", "ece", "error")  # ECE and error in per cent


@dataclass(frozen=True)
class Setting:
    """A row of the table: everything that trains and scores it."""

    data: str  # the set
    network: str  # of NETWORKS
    where: tuple[str, ...]  # the weights that get noise, as in the authors' code
    rate: float = 2.5e-4  # step size of Adam
    dropout_rate: float = 2.5e-4  # the same with dropout
    epochs: int = 15
    batch: int = 128
    members: int = 25  # seeds
    ensemble: int = 10  # members of a deep ensemble
    draws: int = 100  # of such ensembles out of the members
    samples: int = 25  # perturbed networks, and dropout masks, in prediction
    collected: int = 15  # epochs in which SWA collects, one iterate each
    probed: int = 5  # seeds that are followed along the epochs
    probe: tuple[int, ...] = (1, 2, 3, 5, 7, 9, 11, 13, 15)  # the epochs
    one_by_one: bool = False  # also trains one member alone, to compare times


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": pep_mlp,
    "cnn": pep_mnist_cnn,
    "cifar": pep_cifar_cnn,
    "small": lambda: MLP(64, 10, hidden=(50, 50), batch_norm=True),
}

PRESETS = {
    "digits": Setting(
        "digits", "small", ("layers.0.weight", "layers.3.weight"), 2.5e-3, 2.5e-3, epochs=40, probe=(1, 5, 10, 20, 40)
    ),
    "mnist-mlp": Setting("mnist", "mlp", ("1.weight", "4.weight", "7.weight"), 2.5e-3, 2.5e-3),
    "mnist-cnn": Setting("mnist", "cnn", ("3.weight", "8.weight", "11.weight")),
    "fashion-cnn": Setting("fashion_mnist", "cnn", ("3.weight", "8.weight", "11.weight")),
    "cifar10-cnn": Setting("cifar10", "cifar", ("15.weight",), 2.5e-4, 5e-4),
}

PUBLISHED = {  # Mehrtash et al. (2020), table 2: NLL, Brier, ECE in %, error in %, in the order of METHODS
    "mnist-mlp": (
        (0.096, 0.079, 0.074, 0.094, 0.067, 0.044),
        (0.037, 0.035, 0.035, 0.040, 0.032, 0.020),
        (1.324, 0.528, 0.415, 2.569, 0.536, 0.839),
        (2.264, 2.286, 2.264, 2.452, 2.082, 1.285),
    ),
    "mnist-cnn": (
        (0.036, 0.034, 0.032, 0.031, 0.028, 0.021),
        (0.016, 0.015, 0.015, 0.014, 0.013, 0.010),
        (0.517, 0.366, 0.259, 0.832, 0.282, 0.287),
        (0.990, 0.990, 0.990, 0.842, 0.868, 0.659),
    ),
    "fashion-cnn": (
        (0.360, 0.275, 0.271, 0.218, 0.277, 0.198),
        (0.137, 0.127, 0.126, 0.111, 0.121, 0.096),
        (5.269, 1.784, 1.098, 1.466, 3.988, 0.942),
        (8.420, 8.522, 8.420, 7.692, 7.734, 6.508),
    ),
    "cifar10-cnn": (
        (1.063, 0.982, 0.956, 0.798, 0.827, 0.709),
        (0.469, 0.450, 0.447, 0.381, 0.373, 0.335),
        (11.718, 4.599, 1.318, 7.109, 8.655, 8.867),
        (33.023, 32.949, 33.023, 27.207, 26.004, 22.880),
    ),
}


def published(preset: str, method: str) -> dict[str, float] | None:
    """The paper's scores; None where it has none."""
    if preset not in PUBLISHED:
        return None
    place = METHODS.index(method)
    return {name: row[place] for name, row in zip(SCORES, PUBLISHED[preset])}
