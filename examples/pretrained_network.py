"""A network that is trained already: uncertainty around it, without training it again.

`python examples/pretrained_network.py [PICTURE]` trains a plain PyTorch network for too long, as many are, and puts a
Laplace approximation and a temperature around it. The network itself is never changed.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import nn

import basinet as bn

splits = bn.datasets.load("digits")
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
few = splits.train.take(slice(0, 300))
for _ in range(400):  # plain PyTorch, full batches, no regularisation
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(few.inputs), few.targets).backward()
    optimizer.step()

problem = bn.Problem(network, bn.likelihoods.Categorical(), bn.priors.Normal(scale=1.0))
given = bn.Posterior.of(network, problem)
around = {
    "as given": given,
    "temperature": bn.temper(given, splits.val),
    "Laplace, last layer": bn.fit(bn.Laplace(), problem, few, val=splits.val, start=given),
    "PEP": bn.fit(bn.PEP(), problem, val=splits.val, start=given),
}
for name, posterior in around.items():
    scores = bn.score(posterior, splits.test)
    print(f"{name:20} nll {scores['nll']:.3f}  ece {scores['ece']:.3f}  accuracy {scores['accuracy']:.3f}")

_, ax = plt.subplots(figsize=(4.4, 3.6))
ax.plot([0, 1], [0, 1], color="#777777", lw=1, ls="--")
for (name, posterior), colour in zip(around.items(), ("#d55e00", "#009e73", "#0072b2", "#cc79a7")):
    probs = posterior.predict(splits.test.inputs).probs
    bins = bn.metrics.reliability(probs, splits.test.targets, bins=8, spacing="mass")
    ax.plot(bins.confidence, bins.accuracy, "o-", ms=4, color=colour, label=name)
ax.set(xlabel="confidence", ylabel="accuracy", xlim=(0.3, 1.02), ylim=(0.3, 1.02))
ax.legend(frameon=False, fontsize=8)
plt.tight_layout()
if sys.argv[1:]:
    plt.savefig(sys.argv[1], dpi=110)
