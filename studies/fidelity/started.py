"""MCLMC started from a deep ensemble, beside the ensemble alone: published splits of small UCI sets.

Ten networks of 50 hidden units that predict mean and noise, as in the study uci; then each is the start of a chain. A
record holds RMSE and log likelihood on test rows, in units of the target, and what was spent: passes of one network
through the training rows, forwards and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, stdev

from basinet import MAP, MCLMC, Posterior, Problem, fit, likelihoods, priors, score
from basinet.networks import MLP
from basinet.optim import Adam, Cosine
from basinet.tables import uci

from .. import Options, Say, describe
from .records import Book, Record, spread

SETS = ("yacht", "boston", "energy", "concrete", "wine_red")
MEMBERS, UNITS = 10, 50
ENSEMBLE = MAP(epochs=40, batch_size=100, optimizer=Adam(lr=Cosine(peak=0.03)))
CHAINS = MCLMC(steps=6000, warmup=2000, draws=100)
METHODS = ("deep ensemble", "MCLMC from it")


def started(options: Options, book: Book, say: Say) -> Iterator[Record]:
    """Two records of each split, and lines that sum up each set."""
    assert options.folder is not None
    for name in SETS:
        splits = uci.load(name, options.folder).splits
        wanted = range(min(splits, options.splits or splits))
        missing = [k for k in wanted if any(book.get(m, name, k) is None for m in METHODS)]
        for records in spread(one_split, [(options, name, k) for k in missing], options.device):
            for record in records:
                book.add(record)
        here = {m: [book.there[m, name, k] for k in wanted] for m in METHODS}
        for method, records in here.items():
            scores = f"RMSE {_mean(records, 'rmse')}  ll {_mean(records, 'll')}"
            say(f"{name:9} {method:14} {len(records):2} splits  {scores}")
            yield from records
        say(f"{name:9} {'difference':14} ll {_difference(here)}, {_passes(here)} passes")


def one_split(options: Options, name: str, split: int) -> list[Record]:
    """The ensemble and the chains that start from it."""
    assert options.folder is not None
    known, seed = uci.load(name, options.folder), 1000 * options.seed + split
    (train, test), target = known.part(known.train[split], known.test[split])
    train, test = options.cut(train), options.cut(test)
    inputs, engine = train.inputs.shape[1], options.engine()
    problem = Problem(
        lambda: MLP(inputs, 2, hidden=(UNITS,)), likelihoods.Heteroscedastic(), priors.Normal(scale="lecun")
    )
    pool = options.out / f"pool-started-{name}-{split}"
    ensemble = fit(ENSEMBLE, problem, train, members=MEMBERS, seed=seed, pool=pool, engine=engine)
    chains = fit(CHAINS, problem, train, start=ensemble, seed=seed, pool=pool, engine=engine)
    plan = ENSEMBLE.schedule(train.n)
    passes = MEMBERS * plan.steps * (plan.batch_size or train.n) / train.n
    more = len(chains) * max(curve[-1] for curve in chains.info["curves"]["step"])

    def record(method: str, posterior: Posterior, spent: float) -> Record:
        scores = target.scores(score(posterior, test))
        about = {"method": method, "data": name, "split": split, "members": len(posterior), "fit_seed": seed}
        values = {"rmse": scores["rmse"], "ll": -scores["nll"], "passes": spent, "n_train": train.n, "n_test": test.n}
        return about | values | {"seconds": posterior.info["seconds"], "recipe": describe(posterior.recipe)}

    return [record(METHODS[0], ensemble, passes), record(METHODS[1], chains, passes + more)]


def _mean(records: list[Record], key: str) -> str:
    values = [r[key] for r in records]
    return f"{fmean(values):.3f}" + (f" ± {stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else "")


def _difference(here: dict[str, list[Record]]) -> str:
    """Of log likelihoods, split by split."""
    pairs = zip(*(here[m] for m in METHODS))
    return _mean([{"ll": chains["ll"] - ensemble["ll"]} for ensemble, chains in pairs], "ll")


def _passes(here: dict[str, list[Record]]) -> str:
    ensemble, chains = (fmean(r["passes"] for r in here[m]) for m in METHODS)
    return f"{ensemble:,.0f} against {chains:,.0f}"
