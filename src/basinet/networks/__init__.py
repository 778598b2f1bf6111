"""The papers' networks, short."""

from .cnn import digits_cnn, pep_cifar_cnn, pep_mnist_cnn
from .mlp import MLP, pep_mlp, toy_mlp, uci_mlp

__all__ = ["MLP", "digits_cnn", "pep_cifar_cnn", "pep_mlp", "pep_mnist_cnn", "toy_mlp", "uci_mlp"]
