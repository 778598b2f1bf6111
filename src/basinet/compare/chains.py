"""How the chains of a row mixed, as its record has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..data import Data
from ..diagnose import diagnose
from ..diagnostics.convergence import LEAST
from ..families import Empirical
from ..posterior import Posterior

MOST = 5000  # training examples: of more, judging chains that sample by mini-batches would take longer than they did


def of_chains(posterior: Posterior, train: Data) -> dict[str, Any] | None:
    """What `diagnose` finds; None where there are no chains, or too few draws of them."""
    recipe, family = posterior.recipe, posterior.parts[0].family
    if recipe is None or recipe.grows is None or len(posterior.parts) > 1:
        return None
    if not isinstance(family, Empirical) or family.count < LEAST or not (recipe.coupled or train.n <= MOST):
        return None
    return diagnose(posterior, train).record()


def unmixed(records: Sequence[dict[str, Any]]) -> str:
    """A line on the rows whose chains have plainly not sampled the posterior; empty where all have, or it is not
    known."""
    rows = {r["method"]: r["chains"] for r in records if (r.get("chains") or {}).get("converged") is False}
    if not rows:
        return ""
    ratios = [row["rhat"] for chains in rows.values() for row in chains["rows"] if row["rhat"] is not None]
    worst = f" (R-hat up to {max(ratios):.2f})" if ratios else ""
    return (
        f"Chains had not converged{worst} for {', '.join(rows)}: their draws do not represent the posterior, and other "
        "seeds may give other predictions. Run them longer, or choose another sampler, before you judge the posterior."
    )
