"""What does noise around a trained network gain, and when: does it cure over-fitting, and reveal unfamiliar inputs?

The experiments of Mehrtash et al. (2020, "PEP: parameter ensembling by perturbation"), small. `curve`: log likelihood
against sigma for the ensemble, its members and their mean, with normal and with uniform noise, beside temperature
scaling and the local theory. `overfitting`: what is gained along the epochs of a training run, against the gap between
validation and training. `novelty`: networks trained on five of ten classes, and how far apart entropies inside and
outside are. On digits; with a data folder also on Fashion-MNIST (10,000 training images, 2,000 for validation) and the
published CIFAR-10 ResNet-20 (half of the test images for validation).

`--preset mnist-mlp`, `mnist-cnn`, `fashion-cnn` or `cifar10-cnn` is a row of the paper's table 2, with the paper's
network: 25 seeds trained at once, and beside each other one network, PEP, a temperature, MC dropout, SWA and deep
ensembles of ten; then PEP as a probe of over-fitting along the epochs, and its effect on each example. `digits` is the
same, small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from basinet import MAP, PEP, Data, Posterior, Problem, datasets, fit, likelihoods, priors, score, temper
from basinet.curvature import Traces, traces
from basinet.metrics import auroc, symmetric_kl
from basinet.networks import MLP, ResNet
from basinet.optim import Adam
from basinet.predict import ClassPredictive

from .. import Options, Say, append_record, describe, did_you_mean
from . import table

NARROWED_BY = ("sets", "examples", "preset", "methods", "changes")
SETS = ("digits", "fashion_mnist", "resnet20")  # the last reads cifar10 and cifar10_resnet20.safetensors
MEMBERS = 5
EPOCHS = {"digits": (1, 2, 4, 8, 16, 32, 64, 128, 256), "fashion_mnist": (1, 2, 4, 8, 16, 32)}
TRAIN, VAL = 10_000, 2_000  # images of Fashion-MNIST
HALF = 5_000  # CIFAR-10 test images to tune on, and as many to report
PIXELS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and sd with which the published networks were trained
PROBES = 32  # of the Laplacian
LOCAL = 400  # validation examples for the local theory
CURVES = ("sigma", "ensemble", "mean", "each", "chosen")  # of the search for sigma


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/pep.jsonl."""
    if options.preset:
        return table.run(options, say)
    if options.methods or options.changes:
        raise ValueError("--methods and --with are for a row of table 2: give --preset, mnist-mlp say")
    for name in options.sets:
        if name not in SETS:
            raise ValueError(f"the study pep has no set {name!r}.{did_you_mean(name, SETS)}")
    study = _Study(options, say)
    for name in options.without_folder(["digits"], list(SETS), say):
        if name == "resnet20":
            assert options.folder is not None
            study.resnet(options.folder)
        else:
            study.small(name)
    return study.records


