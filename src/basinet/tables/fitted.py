"""A posterior fitted to a file: kept with the way files are read for it.

It is the folder of a posterior with one more file, `table.json`: the encoder and what network it was, so that
predicting needs only the folder and a new file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..defaults import DefaultNetwork, Maker
from ..pool import FileError, decode, encode, fingerprint, read_json, write_json
from ..posterior import Posterior
from ..predict import Predictive
from ..saving import MANIFEST, load
from ..scoring import BUDGET
from . import Encoder, Table
from .encoder import check_encoder

TABLE = "table.json"


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior fitted to a file, and how files are read for it."""

    posterior: Posterior
    encoder: Encoder
    file: str  # the name of the file it was fitted to
    checksum: str  # and the SHA-256 of its bytes
    model: str | None = None  # where the network came from; None: the built-in one
    network: DefaultNetwork | None = None  # which that is

    def save(self, folder: Path) -> None:
        """Writes the posterior, then the rest beside it; what belongs to another posterior is found when loading."""
        self.posterior.save(folder)
        content = {
            "encoder": encode(self.encoder, {}),
            "file": self.file,
            "checksum": self.checksum,
            "model": self.model,
            "network": None if self.network is None else vars(self.network),
            "posterior": fingerprint(read_json(folder / MANIFEST)),
        }
        write_json(folder / TABLE, content)

    @staticmethod
    def load(folder: Path, make: Maker | None = None, device: torch.device | str = "cpu") -> Fitted:
        """What `save` wrote. `make` is the network, where it was not the built-in one: files never say what to run."""
        if not folder.is_dir():
            raise FileError(folder, "expected the folder of a posterior fitted to a file; there is none")
        content = read_json(folder / TABLE)
        if not isinstance(content, dict) or content.get("posterior") != fingerprint(read_json(folder / MANIFEST)):
            raise FileError(folder / TABLE, f"it belongs to another posterior than {MANIFEST}: fit again")
        if content.get("model") and make is None:
            raise FileError(folder, f"it was fitted with a network of its own: pass --model {content['model']}")
        try:
            encoder = decode(content["encoder"], {})
            check_encoder(encoder)
            network = None if content["network"] is None else DefaultNetwork.read(content["network"])
            if network is not None and network.inputs != len(encoder.features):
                raise ValueError(f"its network has {network.inputs} inputs, and the table {len(encoder.features)}")
            file, digest, model = (content.get(key) for key in ("file", "checksum", "model"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise FileError(folder / TABLE, f"it is damaged: {error}") from error
        own = make or (lambda inputs, outputs: network.build())  # type: ignore[union-attr]
        posterior = load(folder, lambda: own(len(encoder.features), encoder.target.outputs), device)
        return Fitted(posterior, encoder, str(file), str(digest), model, network)

    def predict(
        self, table: Table, level: float = 0.9, samples: int | None = None, seed: int = 0
    ) -> dict[str, np.ndarray | list[str]]:
        """Columns of predictions, a row for each of the table, in the target's own units and names.

        Rows are predicted in chunks, so that memory does not grow with members and samples.
        """
        chunks = predictives(self.posterior, self.encoder.inputs(table), self.encoder.target.outputs, samples, seed)
        parts = [self.encoder.predictions(predictive, level) for predictive in chunks]
        return {
            name: [v for part in parts for v in part[name]]
            if isinstance(first, list)
            else np.concatenate([p[name] for p in parts])
            for name, first in parts[0].items()
        }


def predictives(
    posterior: Posterior, inputs: Tensor, outputs: int, samples: int | None = None, seed: int = 0
) -> Iterator[Predictive]:
    """Predictions for inputs (N, ...) of targets with as many `outputs`, in chunks of rows, so that memory does not
    grow with members and samples."""
    draws = sum(len(p) * p.draws.samples for p in posterior.predictors(samples, seed=seed))
    for rows in inputs.split(max(1, BUDGET // (40 * draws * outputs))):  # doubles, five of them at a time
        yield posterior.predict(rows, samples, seed=seed)


def checksum(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        digest = sha256()
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
