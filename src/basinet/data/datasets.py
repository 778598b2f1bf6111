"""Data sets by name: built in, small and offline, or image sets from a folder; split and scaled the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.nearest import did_you_mean
from . import toys
from .data import Data
from .images import SETS, ImageSet, as_data, read_images

PARTS = (0.6, 0.2, 0.2)  # train, val, test


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set cut for training, tuning and testing. Statistics for scaling come only from `train`."""

    name: str
    """The name of the set."""
    train: Data
    """What networks are trained on."""
    val: Data
    """What training is stopped by, and temperatures and noise are tuned on."""
    test: Data
    """What scores are computed on."""
    ood: Data | None = None
    """Out-of-distribution inputs; None: there are none."""
    classes: int | None = None
    """The number of classes; None: regression."""
    description: str = ""
    """One sentence."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes."""
    feature_names: tuple[str, ...] | None = None
    """Names of the inputs."""
    target_mean: float = 0.0
    """The mean that was subtracted: targets are (original - target_mean) / target_sd."""
    target_sd: float = 1.0
    """What targets were divided by."""
    image: tuple[int, ...] | None = None
    """Height and width, where inputs are images as rows of numbers."""
    ood_name: str = ""
    """What the inputs of `ood` are."""
    exchangeable: bool = True
    """Whether training and validation examples could be exchanged: not if they are split by time."""

    @property
    def kind(self) -> Literal["classes", "labels", "real"]:
        """What the targets are: one of several classes, labels that are present or not (whole numbers, several per
        example), or real numbers."""
        if self.classes is not None:
            return "classes"
        targets = self.train.targets
        return "labels" if not targets.is_floating_point() and targets.dim() > 1 else "real"


def names() -> tuple[str, ...]:
    """What `load` knows without a folder."""
    return tuple(_LOADERS)


def load(name: str, *, seed: int = 0, folder: Path | str | None = None) -> Splits:
    """A data set by name: built in, or read from a `folder` that holds its files.

    Built-in sets are cut into 60 % train, 20 % val and 20 % test by the seed, stratified where there are classes.

    Class targets are int64 (N,), regression targets floats (N, 1). Digits are (N, 64) in [0, 1]. The inputs
    of wine, breast_cancer and diabetes, and the targets of diabetes, are standardised with mean and standard
    deviation of train; `target_mean` and `target_sd` lead back.

    "mnist", "fashion_mnist", "cifar10", "cifar100" and "svhn" are images (N, C, H, W) in [0, 1] from a folder with
    NAME.npz (x_train, y_train, x_test, y_test), or with the files in which they are handed around: idx and idx.gz,
    CIFAR's binary or Python batches, or NAME_train*.npz and NAME_test*.npz with differenced planes. A sixth (grey) or
    a tenth (colour) of the training part becomes val. A folder with only test images is cut as built-in sets are.
    """
    if name in SETS:
        if folder is None:
            raise ValueError(
                f"{name} is not built in: pass folder=, where its files are (--folder on the command line)"
            )
        return _images(SETS[name], Path(folder), seed)
    if name not in _LOADERS:
        hint = did_you_mean(name, [*_LOADERS, *SETS])
        raise ValueError(f"expected the name of a built-in data set, got {name!r}.{hint}")
    return _LOADERS[name](seed)


def load_images(name: str, folder: Path | str) -> dict[str, Data]:
    """The parts of an image set as its files have them, not cut: train and test, or only test."""
    if name not in SETS:
        raise ValueError(f"expected the name of an image set, got {name!r}.{did_you_mean(name, SETS)}")
    return {part: as_data(images) for part, images in read_images(SETS[name], folder).items()}


def _digits(seed: int) -> Splits:
    bunch = _sklearn("load_digits")
    data = Data(bunch.data / 16.0, bunch.target)
    train, val, test = data.split(*PARTS, seed=seed, stratify=True)
    return Splits(
        "digits",
        train,
        val,
        test,
        classes=10,
        description="Handwritten digits as 8 x 8 grey images in [0, 1] (1,797, UCI optical recognition).",
        class_names=tuple(map(str, range(10))),
        image=(8, 8),
    )


