"""Random calls of `fit`, each from a seed: most arguments fit together, some do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import basinet as bn
from basinet import methods
from basinet.core.registry import known

WHOLE = (0, 1, 2, 3, 5, -1, None)
REAL = (0.0, 1e-3, 0.05, 0.5, 1.0, 3.0, -1.0, 1e30, float("nan"), float("inf"))
CHOICES: dict[str, tuple[Any, ...]] = {  # of fields that are not plain numbers
    "structure": ("diagonal", "kronecker", "full", "eigen", "lowrank", None, "bogus"),
    "where": ("last", "all", None, ("0.weight",), "0", "bogus"),
    "curvature": ("ggn", "fisher", "empirical", "bogus"),
    "prior_precision": (None, "marglik", "validation", 1.0, 0.0, -1.0, "bogus"),
    "via": ("sample", "linear", "probit", "bridge", "bogus"),
    "noise": (None, "marglik", "gaussian", "uniform"),
    "space": ("weights", "function", "features", "bogus"),
    "layer": (None, "0", "2", "bogus"),
    "kernel": ("rbf", "linear", "bogus"),
    "anneal": ("none", "linear", "hyperbolic", "cyclical", "bogus"),
    "estimate": ("kde", "ssge", "sge", "bogus"),
    "lengthscales": ("pca", "identity", 1.0, 0.0, -1.0, "bogus"),
    "repulsion": ("paper", 1.0, 0.0, -1.0, float("nan")),
    "target_noise": (None, True, False),
    "unit_noise": (True, False),
    "iterates": (1, 2, 3, 0, -1),  # a default of many takes long
    "rank": (1, 2, 0, -1, 5),
    "draws": (1, 2, 0, -1),
    "centre": ("start", "prior", None, "bogus"),
}
DRIFTS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: bn.filters.Forget(0.9),
    lambda: bn.filters.Forget(1e-300),
    lambda: bn.filters.Inflate(1e-3),
    lambda: bn.filters.Inflate(1e30),
    lambda: bn.filters.Shrink(0.5, scale=1e-10),
    bn.filters.AdaptiveForget,
    bn.filters.Change,
    lambda: bn.filters.Change(0.5, scale=1e15),
)
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh,
    F.relu,
    F.gelu,
    F.silu,
    F.softplus,
    F.hardswish,
    F.mish,
    F.celu,
    F.softshrink,
    F.logsigmoid,
    F.hardshrink,
    torch.sin,
    F.rrelu,
    torch.erf,
    torch.special.i0,
    torch.lgamma,
)


class Net(nn.Module):
    """A network of two layers; what lies between them varies."""

    def __init__(self, inputs: int, outputs: int, kind: str, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.kind, self.activation = kind, activation
        self.first = nn.Embedding(5, 4) if kind == "embedding" else nn.Linear(inputs, 4)
        between = {
            "batch norm": lambda: nn.BatchNorm1d(4),
            "layer norm": lambda: nn.LayerNorm(4),
            "dropout": lambda: nn.Dropout(0.5),
            "convolution": lambda: nn.Conv1d(1, 1, 3, padding=1),
            "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
            "frozen": lambda: nn.Linear(4, 4).requires_grad_(False),
        }
        self.between = nn.LSTM(4, 4, batch_first=True) if kind == "lstm" else between.get(kind, nn.Identity)()
        self.last = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x[:, 0].long() % 5) if self.kind == "embedding" else self.first(x)
        if self.kind in ("convolution", "attention", "lstm"):
            x = self.between(x[:, None])
            x = (x[0] if self.kind == "lstm" else x)[:, 0]
        else:
            x = self.between(x)
        x = self.last(self.activation(x))
        if self.kind == "branch":
            return x if x.sum() > 0 else x * 2
        if self.kind == "nan":
            return x / 0.0
        return x[:, 0] if self.kind == "vector" else x


KINDS = (
    "plain",
    "plain",
    "plain",
    "batch norm",
    "layer norm",
    "dropout",
    "convolution",
    "attention",
    "frozen",
    "lstm",
    "embedding",
    "branch",
    "nan",
    "vector",
)


class Call:
    """The arguments of one call; `tmp` is a folder of its own."""

    def __init__(self, seed: int, tmp: Path) -> None:
        self.draw = draw = random.Random(seed)
        self.tmp, self.inputs = tmp, draw.choice((1, 3))
        self.kind = draw.choice(("classes", "labels", "real", "real", "counts"))
        self.outputs = {"classes": 3, "labels": 2, "counts": 1}.get(self.kind, draw.choice((1, 2)))

    def __call__(self) -> Any:
        problem = self.problem()
        data = self.odd(self.data(draw_n=(1, 2, 3, 7, 20)), (None, 3, (1, 2)))
        options = {
            "val": self.odd(self.draw.choice((None, self.data(draw_n=(1, 2, 6)))), (3, "val")),
            "members": self.odd(self.draw.choice((None, 1, 2, 3, 3)), (0, -1, 2.0, "3", True)),
            "seed": self.odd(self.draw.choice((0, 1, 7)), (-1, 2**63, 2**64 - 1, 2**64, 2**70, 1.5, "a", None, True)),
            "start": self.odd(self.start(problem) if self.draw.random() < 0.2 else None, (3, nn.Linear(1, 1))),
            "pool": self.odd(self.draw.choice((None, self.tmp / "pool", str(self.tmp / "pool"))), (3, self.file())),
            "engine": self.odd(self.engine(), (3, "cpu")),
            "observe": self.odd(self.draw.choice((None, lambda event: None)), (3,)),
        }
        posterior = bn.fit(self.odd(self.method(), (None, bn.MAP, "MAP")), problem, data, **options)
        if isinstance(data, bn.Data):
            posterior.predict(data.inputs)
        return posterior

    def odd(self, value: Any, instead: tuple[Any, ...], share: float = 0.02) -> Any:
        """The value, or seldom something else."""
        return self.draw.choice(instead) if self.draw.random() < share else value

    def problem(self) -> bn.Problem:
        likelihoods = {
            "classes": (bn.likelihoods.Categorical, bn.likelihoods.Categorical, bn.likelihoods.NoisyDirichlet),
            "labels": (bn.likelihoods.Bernoulli,),
            "real": (bn.likelihoods.Gaussian, bn.likelihoods.Heteroscedastic, bn.likelihoods.StudentT),
            "counts": (bn.likelihoods.Poisson,),
        }
        likelihood = self.draw.choice(likelihoods[self.kind])
        wide = 2 if likelihood is bn.likelihoods.Heteroscedastic else 1
        outputs = self.odd(self.outputs * wide, (1, 5))
        kind, activation = self.draw.choice(KINDS), self.draw.choice(ACTIVATIONS)
        dtype = self.draw.choice((torch.float32, torch.float32, torch.float64))
        ours = tuple(prior for prior in known("prior").values() if prior.__module__.startswith("basinet."))
        prior = self.odd(bn.priors.Normal, ours, 0.3)
        prior = bn.priors.Normal if prior is bn.priors.FromFamily else prior
        temperature = self.odd(self.draw.choice((1.0, 0.1)), REAL)
        make = lambda: Net(self.inputs, outputs, kind, activation).to(dtype)  # noqa: E731
        return bn.Problem(
            self.draw.choice((make, make())),
            self.filled(likelihood),
            self.filled(prior),
            temperature,
            self.draw.choice(("posterior", "likelihood")),
        )

    def data(self, draw_n: tuple[int, ...]) -> Any:
        n, key = self.draw.choice(draw_n), bn.Noise.seed(self.draw.randrange(100))
        inputs = key.split("x").normal(torch.empty(n, self.inputs)) * self.odd(1.0, (0.0, 1e10, 1e30))
        shape = (n,) if self.outputs == 1 and self.draw.random() < 0.3 else (n, self.outputs)
        targets = {
            "classes": lambda: key.split("y").integers(n, 3),
            "labels": lambda: (key.split("y").normal(torch.empty(n, 2)) > 0).float(),
            "real": lambda: key.split("y").normal(torch.empty(shape)) * self.odd(1.0, (0.0, 1e10, 1e30)),
            "counts": lambda: key.split("y").integers(n, 4).reshape(n, 1).float(),
        }[self.kind]()
        weights = self.odd(
            None, (torch.ones(n), key.split("w").uniform(torch.empty(n)), (torch.arange(n) > 0).float()), 0.2
        )
        data = bn.Data(inputs, targets, weights)
        how = self.draw.random()
        if how < 0.08:
            return data.bootstrap(3, 0)
        if how < 0.2 and weights is None:
            size = self.draw.choice((1, 2, 5))
            cut = [(inputs[i : i + size], targets[i : i + size]) for i in range(0, n, size)]
            return bn.Data.stream(cut, n=n, name=self.draw.choice(("some", None)))
        return data

    def start(self, problem: bn.Problem) -> Any:
        ways: tuple[Callable[[], Any], ...] = (
            lambda: bn.Posterior.of(problem.network.module, problem),
            lambda: bn.mix([bn.Posterior.of(problem.network.module, problem)] * 2),
            lambda: bn.Posterior.of(nn.Linear(2, 2), bn.Problem(nn.Linear(2, 2), bn.likelihoods.Categorical())),
        )
        return self.odd(ways[0], ways, 0.3)()

    def engine(self) -> Any:
        half = self.draw.choice((None, None, None, None, None, torch.float64, torch.float16, torch.bfloat16))
        return bn.Engine(
            device="cpu",
            progress=False,
            dtype=half,
            strategy=self.draw.choice((None, "stacked", "loop", "loop", "loop")),
            autocast=self.odd(None, (torch.bfloat16, torch.float16)),
            memory=self.odd(None, (0, -1, 10**6, 10**30)),
            checkpoint=self.odd(60.0, (0, 1e300)),
        )

    def file(self) -> Path:
        (self.tmp / "file").write_text("something")
        return self.tmp / "file"

    def method(self) -> Any:
        return self.filled(self.draw.choice(list(methods.discover().values())))

    def filled(self, cls: type) -> Any:
        """An object of a class with some fields that are not at their defaults."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            kind, name = str(field.type), field.name
            if name in ("epochs", "every", "cycles"):
                values[name] = self.odd(self.draw.choice((1, 2)), (0, -1, 5))
            elif name == "steps":
                values[name] = self.odd(self.draw.choice((40, 60)), (0, -1, 5))
            elif name == "draws":
                values[name] = self.odd(self.draw.choice((4, 6)), (0, -1, 1))
            elif name == "iterates" or name == "rank":
                values[name] = self.odd(2, CHOICES[name])
            elif name == "base":
                values[name] = self.odd(bn.MAP(epochs=1), (bn.PEP(), bn.Laplace(base=bn.MAP(epochs=1)), 3))
            elif name == "batch_size":
                whole = (2, 5, 128, 2 if issubclass(cls, bn.filters.Filter) else None)
                values[name] = self.odd(self.draw.choice(whole), (0, -1, 1, 10**9, None))
            elif name == "optimizer":
                values[name] = self.optimizer()
            elif name == "drift":
                values[name] = self.odd(self.draw.choice(DRIFTS)(), ("forget", 0.9))
            elif self.draw.random() < 0.06:
                if name in CHOICES:
                    values[name] = self.draw.choice(CHOICES[name])
                elif kind.startswith("int"):
                    values[name] = self.draw.choice(WHOLE)
                elif kind.startswith(("float", "Scale")):
                    values[name] = self.draw.choice(REAL)
                elif kind == "bool":
                    values[name] = True
        return cls(**values)

    def optimizer(self) -> Any:
        cls = self.draw.choice((bn.optim.SGD, bn.optim.Adam, bn.optim.AdamW))
        return cls(lr=self.odd(self.draw.choice((1e-3, 1e-2, 0.1)), REAL))


