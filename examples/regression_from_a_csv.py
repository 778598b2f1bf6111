"""Regression from a csv file: predictions with intervals, in the units of the file.

`python examples/regression_from_a_csv.py [PICTURE]` writes a table of diabetes patients to a csv file, fits an
ensemble to it, and predicts how the disease progresses, with intervals that contain the truth as often as they say.
"""

import csv
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

import basinet as bn

folder = Path(tempfile.mkdtemp())
inputs, progression = load_diabetes(return_X_y=True, scaled=False)
with (folder / "patients.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["age", "sex", "bmi", "pressure", "s1", "s2", "s3", "s4", "s5", "s6", "progression"])
    table.writerows([*row, y] for row, y in zip(inputs.tolist(), progression.tolist()))

splits, encoder = bn.tables.load_table(folder / "patients.csv", "progression")  # standardised by the training rows
columns = splits.train.inputs.shape[1]
problem = bn.Problem(
    lambda: bn.networks.MLP(columns, 2, hidden=(50, 50)),  # a mean and the logarithm of a spread
    bn.likelihoods.Heteroscedastic(),
    bn.priors.Normal(scale=1.0),
)
half = len(splits.val) // 2  # what ends training must not calibrate: the guarantee is for rows it has not seen
stop, calibrate = splits.val.take(slice(0, half)), splits.val.take(slice(half, None))
posterior = bn.fit(bn.MAP(), problem, splits.train, val=stop, members=5)
posterior = bn.conformal(posterior, calibrate, level=0.9)

scores = encoder.scores(bn.score(posterior, splits.test))  # in the units of the column
coverage = f"90 % intervals contain {scores['coverage_90']:.2f} of the targets"
print(f"rmse {scores['rmse']:.1f}, nll {scores['nll']:.2f}, {coverage}")

predictions = encoder.predictions(posterior.predict(splits.test.inputs), level=0.9)
print(", ".join(predictions))
print(", ".join(f"{column[0]:.1f}" for column in predictions.values()), "for the first test row")

truth = splits.test.targets[:, 0] * splits.target_sd + splits.target_mean
inside = [
    low <= y <= high
    for low, y, high in zip(predictions["conformal_low"], truth.tolist(), predictions["conformal_high"])
]
print(f"conformal intervals contain {sum(inside) / len(inside):.2f}")

order = sorted(range(len(truth)), key=lambda i: predictions["mean"][i])
_, ax = plt.subplots(figsize=(8, 3.2))
ax.fill_between(
    range(len(order)),
    [predictions["conformal_low"][i] for i in order],
    [predictions["conformal_high"][i] for i in order],
    color="#0072b2",
    alpha=0.2,
    lw=0,
    label="conformal interval, 90 %",
)
ax.plot([predictions["mean"][i] for i in order], color="#0072b2", label="mean")
ax.plot([truth[i] for i in order], ".", color="#d55e00", ms=4, label="truth")
ax.set(xlabel="test rows, ordered by their prediction", ylabel="progression")
ax.legend(frameon=False, fontsize=8)
plt.tight_layout()
if sys.argv[1:]:
    plt.savefig(sys.argv[1], dpi=110)
