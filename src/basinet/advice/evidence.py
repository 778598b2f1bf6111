"""What advice rests on: figures of records in `results/`, with where they stand, and checks of theory.

A claim is written with its figures; a test computes them anew from the records, and looks theory up in `basinet check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Evidence:
    """One reason. `claim` has places for `figures`, as a format string."""

    claim: str
    source: str  # "results/FILE: which records", or "theory: basinet check METHOD: NAME OF THE CHECK"
    figures: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.claim.format(**self.figures)} [{self.source}]"


SIZE_FASHION = Evidence(
    "On Fashion-MNIST the NLL falls from {one:.3f} for one network to {five:.3f} for five and {twenty:.3f} for twenty, "
    "the ECE from {ece_one:.3f} to {ece_five:.3f} and {ece_twenty:.3f}: five have most of it. One data set, one seed.",
    "results/size.jsonl: data fashion_mnist",
    {"one": 0.338, "five": 0.299, "twenty": 0.291, "ece_one": 0.035, "ece_five": 0.022, "ece_twenty": 0.020},
)
SIZE_DIGITS = Evidence(
    "Where members agree almost everywhere an ensemble gains next to nothing: on digits {one:.3f} for one network, "
    "{five:.3f} for five. One data set, one seed.",
    "results/size.jsonl: data digits",
    {"one": 0.122, "five": 0.119},
)
UCI_ENSEMBLE = Evidence(
    "On UCI regression five networks have a higher test log likelihood than one on {better:.0f} of {sets:.0f} sets, by "
    "more than two standard errors of the paired difference on {clearly:.0f}.",
    "results/uci.jsonl: deep ensemble against MAP",
    {"better": 8, "sets": 9, "clearly": 6},
)
UCI_ANCHORED = Evidence(
    "On UCI regression anchored ensembles have a lower RMSE than deep ensembles on {rmse:.0f} of {sets:.0f} sets; "
    "their log likelihood is higher on {small_better:.0f} of the {small:.0f} sets below 2,000 rows (clearly on "
    "{small_clearly:.0f}) and lower on all {large:.0f} above. The deep ensembles there predicted the noise of each "
    "row, the anchored ones had one noise for all.",
    "results/uci.jsonl: anchored ensemble against deep ensemble",
    {"rmse": 9, "sets": 9, "small_better": 4, "small": 5, "small_clearly": 2, "large": 4},
)
TEMPERATURE = Evidence(
    "On digits, trained long with a nearly flat prior, a temperature takes the NLL from {base:.3f} to {temper:.3f}, "
    "for no pass more. Five networks of one data set.",
    "results/pep.jsonl: kind curve, data digits, gaussian noise",
    {"base": 0.170, "temper": 0.121},
)
PEP_DIGITS = Evidence(
    "On digits, trained long with a nearly flat prior, noise around the network takes the NLL from {base:.3f} to "
    "{pep:.3f}; a temperature does more, {temper:.3f}. Five networks of one data set.",
    "results/pep.jsonl: kind curve, data digits, gaussian noise",
    {"base": 0.170, "pep": 0.142, "temper": 0.121},
)
PEP_RESNET = Evidence(
    "Around a published ResNet-20 for CIFAR-10 it takes the NLL from {base:.3f} to {pep:.3f}, a temperature to "
    "{temper:.3f}. One network, {images:,.0f} test images.",
    "results/pep.jsonl: kind curve, data cifar10 resnet20",
    {"base": 0.345, "pep": 0.243, "temper": 0.236, "images": 5000},
)
LAPLACE_EXACT = Evidence(
    "In a model that is linear in its random parameters, as a last layer with Gaussian noise is, its covariance is "
    "that of the posterior, and one pass predicts in closed form.",
    "theory: basinet check Laplace: full: covariance",
)
LAPLACE_UNTRIED = Evidence(
    "It costs a pass over the data after training, and by how much it helps on data like yours is not in the records: "
    "compare it with what it starts from on validation data.",
    "theory: basinet check Laplace: full: evidence",
)
ONE_MODE = Evidence(
    "One network is the cheapest there is to train and to ask; what it does not know of its weights it cannot say.",
    "theory: basinet check MAP: mode of the conjugate posterior, full batch",
)
ALL = (
    SIZE_FASHION,
    SIZE_DIGITS,
    UCI_ENSEMBLE,
    UCI_ANCHORED,
    TEMPERATURE,
    PEP_DIGITS,
    PEP_RESNET,
    LAPLACE_EXACT,
    LAPLACE_UNTRIED,
    ONE_MODE,
)
