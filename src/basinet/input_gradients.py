"""What members look at: gradients of their outputs with respect to the inputs of each example."""

from __future__ import annotations

import torch
from torch import Tensor

from .core.tree import Point, leaves
from .data import Data, Stream, pieces
from .data.stream import Piece
from .posterior import Posterior
from .problem import Problem
from .repulsion.input_gradients import evidence
from .repulsion.input_gradients import input_gradients as of_member


def input_gradients(posterior: Posterior, data: Data | Stream, batch_size: int = 256) -> Tensor:
    """Gradients with respect to the inputs, (M, B, E, F): F floating-point inputs per example, flattened.

    For classes of the true class's output, for labels of the sum of theirs with their signs (E = 1); for real numbers
    and counts of each output (E of them). Members stand at their means, in evaluation mode; `batch_size` examples go
    through a network at a time. Members that look at the same features have a cosine near 1:

        bn.metrics.mean_of_pairs(bn.metrics.gradient_cosine(bn.input_gradients(posterior, splits.test)))
    """
    if batch_size < 1:
        raise ValueError(f"expected a batch_size of at least 1, got {batch_size}")
    like = leaves(posterior.parts[0].family)[0]
    points = [(part.adapted(), point) for part in posterior.parts for point in part.draws(1, 0).centres()]
    parts = [
        torch.stack([_of_piece(problem, point, piece) for problem, point in points])
        for piece in pieces(data.to(like.device, like.dtype), batch_size)
    ]
    return torch.cat(parts, 1)


def _of_piece(problem: Problem, point: Point, piece: Piece) -> Tensor:
    """Of one member, (B, E, F)."""

    def values(outputs: Tensor) -> Tensor:
        return evidence(problem.likelihood, outputs, piece.targets, piece.weights)

    run = of_member(problem, point.params, point.buffers, piece.inputs, values)
    return run.gradients.detach().movedim(0, 1)
