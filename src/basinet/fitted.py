"""A posterior fitted to a file: kept with the way files are read for it.

It is the folder of a posterior with one more file, `table.json`: the encoder and what network it was, so that
predicting needs the folder and a new file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from .data import Encoder, Table
from .data.encoder import check_encoder
from .networks import MLP
from .pool import FileError, decode, encode, fingerprint, read_json, write_json
from .posterior import Posterior
from .problem import Problem
from .problem.likelihoods import (
    Bernoulli,
    Categorical,
    ClassLikelihood,
    Gaussian,
    Heteroscedastic,
    LabelLikelihood,
    Likelihood,
    NoisyDirichlet,
    RealLikelihood,
    StudentT,
)
from .problem.priors import Normal, Prior
from .saving import MANIFEST, load
from .scoring import BUDGET

Maker = Callable[[int, int], nn.Module]  # (inputs, outputs) -> network

TABLE = "table.json"
Kind = Literal["classes", "labels", "real"]

LIKELIHOODS: dict[Kind, tuple[Likelihood, ...]] = {  # of files, whose real targets have standard deviation 1
    "classes": (Categorical(), NoisyDirichlet()),
    "labels": (Bernoulli(),),
    "real": (Gaussian(noise=0.5, learned=True), StudentT(scale=0.5, learned=True), Heteroscedastic()),
}


def problem_for(
    inputs: int,
    outputs: int,
    kind: Kind,
    make: Maker | None = None,
    likelihood: Likelihood | None = None,
    prior: Prior | None = None,
) -> Problem:
    """A network, likelihood and prior for this many inputs and outputs and targets of that kind, where none is given.

    Weights have prior scale 1; for real numbers 1 / sqrt(fan-in), since with a wider one the network fits the noise of
    a small table, and the learned noise follows it to nothing.
    """
    make = make or default_network(kind)
    likelihood = likelihood or LIKELIHOODS[kind][0]
    wanted = {"classes": ClassLikelihood, "labels": LabelLikelihood, "real": RealLikelihood}[kind]
    if not isinstance(likelihood, wanted):
        known = " or ".join(type(x).__name__ for x in LIKELIHOODS[kind])
        raise ValueError(f"expected a likelihood of {kind}, {known}, got {type(likelihood).__name__}")
    prior = prior or (Normal(scale="lecun") if kind == "real" else Normal(scale=1.0))
    width = network_outputs(outputs, likelihood)
    return Problem(lambda: make(inputs, width), likelihood, prior)


def network_outputs(outputs: int, likelihood: Likelihood) -> int:
    """How many outputs the network has: twice as many as targets, where it also predicts their noise."""
    return 2 * outputs if isinstance(likelihood, Heteroscedastic) else outputs


def default_network(kind: Kind, hidden: Sequence[int] | None = None) -> Maker:
    """An MLP with these hidden layers; by default two, of 200 for classes and labels, of 50 for real numbers."""
    widths = tuple(hidden) if hidden is not None else (50, 50) if kind == "real" else (200, 200)
    return lambda inputs, outputs: MLP(inputs, outputs, hidden=widths)


def said(problem: Problem) -> str:
    """Prior and likelihood of a problem in a line."""
    return f"prior {_brief(problem.prior)}, likelihood {_brief(problem.likelihood)}"


def _brief(value: Prior | Likelihood) -> str:
    """A dataclass by its name and its fields that say something."""
    values = {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]
    return f"{type(value).__name__}({', '.join(f'{name}={v}' for name, v in values.items() if v not in (None, False))})"


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior fitted to a file, and how files are read for it."""

    posterior: Posterior
    encoder: Encoder
    file: str  # the name of the file it was fitted to
    checksum: str  # and the SHA-256 of its bytes
    model: str | None = None  # where the network came from; None: the built-in one
    hidden: tuple[int, ...] | None = None  # widths of the built-in network; None: the default ones

    def save(self, folder: Path) -> None:
        """Writes the posterior, then the rest beside it; what belongs to another posterior is found when loading."""
        self.posterior.save(folder)
        content = {
            "encoder": encode(self.encoder, {}),
            "file": self.file,
            "checksum": self.checksum,
            "model": self.model,
            "hidden": self.hidden,
            "outputs": network_outputs(self.encoder.target.outputs, self.posterior.problem.likelihood),
            "posterior": fingerprint(read_json(folder / MANIFEST)),
        }
        write_json(folder / TABLE, content)

    @staticmethod
    def load(folder: Path, make: Maker | None = None, device: torch.device | str = "cpu") -> Fitted:
        """What `save` wrote. `make` is the network, where it was not the built-in one: files never say what to run."""
        if not folder.is_dir():
            raise FileError(folder, "expected the folder of a posterior fitted to a file; there is none")
        found = read_json(folder / TABLE)
        if not isinstance(found, dict) or found.get("posterior") != fingerprint(read_json(folder / MANIFEST)):
            raise FileError(folder / TABLE, f"it belongs to another posterior than {MANIFEST}: fit again")
        if found.get("model") and make is None:
            raise FileError(folder, f"it was fitted with a network of its own: pass --model {found['model']}")
        try:
            encoder = decode(found["encoder"], {})
            check_encoder(encoder)
            hidden, outputs = _sizes(found, encoder)
            file, digest, model = (found.get(key) for key in ("file", "checksum", "model"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise FileError(folder / TABLE, f"it is damaged: {error}") from error
        network = make or default_network(encoder.target.what, hidden)
        posterior = load(folder, lambda: network(len(encoder.features), outputs), device)
        return Fitted(posterior, encoder, str(file), str(digest), model, hidden)

    def predict(
        self, table: Table, level: float = 0.9, samples: int | None = None, seed: int = 0
    ) -> dict[str, np.ndarray | list[str]]:
        """Columns of predictions, a row for each of the table, in the target's own units and names.

        Rows are predicted in chunks, so that memory does not grow with members and samples.
        """
        inputs = self.encoder.inputs(table)
        draws = sum(len(p) * p.draws.samples for p in self.posterior.predictors(samples, seed=seed))
        step = max(1, BUDGET // (40 * draws * self.encoder.target.outputs))  # doubles, five of them at a time
        parts = [
            self.encoder.predictions(self.posterior.predict(rows, samples, seed=seed), level)
            for rows in inputs.split(step)
        ]
        return {
            name: [v for part in parts for v in part[name]]
            if isinstance(first, list)
            else np.concatenate([p[name] for p in parts])
            for name, first in parts[0].items()
        }


def _sizes(found: dict[str, Any], encoder: Encoder) -> tuple[tuple[int, ...] | None, int]:
    """The hidden layers of the built-in network, None for the default ones, and how many outputs it has."""
    hidden, outputs = found.get("hidden"), found.get("outputs", encoder.target.outputs)
    sizes = [outputs, *(hidden if isinstance(hidden, list) else [] if hidden is None else [hidden])]
    if not all(type(size) is int and 0 < size < 10**7 for size in sizes):
        raise ValueError(f"expected sizes of layers, got {sizes}")
    return None if hidden is None else tuple(hidden), outputs


def checksum(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        digest = sha256()
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
