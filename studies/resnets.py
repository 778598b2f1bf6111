"""What do local posteriors gain on published networks, alone and mixed?

The four published CIFAR-10 ResNets (20, 32, 44 and 56 layers, batch norm frozen). Half of the 10,000 test images, by
the seed, tunes; the other half reports. Outside are 5,000 images each of SVHN and CIFAR-100, by the seed; their AUROC
is that of the entropy. Every method is scored on each network and on the mixture of the four.

    base                 the network
    temperature          of each network; for the mixture also one of the average
    PEP                  noise on the convolution kernels, its size chosen on the tuning half
    last layer           Laplace approximations: full, kronecker, eigen-corrected, diagonal, low-rank (20 directions)
    all layers           Laplace approximations: diagonal, kronecker

Curvature is that of the first 3,000 training images, scaled to N = 50,000. The prior's precision is 5, that of the
weight decay of 1e-4 with which the networks were trained, times a factor from 1e-4 to 1e4 that is chosen by the NLL of
tuning images: all of them for the last layer, the first 1,000 for all layers. Laplace approximations predict by their
linear function with probit, and are tuned so; all layers of the first network also by samples of the weights
("sampled"), tuned by sampling. The last layer is fitted to what the layers before it give, which is the same as
`where="last"` of the whole network and takes the forward pass but once.

Differences in NLL to the base, of the same network or of the mixture, are paired: 95 % bootstrap intervals over images.
A record says whether error and NLL on all 10,000 images are those known of the networks.

Records are appended to resnets.jsonl, one for each method and network; those that are there are not made again. On a
CPU all layers take a fraction of a second an image and prior: use `--sets`, `--methods` and `--examples`, or a GPU.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from basinet import PEP, Data, Laplace, Noise, Posterior, Problem, fit, likelihoods, mix, priors, score, temper
from basinet.data import Stream
from basinet.data.images import SETS, as_data, read_images
from basinet.metrics import auroc, bootstrap_difference
from basinet.networks import ResNet
from basinet.predict import ClassPredictive, Outputs, Via

from . import Options, Say, append_record, describe, did_you_mean, read_records

NARROWED_BY = ("sets", "methods", "examples")
DEPTHS = {"ResNet-20": 20, "ResNet-32": 32, "ResNet-44": 44, "ResNet-56": 56}
FOUR = "mixture of the four"
PIXELS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and sd with which the networks were trained
HALF, OUTSIDE, TRAIN, N = 5_000, 5_000, 3_000, 50_000
FEW = 5  # all layers are tuned on a fifth of the tuning images
PRECISION = 5.0  # of the prior: weight decay of 1e-4 times N
AT_ONCE = 500  # images through a network for its features
LAST = {
    f"last layer {s}": Laplace(structure=s, prior_precision="prior")
    for s in ("full", "kronecker", "eigen-corrected", "diagonal", "low-rank")
}
ALL = {f"all layers {s}": Laplace(structure=s, where=None, prior_precision="prior") for s in ("diagonal", "kronecker")}
SAMPLED = tuple(f"{name} sampled" for name in ALL)
AVERAGE = "temperature of the average"
REPORTED = ("report", "svhn", "cifar100")
METHODS = ("base", "temperature", AVERAGE, *LAST, "PEP", *ALL, *SAMPLED)
KNOWN = {  # error and NLL of the published weights on all 10,000 test images
    "ResNet-20": (0.0827, 0.3727),
    "ResNet-32": (0.0737, 0.3741),
    "ResNet-44": (0.0690, 0.3332),
    "ResNet-56": (0.0661, 0.3458),
    FOUR: (0.0546, 0.1929),
}
CLOSE = 5e-4  # what reduced precision on a GPU may change


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/resnets.jsonl, prints the table, and returns all that were
    asked for."""
    if options.folder is None:
        raise ValueError(
            "the study resnets reads cifar10_resnet*.safetensors, cifar10, cifar100 and svhn: give --folder with the "
            "folder they are in"
        )
    for what, asked, there in (("set", options.sets, DEPTHS), ("method", options.methods, METHODS)):
        for name in asked:
            if name not in there:
                raise ValueError(f"the study resnets has no {what} {name!r}.{did_you_mean(name, there)}")
    study = _Study(options, say)
    if options.examples is None and not options.sets:
        study.check()
    for method in options.methods or METHODS:
        study.method(method)
    for line in table(study.asked):
        say(line)
    return study.asked


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each method and network."""
    row = "{:31} {:20} {:>14} {:>25} {:>6} {:>5} {:>8} {:>6} {:>9}".format
    yield row("method", "network", "NLL", "less base (95 %)", "Brier", "ECE", "accuracy", "SVHN", "CIFAR-100")
    for r in (r for r in records if r["kind"] == "row"):
        less = "" if r["method"] == "base" else f"{r['over_base']:+.4f} ({r['low']:+.4f}, {r['high']:+.4f})"
        scores = (f"{r['scores'][k]:.{d}f}" for k, d in (("brier", 4), ("ece", 3), ("accuracy", 4)))
        outside = (f"{r['auroc'][k]:.3f}" for k in ("svhn", "cifar100"))
        yield row(r["method"], r["network"], f"{r['nll']:.4f} ± {r['nll_se']:.4f}", less, *scores, *outside)


class _Net(NamedTuple):
    """A published network: whole, and as its last layer on features."""

    name: str
    whole: Posterior
    head: Posterior
    features: dict[str, Data]  # of each part of the images


class _Outcome(NamedTuple):
    """A posterior, what each of its networks gives on each part, what was chosen, and how long it took."""

    posterior: Posterior
    given: dict[str, list[Outputs]]
    chosen: dict[str, float]
    fit_seconds: float  # with tuning
    predict_seconds: float

    def on(self, part: str) -> ClassPredictive:
        predictive = self.posterior.assemble(self.given[part])
        assert isinstance(predictive, ClassPredictive)
        return predictive


class _Study:
    def __init__(self, options: Options, say: Say) -> None:
        assert options.folder is not None
        self.options, self.say, self.path = options, say, options.out / "resnets.jsonl"
        self.engine = options.engine()
        self.parts = _parts(options, options.folder)
        sizes = {f"n_{name}": part.n for name, part in self.parts.items()}
        self.common = {"study": "resnets", "seed": options.seed, "device": _device(self.engine.place), **sizes}
        records = read_records(self.path) if self.path.exists() else []
        self.known = {(r["method"], r["network"]): r for r in records if self.common.items() <= r.items()}
        self.asked: list[dict[str, Any]] = []
        self.nets = [self._net(name, options.folder) for name in DEPTHS if name in (options.sets or DEPTHS)]
        self.base = {net.name: self._evaluated(net.head, net.features, {}) for net in self.nets}

    def method(self, method: str) -> None:
        """The records of a method: of each network, and of their mixture."""
        nets = [] if method == AVERAGE else self.nets[:1] if method in SAMPLED else self.nets
        mixed = len(self.nets) == len(DEPTHS) and method not in SAMPLED
        names = [net.name for net in nets] + ([FOUR] if mixed else [])
        missing = [name for name in names if (method, name) not in self.known]
        fitted = {}
        for net in nets:
            if net.name in missing or FOUR in missing:
                fitted[net.name] = self._make(method, net)
            if net.name in missing:
                self._score(method, net.name, fitted[net.name])
        if FOUR in missing:
            self._score(method, FOUR, self._tempered_average() if method == AVERAGE else _mixed(fitted))
        self.asked += [self.known[method, name] for name in names]

    def check(self) -> None:
        """Error and NLL on all test images, against those known."""
        if ("check", "all") not in self.known:
            scores = {}
            for name, network in (self.base | {FOUR: _mixed(self.base)}).items():
                each = [score(network.on(part), self.parts[part].targets) for part in ("tune", "report")]
                accuracy, nll = (sum(s[k] for s in each) / 2 for k in ("accuracy", "nll"))  # the halves are equal
                near = [abs(a - b) < CLOSE for a, b in zip((1 - accuracy, nll), KNOWN[name])]
                scores[name] = {"error": 1 - accuracy, "nll": nll, "known": KNOWN[name], "agrees": all(near)}
            self._append("check", "all", {"kind": "check", "found": scores})
        record = self.known["check", "all"]
        for name, f in record["found"].items():
            self.say(f"{name}: error {100 * f['error']:.2f} %, NLL {f['nll']:.4f}; known {f['known']}: {f['agrees']}")
        self.asked.append(record)

    def _net(self, name: str, folder: Path) -> _Net:
        from safetensors.torch import load_file

        depth = DEPTHS[name]
        module = ResNet(depth)
        module.load_state_dict(load_file(folder / f"cifar10_resnet{depth}.safetensors"), strict=False)
        body = copy.deepcopy(module).eval().to(self.engine.place)
        body.linear = nn.Identity()  # type: ignore[assignment]
        features = {name: Data(_run(body, part.inputs), part.targets) for name, part in self.parts.items()}
        prior = priors.Normal(scale=PRECISION**-0.5)
        whole = Posterior.of(module, Problem(lambda: ResNet(depth), likelihoods.Categorical(), prior))
        head = Posterior.of(module.linear, Problem(lambda: nn.Linear(64, 10), likelihoods.Categorical(), prior))
        return _Net(name, whole, head, features)

    def _make(self, method: str, net: _Net) -> _Outcome:
        """A method's posterior of one network."""
        self.say(f"{method}, {net.name}")
        if method == "base":
            return self.base[net.name]
        if method == "temperature":
            return self._tempered(net)
        if method == "PEP":
            began = time.perf_counter()
            posterior = self._fit(PEP(), net.whole, None, self.parts["tune"])
            [[sigma]] = posterior.info["curves"]["chosen"]
            return self._evaluated(posterior, self.parts, {"sigma": sigma}, began)
        if method in LAST:
            return self._laplace(LAST[method], net.head, net.features, net.features["tune"], "probit")
        tune = self.parts["tune"].take(slice(0, max(2, self.parts["tune"].n // FEW)))
        return self._laplace(ALL[method.removesuffix(" sampled")], net.whole, self.parts, tune, _via(method))

    def _tempered(self, net: _Net) -> _Outcome:
        began = time.perf_counter()
        tempered = temper(net.head.to(self.engine.place), net.features["tune"])
        assert tempered.temperature is not None
        spent = time.perf_counter() - began
        base = self.base[net.name]
        chosen = {"temperature": float(tempered.temperature.values)}
        return base._replace(posterior=tempered, chosen=chosen, fit_seconds=spent)

    def _tempered_average(self) -> _Outcome:
        """One temperature of the average of the four, found with whole networks: heads have inputs of their own."""
        began = time.perf_counter()
        tempered = temper(mix([net.whole.to(self.engine.place) for net in self.nets]), self.parts["tune"], of="average")
        assert tempered.temperature is not None
        spent = time.perf_counter() - began
        chosen = {"temperature": float(tempered.temperature.values)}
        return _mixed(self.base)._replace(posterior=tempered, chosen=chosen, fit_seconds=spent)

    def _laplace(self, recipe: Laplace, start: Posterior, parts: Mapping[str, Data], tune: Data, via: Via) -> _Outcome:
        """Fitted to the curvature of some training images, that stands for all N."""
        began = time.perf_counter()
        train = parts["train"]
        stream = Stream(lambda: iter([(train.inputs, train.targets)]), N, prefetch=0)
        recipe = replace(recipe, subset=train.n, prior_precision="validation", via=via)
        posterior = self._fit(recipe, start, stream, tune)
        factor = posterior.info["curves"]["prior_factor"][0][0]
        return self._evaluated(posterior, parts, {"prior_precision": factor * PRECISION, "n_tuned": tune.n}, began)

    def _fit(self, recipe: Laplace | PEP, start: Posterior, data: Stream | None, tune: Data) -> Posterior:
        seed = self.options.seed
        return fit(recipe, start.problem, data, val=tune, start=start, seed=seed, engine=self.engine)

    def _evaluated(
        self, posterior: Posterior, parts: Mapping[str, Data], chosen: dict[str, float], began: float | None = None
    ) -> _Outcome:
        """What a posterior of one network gives; `began` is when its fit did."""
        posterior, now = posterior.to(self.engine.place), time.perf_counter()
        [predictor] = posterior.predictors(seed=self.options.seed, keep=True)
        wanted = [*REPORTED, "tune"] if began is None else REPORTED  # of the base all test images are known
        given = {name: [predictor(parts[name].inputs.to(self.engine.place))] for name in wanted}
        for [one] in given.values():
            one.outputs.sum().item()  # a GPU is done when it answers
        return _Outcome(posterior, given, chosen, 0.0 if began is None else now - began, time.perf_counter() - now)

    def _score(self, method: str, name: str, fitted: _Outcome) -> None:
        base = _mixed(self.base) if name == FOUR else self.base[name]
        targets = self.parts["report"].targets
        report = fitted.on("report")
        ours, theirs = (-one.log_prob(targets).double() for one in (report, base.on("report")))
        less = bootstrap_difference(ours, theirs, seed=self.options.seed)
        recipe = fitted.posterior.recipe
        self._append(
            method,
            name,
            {
                "kind": "row",
                "members": len(fitted.posterior),
                "recipe": None if recipe is None else describe(recipe),
                "N": N,
                "chosen": fitted.chosen,
                "nll": float(ours.mean()),
                "nll_se": float(ours.std() / len(ours) ** 0.5),
                "over_base": float(less.difference),
                "low": float(less.low),
                "high": float(less.high),
                "scores": score(report, targets),
                "auroc": {x: float(auroc(report.entropy, fitted.on(x).entropy)) for x in ("svhn", "cifar100")},
                "fit_seconds": fitted.fit_seconds,
                "predict_seconds": fitted.predict_seconds,
            },
        )

    def _append(self, method: str, network: str, values: dict[str, Any]) -> None:
        record = append_record(self.path, self.common | {"method": method, "network": network} | values)
        self.known[method, network] = record


def _parts(options: Options, folder: Path) -> dict[str, Data]:
    """Images to tune on and to report, from outside, and for curvature; scaled as the networks know them."""
    mean, sd = (torch.tensor(x)[:, None, None] for x in PIXELS)
    images = {name: read_images(SETS[name], folder) for name in ("cifar10", "svhn", "cifar100")}

    def scaled(name: str, part: str, rows: Tensor | slice) -> Data:
        data = as_data(images[name][part], rows)
        return options.cut(Data((data.inputs - mean) / sd, data.targets))

    def shuffled(name: str) -> Tensor:
        return Noise.seed(options.seed).split(name).permutation(len(images[name]["test"].labels))

    tests = shuffled("cifar10")
    return {
        "tune": scaled("cifar10", "test", tests[:HALF]),
        "report": scaled("cifar10", "test", tests[HALF:]),
        "svhn": scaled("svhn", "test", shuffled("svhn")[:OUTSIDE]),
        "cifar100": scaled("cifar100", "test", shuffled("cifar100")[:OUTSIDE]),
        "train": scaled("cifar10", "train", slice(0, TRAIN)),
    }


def _run(body: nn.Module, images: Tensor) -> Tensor:
    """Features, on the CPU."""
    place = next(body.parameters()).device
    with torch.no_grad():
        return torch.cat([body(some.to(place)).cpu() for some in images.split(AT_ONCE)])


def _mixed(fitted: Mapping[str, _Outcome]) -> _Outcome:
    """The mixture of networks, from what each gives."""
    each = list(fitted.values())
    given = {part: [x for one in each for x in one.given[part]] for part in each[0].given}
    chosen = {f"{what}, {name}": x for name, one in fitted.items() for what, x in one.chosen.items()}
    spent = (sum(x) for x in zip(*((one.fit_seconds, one.predict_seconds) for one in each)))
    return _Outcome(mix([one.posterior for one in each]), given, chosen, *spent)


def _via(method: str) -> Via:
    return "sample" if method in SAMPLED else "probit"


def _device(place: torch.device) -> str:
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
