"""When does a deep ensemble beat an ensemble of Bayesian networks?

The question of Jordahn et al. (2025, "On local posterior structure in deep ensembles"). Thirty modes are trained, and
around each of them a posterior is put: SWA, SWAG, Laplace over the last layer (and all layers), LA-NF, PEP, a
temperature. The modes trained on for as long are a control; MC dropout and IVON are pools of their own. Mixtures of
K = 1 to 20 members are scored, thirty random subsets for each K, with 200 stratified samples in all: NLL, Brier, ECE,
accuracy, AUROC of the entropy against images from outside, and how much of the uncertainty lies between members and
within them. Each curve is compared with that of the deep ensemble of the very same members, image by image.

`--preset digits` and `fashion_mnist` run in minutes on two cores; `cifar10` is the paper's setting in 30 epochs on a
GPU, `cifar10-paper` the whole of it. `--with NAME=VALUE` changes a field of the protocol: `scale=.3` the covariances,
`stratified=no`, `weights=learned`, `norm=batch`, `samples=50`. A run that is stopped resumes: members are in a pool,
their predictions in files, and records are appended to local.jsonl, one for each protocol and method.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import Options, Say, append_record, describe, did_you_mean, read_records
from .images import load, needed
from .mixtures import SHOWN, MixturePlan, Scores, at_once, by_samples, learned_weights, scored
from .modes import BASE, CLOSED, Around, Modes, check_modes, on_gpu_in_bf16
from .outputs import Outputs
from .protocol import PRESETS, Protocol
from .verdict import Differences, beside_paper, crossing, differences, in_words, matched

NARROWED_BY = ("sets", "methods", "examples", "preset", "changes")
CHEAP = (  # what is run where no methods are named
    "deep ensemble",
    "temperature",
    "last-layer Laplace",
    "last-layer Laplace (probit)",
    "last-layer Laplace (tuned by samples; scored by probit)",
    "SWA",
    "SWAG",
    "trained as long",
    "PEP",
    "LA-NF",
)
SCORES = ("nll", "brier", "ece", "accuracy", "auroc", "between", "within")


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/local.jsonl, says the verdict on each method, and returns all
    records that were asked for."""
    asked = []
    protocols = [(protocol, needed(protocol)) for protocol in _protocols(options)]
    for protocol in [p for p, files in protocols if not files or options.has_files(p.data, files, say)]:
        study = _Study.of(protocol, options, say)
        asked += study.run()
    return asked


def _protocols(options: Options) -> list[Protocol]:
    if options.preset and options.sets:
        raise ValueError("give --preset or --sets, not both: a preset names its set")
    names = (options.preset,) if options.preset else options.sets or ("digits", "fashion_mnist")
    for name in names:
        if name not in PRESETS:
            raise ValueError(f"the study local has no preset {name!r}.{did_you_mean(name, PRESETS)}")
    return [options.changed(PRESETS[name]) for name in names]


