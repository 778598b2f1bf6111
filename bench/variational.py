"""Noise of the ELBO's gradient, by how the noise of the weights enters a pass, and what a step costs.

    python bench/variational.py                 gradient variance, seconds, and both together, of each estimator

For a network in the middle of its training and one batch, the gradient of the loss is computed under fresh noise
`--repeats` times. Its variance, summed over parameters, times the seconds of a gradient is what counts: at equal cost,
an estimator of half the product averages twice as many draws. `over weights` divides by that of one draw of the
weights; `over plain` divides the seconds by those of the gradient of the plain loss, in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
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
        found = gradients(number)
        seconds.append(time.process_time() - began)
        parts = [ravel(x).double() for x in (found if isinstance(found, tuple) else (found,))]
        moments = [(x, x.square()) for x in parts]
        sums = moments if not sums else tree_map(torch.add, sums, moments)
    variances = [float(((b - a.square() / repeats) / (repeats - 1)).sum()) for a, b in sums]
    return variances[0], variances[-1], statistics.median(seconds)


def main() -> None:
    parser = options(__doc__, devices=("cpu",))
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--scales", default="0.02,0.1", help="standard deviations of the weights, with commas")
    chosen = parser.parse_args()
    data = bn.datasets.load("digits").train
    quiet = bn.Engine(device="cpu", progress=False)
    for name, net in NETWORKS.items():
        problem = bn.Problem(net, bn.likelihoods.Categorical(), bn.priors.Normal(scale="lecun"))
        recipe = bn.MAP(epochs=-(-TRAINED * BATCH // data.n))
        start = bn.fit(recipe, problem, data, engine=quiet)
        plain = measured(Gradients(recipe, problem, data, start), chosen.repeats)[2]
        for scale in map(float, chosen.scales.split(",")):
            first: float | None = None
            for estimator in ESTIMATORS:
                method = bn.MeanField(estimator=estimator, scale=scale)  # type: ignore[arg-type]
                centre, spread, seconds = measured(Gradients(method, problem, data, start), chosen.repeats)
                product = centre * seconds
                first = product if first is None else first
                print(
                    f"{name:18} scale {scale:<5g} {estimator:8} variance {centre:9.3g} (centres) {spread:9.3g} (log "
                    f"scales), {seconds / plain:5.2f} over plain, variance x time {product / first:6.3f} over weights",
                    flush=True,
                )
                write(chosen.out, {
                    "bench": "variational", "row": name, "scale": scale, "estimator": estimator, "batch": BATCH,
                    "variance_centres": centre, "variance_log_scales": spread, "seconds": seconds,
                    "over_plain": seconds / plain, "product_over_weights": product / first, "repeats": chosen.repeats,
                    "threads": torch.get_num_threads(), "versions": versions(),
                })  # fmt: skip


if __name__ == "__main__":
    main()
