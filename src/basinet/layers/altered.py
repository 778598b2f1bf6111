"""A network some of whose layers are of another kind in some modes: noisy in training, or with dropout.

What the other layers need beside their parameters (standard deviations, rates) travels as buffers that are named after
them. A pass that is not given these runs the network as it is, and so does every pass in another mode: validation,
draws and export see the network that the user wrote.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core.model import Make, Mode, Model
from ..core.noise import Noise
from ..core.tree import Params
from ..core.where import Where


class Altered(Model):
    """The network, with the layers that `make` returns in its place in the modes named."""

    def __init__(self, network: Model, where: Where, make: Make, modes: tuple[Mode, ...]) -> None:
        inside = network.swapped(where, make)
        if inside.params != network.params:
            raise ValueError(
                f"expected layers with the parameters of those they replace, got {set(inside.params)} in place of "
                f"{set(network.params)}"
            )
        vars(self).update(vars(network))
        self.network, self.inside, self.modes = network, inside, modes
        self.extra = {n: shape for n, shape in inside.buffers.items() if n not in network.buffers}

    def __call__(
        self, params: Params, buffers: Params, inputs: Any, noise: Noise | None = None, mode: Mode = "eval"
    ) -> tuple[Tensor, Params]:
        own = {n: x for n, x in buffers.items() if n not in self.extra}
        if mode not in self.modes or any(n not in buffers for n in self.extra):
            outputs, after = self.network(params, own, inputs, noise, mode)
        else:
            outputs, after = self.inside(params, buffers, inputs, noise, mode)
        return outputs, buffers | {n: x for n, x in after.items() if n not in self.extra}

    def alone(self) -> Model:
        return self.network
