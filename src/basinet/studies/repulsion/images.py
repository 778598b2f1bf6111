"""Repulsion on images: accuracy, NLL and ECE of test images, clean and corrupted, and how far input gradients agree."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Set
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...data import CropFlip, Data, corruptions, datasets
from ...engine import Engine, Event, Method
from ...fit import fit
from ...input_gradients import input_gradients
from ...methods.forde import FoRDE
from ...methods.lit import LIT
from ...methods.map import MAP
from ...methods.wgd import WGD
from ...metrics import gradient_cosine, mean_of_pairs
from ...networks import MLP, ResNet
from ...optim import SGD, Adam, Cosine, Optimizer
from ...pool import describe
from ...posterior import Posterior
from ...problem import Problem
from ...problem.likelihoods import Categorical
from ...problem.priors import Normal
from ...scoring import score
from .. import Options
from .paired import Kept, differences, each_score

MEMBERS = 10
CORRUPTED = 1000  # test images that are corrupted, of each kind and severity
LOOKED_AT = 500  # test images whose input gradients are compared
SHOWN = ("accuracy", "nll", "ece")
PLAIN = "deep ensemble"  # what the others are compared with


class Setting(NamedTuple):
    """An image set, and how all methods train on it."""

    network: Callable[[], nn.Module]
    epochs: int
    batch_size: int
    prior: float  # scale of the Normal prior
    optimizer: Optimizer
    augment: CropFlip | None
    train: int | None  # examples; None: all


IMAGES = {
    "fashion_mnist": Setting(
        lambda: MLP(784, 10, hidden=(200, 200)), 20, 128, 1.0, Adam(lr=Cosine(peak=1e-3)), None, 20_000
    ),
    "cifar10": Setting(
        lambda: ResNet(8), 30, 128, 0.3, SGD(lr=Cosine(peak=0.1), momentum=0.9, nesterov=True), CropFlip(), None
    ),
}


def image_methods(setting: Setting) -> dict[str, Method]:
    """All methods with the same epochs, batches and optimiser."""
    same: dict[str, Any] = {
        "epochs": setting.epochs,
        "batch_size": setting.batch_size,
        "optimizer": setting.optimizer,
    }
    return {
        "deep ensemble": MAP(**same),
        "WGD (weights)": WGD(**same),
        "WGD (function)": WGD(**same, space="function"),
        "FoRDE (identity)": FoRDE(**same, lengthscales="identity"),
        "FoRDE (pca)": FoRDE(**same, lengthscales="pca"),
        "LIT": LIT(**same),
    }


class Pictures(NamedTuple):
    """An image set ready for training, and its test images before scaling."""

    train: Data
    test: Tensor  # (B, C, H, W) in [0, 1]
    targets: Tensor
    mean: Tensor  # (C, 1, 1), of the training images
    sd: Tensor

    def scaled(self, images: Tensor) -> Tensor:
        """Images as the network is given them."""
        return (images - self.mean) / self.sd


def _pictures(name: str, setting: Setting, options: Options) -> Pictures:
    splits = datasets.load(name, seed=options.seed, folder=options.folder)
    train, test = options.cut(splits.train, setting.train), options.cut(splits.test)
    mean, sd = (f(train.inputs, (0, 2, 3)).reshape(-1, 1, 1) for f in (torch.mean, torch.std))
    scaled = Data((train.inputs - mean) / sd, train.targets)
    scaled = scaled if setting.augment is None else scaled.augmented(setting.augment)
    return Pictures(scaled, test.inputs, test.targets, mean, sd)


def kept(options: Options, data: str, method: str, seed: int) -> Kept:
    """Where the scores of each image are."""
    return Kept(options.out / "repulsion-scores", data, method, seed)


def image_records(name: str, options: Options, engine: Engine, done: Set[str]) -> Iterator[dict[str, Any]]:
    """A record a method, the deep ensemble first."""
    setting = IMAGES[name]
    pictures = _pictures(name, setting, options)
    problem = Problem(setting.network, Categorical(), Normal(scale=setting.prior))
    pool = options.out / f"pool-{name}"
    for label, recipe in options.chosen(image_methods(setting), done).items():
        stamps: list[tuple[int, float]] = []

        def stamp(event: Event, stamps: list[tuple[int, float]] = stamps) -> None:
            stamps.append((event.step, time.perf_counter()))

        posterior = fit(
            recipe,
            problem,
            pictures.train,
            members=MEMBERS,
            seed=options.seed,
            pool=pool,
            engine=engine,
            observe=stamp,
        ).to(engine.place)
        paces = [(t - s) / (b - a) for (a, s), (b, t) in pairwise(stamps) if b > a]
        predictive = posterior.predict(pictures.scaled(pictures.test))
        clean = score(predictive, pictures.targets)
        corrupted, each = _under_corruption(posterior, pictures, engine, options.seed)
        scores = {"clean": each_score(predictive, pictures.targets), "corrupted": each}
        kept(options, name, label, options.seed).write(scores, pictures.targets)
        pair = (kept(options, name, label, options.seed).read(), kept(options, name, PLAIN, options.seed).read())
        yield {
            "data": name,
            "method": label,
            "seed": options.seed,
            "members": MEMBERS,
            "recipe": describe(recipe),
            "n_train": pictures.train.n,
            "n_test": len(pictures.targets),
            "clean": {k: clean[k] for k in SHOWN},
            **corrupted,
            "difference": None if label == PLAIN else differences([pair]),  # None too where there is no other
            "gradient_cosine": _agreement(posterior, pictures),
            "seconds": posterior.info["seconds"],
            "trained_on": _words(engine),
            "step_ms": 1e3 * min(paces) if paces else None,  # of all members, the fastest epoch
        }


def _words(engine: Engine) -> str:
    """The device, and the precision where it is a lower one."""
    name = torch.cuda.get_device_name(engine.place) if engine.place.type == "cuda" else "CPU"
    return name if engine.autocast is None else f"{name}, {str(engine.autocast).removeprefix('torch.')}"


def _under_corruption(
    posterior: Posterior, pictures: Pictures, engine: Engine, seed: int
) -> tuple[dict[str, Any], Tensor]:
    """Scores of each corruption, mean over severities, and the mean over all; and scores of each image, mean over all
    corruptions, (2, B)."""
    images, targets = pictures.test[:CORRUPTED].to(engine.place), pictures.targets[:CORRUPTED]
    each: dict[str, dict[str, float]] = {}
    by_image = torch.zeros(2, len(targets), dtype=torch.float64)
    for kind in corruptions.NAMES:
        rows = []
        for severity in range(1, 6):
            corrupted = corruptions.corrupt(images, kind, severity, seed=seed).cpu()
            predictive = posterior.predict(pictures.scaled(corrupted))
            rows.append(score(predictive, targets))
            by_image += each_score(predictive, targets) / (5 * len(corruptions.NAMES))
        each[kind] = {k: math.fsum(r[k] for r in rows) / len(rows) for k in SHOWN}
    means = {k: math.fsum(e[k] for e in each.values()) / len(each) for k in SHOWN}
    return {"corrupted": means, "corruptions": each, "n_corrupted": len(targets)}, by_image


def _agreement(posterior: Posterior, pictures: Pictures) -> float:
    """Mean cosine between the gradients of two members' true-class logits with respect to the input."""
    few = Data(pictures.scaled(pictures.test[:LOOKED_AT]), pictures.targets[:LOOKED_AT])
    return float(mean_of_pairs(gradient_cosine(input_gradients(posterior, few))))
