"""Every method that a GPU trains in minutes beside the published HMC probabilities of CIFAR-10.

The reference is that of the NeurIPS 2021 competition on approximate inference, made by the method of Izmailov et al.
(2021): ResNet-20 with filter response norm and swish, prior N(0, 1/5), no augmentation. `cifar10_hmc_probs.npz` in the
data folder has its probabilities of the test images in their usual order; unless they give the published accuracy and
NLL, nothing is compared.

Ours have the same network and prior, 45,000 training images without augmentation, 5,000 to tune on, and bf16 on a GPU.
Networks are trained by descent on the loss of that posterior, so that all differences are those of the approximation:
ten modes, and what starts from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from basinet import (
    IVON,
    MAP,
    PEP,
    SGHMC,
    SWAG,
    Data,
    Laplace,
    Posterior,
    Problem,
    datasets,
    fit,
    likelihoods,
    priors,
    score,
    temper,
)
from basinet.data.formats import read_npz
from basinet.engine import Method
from basinet.metrics import accuracy, agreement, nll, total_variation
from basinet.networks import SwishResNet
from basinet.optim import SGD, Cosine, Cyclic, WarmUp

from .. import Options, Say, describe
from .records import Book, Record

FILE = "cifar10_hmc_probs.npz"
ACCURACY, NLL = 0.9144, 0.2773  # of the published probabilities
VARIANCE = 0.2  # of the prior
MEMBERS, EPOCHS, BATCH = 10, 60, 128
MODES = MAP(
    epochs=EPOCHS,
    batch_size=BATCH,
    optimizer=SGD(lr=WarmUp(schedule=Cosine(peak=0.1)), momentum=0.9, nesterov=True),
)


class Row(NamedTuple):
    """A method, how many members, and whether it gets a temperature by validation images."""

    recipe: Method
    members: int
    tempered: bool = False


def rows() -> dict[str, Row]:
    """Those that need no further training first."""
    swag = SWAG(base=MODES, iterates=10, rank=10, optimizer=SGD(lr=0.02, momentum=0.9))
    chains = SGHMC(epochs=EPOCHS, batch_size=BATCH, lr=Cyclic(peak=0.05, cycles=3), explore=0.8, draws=9)
    return {
        "MAP": Row(MODES, 1),
        "tempered MAP": Row(MODES, 1, True),
        "deep ensemble": Row(MODES, MEMBERS),
        "tempered deep ensemble": Row(MODES, MEMBERS, True),
        "Laplace, last layer": Row(Laplace(base=MODES, via="probit"), 1),
        "mixture of Laplaces, last layer": Row(Laplace(base=MODES, via="probit"), MEMBERS),
        "Laplace, diagonal": Row(Laplace(base=MODES, where=None, structure="diagonal", subset=5000, via="probit"), 1),
        "PEP": Row(PEP(base=MODES), 1),
        "PEP ensemble": Row(PEP(base=MODES), MEMBERS),
        "SWAG": Row(swag, 1),
        "MultiSWAG": Row(swag, MEMBERS),
        "cyclical SGHMC": Row(chains, 1),
        "cyclical SGHMC chains": Row(chains, 4),
        "IVON": Row(IVON(epochs=EPOCHS, batch_size=BATCH), 1),
    }


def compared(options: Options, book: Book, say: Say) -> Iterator[Record]:
    """A record of each row."""
    assert options.folder is not None
    train, val, test = _images(options)
    truth = published(options.folder, test.targets)[: test.n]
    engine = options.engine(progress=True)
    if engine.place.type == "cuda":
        engine = replace(engine, autocast=torch.bfloat16)
    problem = Problem(SwishResNet, likelihoods.Categorical(), priors.Normal(scale=VARIANCE**0.5))
    for label, row in options.chosen(rows()).items():
        record = book.get(label)
        if record is None:
            try:
                posterior = fit(
                    row.recipe,
                    problem,
                    train,
                    val=val,
                    members=row.members,
                    seed=options.seed,
                    pool=options.out / "pool-cifar10",
                    engine=engine,
                ).to(engine.place)
            except (ValueError, FloatingPointError) as error:
                say(f"cifar10: {label} left out: {error}")
                continue
            posterior = temper(posterior, val, seed=options.seed) if row.tempered else posterior
            record = book.add(_record(label, row, posterior, truth, train, test))
        say(
            f"cifar10   {label:32} agreement {record['agreement']:.4f}  TV {record['total_variation']:.4f}  accuracy "
            f"{record['accuracy']:.4f}  NLL {record['nll']:.4f}"
        )
        yield record


def published(folder: Path, targets: Tensor | None = None) -> Tensor:
    """The probabilities (10,000, 10) of the test images; checked against what is published, where all targets are
    there."""
    [probs] = read_npz(folder / FILE, ("probs",)).values()
    tensor = torch.from_numpy(probs).double()
    if targets is None or len(targets) != len(tensor):
        return tensor
    right, loss = float(accuracy(tensor, targets)), float(nll(tensor.clamp(min=1e-12).log(), targets))
    if abs(right - ACCURACY) > 5e-5 or abs(loss - NLL) > 5e-4:
        raise ValueError(
            f"{folder / FILE}: expected accuracy {ACCURACY} and NLL {NLL} of the test images, as published, got "
            f"{right:.4f} and {loss:.4f}: the images, or the probabilities, are in another order"
        )
    return tensor


def _images(options: Options) -> tuple[Data, Data, Data]:
    """Training, validation and test images, scaled by mean and sd of the training images. The test part comes whole
    or, for a quick look, cut."""
    splits = datasets.load("cifar10", seed=options.seed, folder=options.folder)
    parts = [options.cut(part) for part in (splits.train, splits.val, splits.test)]
    published(options.folder or Path(), splits.test.targets)
    mean, sd = (f(parts[0].inputs, (0, 2, 3)).reshape(-1, 1, 1) for f in (torch.mean, torch.std))
    train, val, test = (Data((part.inputs - mean) / sd, part.targets) for part in parts)
    return train, val, test


def _record(label: str, row: Row, posterior: Posterior, truth: Tensor, train: Data, test: Data) -> Record:
    probs = torch.cat([posterior.predict(x).probs.double().cpu() for x in test.inputs.split(1000)])
    scores = score(posterior, test)
    values = {"agreement": float(agreement(probs, truth)), "total_variation": float(total_variation(probs, truth))}
    values |= {name: float(scores[name]) for name in ("accuracy", "nll", "ece")}
    about = {"method": label, "members": len(posterior), "tempered": row.tempered}
    seconds = sum(part.info.get("seconds", 0.0) for part in posterior.parts)
    sizes = {"n_train": train.n, "n_test": test.n, "epochs": EPOCHS, "prior_variance": VARIANCE}
    return about | values | sizes | {"seconds": seconds, "recipe": describe(row.recipe)}
