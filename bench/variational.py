"""Noise of the ELBO's gradient, by how the noise of the weights enters a pass, and what a step costs.

    python bench/variational.py                 both parts, below
    python bench/variational.py --part steps    one of them

Gradients: for a network in the middle of its training and one batch, the gradient of the loss is computed under fresh
noise `--repeats` times. Its variance, summed over parameters, times the seconds of a gradient is what counts: at equal
cost, an estimator of half the product averages twice as many draws. `over weights` divides by that of one draw of the
weights; `over plain` divides the seconds by those of the gradient of the plain loss, in the same run.

Steps: processor time of a whole training step of the MLP in one thread, of `fit` (the difference of a long and a short
one) and of loops in plain torch, over that of a plain loop with Adam; medians of `--rounds` in which all rows take
turns. bayesian-torch is one of the rows where it can be imported (`pip install --no-deps bayesian-torch==0.5.0`).
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from shared import mlp_64, options, versions, write
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, tree_map
from basinet.engine import Descent
from basinet.engine.step import Alone, Step
from basinet.engine.work import Work
from basinet.problem import Batch

BATCH = 128
TRAINED = 300  # steps of MAP before the gradients are looked at
SHORT, LONG = 2, 22  # epochs
ESTIMATORS = ("weights", "local", "flipout", "auto")


class Reading(nn.Module):
    """Linear layers over a sequence of eight rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.relu(self.embed(x.reshape(len(x), 8, 8)))
        return self.head(torch.relu(self.mix(rows)).mean(1))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {"MLP 64-200-200-10": mlp_64, "sequence": Reading, "images": images}


class Gradients:
    """Gradients of one method's loss at one state and batch, under noise of any key."""

    def __init__(self, method: Any, problem: bn.Problem, data: bn.Data, start: bn.Posterior) -> None:
        self.method = method
        work = Work.of(method, method.adapt(problem), data, None).to(torch.device("cpu"), torch.float32)
        self.problem, self.context = work.problem, work.context
        self.state: Descent = method.init(start.points()[0], self.problem, bn.Noise.seed(0))
        rows = torch.arange(BATCH)
        self.batch = Batch(data.inputs[rows], data.targets[rows], rows, torch.tensor(0), data.n)
        self.lift = Alone()

    def __call__(self, number: int) -> Any:
        step = Step(self.batch, self.problem, bn.Noise.seed(1).split(number), self.context, self.lift)
        return self.lift.gradient(self.method.loss, self.state, step)[0]


def measured(gradients: Gradients, repeats: int) -> tuple[float, float, float]:
    """Variance of the gradient in centres and in log scales, summed over elements, and seconds of a gradient."""
    sums: list[Any] = []
    seconds = []
    for number in range(repeats):
        began = time.process_time()
        gradient = gradients(number)
        seconds.append(time.process_time() - began)
        parts = [ravel(x).double() for x in (gradient if isinstance(gradient, tuple) else (gradient,))]
        moments = [(x, x.square()) for x in parts]
        sums = moments if not sums else tree_map(torch.add, sums, moments)
    variances = [float(((b - a.square() / repeats) / (repeats - 1)).sum()) for a, b in sums]
    return variances[0], variances[-1], statistics.median(seconds)


