"""What advice rests on: figures of records in `results/`, which travel with the package, and checks of theory.

A claim has places for its figures, and they come from the records: nobody writes them by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .records import shipped


@dataclass(frozen=True)
class Evidence:
    """One reason. `claim` has places for `figures`, as a format string."""

    claim: str
    source: str  # "results/FILE: which records", or "theory: basinet check METHOD: NAME OF THE CHECK"

    @property
    def figures(self) -> Mapping[str, float]:
        """What the records say; nothing for theory."""
        return {} if self.source.startswith("theory: ") else shipped()[self.source]

    def __str__(self) -> str:
        return f"{self.claim.format(**self.figures)} [{self.source}]"


MEMBERS = Evidence(
    "Of what twenty networks gain over one on Fashion-MNIST (NLL {one:.3f} to {twenty:.3f}), two have "
    "{share_two:.0%}, three {share_three:.0%}, five {share_five:.0%} and ten {share_ten:.0%}; the ECE falls from "
    "{ece_one:.3f} to {ece_five:.3f} for five. One data set, one seed.",
    "results/size.jsonl: fashion_mnist",
)
SIZE_DIGITS = Evidence(
    "Where members agree almost everywhere an ensemble gains next to nothing: on digits {one:.3f} for one network, "
    "{five:.3f} for five. One data set, one seed.",
    "results/size.jsonl: digits",
)
UCI_ENSEMBLE = Evidence(
    "On UCI regression five networks have a higher test log likelihood than one on {better:.0f} of {sets:.0f} sets, by "
    "more than two standard errors of the paired difference on {clearly:.0f}.",
    "results/uci.jsonl: deep ensemble against MAP",
)
UCI_ANCHORED = Evidence(
    "On UCI regression anchored ensembles have a lower RMSE than deep ensembles on {rmse:.0f} of {sets:.0f} sets; "
    "their log likelihood is higher on {small_better:.0f} of the {small:.0f} sets below 2,000 rows (clearly on "
    "{small_clearly:.0f}) and lower on {large_worse:.0f} of the {large:.0f} above. The deep ensembles there predicted "
    "the noise of each row, the anchored ones had one noise for all.",
    "results/uci.jsonl: anchored against deep ensemble",
)
TABLES = Evidence(
    "On {sets:.0f} tables, with the network and training that are the default now, ten networks have a lower NLL than "
    "one on {nll_one:.0f} and than the best of three boosted trees on {nll_trees:.0f}; their RMSE is lower than the "
    "trees' on {rmse_trees:.0f}: where only the mean counts, try boosting too. {splits:.0f} splits in all.",
    "results/tables.jsonl: deep ensemble",
)
TEMPERATURE = Evidence(
    "Around {networks:.0f} published ResNets for CIFAR-10 a temperature, one number from validation data, takes the "
    "NLL from {base_low:.3f}-{base_high:.3f} to {temper_low:.3f}-{temper_high:.3f}, for no pass more. Nothing else "
    "around one network does better there: Laplace over the last layer comes within {laplace_over_low:.3f} to "
    "{laplace_over_high:.3f}, noise on the weights (PEP) within {pep_over_low:.3f} to {pep_over_high:.3f}. "
    "{images:,.0f} test images.",
    "results/resnets.jsonl: 5,000 images",
)
TEMPERED_ENSEMBLE = Evidence(
    "A temperature for each member gains in a mixture too: of {networks:.0f} ResNets the NLL falls from "
    "{mixture_base:.3f} to {mixture_temper:.3f} (by {mixture_gain:.3f}, 95 % interval {gain_low:.3f} to "
    "{gain_high:.3f}).",
    "results/resnets.jsonl: 5,000 images",
)
TEMPERED_LOCAL = Evidence(
    "On Fashion-MNIST, trained long with a nearly flat prior, a temperature for each member takes the NLL of one "
    "network from {plain_one:.3f} to {temper_one:.3f}, of five from {plain_five:.3f} to {temper_five:.3f}.",
    "results/local.jsonl: fashion_mnist",
)
LAPLACE_LOCAL = Evidence(
    "On Fashion-MNIST, trained long with a nearly flat prior, Laplace over the last layer takes one network from "
    "{plain_one:.3f} to {laplace_one:.3f} and five from {plain_five:.3f} to {laplace_five:.3f} (a temperature: "
    "{temper_one:.3f} and {temper_five:.3f}). To notice what is new takes all layers: against MNIST the AUROC of one "
    "network is {plain_one_auroc:.2f}, with a temperature {temper_one_auroc:.2f}, with Laplace "
    "{laplace_one_auroc:.2f}, over all layers {all_layers_one_auroc:.2f}.",
    "results/local.jsonl: fashion_mnist",
)
LAPLACE_COMPARE = Evidence(
    "Around one network, with every default, it lowers the NLL on {better:.0f} of {real:.0f} regressions, by up to "
    "{most:.3f}, and raises it by up to {worst:.3f}; on {classes:.0f} sets of classes or labels, where networks were "
    "not over-confident, it changes it by at most {change:.3f}.",
    "results/compare.jsonl: Laplace against MAP",
)
LAPLACE_EXACT = Evidence(
    "In a model that is linear in its random parameters, as a last layer with Gaussian noise is, its covariance is "
    "that of the posterior, and one pass predicts in closed form.",
    "theory: basinet check Laplace: full: covariance",
)
PEP_DIGITS = Evidence(
    "On digits, trained long with a nearly flat prior, noise around the network takes the NLL from {base:.3f} to "
    "{pep:.3f}; a temperature does more, {temper:.3f}. Means of {networks:.0f} networks.",
    "results/pep.jsonl: digits",
)
PEP_FASHION = Evidence(
    "On Fashion-MNIST {base:.3f} becomes {pep:.3f}, by a temperature {temper:.3f}.",
    "results/pep.jsonl: fashion_mnist",
)
SWAG_MIXED = Evidence(
    "Weights collected after training (SWAG) are better than the mode they start from on digits ({digits_map:.3f} to "
    "{digits_swag:.3f}) and worse on Fashion-MNIST ({fashion_mnist_map:.3f} to {fashion_mnist_swag:.3f}): not advised.",
    "results/swag.jsonl: one member",
)
ONE_MODE = Evidence(
    "One network is the cheapest there is to train and to ask; what it does not know of its weights it cannot say.",
    "theory: basinet check MAP: mode of the conjugate posterior, full batch",
)
ALL = (
    MEMBERS,
    SIZE_DIGITS,
    UCI_ENSEMBLE,
    UCI_ANCHORED,
    TABLES,
    TEMPERATURE,
    TEMPERED_ENSEMBLE,
    TEMPERED_LOCAL,
    LAPLACE_LOCAL,
    LAPLACE_COMPARE,
    LAPLACE_EXACT,
    PEP_DIGITS,
    PEP_FASHION,
    SWAG_MIXED,
    ONE_MODE,
)