def _tabular(seed: int, name: str, description: str) -> Splits:
    bunch = _sklearn(f"load_{name}")
    data = Data(torch.from_numpy(bunch.data), bunch.target)
    train, val, test = _standardised(*data.split(*PARTS, seed=seed, stratify=True))
    return Splits(
        name,
        train,
        val,
        test,
        classes=len(bunch.target_names),
        description=description,
        class_names=tuple(map(str, bunch.target_names)),
        feature_names=tuple(map(str, bunch.feature_names)),
    )


def _diabetes(seed: int) -> Splits:
    bunch = _sklearn("load_diabetes", scaled=False)
    data = Data(torch.from_numpy(bunch.data), torch.from_numpy(bunch.target).unsqueeze(-1))
    parts = data.split(*PARTS, seed=seed)
    mean, sd = _moments(parts[0].targets)
    train, val, test = _standardised(*(Data(part.inputs, (part.targets - mean) / sd) for part in parts))
    return Splits(
        "diabetes",
        train,
        val,
        test,
        description="Progression of diabetes in 442 patients from ten measurements, standardised.",
        feature_names=tuple(map(str, bunch.feature_names)),
        target_mean=mean.item(),
        target_sd=sd.item(),
    )


def _gaps(seed: int) -> Splits:
    train, val, test = toys.gaps(200, seed=seed).split(*PARTS, seed=seed)
    return Splits(
        "gaps",
        train,
        val,
        test,
        ood=toys.in_gaps(200, seed=seed),
        description="Regression of sin 3x on two clusters of inputs, with the gaps around them as ood.",
    )


def _plane(seed: int, name: str, make: Callable[..., Data], classes: int, description: str) -> Splits:
    train, val, test = make(1000, seed=seed).split(*PARTS, seed=seed, stratify=True)
    return Splits(name, train, val, test, classes=classes, description=description)


def _images(known: ImageSet, folder: Path, seed: int) -> Splits:
    parts = read_images(known, folder)
    alone = "train" not in parts
    first, fractions = (parts["test"], PARTS) if alone else (parts["train"], (1 - known.val, known.val))
    rows = Data(torch.arange(len(first.labels)), torch.from_numpy(first.labels))
    cut = [as_data(first, part.inputs) for part in rows.split(*fractions, seed=seed, stratify=True)]
    train, val, test = cut if alone else (*cut, as_data(parts["test"]))
    origin = f", cut from {rows.n:,} test images, since the folder has no others." if alone else "."
    return Splits(
        known.name,
        train,
        val,
        test,
        classes=known.classes,
        description=known.description.removesuffix(".") + origin,
        class_names=known.class_names,
    )


_LOADERS: dict[str, Callable[[int], Splits]] = {
    "digits": _digits,
    "wine": partial(
        _tabular,
        name="wine",
        description="Three cultivars of wine (178, UCI) from 13 chemical measurements, standardised.",
    ),
    "breast_cancer": partial(
        _tabular,
        name="breast_cancer",
        description="Malignant or benign tumours (569, Wisconsin) from 30 cell measurements, standardised.",
    ),
    "diabetes": _diabetes,
    "gaps": _gaps,
    "moons": partial(
        _plane,
        name="moons",
        make=toys.moons,
        classes=2,
        description="Two interleaved half circles in the plane with noise of standard deviation 0.1.",
    ),
    "gaussians": partial(
        _plane,
        name="gaussians",
        make=toys.gaussians,
        classes=5,
        description="Five slightly overlapping round normals in the plane, evenly on a circle.",
    ),
}


def _sklearn(loader: str, **options: Any) -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(
            f'{loader.removeprefix("load_")} expected scikit-learn, got none; pip install "basinet[all]"'
        ) from error
    return getattr(datasets, loader)(**options)


def _standardised(train: Data, *others: Data) -> tuple[Data, ...]:
    """All parts with the training part's inputs at mean 0 and standard deviation 1; in the default dtype."""
    mean, sd = _moments(train.inputs)
    dtype = torch.get_default_dtype()
    return tuple(Data((part.inputs - mean) / sd, part.targets).to(dtype=dtype) for part in (train, *others))


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (divisor N) over the examples; 1 for a column that does not vary."""
    sd = x.std(0, correction=0)
    return x.mean(0), torch.where(sd > 0, sd, torch.ones_like(sd))
