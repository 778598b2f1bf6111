"""Classification: an ensemble of ten networks that reads handwritten digits and says when it is not sure.

`python examples/classification.py [PICTURE]` prints the scores and draws the least certain test images.
"""

import sys

import matplotlib.pyplot as plt

import basinet as bn

splits = bn.datasets.load("digits")
problem = bn.Problem(lambda: bn.networks.MLP(64, 10), bn.likelihoods.Categorical(), bn.priors.Normal(scale=1.0))

ensemble = bn.fit(bn.MAP(epochs=30), problem, splits.train, members=10)
one = ensemble[0]  # a slice of a posterior is a posterior
calibrated = bn.temper(ensemble, splits.val)  # one temperature for each member, from validation data

for name, posterior in {"one network": one, "ensemble": ensemble, "ensemble, tempered": calibrated}.items():
    scores = bn.score(posterior, splits.test)
    print(f"{name:20} nll {scores['nll']:.3f}  ece {scores['ece']:.3f}  accuracy {scores['accuracy']:.3f}")

predictive = calibrated.predict(splits.test.inputs)
guess = predictive.probs.argmax(-1)
wrong = guess != splits.test.targets
order = predictive.entropy.argsort(descending=True)
print(f"{int(wrong.sum())} of {len(guess)} test images are read wrongly")
print(f"{int(wrong[order[:36]].sum())} of them are among the 36 images it is least sure of")

_, axes = plt.subplots(1, 6, figsize=(9, 1.9))
for ax, i in zip(axes, order[:6].tolist()):
    ax.imshow(splits.test.inputs[i].reshape(8, 8), cmap="gray_r")
    best = predictive.probs[i].topk(2)
    words = " or ".join(f"{c} ({p:.0%})" for p, c in zip(best.values.tolist(), best.indices.tolist()))
    ax.set_title(f"{words}\ntruth: {int(splits.test.targets[i])}", fontsize=8)
    ax.axis("off")
plt.tight_layout()
if sys.argv[1:]:
    plt.savefig(sys.argv[1], dpi=110)
