"""Small convolutional networks: those of the PEP paper, and one for 8 x 8 digits. Initialised as torch does.

Mehrtash et al., "PEP: Parameter Ensembling by Perturbation", NeurIPS 2020. Layer order (each ReLU before its
norm), padding and the constants of the norms are those of the authors' code.
"""

from __future__ import annotations

from torch import nn


def pep_mnist_cnn() -> nn.Module:
    """MNIST in the paper: convolutions of 32 and 64, pool, dense 128 and 64. (B, 1, 28, 28) -> (B, 10).

    >>> pep_mnist_cnn()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        *_conv(1, 32),  # 26 x 26
        *_conv(32, 64),  # 24 x 24
        nn.MaxPool2d(2),  # 12 x 12
        nn.Flatten(),
        *_dense(64 * 12 * 12, 128),
        *_dense(128, 64),
        nn.Linear(64, 10),
    )


def pep_cifar_cnn(outputs: int = 10) -> nn.Module:
    """CIFAR in the paper: twice 16, pool, twice 32, pool, dense 128. (B, 3, 32, 32) -> (B, outputs).

    >>> pep_cifar_cnn(outputs=5)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 5])
    """
    return nn.Sequential(
        *_conv(3, 16, padding=1),  # 32 x 32
        *_conv(16, 16),  # 30 x 30
        nn.MaxPool2d(2),  # 15 x 15
        *_conv(16, 32, padding=1),  # 15 x 15
        *_conv(32, 32),  # 13 x 13
        nn.MaxPool2d(2),  # 6 x 6
        nn.Flatten(),
        *_dense(32 * 6 * 6, 128),
        nn.Linear(128, outputs),
    )


def digits_cnn() -> nn.Module:
    """8 x 8 digits: convolutions of 16 and 32, each pooled, no norm. (B, 64) or (B, 1, 8, 8) -> (B, 10).

    >>> digits_cnn()(torch.zeros(2, 64)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),  # 4 x 4
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),  # 2 x 2
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def _conv(inputs: int, outputs: int, padding: int = 0) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, 3, padding=padding),
        nn.ReLU(),
        nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.1),  # what Keras calls momentum 0.9
    )


def _dense(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.ReLU(), nn.BatchNorm1d(outputs, eps=1e-3, momentum=0.1)
