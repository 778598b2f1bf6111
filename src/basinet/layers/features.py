"""A network whose inner layer can be read, and moved, while it runs."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from ..core.model import Mode, Model
from ..core.nearest import did_you_mean
from ..core.noise import Noise
from ..core.tree import Params

TAP = "tapped"  # the buffer of the layer in which a pass finds what to add to its output, and leaves the sum


class Tapped(Model):
    """The network as it is; `tap` also gives what one of its layers handed on, in its last call of the pass."""

    def __init__(self, network: Model, layer: str) -> None:
        names = {name for name, _ in network.module.named_modules() if name}
        if layer not in names:
            raise ValueError(f"the network has no layer {layer!r}.{did_you_mean(layer, names)}")
        vars(self).update(vars(network))
        self.network, self.layer, self.place = network, layer, f"{layer}.{TAP}"
        memo = {id(x): x for x in (*network.module.parameters(), *network.module.buffers())}  # dummies are shared
        self.inside = copy.copy(network)
        self.inside._train = copy.deepcopy(network._train, memo)
        self.inside.buffers = network.buffers | {self.place: ()}
        part = self.inside.module.get_submodule(layer)
        part.register_buffer(TAP, next(network.module.parameters()).new_zeros(()), persistent=False)
        self.inside._train.reads = True  # it has a buffer now, if it had none
        part.register_forward_hook(_leave)

    def __call__(
        self, params: Params, buffers: Params, inputs: Any, noise: Noise | None = None, mode: Mode = "eval"
    ) -> tuple[Tensor, Params]:
        return self.network(params, buffers, inputs, noise, mode)

    def tap(
        self, params: Params, buffers: Params, inputs: Any, noise: Noise | None, shift: Tensor
    ) -> tuple[Tensor, Tensor, Params]:
        """A pass in train mode with `shift` added to what the layer gives: outputs, the layer's, buffers afterwards."""
        outputs, after = self.inside(params, buffers | {self.place: shift}, inputs, noise, "train")
        values = after[self.place]
        if values is shift or values.dim() == 0:
            raise ValueError(f"the layer {self.layer!r} is not called when the network runs: name one that is")
        return outputs, values, {n: x for n, x in after.items() if n != self.place}


def _leave(layer: nn.Module, _: Any, output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(
            f"expected a layer that gives one tensor, got {type(output).__name__} from {type(layer).__name__}: "
            "name a layer inside of it, or the one after"
        )
    moved = output + layer.get_buffer(TAP)
    setattr(layer, TAP, moved)
    return moved
