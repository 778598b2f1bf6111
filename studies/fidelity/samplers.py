"""NUTS and MCLMC on the same rows: effective draws of predictions per gradient, and whether they agree.

A network with 50 hidden units on 500 rows of concrete, 16 chains each. `ess_per_1000` is the median over predictions of
effective draws per 1,000 gradients after the warm-up; the noise has its own. Where both have run, a record compares
them: z-scores of the difference in mean and in variance of each prediction, by the Monte-Carlo errors of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from basinet import MCLMC, NUTS, Diagnosis, Posterior, diagnose, fit
from basinet.diagnostics import mcse_mean

from .. import Options, Say, describe
from .records import Book, Record
from .small import concrete_problem, concrete_rows

CHAINS = 16
SAMPLERS = {
    "NUTS": NUTS(steps=60_000, warmup=15_000, draws=400),
    "MCLMC": MCLMC(steps=30_000, warmup=10_000, draws=400),
}
BOTH = "NUTS beside MCLMC"


def sampled(options: Options, book: Book, say: Say) -> Iterator[Record]:
    """A record of each sampler, and one of both."""
    data, _, _ = concrete_rows(options)
    problem, engine = concrete_problem(data.inputs.shape[1]), options.engine(progress=True)
    seen: dict[str, Diagnosis] = {}
    for name, recipe in options.chosen(SAMPLERS).items():
        posterior = fit(
            recipe, problem, data, members=CHAINS, seed=options.seed, pool=options.out / "pool-concrete", engine=engine
        )
        seen[name] = diagnose(posterior, data)
        record = book.get(name)
        if record is None:
            efficiency = _efficiency(seen[name], posterior, recipe.warm)
            about = {"method": name, "members": CHAINS, "n_train": data.n, "passed": seen[name].passed}
            record = book.add(about | efficiency | {"recipe": describe(recipe)})
        say(
            f"{name:8} {record['ess_per_1000']:.2f} effective draws of predictions per 1,000 gradients, noise "
            f"{record['noise_ess']:.0f} in all, R-hat {record['rhat']:.3f}, {record['seconds']:.0f} s"
        )
        yield record
    if len(seen) == len(SAMPLERS):
        yield book.get(BOTH) or _agreeing(book, seen["NUTS"], seen["MCLMC"], say)


def _efficiency(seen: Diagnosis, posterior: Posterior, warm: int) -> dict[str, Any]:
    steps = max(curve[-1] for curve in posterior.info["curves"]["step"])
    thousands = len(posterior) * (steps - warm) / 1000
    bulk = [r.bulk for r in seen.rows if r.name.startswith("prediction")]
    noise = [r.bulk for r in seen.rows if not r.name.startswith(("prediction", "loss"))]
    seconds = posterior.info["seconds"]
    return {
        "ess_per_1000": median(bulk) / thousands,
        "least_per_1000": min(bulk) / thousands,
        "ess_per_second": median(bulk) / seconds,
        "noise_ess": min(noise),
        "noise_per_1000": min(noise) / thousands,
        "rhat": max(r.rhat for r in seen.rows),
        "gradients": len(posterior) * steps,
        "seconds": seconds,
    }


def _agreeing(book: Book, one: Diagnosis, other: Diagnosis, say: Say) -> Record:
    names = [name for name in one.draws if name.startswith("prediction")]
    means, variances = (torch.tensor([f(one.draws[n], other.draws[n]) for n in names]) for f in (mean_z, variance_z))
    values = {
        "quantities": len(names),
        "mean_z": {"largest": float(means.abs().max()), "rms": float(means.square().mean().sqrt())},
        "variance_z": {"largest": float(variances.abs().max()), "rms": float(variances.square().mean().sqrt())},
    }
    say(f"{BOTH}: largest z of {len(names)} means {means.abs().max():.1f}, of variances {variances.abs().max():.1f}")
    return book.add({"method": BOTH, **values})


def mean_z(one: Tensor, other: Tensor) -> float:
    """By how many standard errors the means of two sets of chains (C, K) differ."""
    error = math.hypot(float(mcse_mean(one)), float(mcse_mean(other)))
    return float(one.double().mean() - other.double().mean()) / error


def variance_z(one: Tensor, other: Tensor) -> float:
    """The same of their variances."""
    return mean_z((one.double() - one.double().mean()).square(), (other.double() - other.double().mean()).square())
