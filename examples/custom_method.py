"""A method of your own in thirty lines: it trains as an ensemble, is checked against its theory, saves and loads.

`python examples/custom_method.py [PICTURE]`: Gaussian noise is added to the weights at which each gradient is taken,
which prefers wide minima (Bishop 1995; as one draw of variational inference with a fixed spread). The posterior is a
point, where training ended.
"""

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

import basinet as bn
from basinet.engine import Descent, GradientMethod, Info, Schedule, Step
from basinet.testing import Bench, Check, check_method


@dataclass(frozen=True, kw_only=True)
class NoisyWeights(GradientMethod):
    """The mode of a posterior that is smoothed by noise on the weights."""

    epochs: int = 30
    """Passes through the data."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    spread: float = 0.02
    """Standard deviation of the noise."""
    optimizer: bn.optim.Optimizer = bn.optim.Adam(lr=bn.optim.Cosine(peak=3e-3))
    """How a gradient becomes a step."""

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def loss(self, params, state: Descent, step: Step) -> Info:
        noise = step.noise.split("weights")
        moved = {name: x + self.spread * noise.split(name).normal(x) for name, x in params.items()}
        return super().loss(moved, state, step)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = bench.conjugate()  # a quadratic potential: its mean gradient is that of the mode, whatever the noise
        recipe = cls(epochs=4000, batch_size=None, spread=0.05, optimizer=bn.optim.Adam(lr=bn.optim.Cosine(peak=0.05)))
        mode = bench.fit(recipe, exact.problem, exact.data).mean()
        yield bench.close("mode of a linear model", "mu", mode, exact.mean, 0.05)


checks = check_method(NoisyWeights())  # raises with a table of what failed
print(f"{len(checks)} checks passed; the last: {checks[-1].name}, off by {checks[-1].measured:.3f}")

splits = bn.datasets.load("digits")
problem = bn.Problem(lambda: bn.networks.MLP(64, 10), bn.likelihoods.Categorical(), bn.priors.Normal(scale=1.0))
spreads = [0.0, 0.01, 0.02, 0.05, 0.1]
swept = bn.fit(NoisyWeights(spread=spreads), problem, splits.train)  # a list is a sweep: one member for each value
scores = [bn.score(member, splits.test)["nll"] for member in swept]
for spread, nll in zip(spreads, scores):
    print(f"spread {spread:<5} nll {nll:.3f}")

with tempfile.TemporaryDirectory() as folder:
    swept.save(folder)
    again = bn.load(folder, lambda: bn.networks.MLP(64, 10))
    same = torch.equal(again.predict(splits.test.inputs).probs, swept.predict(splits.test.inputs).probs)
    print("saved and loaded, predictions are the same:", same)

_, ax = plt.subplots(figsize=(4.4, 3))
ax.plot(spreads, scores, "o-", color="#0072b2")
ax.set(xlabel="spread of the noise", ylabel="test NLL")
plt.tight_layout()
if sys.argv[1:]:
    plt.savefig(sys.argv[1], dpi=110)
