"""What does it buy that members repel each other: in their weights, in their outputs, in what they look at?

Toys: regression with gaps, where the spread between the clusters is compared with that inside them; and a model that is
linear in random features, whose exact predictive is known. Images (with a data folder): Fashion-MNIST with an MLP,
CIFAR-10 with a ResNet-8, ten members a method, all trained alike: accuracy, NLL and ECE on test images, clean and under
nineteen corruptions at five severities, and how far the members' input gradients agree. A record holds one method on
one set; those that are there already are not made again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.noise import Noise
from ..data import CropFlip, Data, corruptions, datasets
from ..data.toys import gaps, in_gaps
from ..engine import Engine, Event, Method
from ..fit import fit
from ..input_gradients import input_gradients
from ..methods.anchored import Anchored
from ..methods.forde import FoRDE
from ..methods.lit import LIT
from ..methods.map import MAP
from ..methods.svgd import SVGD
from ..methods.wgd import WGD
from ..metrics import gradient_cosine, mean_of_pairs
from ..networks import MLP, ResNet
from ..optim import SGD, Adam, Cosine, Optimizer
from ..pool import append_record, describe, read_records
from ..posterior import Posterior
from ..predict import RealPredictive
from ..problem import Problem
from ..problem.likelihoods import Categorical, Gaussian
from ..problem.priors import Normal
from ..scoring import score
from . import Options, Say

NARROWED_BY = ("sets", "methods", "examples")
MEMBERS = 10
CORRUPTED = 1000  # test images that are corrupted, of each kind and severity
LOOKED_AT = 500  # test images whose input gradients are compared
SHOWN = ("accuracy", "nll", "ece")


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


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/repulsion.jsonl."""
    return list(_records(options, say))


def _records(options: Options, say: Say) -> Iterator[dict[str, Any]]:
    engine = Engine(device=options.device, progress=True)
    known = {"gaps": _gaps, "random features": _random_features}
    place = options.out / "repulsion.jsonl"
    there = {(r["data"], r["method"], r["seed"]) for r in (read_records(place) if place.exists() else [])}
    for name in options.sets or (*known, *IMAGES):
        if name in known:
            found = known[name](options, engine)
        elif name in IMAGES:
            if options.folder is None:
                say(f"{name} left out: give --folder with its files")
                continue
            found = _images(name, options, engine, there)
        else:
            raise ValueError(f"unknown set {name!r}: expected one of {', '.join((*known, *IMAGES))}")
        for record in found:
            if (record["data"], record["method"], record["seed"]) in there:
                continue
            yield append_record(place, {"study": "repulsion", **record})
            say(_told(record))


def _chosen(methods: dict[str, Method], options: Options) -> dict[str, Method]:
    return {n: m for n, m in methods.items() if not options.methods or n in options.methods}


def toy_methods(steps: int) -> dict[str, Method]:
    """The methods on regression toys: full batches and the same optimiser for all."""
    same: dict[str, Any] = {"epochs": steps, "batch_size": None, "optimizer": Adam(lr=Cosine(peak=0.01))}
    return {
        "deep ensemble": MAP(**same),
        "anchored": Anchored(**same),
        "SVGD": SVGD(**same),
        "WGD (weights)": WGD(**same),
        "WGD (function)": WGD(**same, space="function", extra=64),
        "FoRDE": FoRDE(**same),
    }


def gap_problem() -> Problem:
    """A small network with known noise, for the regression with gaps."""
    return Problem(lambda: MLP(1, 1, hidden=(50,), activation=nn.Tanh), Gaussian(noise=0.05), Normal(scale="lecun"))


def _gaps(options: Options, engine: Engine) -> Iterator[dict[str, Any]]:
    """The spread between the clusters of the data over that inside them."""
    train, inside, between = gaps(60), gaps(200, seed=1), in_gaps(200)
    for name, recipe in _chosen(toy_methods(3000), options).items():
        posterior = fit(recipe, gap_problem(), train, members=MEMBERS, seed=options.seed, engine=engine)
        scores = {where: score(posterior, data) for where, data in (("inside", inside), ("between", between))}
        yield {
            "data": "gaps",
            "method": name,
            "seed": options.seed,
            "members": MEMBERS,
            "recipe": describe(recipe),
            "spread": {where: math.sqrt(s["epistemic"]) for where, s in scores.items()},
            "nll": {where: s["nll"] for where, s in scores.items()},
            "coverage_90": {where: s["coverage_90"] for where, s in scores.items()},
            "seconds": posterior.info["seconds"],
        }


