"""The images of the study: to train, to tune, to score, and from outside; standardised with those to train on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import basinet as bn

from .protocol import Protocol

FROM = {  # where the files come from, said where one is missing
    "mnist": "LeCun and Cortes, in mnist.npz or the four idx files",
    "fashion_mnist": "Zalando, github.com/zalandoresearch/fashion-mnist, in fashion_mnist.npz or the four idx files",
    "cifar10": "Krizhevsky, www.cs.toronto.edu/~kriz/cifar.html, the binary or Python version",
    "cifar100": "Krizhevsky, www.cs.toronto.edu/~kriz/cifar.html, the binary or Python version",
    "svhn": "Netzer et al., ufldl.stanford.edu/housenumbers, as svhn_test*.npz with differenced planes",
}


class Images(NamedTuple):
    """What a protocol is run on."""

    train: bn.Data  # never augmented
    augmented: bn.Data  # what members are trained on
    val: bn.Data
    test: bn.Data
    outside: Tensor | None  # (B, ...)
    classes: int

    @property
    def inputs(self) -> int:
        """Numbers in an image."""
        return self.train.inputs[0].numel()

    @property
    def sizes(self) -> dict[str, int]:
        """How many images there are, as records say it."""
        outside = 0 if self.outside is None else len(self.outside)
        return {"n_train": self.train.n, "n_val": self.val.n, "n_test": self.test.n, "n_outside": outside}


def load(protocol: Protocol, folder: Path | None, seed: int, examples: int | None = None) -> Images:
    """The images of a protocol; at most `examples` of each part. Refuses what is not there, and says which it is."""
    built_in = protocol.data in bn.datasets.names()
    wanted = (() if built_in else (protocol.data,)) + protocol.outside
    if wanted and folder is None:
        raise ValueError(f"the set {protocol.data} needs files: give --folder with {_files(wanted)}")
    read = {name: _read(name, folder) for name in wanted}  # all of them, before any is used

    def few(data: bn.Data, most: int) -> bn.Data:
        count = min(most, data.n, examples or data.n)
        return data.take(slice(0, count))

    if built_in:
        splits = bn.datasets.load(protocol.data, seed=seed)
        if splits.classes is None:
            raise ValueError(f"the study local is for classes, and {protocol.data} has real numbers as targets")
        train, val, test = splits.train, splits.val, splits.test
        classes = splits.classes
    else:
        parts = read[protocol.data]
        if "train" not in parts:
            raise ValueError(f"{folder}: expected the training images of {protocol.data}, got test images only")
        whole = parts["train"].take(slice(0, protocol.train + protocol.val))
        share = protocol.train / (protocol.train + protocol.val)
        train, val = whole.split(share, 1 - share, seed=seed, stratify=True)
        test, classes = parts["test"], int(whole.targets.max()) + 1
    train, val, test = few(train, protocol.train), few(val, protocol.val), few(test, protocol.test)
    scaled = _scaling(train.inputs, built_in)
    outside = None
    if protocol.outside:
        each = [few(read[name]["test"], protocol.n_outside).inputs for name in protocol.outside]
        outside = scaled(torch.cat(each))
    train, val, test = (bn.Data(scaled(part.inputs), part.targets) for part in (train, val, test))
    augmented = train.augmented(bn.data.CropFlip()) if protocol.augment else train
    return Images(train, augmented, val, test, outside, classes)


def _scaling(images: Tensor, built_in: bool) -> Callable[[Tensor], Tensor]:
    """Built-in sets are scaled; images from files get mean 0 and standard deviation 1 in each channel."""
    if built_in:
        return lambda x: x
    mean, sd = (f(images, (0, 2, 3), keepdim=True)[0] for f in (torch.mean, torch.std))
    return lambda x: (x - mean) / sd


def _read(name: str, folder: Path | None) -> dict[str, bn.Data]:
    assert folder is not None
    if name not in FROM:
        known = ", ".join((*bn.datasets.names(), *FROM))
        raise ValueError(f"the study local has no set {name!r}: expected one of {known}")
    try:
        return bn.datasets.load_images(name, folder)
    except ValueError as error:
        raise ValueError(f"{error}. They come from {FROM[name]}") from None


def _files(names: tuple[str, ...]) -> str:
    return "; ".join(f"{name} ({FROM.get(name, 'an image set')})" for name in names)
