"""Stacking: weights of the members of a mixture, learned on validation data."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..data import Data, Stream
from ..posterior import Posterior
from ..predict import Via
from ..scoring import check_calibrating, predicted_with_weights

GAP = 1e-6  # nats per example: how far from the best possible mean log likelihood the weights may be
STEPS = 200_000  # of EM, at most


def weigh(
    posterior: Posterior, val: Data | Stream, *, samples: int | None = None, via: Via | None = None, seed: int = 0
) -> Posterior:
    """The posterior with the member weights that maximise the validation log likelihood of the mixture (Yao et al.
    2018, "Using stacking to average Bayesian predictive distributions"): `posterior.weights`, which sum to one.

    The problem is concave, and the mean log likelihood is within 1e-6 of its maximum. Weights that were there before
    are replaced; temperatures of members stay, and those of the average come after: weigh, then `bn.temper`. `samples`,
    `via` and `seed` are those of `predict`: weigh what you deploy. Weights of the validation data multiply their log
    likelihood.
    """
    check_calibrating(posterior, val)
    if posterior.temperature is not None and posterior.temperature.of != "members":
        raise ValueError("the temperature is that of an average with other weights: weigh first, then bn.temper")
    alike = replace(posterior, weights=None, conformal=None)
    densities, counts = [], []
    for predictive, targets, exponents, weights in predicted_with_weights(alike, val, samples, via, seed):
        logs = predictive.log_joint(targets, exponents).double()  # (M, S, B)
        member = torch.logsumexp(logs + predictive.member_mass()[1].double().log().unsqueeze(-1), 1)
        each = member.new_ones(len(targets)) if weights is None else weights.to(member)
        densities.append(member[:, each > 0])
        counts.append(each[each > 0])
    return replace(alike, weights=stacked(torch.cat(densities, 1), torch.cat(counts)))


def stacked(log_densities: Tensor, counts: Tensor | None = None) -> Tensor:
    """The weights (M,) that maximise the mean of log sum_m w_m p_mi, from log densities (M, n), by EM; `counts` (n,) is
    how often each example counts.

    Each step multiplies w_m by g_m = mean_i p_mi / sum_k w_k p_ki, the gradient. The objective is concave, so the
    maximum is at most max_m g_m - 1 above, and that is when to stop.
    """
    best = log_densities.amax(0)
    hopeless = ~best.isfinite()
    if bool(hopeless.any()):
        raise ValueError(
            f"{int(hopeless.sum())} validation examples have no density under any member, whatever the weights: check "
            "them, or leave them out"
        )
    p = (log_densities - best).exp()  # a factor per example, which moves no weight
    share = torch.ones_like(p[0]) if counts is None else counts / counts.mean()
    w = torch.full((len(p),), 1 / len(p), dtype=p.dtype, device=p.device)
    for _ in range(STEPS):
        gradient = (share * p / (w @ p)).mean(1)
        if float(gradient.max()) - 1 <= GAP:
            break
        w = w * gradient
    else:
        raise ValueError(
            f"weights did not converge within {STEPS} steps: if some members are nearly equal, leave some of them out"
        )
    return w / w.sum()