class Features(nn.Module):
    """Cosines of fixed random frequencies: a model that is linear in its parameters."""

    def __init__(self, count: int = 30) -> None:
        super().__init__()
        key, like = Noise.seed(0).split("features"), torch.zeros(count)
        self.frequency = nn.Buffer(2.0 * key.split("frequency").normal(like))
        self.phase = nn.Buffer(2 * math.pi * key.split("phase").uniform(like))
        self.weight = nn.Parameter(torch.zeros(1, count))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew."""
        nn.init.normal_(self.weight)

    def basis(self, x: Tensor) -> Tensor:
        """What the outputs are linear combinations of."""
        return torch.cos(x * self.frequency + self.phase) * math.sqrt(2 / len(self.frequency))

    def forward(self, x: Tensor) -> Tensor:
        return self.basis(x) @ self.weight.T


def _random_features(options: Options, engine: Engine) -> Iterator[dict[str, Any]]:
    """The distance from the exact predictive of a model that is linear in random features."""
    noise, members = 0.1, 50
    train, line = gaps(60), torch.linspace(-1.5, 1.5, 200)[:, None]
    problem = Problem(Features, Gaussian(noise=noise), Normal(scale=1.0))
    seen, shown = (Features().basis(x).double() for x in (train.inputs, line))
    precision = seen.T @ seen / noise**2 + torch.eye(seen.shape[1], dtype=torch.float64)
    mean = (shown @ torch.linalg.solve(precision, seen.T @ train.targets.double()) / noise**2)[:, 0]
    sd = (shown * torch.linalg.solve(precision, shown.T).T).sum(1).sqrt()
    for name, recipe in _chosen(toy_methods(5000), options).items():
        posterior = fit(recipe, problem, train, members=members, seed=options.seed, engine=engine)
        predictive = posterior.predict(line)
        assert isinstance(predictive, RealPredictive)
        ratio = (predictive.epistemic[:, 0].double().cpu().sqrt().clamp(min=1e-6) / sd).log()
        off = (predictive.mean[:, 0].double().cpu() - mean) / sd
        yield {
            "data": "random features",
            "method": name,
            "seed": options.seed,
            "members": members,
            "recipe": describe(recipe),
            "mean_off": float(off.square().mean().sqrt()),  # in exact standard deviations
            "sd_ratio": float(ratio.mean().exp()),  # geometric mean over the line
            "sd_log_error": float(ratio.square().mean().sqrt()),
            "seconds": posterior.info["seconds"],
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


def _images(name: str, options: Options, engine: Engine, there: set[tuple[str, str, int]]) -> Iterator[dict[str, Any]]:
    setting = IMAGES[name]
    pictures = _pictures(name, setting, options)
    problem = Problem(setting.network, Categorical(), Normal(scale=setting.prior))
    pool = options.out / f"pool-{name}"
    for label, recipe in _chosen(image_methods(setting), options).items():
        if (name, label, options.seed) in there:
            continue
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
        )
        paces = [(t - s) / (b - a) for (a, s), (b, t) in pairwise(stamps) if b > a]
        clean = score(posterior, Data(pictures.scaled(pictures.test), pictures.targets))
        yield {
            "data": name,
            "method": label,
            "seed": options.seed,
            "members": MEMBERS,
            "recipe": describe(recipe),
            "n_train": pictures.train.n,
            "n_test": len(pictures.targets),
            "clean": {k: clean[k] for k in SHOWN},
            **_under_corruption(posterior, pictures, engine, options.seed),
            "gradient_cosine": _agreement(posterior, pictures),
            "seconds": posterior.info["seconds"],
            "step_ms": 1e3 * min(paces) if paces else None,  # of all members, the fastest epoch
        }


def _under_corruption(posterior: Posterior, pictures: Pictures, engine: Engine, seed: int) -> dict[str, Any]:
    """Scores of each corruption, mean over severities, and the mean over all."""
    images, targets = pictures.test[:CORRUPTED].to(engine.place), pictures.targets[:CORRUPTED]
    each: dict[str, dict[str, float]] = {}
    for kind in corruptions.NAMES:
        rows = []
        for severity in range(1, 6):
            corrupted = corruptions.corrupt(images, kind, severity, seed=seed).cpu()
            rows.append(score(posterior.predict(pictures.scaled(corrupted)), targets))
        each[kind] = {k: math.fsum(r[k] for r in rows) / len(rows) for k in SHOWN}
    means = {k: math.fsum(e[k] for e in each.values()) / len(each) for k in SHOWN}
    return {"corrupted": means, "corruptions": each, "n_corrupted": len(targets)}


def _agreement(posterior: Posterior, pictures: Pictures) -> float:
    """Mean cosine between the gradients of two members' true-class logits with respect to the input."""
    few = Data(pictures.scaled(pictures.test[:LOOKED_AT]), pictures.targets[:LOOKED_AT])
    return float(mean_of_pairs(gradient_cosine(input_gradients(posterior, few))))


def _told(record: dict[str, Any]) -> str:
    head = f"{record['data']:15} {record['method']:18}"
    if "clean" in record:
        parts = [
            f"{where} " + "  ".join(f"{k} {record[where][k]:.4f}" for k in SHOWN) for where in ("clean", "corrupted")
        ]
        return f"{head} {'   '.join(parts)}   cosine {record['gradient_cosine']:.3f}   {record['seconds']:.0f} s"
    if "spread" in record:
        spread, nll = record["spread"], record["nll"]["between"]
        return f"{head} spread inside {spread['inside']:.4f}, between {spread['between']:.4f}; NLL between {nll:.3f}"
    times, error = record["sd_ratio"], record["sd_log_error"]
    return f"{head} mean off {record['mean_off']:.3f} sd, sd times {times:.3f} (log error {error:.3f})"
