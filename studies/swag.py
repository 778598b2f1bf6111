"""What does SWAG add to its own mean and mode, and MultiSWAG to the deep ensemble of the same members?

Ten modes on digits and (with a data folder) Fashion-MNIST; around each of them SWA and SWAG, by the same steps; and
modes trained for as many epochs as these take in all. NLL, Brier, ECE and accuracy of single members (mean and standard
deviation over them) and of ensembles of 1 to 10. The step size is the one of a few whose SWAG of the first member has
the lowest NLL on the validation part.
"""

from __future__ import annotations

from typing import Any

from basinet import MAP, SWA, SWAG, Engine, Posterior, fit, score, size_curve
from basinet.compare import default_problem
from basinet.data import Splits
from basinet.engine import Method
from basinet.optim import SGD

from . import Options, Say, append_record, describe

NARROWED_BY = ("examples",)
MEMBERS = 10
SIZES = (1, 2, 3, 5, 7, 10)
SUBSETS = 10
RATES = (0.01, 0.05, 0.2, 0.5)
SHOWN = ("nll", "brier", "ece", "accuracy")


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/swag.jsonl."""
    engine = options.engine(progress=True)
    records = []
    for name, epochs in (("digits", 50), ("fashion_mnist", 20)):
        if name == "fashion_mnist" and not options.has_files(name, [name], say):
            continue
        splits = options.load(name)
        for method, posterior, about in _posteriors(options, splits, epochs, engine, say):
            predictive = posterior.predict(splits.test.inputs)
            targets = splits.test.targets.to(predictive.outputs.device)
            rows = size_curve(predictive, targets, SIZES, SUBSETS, options.seed)
            for row, label in ((rows[0], method), (rows[-1], f"{method} x {MEMBERS}")):
                values = "  ".join(f"{k} {row[k]:.4f} (sd {row[f'{k}_sd']:.4f})" for k in SHOWN)
                say(f"{name:13} {label:15} {values}")
            record = {"study": "swag", "data": name, "method": method, "seed": options.seed, "members": MEMBERS}
            record |= {"n_train": splits.train.n, "n_test": splits.test.n, "recipe": describe(posterior.recipe)}
            record |= {"seconds": posterior.info["seconds"], "curve": rows, **about}
            records.append(append_record(options.out / "swag.jsonl", record))
    return records


def _posteriors(
    options: Options, splits: Splits, epochs: int, engine: Engine, say: Say
) -> list[tuple[str, Posterior, dict[str, Any]]]:
    """The deep ensemble, one trained longer, SWA and SWAG around members of the first; and what to record of each."""
    problem, pool = default_problem(splits), options.out / f"pool-{splits.name}"

    def fitted(method: Method, start: Posterior | None = None, members: int | None = None) -> Posterior:
        seed = options.seed
        return fit(method, problem, splits.train, start=start, members=members, seed=seed, pool=pool, engine=engine)

    maps = fitted(MAP(epochs=epochs), members=MEMBERS)
    longer = fitted(MAP(epochs=epochs + SWAG().iterates), members=MEMBERS)
    tried = {}
    for rate in RATES:
        one = fitted(SWAG(optimizer=SGD(lr=rate, momentum=0.9)), maps[:1])
        tried[str(rate)] = score(one, splits.val, seed=options.seed)["nll"]
    best = SGD(lr=float(min(tried, key=lambda rate: tried[rate])), momentum=0.9)
    say(f"{splits.name}: step size {best.lr}, by the validation NLL of one member: {tried}")
    about = {"val_nll_of_rates": tried}
    swa, swag = fitted(SWA(optimizer=best), maps), fitted(SWAG(optimizer=best), maps)
    return [("MAP", maps, {}), ("MAP longer", longer, {}), ("SWA", swa, about), ("SWAG", swag, about)]
