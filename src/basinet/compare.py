"""Recipes on one data set: many compared side by side, or one fitted to a file and kept with the way it is read.

A comparison has the same splits, the same network and one pool of members for all; a record each. A fit to a file is
the folder of a posterior with one more file, `table.json`: the encoder and what network it was, so that predicting
needs the folder and a new file alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .core.tree import leaves
from .data import Encoder, Table
from .data.datasets import Splits
from .engine import Engine
from .engine.method import Entry
from .fit import fit
from .methods import discover, find
from .networks import MLP
from .pool import FileError, append_record, decode, describe, encode, fingerprint, read_json, write_json
from .posterior import Posterior
from .problem import Problem
from .problem.likelihoods import Categorical, Gaussian, Likelihood
from .saving import MANIFEST, load
from .scoring import BUDGET, score

Say = Callable[[str], None]
Maker = Callable[[int, int], nn.Module]  # (inputs, outputs) -> network

TABLE = "table.json"


def compare(
    splits: Splits,
    entries: Iterable[Entry],
    *,
    out: Path,
    problem: Problem | None = None,
    encoder: Encoder | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    say: Say = lambda line: None,
) -> Iterator[dict[str, Any]]:
    """Fits and scores each entry on the test part; yields its record and appends it to `out/records.jsonl`.

    Members are kept in `out/pool`: an ensemble takes those that a smaller one trained, and a run that was stopped
    goes on where it was. With the `encoder` of a file, scores are in units of its target.
    """
    problem = problem or default_problem(splits)
    for entry in entries:
        say(f"{entry.label}: {entry.members} x {type(entry.recipe).__name__}")
        posterior = fit(
            entry.recipe,
            problem,
            splits.train,
            val=splits.val,
            members=entry.members,
            seed=seed,
            pool=out / "pool",
            engine=engine,
        )
        began = time.perf_counter()
        scores = score(posterior, splits.test)
        record = {
            "data": splits.name,
            "method": entry.label,
            "recipe": describe(entry.recipe),
            "members": entry.members,
            "seed": seed,
            "n_train": splits.train.n,
            "n_test": splits.test.n,
            "scores": scores if encoder is None else encoder.scores(scores),
            "fit_seconds": posterior.info["seconds"],
            "score_seconds": time.perf_counter() - began,
        }
        yield append_record(out / "records.jsonl", record)


def default_problem(splits: Splits, make: Maker | None = None) -> Problem:
    """A network, likelihood and prior that fit the data: an MLP, unless `make` makes another network; classes, or
    real numbers with learned noise."""
    first = leaves(splits.train.inputs)
    if len(first) != 1:
        raise ValueError(f"expected inputs of one tensor for the built-in network, got {len(first)}: pass a problem")
    outputs = splits.classes or splits.train.targets[0].numel()
    return problem_for(first[0][0].numel(), outputs, splits.classes is not None, make)


def problem_for(inputs: int, outputs: int, classes: bool, make: Maker | None = None) -> Problem:
    """The same, from the sizes."""
    make = make or default_network(classes)
    likelihood: Likelihood = Categorical() if classes else Gaussian(noise=0.5, learned=True)
    return Problem(lambda: make(inputs, outputs), likelihood)


def default_network(classes: bool) -> Maker:
    """An MLP with two hidden layers: of 200 for classes, of 50 for real numbers."""
    return lambda inputs, outputs: MLP(inputs, outputs, hidden=(200, 200) if classes else (50, 50))


def entries_of(names: Sequence[str] = (), members: int | None = None) -> list[Entry]:
    """The rows to compare: those of the named methods, or of all; `members` replaces the size of the ensembles."""
    methods = [find(name) for name in names] if names else list(discover().values())
    found = [entry for method in methods for entry in method.lineup()]
    return [e if members is None or e.members == 1 else e._replace(members=members) for e in found]


COLUMNS: dict[str, tuple[tuple[str, Callable[[dict[str, float]], float], str], ...]] = {
    "classes": (
        ("NLL", lambda s: s["nll"], ".4f"),
        ("Brier", lambda s: s["brier"], ".4f"),
        ("ECE", lambda s: s["ece"], ".4f"),
        ("accuracy", lambda s: s["accuracy"], ".2%"),
        ("epistemic", lambda s: s["epistemic"] / max(s["entropy"], 1e-12), ".1%"),
    ),
    "real": (
        ("NLL", lambda s: s["nll"], ".4f"),
        ("RMSE", lambda s: s["rmse"], ".4f"),
        ("CRPS", lambda s: s["crps"], ".4f"),
        ("90% interval", lambda s: s["coverage_90"], ".1%"),
        ("epistemic", lambda s: s["epistemic"] / max(s["variance"], 1e-12), ".1%"),
    ),
}


def table(records: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows that a person reads, from records of one kind of target."""
    columns = COLUMNS["classes" if "brier" in records[0]["scores"] else "real"]
    heads = ["method", "members", *(name for name, _, _ in columns), "seconds"]
    rows = []
    for r in records:
        values = [_short(value(r["scores"]), style) for _, value, style in columns]
        rows.append([r["method"], str(r["members"]), *values, f"{r['fit_seconds'] + r['score_seconds']:.1f}"])
    return heads, rows


