"""Log-probabilities of each member's samples on each image, in files, so that mixtures are scored without networks.

One file for each method, member and part of the images, (B, S, C) in half precision (three digits of each logarithm):
a run that was stopped goes on with the members that are missing. Reading maps the files into memory, so that only the
images that are being scored are held.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.families import Delta, Partial
from basinet.pool.files import atomically
from basinet.predict import ClassPredictive

from .modes import CLOSED, POINTS, Around, Modes

LOWEST = -60_000.0  # a logarithm that half precision holds


@dataclass(frozen=True)
class Outputs:
    """Where the log-probabilities of one protocol lie."""

    modes: Modes
    folder: Path

    @staticmethod
    def of(modes: Modes, out: Path) -> Outputs:
        """In a folder of their own, named by what they depend on."""
        known = {"seed": modes.seed, **modes.images.sizes, **modes.protocol.trained()}
        name = sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]
        return Outputs(modes, out / f"outputs-{modes.protocol.data}" / name)

    def samples(self, method: str) -> int:
        """Samples of a member."""
        return 1 if method in (*POINTS, *CLOSED) else self.modes.protocol.each

    def missing(self, method: str, parts: Sequence[str]) -> bool:
        """Whether something is still to be predicted."""
        return any(not self._file(method, k, part).exists() for k in range(self._members) for part in parts)

    def predict(self, method: str, around: Around, parts: Sequence[str]) -> None:
        """Writes what is missing, member by member."""
        for k in range(self._members):
            wanted = [part for part in parts if not self._file(method, k, part).exists()]
            if not wanted:
                continue
            member = around._replace(posterior=around.posterior[k].to(self.modes.engine.place))
            for part in wanted:
                logs = self._log_probs(method, k, member, self.inputs(part))
                whole = logs.clamp(min=LOWEST).transpose(0, 1).half().cpu().contiguous().numpy()
                _write(self._file(method, k, part), whole)

    def inputs(self, part: str) -> Tensor:
        """The images of a part: test, outside or val."""
        images = self.modes.images
        inputs = images.outside if part == "outside" else getattr(images, part).inputs
        assert inputs is not None
        return inputs.to(self.modes.engine.place)

    def open(self, method: str, part: str) -> list[Any]:
        """The files of all members, mapped, (B, S, C) each."""
        return [np.load(self._file(method, k, part), mmap_mode="r") for k in range(self._members)]

    @property
    def _members(self) -> int:
        return self.modes.protocol.members

    def _file(self, method: str, k: int, part: str) -> Path:
        plain = "".join(c if c.isalnum() else "-" for c in method.lower())
        return self.folder / plain / f"{part}-{k}.npy"

    def _log_probs(self, method: str, k: int, member: Around, inputs: Tensor) -> Tensor:
        """(S, B, C)"""
        engine, count = self.modes.engine, self.samples(method)
        lower = nullcontext() if engine.autocast is None else torch.autocast(engine.place.type, engine.autocast)
        with lower, torch.no_grad():
            head = _last(member.posterior)
            if head is not None and count > 1 and member.posterior.recipe is not None and _bends(member.posterior):
                body = self.modes.maps[k].to(engine.place).module()
                return _of_head(body, head, member.posterior, inputs, count, self.modes.seed)
            predictive = member.posterior.predict(inputs, count, via=member.via, seed=self.modes.seed)
            assert isinstance(predictive, ClassPredictive)
            return predictive.log_probs[0].float()


def _bends(posterior: bn.Posterior) -> bool:
    return isinstance(posterior.recipe, bn.FlowVI)


def _last(posterior: bn.Posterior) -> str | None:
    """The name of the only layer that is random, where that is one linear layer."""
    family = posterior.parts[0].family
    if not isinstance(family, Partial) or not isinstance(family.rest, Delta):
        return None
    layers = {name.rpartition(".")[0] for name in family.part.mean().params}
    modules = dict(posterior.problem.network.module.named_modules())
    return layers.pop() if len(layers) == 1 and isinstance(modules.get(min(layers)), nn.Linear) else None


def _of_head(body: nn.Module, head: str, posterior: bn.Posterior, inputs: Tensor, count: int, seed: int) -> Tensor:
    """Log-probabilities where only the last layer is random: the network before it runs once."""
    seen: list[Tensor] = []
    layer = body.get_submodule(head)
    hook = layer.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    for some in inputs.split(2_000):
        body(some)
    hook.remove()
    features = torch.cat(seen).float()  # (B, F)
    draws = posterior.sample(count, seed=seed)
    weight, bias = (draws[f"{head}.{name}"][0].float() for name in ("weight", "bias"))  # (S, C, F), (S, C)
    with torch.autocast(features.device.type, enabled=False):
        return (torch.einsum("bf,scf->sbc", features, weight) + bias[:, None]).log_softmax(-1)


def _write(path: Path, array: np.ndarray) -> None:
    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            np.save(file, array, allow_pickle=False)

    atomically(path, write)
