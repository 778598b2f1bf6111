"""Image sets, networks and training of the study, the same for all of its methods.

`resnet18` is the setting of Trinh et al. (2024): ten ResNet-18, all 50,000 training images, Nesterov's momentum, a step
size that stays for half of the steps and falls to a hundredth until nine tenths of them, weight decay 5e-4, all test
images under all corruptions. They train for 300 epochs. `--with` changes one factor at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from basinet import LIT, MAP, WGD, FoRDE
from basinet.engine import Method
from basinet.networks import MLP, ResNet, ResNet18
from basinet.optim import SGD, Adam, Cosine, Optimizer, Plateau, Rate

MEMBERS = 10


@dataclass(frozen=True)
class Setting:
    """An image set, and how all methods train on it."""

    data: str
    network: str  # mlp, resnet8 or resnet18
    width: int  # of the mlp's two hidden layers, or of resnet18's first stage
    epochs: int
    prior: float = 0.0  # scale of the normal prior; 0: by `decay`
    decay: float = 5e-4  # weight decay of the mean loss for which the prior stands, where `prior` is 0
    batch_size: int = 128
    optimizer: str = "sgd"  # sgd (Nesterov, momentum .9) or adam
    rate: float = 0.1  # peak of the step size
    schedule: str = "cosine"  # cosine, or plateau
    augment: bool = True  # crops and flips
    train: int | None = None  # first training images; None: all
    whole: bool = False  # trains on what is otherwise kept for validation, too
    corrupted: int = 1_000  # test images that are corrupted, of each kind and severity
    members: int = MEMBERS

    def make(self) -> nn.Module:
        """A network."""
        if self.network == "mlp":
            return MLP(784, 10, hidden=(self.width, self.width))
        if self.network == "resnet8":
            return ResNet(8)
        if self.network == "resnet18":
            return ResNet18(width=self.width)
        raise ValueError(f"expected network mlp, resnet8 or resnet18, got {self.network!r}")

    def scale(self, n: int) -> float:
        """Of the prior, for n training images."""
        return self.prior or (self.decay * n) ** -0.5

    def descent(self) -> Optimizer:
        """The optimiser."""
        if self.schedule not in ("cosine", "plateau"):
            raise ValueError(f"expected schedule cosine or plateau, got {self.schedule!r}")
        rate: Rate = Cosine(peak=self.rate)
        if self.schedule == "plateau":
            rate = Plateau(peak=self.rate, floor=0.01 * self.rate)
        return Adam(lr=rate) if self.optimizer == "adam" else SGD(lr=rate, momentum=0.9, nesterov=True)


IMAGES = {
    "fashion_mnist": Setting(
        "fashion_mnist", "mlp", 200, 20, prior=1.0, optimizer="adam", rate=1e-3, augment=False, train=20_000
    ),
    "cifar10": Setting("cifar10", "resnet8", 16, 30, prior=0.3),
}
PRESETS = {
    "resnet18": Setting("cifar10", "resnet18", 64, 30, schedule="plateau", whole=True, corrupted=10_000),
    "resnet18-paper": Setting("cifar10", "resnet18", 64, 300, schedule="plateau", whole=True, corrupted=10_000),
}
PUBLISHED = {  # Trinh et al. (2024), ten ResNet-18 on CIFAR-10: NLL, accuracy, ECE; accuracy, NLL, ECE under corruption
    "deep ensemble": (0.117, 0.963, 0.005, 0.781, 0.78, 0.08),
    "WGD (weights)": (0.117, 0.962, 0.005, 0.780, 0.78, 0.08),
    "WGD (function)": (0.128, 0.958, 0.006, 0.771, 0.81, 0.08),
    "FoRDE (identity)": (0.113, 0.963, 0.005, 0.780, 0.80, 0.08),
    "FoRDE (pca)": (0.125, 0.961, 0.006, 0.805, 0.71, 0.07),
    "FoRDE (tuned)": (0.114, 0.964, 0.005, 0.791, 0.74, 0.07),
    "LIT": (0.116, 0.964, 0.004, 0.782, 0.78, 0.09),
}


def image_methods(setting: Setting) -> dict[str, Method]:
    """All methods with the same epochs, batches and optimiser."""
    same = {"epochs": setting.epochs, "batch_size": setting.batch_size, "optimizer": setting.descent()}
    return {
        "deep ensemble": MAP(**same),  # type: ignore[arg-type]
        "WGD (weights)": WGD(**same),  # type: ignore[arg-type]
        "WGD (function)": WGD(**same, space="function"),  # type: ignore[arg-type]
        "FoRDE (identity)": FoRDE(**same, lengthscales="identity"),  # type: ignore[arg-type]
        "FoRDE (pca)": FoRDE(**same, lengthscales="pca"),  # type: ignore[arg-type]
        "FoRDE (tuned)": FoRDE(**same, lengthscales=0.2),  # type: ignore[arg-type]
        "LIT": LIT(**same),  # type: ignore[arg-type]
    }


def in_table(method: str) -> str:
    """The published scores in a line; nothing where there are none."""
    if method not in PUBLISHED:
        return ""
    nll, accuracy, ece, under, worse, gap = PUBLISHED[method]
    clean = f"clean accuracy {accuracy:.3f}  nll {nll:.3f}  ece {ece:.3f}"
    return f"published: {clean}   corrupted accuracy {under:.3f}  nll {worse:.2f}  ece {gap:.2f}"
