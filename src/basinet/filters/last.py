"""The last layer before any example has been seen: `where="last"` of what goes from batch to batch.

Which layer the outputs come from is known once the network has run. Before, it is taken to be the last one with a
matrix in the order of the module, and the first examples say whether that was right.
"""

from __future__ import annotations

from torch import nn

from ..core.noise import Noise
from ..core.tree import Point, take
from ..core.where import Where, select
from ..curvature.follow import last_layer
from ..curvature.passes import FEW, Passes
from ..data import Data, Piece
from ..problem import Problem

MATRICES = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)


def named(problem: Problem, where: Where) -> tuple[str, ...]:
    """The parameters that `where` names."""
    params = problem.network.params
    if where != "last":
        return select(params, where)
    for name, part in reversed(list(problem.network.module.named_modules())):
        own = [f"{name}.{n}" if name else n for n, _ in part.named_parameters(recurse=False)]
        if isinstance(part, MATRICES) and any(n in params for n in own):
            return tuple(n for n in own if n in params)
    raise ValueError("found no linear layer or convolution with parameters that take gradients: name them, where=...")


def check_last(problem: Problem, point: Point, piece: Piece, names: tuple[str, ...]) -> None:
    """Refuses parameters that are not those which the outputs come from."""
    few = slice(0, FEW)
    data = Data(take(piece.inputs, few), piece.targets[few])
    network = tuple(problem.split(point.params)[0])
    noise = Noise.seed(0, next(iter(point.params.values())).device)
    truth = last_layer(Passes(problem=problem, point=point, data=data, names=network, noise=noise))
    if set(truth) != set(names):
        raise ValueError(
            f"where='last' took {', '.join(names)} for the last layer, and the outputs come from "
            f"{', '.join(truth) or 'no linear layer'}: name the parameters, where=..."
        )
