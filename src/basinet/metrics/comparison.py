"""How close the predictions of one posterior are to those of another, such as an HMC reference (Izmailov et al. 2021).

Both are probabilities (..., B, C); leading axes broadcast against each other and are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import checks


def agreement(probs: Tensor, reference: Tensor) -> Tensor:
    """Share of examples on which both choose the same class, (1/B) Σ_b 1[argmax p_b = argmax q_b].

    Of tied classes the first is chosen.

    >>> agreement(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([[0.6, 0.4], [0.7, 0.3]])).item()
    0.5
    """
    probs, reference = _check(probs, reference)
    same = (probs.argmax(-1) == reference.argmax(-1)).to(probs.dtype)
    return torch.where((probs.isnan() | reference.isnan()).any(-1), torch.nan, same).mean(-1)


def total_variation(probs: Tensor, reference: Tensor) -> Tensor:
    """Mean total variation, (1/B) Σ_b ½ Σ_c |p_b(c) − q_b(c)|: 0 where equal, 1 where they share no class.

    >>> total_variation(torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([[0.25, 0.75], [0.0, 1.0]])).item()
    0.75
    """
    probs, reference = _check(probs, reference)
    return 0.5 * (probs - reference).abs().sum(-1).mean(-1)


def _check(probs: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    for name, table in (("probs", probs), ("reference", reference)):
        checks.tables(name, table)
        checks.probabilities(table)
    if probs.shape[-2:] != reference.shape[-2:]:
        raise ValueError(
            f"expected probs and reference of the same examples and classes, got {tuple(probs.shape)} and "
            f"{tuple(reference.shape)}: predict the same inputs with both"
        )
    return checks.together(("probs", "reference"), probs, reference, own=2)