class Steps:
    """Processor seconds of a training step of the MLP on digits, by row, without compilation."""

    def __init__(self, data: bn.Data) -> None:
        self.data, self.each = data, -(-data.n // BATCH)
        self.engine = bn.Engine(device="cpu", progress=False, strategy="loop", compile=False, processes=1)
        self.problem = bn.Problem(mlp_64, bn.likelihoods.Categorical(), bn.priors.Normal(scale="lecun"))
        self.rows: dict[str, Callable[[], float]] = {
            "plain torch, Adam": lambda: self.loop(mlp_64(), None),
            "MAP": lambda: self.fit(bn.MAP),
            "MeanField, one draw of the weights": lambda: self.fit(bn.MeanField, estimator="weights"),
            "MeanField, as by default": lambda: self.fit(bn.MeanField),
            "MeanField, eight draws of the weights": lambda: self.fit(bn.MeanField, estimator="weights", draws=8),
            "IVON": lambda: self.fit(bn.IVON),
            "VariationalDropout": lambda: self.fit(bn.VariationalDropout),
            "MCDropout": lambda: self.fit(bn.MCDropout),
            "VBLL": lambda: self.fit(bn.VBLL),
        }
        if importlib.util.find_spec("bayesian_torch") is None:
            print("bayesian-torch is left out: it is not installed here", flush=True)
            return
        for kind in ("Reparameterization", "Flipout"):
            self.rows[f"bayesian-torch, {kind}"] = lambda kind=kind: self.loop(*_bayesian(kind, self.data.n))

    def fit(self, method: Any, **words: Any) -> float:
        recipes = (method(epochs=SHORT, **words), method(epochs=LONG, **words))
        short, long = (_processor(partial(bn.fit, r, self.problem, self.data, engine=self.engine)) for r in recipes)
        return (long - short) / ((LONG - SHORT) * self.each)

    def loop(self, net: nn.Module, penalty: Callable[[nn.Module], torch.Tensor] | None) -> float:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

        def run() -> None:
            for _ in range(LONG - SHORT):
                for rows in torch.randperm(self.data.n).split(BATCH):
                    loss = F.cross_entropy(net(self.data.inputs[rows]), self.data.targets[rows])
                    loss = loss if penalty is None else loss + penalty(net)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        return _processor(run) / ((LONG - SHORT) * self.each)


def _bayesian(kind: str, n: int) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """The MLP of layers of bayesian-torch, and its divergence per example."""
    from bayesian_torch import layers
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    linear = getattr(layers, f"Linear{kind}")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (64, 200, 200, 10)
            self.layers = nn.ModuleList(linear(a, b) for a, b in itertools.pairwise(widths))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[:-1]:
                x = torch.relu(layer(x, return_kl=False))
            return self.layers[-1](x, return_kl=False)

    return Net(), lambda net: get_kl_loss(net) / n


def _processor(run: Callable[[], Any]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def steps(data: bn.Data, rounds: int, out: Path | None) -> None:
    rows = Steps(data).rows
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, row in rows.items():
            taken[name].append(row())
    plain = statistics.median(taken["plain torch, Adam"])
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        print(f"{name:38} {1e3 * middle:6.2f} ms per step, {middle / plain:5.2f} of a plain one", flush=True)
        write(out, {
            "bench": "variational steps", "row": name, "seconds": middle, "each": seconds, "over_plain": middle / plain,
            "batch": BATCH, "threads": torch.get_num_threads(), "versions": versions(),
        })  # fmt: skip


def gradients(data: bn.Data, repeats: int, scales: list[float], out: Path | None) -> None:
    quiet = bn.Engine(device="cpu", progress=False)
    for name, net in NETWORKS.items():
        problem = bn.Problem(net, bn.likelihoods.Categorical(), bn.priors.Normal(scale="lecun"))
        recipe = bn.MAP(epochs=-(-TRAINED * BATCH // data.n))
        start = bn.fit(recipe, problem, data, engine=quiet)
        plain = measured(Gradients(recipe, problem, data, start), repeats)[2]
        for scale in scales:
            first: float | None = None
            for estimator in ESTIMATORS:
                method = bn.MeanField(estimator=estimator, scale=scale)  # type: ignore[arg-type]
                centre, spread, seconds = measured(Gradients(method, problem, data, start), repeats)
                product = centre * seconds
                first = product if first is None else first
                print(
                    f"{name:18} scale {scale:<5g} {estimator:8} variance {centre:9.3g} (centres) {spread:9.3g} (log "
                    f"scales), {seconds / plain:5.2f} over plain, variance x time {product / first:6.3f} over weights",
                    flush=True,
                )
                write(out, {
                    "bench": "variational", "row": name, "scale": scale, "estimator": estimator, "batch": BATCH,
                    "variance_centres": centre, "variance_log_scales": spread, "seconds": seconds,
                    "over_plain": seconds / plain, "product_over_weights": product / first, "repeats": repeats,
                    "threads": torch.get_num_threads(), "versions": versions(),
                })  # fmt: skip


def main() -> None:
    parser = options(__doc__, devices=("cpu",))
    parser.add_argument("--part", choices=("gradients", "steps"), help="one of the two parts; both without it")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scales", default="0.02,0.1", help="standard deviations of the weights, with commas")
    chosen = parser.parse_args()
    data = bn.datasets.load("digits").train
    if chosen.part != "steps":
        gradients(data, chosen.repeats, [float(x) for x in chosen.scales.split(",")], chosen.out)
    if chosen.part != "gradients":
        steps(data, chosen.rounds, chosen.out)


if __name__ == "__main__":
    main()
