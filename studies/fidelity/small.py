"""Every method beside long HMC of its own problem: small networks, whose posterior can be sampled.

Every row that `basinet compare` offers is fitted to the same problem, with validation data to stop and tune where it
takes them. Classes are compared by agreement (the share of test inputs on which both choose the same class) and total
variation; numbers by their predictive means and spreads:

    mean_gap    root mean square of (mean - mean_HMC) / sd_HMC, over test rows
    sd_gap      root mean square of log(sd / sd_HMC)
    weights_sd  geometric mean of the spread that is about the weights, over that of HMC

The first record of a set says how close a perfect answer would come: half of the reference's chains beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from basinet import HMC, MAP, Data, Posterior, Problem, diagnose, fit, likelihoods, score, temper
from basinet.compare.rows import Row, choose
from basinet.metrics import agreement, total_variation
from basinet.networks import MLP
from basinet.predict import ClassPredictive, NumberPredictive
from basinet.tables import uci

from .. import Options, Say, describe
from .records import Book, Record, spread

CHAINS = 16
REFERENCE = HMC(steps=60_000, warmup=15_000, draws=400)
MEMBERS = 10  # of ensembles
IMAGES, HIDDEN = 300, 10  # of digits: training images, hidden units
ROWS, VALIDATION, UNITS = 500, 100, 50  # of concrete
HALVES = "half of the chains"


class Given(NamedTuple):
    """A problem and its data."""

    problem: Problem
    train: Data
    val: Data
    test: Data
    kind: str  # of targets: classes or real


def digits(options: Options, book: Book, say: Say) -> Iterator[Record]:
    """Classes."""
    return _compared(options, book, say)


def concrete(options: Options, book: Book, say: Say) -> Iterator[Record]:
    """Numbers, with learned noise."""
    return _compared(options, book, say)


def concrete_problem(inputs: int) -> Problem:
    """One hidden layer of 50 units, standard normal prior, and a noise that is learned."""
    return Problem(lambda: MLP(inputs, 1, hidden=(UNITS,)), likelihoods.Gaussian(noise=0.3, learned=True))


def concrete_rows(options: Options) -> tuple[Data, Data, Data]:
    """Training, validation and test rows of the first published split."""
    assert options.folder is not None
    known = uci.load("concrete", options.folder)
    count = ROWS if options.examples is None else min(ROWS, options.examples)
    rows = known.train[0]
    (train, val, test), _ = known.part(rows[:count], rows[ROWS : ROWS + VALIDATION], known.test[0])
    return train, val, test


def _given(options: Options, name: str) -> Given:
    if name == "digits":
        splits = options.load("digits")
        train = options.cut(splits.train, IMAGES)
        problem = Problem(lambda: MLP(64, 10, hidden=(HIDDEN,)), likelihoods.Categorical())
        return Given(problem, train, splits.val, splits.test, "classes")
    train, val, test = concrete_rows(options)
    return Given(concrete_problem(train.inputs.shape[1]), train, val, test, "real")


def _compared(options: Options, book: Book, say: Say) -> Iterator[Record]:
    given, pool = _given(options, book.name), options.out / f"pool-{book.name}"
    engine = options.engine(progress=True)
    reference = fit(REFERENCE, given.problem, given.train, members=CHAINS, seed=options.seed, pool=pool, engine=engine)
    half = len(reference) // 2
    first = book.get(HALVES)
    if first is None:
        seen = diagnose(reference, given.train)
        say(f"{book.name}, reference: {seen.chains} chains of {seen.kept} draws. {seen.verdict}")
        worst = {"rhat": max(r.rhat for r in seen.rows), "bulk": min(r.bulk for r in seen.rows)}
        closeness = _closeness(reference[:half], _predicted(reference[half:], given.test), given, options.seed)
        halves = {"method": HALVES, "members": half, **closeness, "reference": {"passed": seen.passed, **worst}}
        first = book.add(halves | {"recipe": describe(REFERENCE)})
    say(_line(first))
    yield first
    truth = _predicted(reference, given.test)
    rows = [row for row in choose("all", MEMBERS, False, given.kind).rows if _wanted(row, options)]
    yield from (record for row in rows if (record := book.get(row.label)) is not None)
    missing = [row for row in rows if book.get(row.label) is None]
    modes = [row for row in missing if isinstance(row.recipe, MAP)]  # from which most others start
    for some, device in ((modes, None), ([row for row in missing if row not in modes], options.device)):
        tasks = [(options, book.name, row, pool, truth) for row in some]
        for result in spread(fitted, tasks, device):
            if isinstance(result, str):
                say(result)
                continue
            record = book.add(result)
            say(_line(record))
            yield record


def fitted(options: Options, name: str, row: Row, pool: Path, truth: dict[str, np.ndarray]) -> Record | str:
    """The record of a row; a sentence where its method refuses the problem."""
    given, engine = _given(options, name), options.engine()
    assert row.recipe is not None
    try:
        posterior = fit(
            row.recipe,
            given.problem,
            given.train,
            val=given.val,
            members=row.members,
            seed=options.seed,
            pool=pool,
            engine=engine,
        )
    except (ValueError, FloatingPointError) as error:
        return f"{name}: {row.label} left out: {error}"
    posterior = temper(posterior, given.val, seed=options.seed) if row.tempered else posterior
    closeness = _closeness(posterior, truth, given, options.seed)
    about = {"method": row.label, "members": len(posterior), "tempered": row.tempered}
    seconds = sum(part.info.get("seconds", 0.0) for part in posterior.parts)
    return about | closeness | {"seconds": seconds, "recipe": describe(row.recipe)}


def _wanted(row: Row, options: Options) -> bool:
    asked = options.methods
    return row.recipe is not None and (not asked or row.label in asked or type(row.recipe).__name__ in asked)


def _predicted(posterior: Posterior, data: Data) -> dict[str, np.ndarray]:
    """What is compared, as arrays that other processes can be given."""
    predictive = posterior.predict(data.inputs)
    if isinstance(predictive, ClassPredictive):
        summary = {"probs": predictive.probs}
    else:
        assert isinstance(predictive, NumberPredictive)
        about_weights = (predictive.between + predictive.within).clamp(min=1e-12).sqrt()
        summary = {"mean": predictive.mean, "sd": predictive.sd, "weights": about_weights}
    return {key: x.double().cpu().numpy() for key, x in summary.items()}


def _closeness(posterior: Posterior, truth: dict[str, np.ndarray], given: Given, seed: int) -> Record:
    """How close predictions come to those of the reference, and their NLL."""
    here, there = ({k: torch.from_numpy(x) for k, x in t.items()} for t in (_predicted(posterior, given.test), truth))
    nll = float(score(posterior, given.test, seed=seed)["nll"])
    values = {"nll": nll, "n_train": given.train.n, "n_test": given.test.n}
    if "probs" in here:
        p, q = here["probs"], there["probs"]
        return values | {"agreement": float(agreement(p, q)), "total_variation": float(total_variation(p, q))}
    gaps: dict[str, Callable[[], Tensor]] = {
        "mean_gap": lambda: ((here["mean"] - there["mean"]) / there["sd"]).square().mean().sqrt(),
        "sd_gap": lambda: (here["sd"] / there["sd"]).log().square().mean().sqrt(),
        "weights_sd": lambda: (here["weights"] / there["weights"]).log().mean().exp(),
    }
    return values | {key: float(value()) for key, value in gaps.items()}


def _line(record: dict[str, Any]) -> str:
    names = {"agreement": "agreement", "total_variation": "TV", "mean_gap": "mean", "sd_gap": "sd", "nll": "NLL"}
    shown = "  ".join(f"{word} {record[key]:.3f}" for key, word in names.items() if key in record)
    return f"{record['set']:9} {record['method']:30} {shown}"