class _Study:
    def __init__(self, options: Options, say: Say) -> None:
        self.options, self.say = options, say
        self.engine = options.engine()
        self.records: list[dict[str, Any]] = []

    def record(self, kind: str, data: str, **values: Any) -> None:
        record = {"study": "pep", "kind": kind, "data": data, "seed": self.options.seed, **values}
        self.records.append(append_record(self.options.out / "pep.jsonl", record))

    def small(self, name: str) -> None:
        """All three questions for an MLP."""
        splits = datasets.load(name, seed=self.options.seed, folder=self.options.folder)
        parts = [splits.train, splits.val, splits.test]
        if name != "digits":
            parts = [self.options.cut(part, most) for part, most in zip(parts, (TRAIN, VAL, None))]
        train, val, test = parts
        inputs = train.inputs[0].numel()
        problem = _problem(inputs, 10)
        longest = max(EPOCHS[name])
        maps = self.fit(MAP(epochs=longest, optimizer=Adam(lr=1e-3)), problem, train, name)
        self.curve(name, maps, val, test)
        for epochs in EPOCHS[name]:  # a run of e epochs at a constant rate is the beginning of a longer one
            early = self.fit(MAP(epochs=epochs, optimizer=Adam(lr=1e-3)), problem, train, name)
            self.overfitting(name, epochs, early, parts)
        five = [part.take(part.targets < 5) for part in parts]
        few = self.fit(MAP(epochs=longest, optimizer=Adam(lr=1e-3)), _problem(inputs, 5), five[0], f"{name}-five")
        self.novelty(name, few, five[1], five[2].inputs, test.take(test.targets >= 5).inputs)

    def resnet(self, folder: Path) -> None:
        """The curve of the published ResNet-20, from half of the test images, reported on the other half."""
        from safetensors.torch import load_file

        module = ResNet(20)
        module.load_state_dict(load_file(folder / "cifar10_resnet20.safetensors"), strict=False)
        images = datasets.load_images("cifar10", folder)["test"]
        mean, sd = (torch.tensor(x)[:, None, None] for x in PIXELS)
        scaled = Data((images.inputs - mean) / sd, images.targets)
        val, test = (self.options.cut(scaled.take(slice(b, b + HALF)), HALF) for b in (0, HALF))
        start = Posterior.of(module, Problem(lambda: ResNet(20), likelihoods.Categorical())).to(self.engine.place)
        self.curve("cifar10 resnet20", start, val, test)

    def fit(self, recipe: MAP, problem: Problem, train: Data, name: str) -> Posterior:
        pool, seed = self.options.out / f"pool-{name}", self.options.seed
        return fit(recipe, problem, train, members=MEMBERS, seed=seed, pool=pool, engine=self.engine)

    def curve(self, name: str, start: Posterior, val: Data, test: Data) -> None:
        """Log likelihood against sigma for both kinds of noise, and scores on test images of the point, of its best
        temperature and of its noise."""
        each = [start[k] for k in range(len(start))]
        plain = [_plain(one, val, test) for one in each]
        local = [_traces(one, val) for one in each]
        for recipe in (PEP(noise="gaussian"), PEP(noise="uniform")):
            noisy = fit(recipe, start.problem, val=val, start=start, seed=self.options.seed, engine=self.engine)
            noisy = noisy.to(self.engine.place)
            rows = []
            for k, (known, effect) in enumerate(zip(plain, local)):
                curves = {n: x[k] for n, x in noisy.info["curves"].items() if n in CURVES}
                [sigma] = curves["chosen"]
                gain = max(curves["ensemble"]) - curves["ensemble"][0]
                theory = {
                    "predicted": effect.gain(sigma),
                    "predicted_error": effect.gain_error(sigma),
                } | effect._asdict()
                scores = known["scores"] | {"pep": score(noisy[k], test)}
                rows.append(known | {"curves": curves, "scores": scores, "gain": gain, "theory": theory})
                line = "  ".join(f"{what} {s['nll']:.4f}" for what, s in scores.items())
                said = f"{name}, {recipe.noise}, member {k}: sigma {sigma:.4f}  test NLL: {line}"
                self.say(f"{said}  gain on validation {gain:.4f}, by local theory {theory['predicted']:.4f}")
            sizes = {"n_val": val.n, "n_test": test.n, "seconds": noisy.info["seconds"]}
            self.record("curve", name, recipe=describe(recipe), members=rows, **sizes)

    def overfitting(self, name: str, epochs: int, maps: Posterior, parts: list[Data]) -> None:
        """What noise gains on validation and test data, beside how much worse validation is than training."""
        noisy = fit(PEP(), maps.problem, val=parts[1], start=maps, seed=self.options.seed, engine=self.engine)
        rows = []
        for k in range(len(maps)):
            train, val, test = (score(maps[k], part)["nll"] for part in parts)
            row = {"train": train, "val": val, "test": test, "gap": val - train}
            [sigma] = noisy.info["curves"]["chosen"][k]
            row |= {"sigma": sigma, "gain_val": max(noisy.info["curves"]["ensemble"][k]) + val}
            rows.append(row | {"gain_test": test - score(noisy[k], parts[2])["nll"]})
        means = {n: sum(row[n] for row in rows) / len(rows) for n in rows[0]}
        gains = f"gain on validation {means['gain_val']:.4f}, on test {means['gain_test']:.4f}"
        self.say(f"{name}, epoch {epochs:3}: gap {means['gap']:.4f}  sigma {means['sigma']:.4f}  {gains}")
        self.record("overfitting", name, epochs=epochs, members=rows, mean=means, n_val=parts[1].n, n_test=parts[2].n)

    def novelty(self, name: str, maps: Posterior, val: Data, inside: Tensor, outside: Tensor) -> None:
        """Entropies inside and outside the five classes of training: their divergence, and AUROC."""
        noisy = fit(PEP(), maps.problem, val=val, start=maps, seed=self.options.seed, engine=self.engine)
        rows = []
        for k in range(len(maps)):
            cooled, warmth = _tempered(maps[k], val)
            kinds = {"base": maps[k], "pep": noisy[k], "temperature": cooled}
            apart = {what: _apart(posterior, inside, outside) for what, posterior in kinds.items()}
            rows.append({"sigma": noisy.info["curves"]["chosen"][k][0], "temperature": warmth, "found": apart})
            line = "  ".join(f"{what} {f['symmetric_kl']:.3f} ({f['auroc']:.3f})" for what, f in apart.items())
            self.say(f"{name}, five classes, member {k}: symmetrised KL of entropies (AUROC): {line}")
        self.record("novelty", name, members=rows, n_inside=len(inside), n_outside=len(outside))


def _problem(inputs: int, outputs: int) -> Problem:
    """With a prior that is nearly flat, as the paper trains without weight decay."""
    return Problem(lambda: MLP(inputs, outputs), likelihoods.Categorical(), priors.Normal(scale=10.0))


def _tempered(posterior: Posterior, val: Data) -> tuple[Posterior, float]:
    """At its best temperature; 1 where every validation example is right."""
    tempered = temper(posterior, val)
    assert tempered.temperature is not None
    return tempered, float(tempered.temperature.values)


def _plain(posterior: Posterior, val: Data, test: Data) -> dict[str, Any]:
    """Scores of the point and of its best temperature."""
    cooled, warmth = _tempered(posterior, val)
    return {"temperature": warmth, "scores": {"base": score(posterior, test), "temperature": score(cooled, test)}}


def _traces(posterior: Posterior, val: Data) -> Traces:
    """The local theory of what noise gains, from some of the validation examples."""
    [point] = posterior.points()
    like = next(iter(point.params.values()))
    some = val.take(slice(0, LOCAL)).to(like.device, like.dtype)
    return traces(posterior.problem, point, some, PEP().perturbed(posterior.problem), PROBES)


def _apart(posterior: Posterior, inside: Tensor, outside: Tensor) -> dict[str, float]:
    low, high = _entropy(posterior, inside), _entropy(posterior, outside)
    return {"symmetric_kl": float(symmetric_kl(low, high)), "auroc": float(auroc(low, high))}


def _entropy(posterior: Posterior, inputs: Tensor) -> Tensor:
    predictive = posterior.predict(inputs)
    assert isinstance(predictive, ClassPredictive)
    return predictive.entropy
