"""Likelihoods: how likely targets are, given the model's outputs. One file per likelihood.

A likelihood is a frozen dataclass. Parameters it learns (a noise level) are entries `likelihood.<name>` of the
params; it sees them as the dict `learned`, without the prefix. Outputs are (B, *event); every function of a
likelihood works on one member. Your own is a class derived from one of the four kinds (classes, labels, real numbers,
counts): it predicts, scores and saves as these do.

A mask is a weight of zero: `Data(inputs, targets, weights)` takes one weight per example, or one for each element of
the targets, and every likelihood that is a product over elements (all of these) can be masked so. Targets under a mask
must still be valid (zero will do). No wrapper, no special value: what is masked is a matter of the data.
"""

from .bernoulli import Bernoulli
from .categorical import Categorical
from .fitting import aligned, check_classes, check_real
from .gaussian import Gaussian
from .heteroscedastic import Heteroscedastic
from .likelihood import ClassLikelihood, CountLikelihood, LabelLikelihood, Likelihood, NumberLikelihood, RealLikelihood
from .noisy_dirichlet import NoisyDirichlet
from .poisson import Poisson
from .student_t import StudentT
from .warped import Warped

__all__ = [
    "Bernoulli",
    "Categorical",
    "ClassLikelihood",
    "CountLikelihood",
    "Gaussian",
    "Heteroscedastic",
    "LabelLikelihood",
    "Likelihood",
    "NoisyDirichlet",
    "NumberLikelihood",
    "Poisson",
    "RealLikelihood",
    "StudentT",
    "Warped",
    "aligned",
    "check_classes",
    "check_real",
]