class Streamed(Call):
    """The same for `online`: a few batches, of which each is predicted and then learned from."""

    def __call__(self) -> Any:
        problem = self.problem()
        options = {
            "members": self.odd(self.draw.choice((None, 1, 2)), (0, -1)),
            "seed": self.odd(self.draw.choice((0, 7)), (-1, 2**64)),
            "start": self.odd(self.start(problem) if self.draw.random() < 0.2 else None, (3,)),
            "drift": self.odd(None, (bn.filters.Forget(0.9), bn.filters.Change(), 0.9), 0.1),
        }
        state = bn.online(self.method(), problem, **options)
        runs = self.draw.random() < 0.2
        runs = runs and isinstance(state.parts[0].recipe, self.odd(bn.filters.Filter, (object,)))
        state = bn.RunLength(state, hazard=self.odd(0.1, REAL), keep=self.odd(2, (0, -1))) if runs else state
        for _ in range(self.draw.choice((1, 3))):
            batch = self.batch()
            posterior = state.posterior if isinstance(state, bn.RunLength) else state
            if isinstance(batch, bn.Data):
                posterior.predict(batch.inputs).log_prob(batch.targets)
            state = state.update(batch)
        return state

    def problem(self) -> bn.Problem:
        """Mostly with a normal prior and noise that is known."""
        problem = super().problem()
        if self.kind == "real" and self.draw.random() < 0.8:
            noise = self.odd(0.3, (1e-30, 1e-3, 1e30))
            problem = bn.Problem(problem.model, bn.likelihoods.Gaussian(noise=noise), problem.prior)
        if self.draw.random() < 0.8:
            scale = self.odd(self.draw.choice((1.0, "lecun")), (1e-30, 1e-10, 1e10, 1e30))
            problem = bn.Problem(problem.model, problem.likelihood, bn.priors.Normal(scale=scale))
        return problem

    def batch(self) -> Any:
        """Mostly plain examples."""
        while True:
            batch = self.data(draw_n=(1, 2, 7, 20))
            if (isinstance(batch, bn.Data) and batch.rows is None) or self.draw.random() < 0.02:
                return batch

    def method(self) -> Any:
        filters = (bn.EKF, bn.EKF, bn.LOFI, bn.RVGA, bn.Kalman)
        return self.filled(self.draw.choice((*filters, *filters, bn.Laplace, bn.MeanField, bn.IVON, bn.MAP)))
