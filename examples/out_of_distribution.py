"""Out-of-distribution detection: which uncertainty tells new inputs from those like the training data?

`python examples/out_of_distribution.py [PICTURE]` trains on the digits 0 to 4 and is then shown 5 to 9 as well.
"""

import sys

import matplotlib.pyplot as plt

import basinet as bn

splits = bn.datasets.load("digits")
train, val = (part.take(part.targets < 5) for part in (splits.train, splits.val))
inside, outside = splits.test.take(splits.test.targets < 5), splits.test.take(splits.test.targets >= 5)

problem = bn.Problem(lambda: bn.networks.MLP(64, 5), bn.likelihoods.Categorical(), bn.priors.Normal(scale=1.0))
ensemble = bn.fit(bn.MAP(epochs=60), problem, train, members=5)
laplace = bn.fit(bn.Laplace(), problem, train, val=val, start=ensemble)

rows = {"one network": ensemble[0], "ensemble of five": ensemble, "mixture of five Laplaces": laplace}
print(f"{len(inside)} images of 0 to 4, {len(outside)} of 5 to 9; AUROC of telling them apart")
for name, posterior in rows.items():
    known, new = posterior.predict(inside.inputs), posterior.predict(outside.inputs)
    total = bn.metrics.auroc(known.entropy, new.entropy)
    print(f"{name:24} total uncertainty {float(total):.3f}", end="")
    if posterior is not rows["one network"]:  # a single point has no epistemic part
        print(f"  epistemic alone {float(bn.metrics.auroc(known.epistemic, new.epistemic)):.3f}", end="")
    print()

_, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for ax, (name, posterior) in zip(axes, [*rows.items()][::2]):
    parts = [posterior.predict(part.inputs).entropy.numpy() for part in (inside, outside)]
    ax.hist(parts, bins=20, density=True, color=["#0072b2", "#d55e00"], label=["0 to 4", "5 to 9, never seen"])
    ax.set(title=name, xlabel="entropy [nats]")
axes[0].legend(frameon=False, fontsize=8)
plt.tight_layout()
if sys.argv[1:]:
    plt.savefig(sys.argv[1], dpi=110)