@dataclass(frozen=True)
class _Study:
    protocol: Protocol
    options: Options
    say: Say
    modes: Modes
    outputs: Outputs

    @staticmethod
    def of(protocol: Protocol, options: Options, say: Say) -> _Study:
        images = load(protocol, options)
        engine = on_gpu_in_bf16(options.engine())
        kind = {"wide": f"wide-{protocol.norm}", "mlp": f"mlp-{protocol.hidden}"}.get(protocol.network, "own")
        pool = options.out / f"pool-{protocol.data}-{kind}"  # one network in each
        modes = Modes(protocol, images, options.seed, pool, engine)
        modes.check()
        return _Study(protocol, options, say, modes, Outputs.of(modes, options.out))

    def run(self) -> list[dict[str, Any]]:
        """The records of all methods that were asked for, the deep ensemble first."""
        makers = self.modes.methods()
        for name in self.options.methods:
            if name not in makers:
                raise ValueError(f"the study local has no method {name!r}.{did_you_mean(name, makers)}")
        wanted = [name for name in makers if name in (self.options.methods or CHEAP) or name == BASE]
        known = self._known()
        base: dict[int, Scores] = {}
        records = []
        for method in wanted:
            if method in known and method != BASE:
                records.append(known[method])
                continue
            facts = self._predict(method, makers[method])
            began = time.perf_counter()
            scores, more = self._score(method)
            base = base or scores
            more["score_seconds"] = time.perf_counter() - began
            words = f"{method}: fitted and predicted in {facts['fit_seconds']:.0f} s"
            self.say(f"{words}, scored in {more['score_seconds']:.0f} s")
            if method not in known:
                record = self._record(method, facts, scores, base) | more
                known[method] = append_record(self.options.out / "local.jsonl", record)
            records.append(known[method])
        self._summary(records)
        return records

    @property
    def _parts(self) -> list[str]:
        """The images on which members predict."""
        outside = [] if self.modes.images.outside is None else ["outside"]
        return ["test", *outside, *(["val"] if self.protocol.weights == "learned" else [])]

    def _predict(self, method: str, make: Callable[[], Around]) -> dict[str, Any]:
        """Fits and predicts, unless that was done under a protocol that differs only in how mixtures are scored; what a
        record says of the posterior."""
        kin = self._records(method, same=Protocol.trained)
        if kin and not self.outputs.missing(method, self._parts):
            return {name: kin[0][name] for name in ("recipe", "chosen", "cost", "fit_seconds")}
        began = time.perf_counter()
        around = make()
        if method == BASE:
            check_modes(around.posterior, self.protocol.largest)
        self.outputs.predict(method, around, self._parts)
        return {
            "recipe": describe(around.posterior.recipe),
            "chosen": _chosen(around),
            "cost": {"epochs_per_member": around.epochs, "samples": self.outputs.samples(method)},
            "fit_seconds": time.perf_counter() - began,  # with predictions
        }

    def _score(self, method: str) -> tuple[dict[int, Scores], dict[str, Any]]:
        images, place = self.modes.images, self.modes.engine.place
        plan = MixturePlan(self.protocol, self.options.seed, self.outputs.samples(method))
        tested = self.outputs.open(method, "test")
        if at_once(tested) < images.test.n:
            shape = " x ".join(f"{n:,}" for n in (len(tested), *tested[0].shape[1:]))
            self.say(f"{method}: {shape} probabilities of an image, scored {at_once(tested):,} images at a time")
        weights: dict[int, list[torch.Tensor]] = {}
        more: dict[str, Any] = {}
        if self.protocol.weights == "learned":
            weights = learned_weights(plan, self.outputs.open(method, "val"), images.val.targets, place)
            more["weight_entropy"] = {str(k): _evenness(those) for k, those in weights.items()}
        outside = self.outputs.open(method, "outside") if "outside" in self._parts else None
        scores = scored(plan, tested, images.test.targets, outside, weights, place)
        if plan.each > 1:
            more["by_samples"] = by_samples(plan, tested, images.test.targets, place)
        return scores, more

    def _record(
        self, method: str, facts: dict[str, Any], scores: dict[int, Scores], base: dict[int, Scores]
    ) -> dict[str, Any]:
        gaps = differences([s.log_prob for s in scores.values()], [s.log_prob for s in base.values()])
        rows = [_row(k, s, gaps) for k, s in scores.items()]
        if method in CLOSED:  # which have no samples to tell one from the other
            rows = [{n: x for n, x in row.items() if n not in ("aleatoric", "within")} for row in rows]
        plain = [float(-s.log_prob.double().mean()) for s in base.values()]
        own = facts["cost"]["epochs_per_member"]
        more = {
            "curve": rows,
            "matched": matched([r["nll"] for r in rows], own, plain, self.protocol.epochs),
            "crossover": None if method == BASE else crossing(gaps).row(),
            "verdict": None if method == BASE else in_words(method, gaps),
            "device": self._device(),
        }
        return self._identity(method) | facts | more

    def _identity(self, method: str) -> dict[str, Any]:
        """What makes a record the one that is asked for."""
        sizes = self.modes.images.sizes
        return {
            "study": "local",
            "data": self.protocol.data,
            "method": method,
            "seed": self.options.seed,
            **sizes,
            "prior_scale": (self.protocol.decay * sizes["n_train"]) ** -0.5,
            "protocol": self.protocol.recorded() | {"outside": list(self.protocol.outside)},
        }

    def _known(self) -> dict[str, dict[str, Any]]:
        """The records of this very protocol, by method."""
        records = {method: self._records(method, same=Protocol.recorded) for method in self.modes.methods()}
        return {method: rows[0] for method, rows in records.items() if rows}

    def _records(self, method: str, same: Callable[[Protocol], dict[str, Any]]) -> list[dict[str, Any]]:
        """The records of a method whose protocol has the same values of some fields."""
        path, identity = self.options.out / "local.jsonl", self._identity(method)
        records = [r for r in (read_records(path) if path.exists() else []) if "protocol" in r]
        wanted = {name: identity["protocol"][name] for name in same(self.protocol)}
        del identity["protocol"]
        return [r for r in records if identity.items() <= r.items() and wanted.items() <= r["protocol"].items()]

    def _summary(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            for row in (r for r in record["curve"] if r["size"] in SHOWN):
                scores = "  ".join(f"{k} {row[k]:.4f}" for k in SCORES if k in row)
                gap = f"  less the ensemble: {row['over_ensemble']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
                self.say(f"{record['method']:34} K={row['size']:2}  {scores}{'' if record['method'] == BASE else gap}")
        for record in records:
            if record["verdict"]:
                self.say(f"{self.protocol.data}: {record['verdict']}")
        if (self.protocol.data, self.protocol.network) == ("cifar10", "wide"):
            for line in beside_paper({r["method"]: r["curve"] for r in records}):
                self.say(line)

    def _device(self) -> str:
        place = self.modes.engine.place
        return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


def _row(size: int, scores: Scores, gaps: Differences) -> dict[str, Any]:
    nll = -scores.log_prob.double().mean(1)
    low, high = (edge[size - 1] for edge in gaps.interval)
    means = {name: sum(values) / len(values) for name, values in scores.rows.items()}
    spread = {name: float(torch.tensor(values).std(correction=0)) for name, values in scores.rows.items()}
    return {
        "size": size,
        "subsets": len(nll),
        "nll": float(nll.mean()),
        "nll_sd": float(nll.std(correction=0)),
        **means,
        **{f"{name}_sd": spread[name] for name in ("brier", "ece", "accuracy", "auroc") if name in spread},
        "over_ensemble": float(gaps.mean[size - 1]),
        "low": float(low),
        "high": float(high),
    }


def _evenness(weights: list[torch.Tensor]) -> float:
    """The mean entropy of the weights of members, over that of equal ones."""
    each = [torch.special.entr(w).sum() / torch.tensor(float(len(w))).log() for w in weights]
    return float(torch.stack(each).mean())


def _chosen(around: Around) -> dict[str, list[float]]:
    """What was tuned, one value per member."""
    posterior = around.posterior
    if posterior.temperature is not None:
        return {"temperature": posterior.temperature.values.tolist()}
    curves = [part.info.get("curves", {}) for part in posterior.parts]
    names = {"chosen": "sigma", "prior_factor": "prior_factor", "step_size": "step_size"}
    return {
        ours: [row[0] for curve in curves for row in curve[name]]
        for name, ours in names.items()
        if all(name in curve for curve in curves)
    }
