"""Terms: what else is known beside the data and the prior. One file per term.

    problem = bn.Problem(network, likelihood, prior, terms=[bn.terms.Observations(x, y, likelihood=precise)])

Each term is minus a log density, summed over N points of its own. Your own is a frozen dataclass derived from `Term`,
or from `Equation` for equations that the network's function satisfies; it is tempered and saved as these are.
"""

from .equation import Equation
from .observations import Observations
from .term import Outputs, Term

__all__ = ["Equation", "Observations", "Outputs", "Term"]
