"""Repulsion on images: accuracy, NLL and ECE of test images, clean and corrupted, and how far input gradients agree."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Set
from contextlib import nullcontext
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from basinet import (
    Data,
    Engine,
    Event,
    Posterior,
    Problem,
    corruptions,
    fit,
    input_gradients,
    likelihoods,
    priors,
    score,
)
from basinet.data import CropFlip
from basinet.metrics import gradient_cosine, mean_of_pairs

from .. import Options, describe
from .paired import Kept, differences, each_score
from .setting import Setting, image_methods

LOOKED_AT = 500  # test images whose input gradients are compared
SHOWN = ("accuracy", "nll", "ece")
PLAIN = "deep ensemble"  # what the others are compared with


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


def _pictures(setting: Setting, options: Options) -> Pictures:
    if setting.whole:
        parts = options.images(setting.data)
        if "train" not in parts:
            raise ValueError(f"{options.folder}: expected the training images of {setting.data}, got test images only")
        train, test = parts["train"], parts["test"]
    else:
        splits = options.load(setting.data)
        train, test = splits.train, splits.test
    train, test = options.cut(train, setting.train), options.cut(test)
    mean, sd = (f(train.inputs, (0, 2, 3)).reshape(-1, 1, 1) for f in (torch.mean, torch.std))
    scaled = Data((train.inputs - mean) / sd, train.targets)
    return Pictures(scaled.augmented(CropFlip()) if setting.augment else scaled, test.inputs, test.targets, mean, sd)


def kept(options: Options, data: str, method: str, seed: int) -> Kept:
    """Where the scores of each image are."""
    return Kept(options.out / "repulsion-scores", data, method, seed)


def image_records(
    name: str, setting: Setting, options: Options, engine: Engine, done: Set[str]
) -> Iterator[dict[str, Any]]:
    """A record for each method, the deep ensemble first; `name` is what records call the setting."""
    pictures = _pictures(setting, options)
    prior = priors.Normal(scale=setting.scale(pictures.train.n))
    problem = Problem(setting.make, likelihoods.Categorical(), prior)
    pool = options.out / f"pool-{name}"
    for label, recipe in options.chosen(image_methods(setting), done).items():
        stamps: list[tuple[int, float]] = []

        def stamp(event: Event, stamps: list[tuple[int, float]] = stamps) -> None:
            stamps.append((event.step, time.perf_counter()))

        posterior = fit(
            recipe,
            problem,
            pictures.train,
            members=setting.members,
            seed=options.seed,
            pool=pool,
            engine=engine,
            observe=stamp,
        ).to(engine.place)
        paces = [(t - s) / (b - a) for (a, s), (b, t) in pairwise(stamps) if b > a]
        with _lower(engine):
            predictive = posterior.predict(pictures.scaled(pictures.test))
            clean = score(predictive, pictures.targets)
            corrupted, each = _under_corruption(posterior, pictures, engine, options.seed, setting.corrupted)
        scores = {"clean": each_score(predictive, pictures.targets), "corrupted": each}
        kept(options, name, label, options.seed).write(scores, pictures.targets)
        pair = (kept(options, name, label, options.seed).read(), kept(options, name, PLAIN, options.seed).read())
        yield {
            "data": name,
            "method": label,
            "seed": options.seed,
            "members": setting.members,
            "setting": asdict(setting),
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


def _lower(engine: Engine) -> Any:
    """Predictions in the precision of training."""
    return nullcontext() if engine.autocast is None else torch.autocast(engine.place.type, engine.autocast)


def _words(engine: Engine) -> str:
    """The device, and the precision where it is a lower one."""
    name = torch.cuda.get_device_name(engine.place) if engine.place.type == "cuda" else "CPU"
    return name if engine.autocast is None else f"{name}, {str(engine.autocast).removeprefix('torch.')}"


def _under_corruption(
    posterior: Posterior, pictures: Pictures, engine: Engine, seed: int, most: int
) -> tuple[dict[str, Any], Tensor]:
    """Scores of each corruption, mean over severities, and the mean over all; and scores of each image, mean over all
    corruptions, (2, B)."""
    images, targets = pictures.test[:most].to(engine.place), pictures.targets[:most]
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
