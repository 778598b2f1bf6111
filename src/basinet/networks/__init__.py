"""The papers' networks, short."""

from .cnn import digits_cnn, pep_cifar_cnn, pep_mnist_cnn
from .efficientnet import EfficientNetLite
from .frn import FilterResponseNorm
from .mlp import MLP, pep_mlp, toy_mlp, uci_mlp
from .published import with_weights
from .resnet import ResNet
from .resnet18 import ResNet18
from .swish_resnet import SwishResNet
from .table import NumberEmbedding, TableNet
from .wide_resnet import WideResNet

__all__ = [
    "MLP",
    "EfficientNetLite",
    "FilterResponseNorm",
    "NumberEmbedding",
    "ResNet",
    "ResNet18",
    "SwishResNet",
    "TableNet",
    "WideResNet",
    "digits_cnn",
    "pep_cifar_cnn",
    "pep_mlp",
    "pep_mnist_cnn",
    "toy_mlp",
    "uci_mlp",
    "with_weights",
]
