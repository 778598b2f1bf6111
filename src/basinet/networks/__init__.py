"""The papers' networks, short."""

from .cnn import digits_cnn, pep_cifar_cnn, pep_mnist_cnn
from .frn import FilterResponseNorm
from .mlp import MLP, pep_mlp, toy_mlp, uci_mlp
from .resnet import ResNet
from .wide_resnet import WideResNet

__all__ = [
    "MLP",
    "FilterResponseNorm",
    "ResNet",
    "WideResNet",
    "digits_cnn",
    "pep_cifar_cnn",
    "pep_mlp",
    "pep_mnist_cnn",
    "toy_mlp",
    "uci_mlp",
]
