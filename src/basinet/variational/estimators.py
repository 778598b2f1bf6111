"""How the noise of the weights enters a pass: which layers may be perturbed example by example, and the rest.

    weights   one draw of the weights for the whole batch: any module
    local     of outputs: linear layers that see each example once, as a vector
    flipout   random signs of each example on one draw: linear layers and convolutions that see each example once

Which layers these are is found by a pass on a few examples: a layer that is called twice, shares its weight, or is
given other rows than those of the examples has weights. "auto" is local where that is exact, else weights: local noise
of a gradient is the least there is for its cost; the signs of flipout take a second pass through the layer, which more
often than not does not pay (`bench/variational.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.model import Model
from ..core.noise import Noise
from ..core.tree import Params, leaves, move, ravel, size, take, unravel
from ..data import Data, Stream, some
from ..layers import Taps
from ..layers.altered import Altered
from ..layers.perturbed import Kind, Perturbed, perturbable
from ..problem import Problem

Estimator = Literal["auto", "weights", "local", "flipout"]
ESTIMATORS: tuple[Estimator, ...] = ("auto", "weights", "local", "flipout")
FEW = 3  # examples of the pass


def altered(problem: Problem, names: Collection[str], estimator: Estimator) -> Problem:
    """The problem for a network whose layers, those with a weight among `names`, can be perturbed in training."""
    alone = type(problem.network) is Model and not problem.terms  # terms run the network on points of their own
    if estimator == "weights" or not alone or not _candidates(problem.network, names):
        return problem
    kind: Kind = "flipout" if estimator == "flipout" else "local"

    def make(name: str, layer: nn.Module) -> nn.Module:
        return Perturbed(layer, kind) if perturbable(layer) and _weight(name) in names else layer

    return problem.through(Altered(problem.network, None, make, ("train",)))


def kinds(problem: Problem, data: Data | Stream, names: Collection[str], estimator: Estimator) -> dict[str, str]:
    """How each layer that has one of these parameters as its weight is perturbed: local, flipout or weights."""
    network = problem.network.alone()
    layers = _candidates(network, names)
    if not isinstance(problem.network, Altered) or not layers:
        return {}
    inputs = take(some(data).inputs, slice(0, FEW))
    first = leaves(inputs)[0]
    real = [x.dtype for x in leaves(inputs) if x.is_floating_point()]
    point = move(network.init(Noise.seed(0)), first.device, real[0] if real else None)
    params = {n: x.requires_grad_() for n, x in point.params.items()}
    with torch.enable_grad(), Taps(params, len(first)) as taps:
        outputs, _ = network(params, point.buffers, inputs)
    calls, lost = Counter(tap.weight for tap in taps.calls), taps.lost(outputs)
    places = {tap.weight: tap.shape for tap in taps.calls}
    exact = {w for w in places if calls[w] == 1 and w not in lost and (estimator == "flipout" or places[w] == ())}
    kind = "flipout" if estimator == "flipout" else "local"
    exact &= {_weight(n) for n, m in layers.items() if kind == "flipout" or isinstance(m, nn.Linear)}
    return {n: kind if _weight(n) in exact else "weights" for n in layers}


def perturbed(
    centre: Params, scale: Params, chosen: dict[str, str], problem: Problem, examples: int, noise: Noise
) -> tuple[Params, Params]:
    """What a pass over `examples` examples is given: params, drawn but for those of layers that are perturbed inside of
    it (`chosen`: their kinds), and buffers for these, empty for other layers that could be."""
    network, buffers, inside = problem.network, Params(), set[str]()
    like = next(iter(centre.values()))
    empty, wanted = like.new_empty(0), Params()  # what noise is drawn for
    for name in network.extra if isinstance(network, Altered) else ():
        layer, kind = name.rpartition(".")[0], chosen.get(name.rpartition(".")[0], "weights")
        parameter = name.removesuffix("_scale")
        if kind == "local" and name.endswith("normals"):
            wanted[name] = like.new_empty(examples, len(centre[_weight(layer)]))
        elif kind != "weights" and parameter in scale:
            buffers[name] = scale[parameter]
            inside.add(parameter)
        else:
            buffers[name] = empty
    drawn = {n: x for n, x in scale.items() if n not in inside}
    z = _standard(drawn | wanted, noise)
    if drawn:  # as one vector: many small tensors take longer than what is computed
        count = size(drawn)
        moved = ravel({n: centre[n] for n in drawn}) + ravel(drawn) * z[:count]
        centre, z = centre | unravel(moved, drawn), z[count:]
    return centre, buffers | unravel(z, wanted)


def normals(like: Params, noise: Noise) -> Params:
    """Standard normal numbers, all read at once: a key for each tensor would take longer than its numbers."""
    return unravel(_standard(like, noise), like)


def _standard(like: Params, noise: Noise) -> Tensor:
    """Standard normal numbers for all tensors, as one vector."""
    first = next(iter(like.values()), torch.empty(0))
    return noise.normal(first.new_empty(size(like)))


def _candidates(network: Model, names: Collection[str]) -> dict[str, nn.Module]:
    """Layers that have a perturbed form and one of the parameters for their weight."""
    modules = network.module.named_modules()
    return {n: m for n, m in modules if perturbable(m) and _weight(n) in names}


def _weight(layer: str) -> str:
    return f"{layer}.weight" if layer else "weight"
