"""What is compared: the modes of the deep ensemble, and what is put around each of them.

All members are kept in a pool, so that a run that was stopped resumes. What is tuned is tuned for each member alone on
the validation images: the step size of SWA and of SWAG (five are tried in runs of an eighth of the length), the prior
precision of a Laplace approximation by the predictive that is scored, PEP's noise, a temperature. After the modes are
trained nothing sees augmented images, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

import basinet as bn
from basinet.pool import FileError, Pool, behaviour
from basinet.predict import Via
from basinet.saving import describe_problem

from .images import Images
from .protocol import Protocol

BASE = "deep ensemble"
TRIALS, SHORT = 5, 8  # step sizes of SWA and SWAG that are tried, in runs of this part of the iterates
FORWARD = 1 / 3  # of a training step, what a forward pass takes
DRAWS = 140  # networks that PEP's search for its noise runs on the validation images
POINTS = (BASE, "trained as long", "temperature", "SWA")  # one network per member: K members are K samples
LAST = "last-layer Laplace"
PROBIT, MISMATCH = f"{LAST} (probit)", f"{LAST} (tuned by samples; scored by probit)"
ALL = "all-layer Laplace"
CLOSED = (PROBIT, MISMATCH, ALL)  # one prediction per member, in closed form


class Around(NamedTuple):
    """A posterior of all members, how it predicts, and what a member cost in passes of training through the data."""

    posterior: bn.Posterior
    epochs: float
    via: Via | None = None  # None: as its recipe says


@dataclass(frozen=True)
class Modes:
    """The members of one protocol, and the posteriors around them."""

    protocol: Protocol
    images: Images
    seed: int
    pool: Path
    engine: bn.Engine

    @cached_property
    def problem(self) -> bn.Problem:
        """The networks under the prior."""
        return self.protocol.problem(self.images.inputs, self.images.classes, self.images.train.n)

    def check(self) -> None:
        """Refuses a network of the user's that computes something else than that of the members in the pool: what its
        file imports may have been edited, too."""
        if self.protocol.own:
            try:
                Pool(self.pool, describe_problem(self.problem), behaviour(self.problem, self.images.train))
            except FileError as error:
                raise ValueError(f"{error} Here: another --out") from error

    @cached_property
    def maps(self) -> bn.Posterior:
        """The modes."""
        p = self.protocol
        recipe = bn.MAP(epochs=p.epochs, batch_size=p.batch, optimizer=p.step_size(p.rate))
        return self._fit(recipe, members=p.members, augmented=True)

    @property
    def collecting(self) -> float:
        """Passes through the data while SWA or SWAG collects."""
        steps = self.protocol.every or -(-self.images.train.n // self.protocol.batch)
        return steps * self.protocol.iterates * self.protocol.batch / self.images.train.n

    @property
    def _choosing(self) -> float:
        """Passes through the data while they choose their step size."""
        iterates = self.protocol.iterates
        return self.collecting * TRIALS * max(2, iterates // SHORT) / iterates

    def methods(self) -> dict[str, Callable[[], Around]]:
        """All that can be compared, by name, in the order of their cost; nothing is fitted before it is called."""
        return {
            BASE: lambda: Around(self.maps, self.protocol.epochs),
            "temperature": lambda: Around(bn.temper(self.maps, self.images.val), self._plus(self._validating(1))),
            LAST: lambda: self._laplace("linear"),
            PROBIT: lambda: self._laplace("probit"),
            MISMATCH: lambda: self._laplace("linear")._replace(via="probit"),
            ALL: self._all_layers,
            "SWA": self._swa,
            "SWAG": self._swag,
            "trained as long": self._as_long,
            "PEP": self._pep,
            "LA-NF": self._flow,
            "MC dropout": self._dropout,
            "IVON": self._ivon,
        }

    def _laplace(self, via: Via) -> Around:
        recipe = bn.Laplace(structure="full", prior_precision="validation", via=via)
        posterior = self._fit(recipe, start=self.maps)
        return Around(self._scaled(posterior), self._plus(FORWARD))

    def _all_layers(self) -> Around:
        recipe = bn.Laplace(structure="kronecker", where=None, prior_precision="validation", via="probit")
        return Around(self._scaled(self._fit(recipe, start=self.maps)), self._plus(1.0), "probit")

    def _swa(self) -> Around:
        p = self.protocol
        recipe = bn.SWA(iterates=p.iterates, every=p.every, batch_size=p.batch, optimizer=self._swing())
        return Around(self._fit(recipe, start=self.maps), self._plus(self.collecting + self._choosing))

    def _swag(self) -> Around:
        p = self.protocol
        rank = min(p.rank, p.iterates)
        recipe = bn.SWAG(iterates=p.iterates, every=p.every, batch_size=p.batch, optimizer=self._swing(), rank=rank)
        posterior = self._fit(recipe, start=self.maps)
        return Around(self._scaled(posterior), self._plus(self.collecting + self._choosing))

    def _swing(self) -> bn.optim.SGD:
        return bn.optim.SGD(lr=bn.optim.Validated(value=self.protocol.swing), momentum=0.9)

    def _as_long(self) -> Around:
        """The modes trained on for as long as SWA collects, with a step size that falls to zero once more."""
        epochs = max(1, round(self.collecting))
        recipe = bn.MAP(epochs=epochs, batch_size=self.protocol.batch, optimizer=self.protocol.step_size(self._restart))
        return Around(self._fit(recipe, start=self.maps, augmented=True), self._plus(epochs))

    @property
    def _restart(self) -> float:
        return self.protocol.swing if self.protocol.optimizer == "sgd" else self.protocol.rate

    def _pep(self) -> Around:
        posterior = self._fit(bn.PEP(), start=self.maps)
        return Around(posterior, self._plus(self._validating(DRAWS)))

    def _flow(self) -> Around:
        p = self.protocol
        start = self._laplace("linear").posterior
        recipe = bn.FlowVI(epochs=p.flow_epochs, batch_size=p.batch, maps=p.maps)
        return Around(self._fit(recipe, start=start), self._plus(FORWARD * (1 + p.flow_epochs)))

    def _dropout(self) -> Around:
        p = self.protocol
        recipe = bn.MCDropout(
            epochs=p.epochs, batch_size=p.batch, optimizer=p.step_size(p.rate), rate=p.dropout, insert="after"
        )
        return Around(self._fit(recipe, members=p.members, augmented=True), p.epochs)

    def _ivon(self) -> Around:
        p = self.protocol
        recipe = bn.IVON(epochs=p.epochs, batch_size=p.batch)
        return Around(self._fit(recipe, members=p.members, augmented=True), p.epochs)

    def _plus(self, epochs: float) -> float:
        return self.protocol.epochs + epochs

    def _validating(self, networks: int) -> float:
        """Passes of training that forward passes of the validation images are worth."""
        return FORWARD * networks * self.images.val.n / self.images.train.n

    def _scaled(self, posterior: bn.Posterior) -> bn.Posterior:
        return posterior if self.protocol.scale == 1 else posterior.scaled(self.protocol.scale)

    def _fit(
        self,
        recipe: bn.engine.Method,
        *,
        start: bn.Posterior | None = None,
        members: int | None = None,
        augmented: bool = False,
    ) -> bn.Posterior:
        data = self.images.augmented if augmented else self.images.train
        posterior = bn.fit(
            recipe,
            self.problem,
            data,
            val=None if start is None else self.images.val,
            start=start,
            members=members,
            seed=self.seed,
            pool=self.pool,
            engine=self.engine,
        )
        return posterior.to(self.engine.place)


def check_modes(posterior: bn.Posterior, largest: int) -> bn.Posterior:
    """The same posterior; refuses modes of several networks, and fewer of them than are mixed."""
    networks = {repr(part.problem.network.params) for part in posterior.parts}
    if len(networks) > 1 or len({type(part.problem.likelihood) for part in posterior.parts}) > 1:
        raise ValueError(
            f"expected members of one network, got {len(posterior.parts)} kinds of members in one pool: a mode of one "
            "network has no place in the ensemble of another, so give each its own --out"
        )
    if len(posterior) < largest:
        raise ValueError(f"mixtures of up to {largest} members need as many, got {len(posterior)}: see --with largest=")
    return posterior


def on_gpu_in_bf16(engine: bn.Engine) -> bn.Engine:
    """The engine that was asked for; on a GPU in bf16."""
    return replace(engine, autocast=torch.bfloat16) if engine.place.type == "cuda" else engine
