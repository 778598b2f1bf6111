"""The images of the study: to train, to tune, to score, and from outside; standardised with those to train on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import basinet as bn

from .. import FROM, Options
from .protocol import Protocol


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


def needed(protocol: Protocol) -> list[str]:
    """The sets of a protocol that are read from files."""
    own = () if protocol.data in bn.datasets.names() else (protocol.data,)
    for name in (*own, *protocol.outside):
        if name not in FROM:
            known = ", ".join((*bn.datasets.names(), *FROM))
            raise ValueError(f"the study local has no set {name!r}: expected one of {known}")
    return [*own, *protocol.outside]


def load(protocol: Protocol, options: Options) -> Images:
    """The images of a protocol; at most `examples` of each part. Refuses what is not there, and says which it is."""
    read = {name: options.images(name) for name in needed(protocol)}  # all of them, before any is used
    built_in, examples, seed = protocol.data in bn.datasets.names(), options.examples, options.seed

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
            raise ValueError(f"{options.folder}: expected the training images of {protocol.data}, got test images only")
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
