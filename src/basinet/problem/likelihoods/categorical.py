"""One of C classes, by softmax: -log p = logsumexp(f) - f_y, whose Hessian is diag(p) - p p'."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.tree import Params
from .blocks import block_diagonal
from .fitting import check_classes
from .likelihood import ClassLikelihood


@dataclass(frozen=True, kw_only=True)
class Categorical(ClassLikelihood):
    """Classes from logits: softmax over the last axis of the outputs. Targets are class indices."""

    def log_probs(self, outputs: Tensor, learned: Params) -> Tensor:
        return outputs.log_softmax(-1)

    def log_density(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        return outputs.log_softmax(-1).gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        p = outputs.softmax(-1)
        blocks = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        return block_diagonal(blocks, tuple(outputs.shape[1:-1]))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_classes(self, outputs, targets)
