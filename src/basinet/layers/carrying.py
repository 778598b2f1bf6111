"""A network whose points carry tensors of a method among their buffers, which the network itself never sees."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core.model import Mode, Model
from ..core.noise import Noise
from ..core.tree import Params


class Carrying(Model):
    """The network as it is; buffers whose names begin with `prefix` pass it by."""

    def __init__(self, network: Model, prefix: str) -> None:
        vars(self).update(vars(network))
        self.network, self.prefix = network, prefix

    def init(self, noise: Noise) -> Any:
        return self.network.init(noise)

    def __call__(
        self, params: Params, buffers: Params, inputs: Any, noise: Noise | None = None, mode: Mode = "eval"
    ) -> tuple[Tensor, Params]:
        own = {n: x for n, x in buffers.items() if not n.startswith(self.prefix)}
        outputs, after = self.network(params, own, inputs, noise, mode)
        return outputs, buffers | after

    def alone(self) -> Model:
        return self.network.alone()
