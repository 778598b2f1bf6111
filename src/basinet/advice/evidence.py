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
    "On Fashion-MNIST twenty networks lower the NLL of one from {one:.3f} to {twenty:.3f}; two have {share_two:.0%} "
    "of that gain, three {share_three:.0%}, five {share_five:.0%} and ten {share_ten:.0%}; five lower the ECE from "
    "{ece_one:.3f} to {ece_five:.3f}. One data set, one seed.",
    "results/size.jsonl: fashion_mnist",
)
SIZE_DIGITS = Evidence(
    "Where members agree almost everywhere an ensemble gains next to nothing: on digits {one:.3f} for one network, "
    "{five:.3f} for five. One data set, one seed.",
    "results/size.jsonl: digits",
)
ENSEMBLE = Evidence(
    "Five networks, with every default, have a lower NLL than one on {better:.0f} of {real:.0f} regressions, by up to "
    "{most:.3f}; at worst it is {worst:.3f} higher.",
    "results/compare.jsonl: deep ensemble against MAP",
)
ANCHORED = Evidence(
    "Five anchored networks have a lower NLL than five plain ones on {better:.0f} of {real:.0f} regressions, by up to "
    "{most:.3f}, and elsewhere one that is up to {worst:.3f} higher: anchors hurt where there is little noise.",
    "results/compare.jsonl: anchored against deep ensemble",
)
TABLES = Evidence(
    "On {sets:.0f} tables the ensemble of `basinet fit` (ten networks, more than here, with a spread that validation "
    "set) has a lower NLL than the best of three boosted trees on {nll_trees:.0f} and a lower RMSE on "
    "{rmse_trees:.0f}: where only the mean counts, try boosting too. {splits:.0f} splits in all.",
    "results/tables.jsonl: deep ensemble",
)
TEMPERATURE = Evidence(
    "Around {networks:.0f} published ResNets for CIFAR-10 a temperature, one number from validation data, takes the "
    "NLL from {base_low:.3f}-{base_high:.3f} to {temper_low:.3f}-{temper_high:.3f} and adds nothing to the cost of a "
    "prediction. No other method around one network does better there: Laplace over the last layer is "
    "{laplace_over_low:.3f} to {laplace_over_high:.3f} higher, noise on the weights (PEP) {pep_over_low:.3f} to "
    "{pep_over_high:.3f}. {images:,.0f} test images.",
    "results/resnets.jsonl: 5,000 images",
)
TEMPERED_ENSEMBLE = Evidence(
    "A temperature for each member helps a mixture, too: of {networks:.0f} ResNets the NLL falls from "
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
    "{temper_one:.3f} and {temper_five:.3f}). To notice unfamiliar inputs takes all layers: against MNIST the AUROC "
    "of one network is {plain_one_auroc:.2f}, with a temperature {temper_one_auroc:.2f}, with Laplace "
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
VBLL_UCI = Evidence(
    "A normal distribution over the last layer, learned with the features (VBLL), predicts mean and variance in one "
    "pass. On {equal:.0f} of {sets:.0f} UCI regressions its log likelihood is that of one network within {near:.2f}; "
    "mean differences lie between {least:+.3f} and {most:+.3f}, on {fewest:.0f} to {splits:.0f} splits of each set.",
    "results/variational.jsonl: VBLL against MAP",
)
VBLL_EXACT = Evidence(
    "In a model that is linear in its random parameters, with Gaussian noise, it is the posterior.",
    "theory: basinet check VBLL: covariance",
)
PEP_DIGITS = Evidence(
    "On digits, trained long with a nearly flat prior, noise around the network takes the NLL from {base:.3f} to "
    "{pep:.3f}; a temperature does better, {temper:.3f}. Means of {networks:.0f} networks.",
    "results/pep.jsonl: digits",
)
PEP_FASHION = Evidence(
    "On Fashion-MNIST {base:.3f} becomes {pep:.3f}, by a temperature {temper:.3f}.",
    "results/pep.jsonl: fashion_mnist",
)
SWAG = Evidence(
    "Weights collected after training (SWAG), as far as validation wants them, leave the NLL of one network as it is "
    "on {same:.0f} of {sets:.0f} sets, lower it on {better:.0f} (by up to {most:.3f}) and raise it on {worse:.0f} (by "
    "up to {worst:.3f}), with up to {times:.1f} times the steps. No record has it at equal training, so it is not "
    "advised.",
    "results/compare.jsonl: SWAG against MAP",
)
ONE_MODE = Evidence(
    "One network is the cheapest to train and to predict with; it says nothing about the uncertainty of its weights.",
    "theory: basinet check MAP: mode of the conjugate posterior, full batch",
)
ALL = (
    MEMBERS,
    SIZE_DIGITS,
    ENSEMBLE,
    ANCHORED,
    TABLES,
    TEMPERATURE,
    TEMPERED_ENSEMBLE,
    TEMPERED_LOCAL,
    LAPLACE_LOCAL,
    LAPLACE_COMPARE,
    LAPLACE_EXACT,
    VBLL_UCI,
    VBLL_EXACT,
    PEP_DIGITS,
    PEP_FASHION,
    SWAG,
    ONE_MODE,
)
