"""Repulsion on toys: regression with gaps, and a model whose exact predictive is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import Tensor, nn

from basinet import MAP, SVGD, WGD, Anchored, Engine, FoRDE, Noise, Problem, fit, likelihoods, priors, score
from basinet.data.toys import gaps, in_gaps
from basinet.engine import Method
from basinet.networks import MLP
from basinet.optim import Adam, Cosine
from basinet.predict import RealPredictive

from .. import Options, describe

MEMBERS = 10


def toy_methods(steps: int) -> dict[str, Method]:
    """The methods on regression toys: full batches and the same optimiser for all."""
    same: dict[str, Any] = {"epochs": steps, "batch_size": None, "optimizer": Adam(lr=Cosine(peak=0.01))}
    return {
        "deep ensemble": MAP(**same),
        "anchored": Anchored(**same),
        "SVGD": SVGD(**same),
        "WGD (weights)": WGD(**same),
        "WGD (function)": WGD(**same, space="function", extra=64, prior_draws=None),  # as in the paper
        "FoRDE": FoRDE(**same),
    }


def gap_problem() -> Problem:
    """A small network with known noise, for the regression with gaps."""
    return Problem(
        lambda: MLP(1, 1, hidden=(50,), activation=nn.Tanh),
        likelihoods.Gaussian(noise=0.05),
        priors.Normal(scale="lecun"),
    )


def _gaps(options: Options, engine: Engine, done: Set[str]) -> Iterator[dict[str, Any]]:
    """The spread between the clusters of the data over that inside them."""
    train, inside, between = gaps(60), gaps(200, seed=1), in_gaps(200)
    for name, recipe in options.chosen(toy_methods(3000), done).items():
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


def _random_features(options: Options, engine: Engine, done: Set[str]) -> Iterator[dict[str, Any]]:
    """The distance from the exact predictive of a model that is linear in random features."""
    noise, members = 0.1, 50
    train, line = gaps(60), torch.linspace(-1.5, 1.5, 200)[:, None]
    problem = Problem(Features, likelihoods.Gaussian(noise=noise), priors.Normal(scale=1.0))
    seen, shown = (Features().basis(x).double() for x in (train.inputs, line))
    precision = seen.T @ seen / noise**2 + torch.eye(seen.shape[1], dtype=torch.float64)
    mean = (shown @ torch.linalg.solve(precision, seen.T @ train.targets.double()) / noise**2)[:, 0]
    sd = (shown * torch.linalg.solve(precision, shown.T).T).sum(1).sqrt()
    for name, recipe in options.chosen(toy_methods(5000), done).items():
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


TOYS = {"gaps": _gaps, "random features": _random_features}