def _short(value: float, style: str) -> str:
    """A number in its column's style; in digits that count where units make it large or small."""
    plain = style != ".4f" or value == 0 or 1e-3 <= abs(value) < 1e3
    return format(value, style if plain else ".4g" if abs(value) < 1 else ",.6g")


def legend(splits: Splits) -> str:
    """What the columns mean, in two sentences."""
    if splits.classes is not None:
        return (
            "NLL, Brier (summed over classes) and ECE (15 bins): lower is better. "
            "Epistemic: the share of uncertainty that is about the weights."
        )
    return (
        "NLL, RMSE and CRPS: lower is better; 90% interval: the share of targets inside it. "
        "Epistemic: the share of variance that is about the weights."
    )


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior fitted to a file, and how files are read for it."""

    posterior: Posterior
    encoder: Encoder
    file: str  # the name of the file it was fitted to
    checksum: str  # and the SHA-256 of its bytes
    model: str | None = None  # where the network came from; None: the built-in one

    def save(self, folder: Path) -> None:
        """Writes the posterior, then the rest beside it; what belongs to another posterior is found when loading."""
        self.posterior.save(folder)
        content = {
            "encoder": encode(self.encoder, {}),
            "file": self.file,
            "checksum": self.checksum,
            "model": self.model,
            "posterior": fingerprint(read_json(folder / MANIFEST)),
        }
        write_json(folder / TABLE, content)

    @staticmethod
    def load(folder: Path, make: Maker | None = None, device: torch.device | str = "cpu") -> Fitted:
        """What `save` wrote. `make` is the network, where it was not the built-in one: files never say what to run."""
        if not folder.is_dir():
            raise FileError(folder, "expected the folder of a posterior fitted to a file; there is none")
        found = read_json(folder / TABLE)
        if found.get("posterior") != fingerprint(read_json(folder / MANIFEST)):
            raise FileError(folder / TABLE, f"it belongs to another posterior than {MANIFEST}: fit again")
        if found["model"] and make is None:
            raise FileError(folder, f"it was fitted with a network of its own: pass --model {found['model']}")
        try:
            encoder = decode(found["encoder"], {})
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(folder / TABLE, str(error)) from error
        network = make or default_network(encoder.class_names is not None)
        posterior = load(folder, lambda: network(len(encoder.features), encoder.target.outputs), device)
        return Fitted(posterior, encoder, found["file"], found["checksum"], found["model"])

    def predict(
        self, table: Table, level: float = 0.9, samples: int | None = None, seed: int = 0
    ) -> dict[str, np.ndarray | list[str]]:
        """Columns of predictions, a row for each of the table, in the target's own units and names.

        Rows are predicted in chunks, so that memory does not grow with members and samples.
        """
        inputs = self.encoder.inputs(table)
        draws = sum(len(d) * d.samples for d in self.posterior.draws(samples, seed))
        step = max(1, BUDGET // (40 * draws * self.encoder.target.outputs))  # doubles, five of them at a time
        parts = [
            self.encoder.predictions(self.posterior.predict(rows, samples, seed=seed), level)
            for rows in inputs.split(step)
        ]
        return {
            name: [v for part in parts for v in part[name]]
            if name == "class"
            else np.concatenate([p[name] for p in parts])
            for name in parts[0]
        }


def checksum(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        digest = sha256()
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
