"""How parameters are followed through the layers that are called with them, as a few examples tell.

Where the gradient of an example that follows from the layers is not the one that autograd gives (a weight that is also
used in another way, attention, an embedding), gradients of single examples are taken by differentiating one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.tree import leaves
from ..layers import Taps, heads
from .calls import Key, layers_of

if TYPE_CHECKING:
    from .passes import Passes


SOME = 64  # examples on which the heads of networks that pick rows are looked for


class Unfollowed(Exception):
    """Parameters whose gradients do not follow from their layers in some batch, though they did before."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


@dataclass(frozen=True, eq=False)
class Followed:
    """How parameters are followed: through which layers, or one by one."""

    layers: frozenset[Key]
    others: tuple[str, ...]
    head: Key | None  # the layer whose output is the network's
    width: int  # numbers that go into layers, for one example
    dense: frozenset[str]  # parameters of layers for which Kronecker factors exist

    def lost(self, outputs: Tensor, taps: Taps) -> frozenset[str]:
        """Which of the parameters that are followed cannot be, in a pass that has been run."""
        lost = taps.lost(outputs) | {
            n for tap in taps.calls if (tap.weight, tap.bias) not in self.layers for n in tap.names
        }
        return frozenset(lost & {n for key in self.layers for n in key})


def follow(passes: Passes, inputs: Any) -> Followed:
    """Tries, on the last of a few examples, which parameters can be followed through their layers."""
    free, buffers, fixed = passes.free()
    with Taps(free, len(leaves(inputs)[0])) as taps:
        outputs = passes.problem.outputs(fixed | free, buffers, inputs)[0]
    if not outputs.requires_grad:
        return Followed(frozenset(), tuple(free), None, 1, frozenset())
    lost = taps.lost(outputs) | passes.alone
    layers = layers_of(taps.calls)
    along = torch.zeros_like(outputs)
    along[-1] = passes.noise.split("try").normal(outputs[-1].detach())
    calls = [tap.output for tap in taps.calls]
    asked = [*free.values(), *calls]
    grads = torch.autograd.grad(outputs, asked, along, allow_unused=True, materialize_grads=True)
    truth, by_call = dict(zip(free, grads)), dict(zip((id(x) for x in calls), grads[len(free) :]))
    followed: set[Key] = set()
    width = 1
    for layer in layers:
        a = layer.inputs()
        width += a[0].numel()
        g = layer.gradients([by_call[id(tap.output)].unsqueeze(0) for tap in layer.taps])[0]
        rows = layer.rows(a, g, free)
        if not lost & set(layer.names) and all(_same(row[-1], truth[n]) for n, row in rows.items()):
            followed.add(layer.key)
    calls_of = [n for layer in layers for n in layer.names]
    followed = {
        key for key in followed if all(calls_of.count(n) < 2 for n in key if n)
    }  # a weight with two biases is not
    covered = {n for key in followed for n in key if n}
    others = tuple(n for n in free if n not in covered)
    head = next((layer.key for layer in layers if layer.key in followed and is_head(layer, outputs)), None)
    dense = frozenset(n for layer in layers if layer.dense for n in layer.names if n in covered)
    return Followed(frozenset(followed), others, head, width, dense)


def is_head(layer: Any, outputs: Tensor) -> bool:
    """Whether a layer gives the network's outputs, each example's as they are."""
    return layer.dense and len(layer.taps) == 1 and layer.taps[0].handed is outputs and outputs.dim() == 2


def last_layer(passes: Passes) -> tuple[str, ...]:
    """The parameters of the layers that the output comes from: all heads. None where no linear layer or convolution has
    parameters of its own, as behind weight norms or in scripted modules."""
    names, selects = _heads(passes, passes.few())
    return _heads(passes, passes.few(SOME))[0] if selects else names  # of experts, each is to be asked


def _heads(passes: Passes, inputs: Any) -> tuple[tuple[str, ...], bool]:
    """The parameters of heads on some inputs, and whether the network may pick rows of them."""
    free, buffers, fixed = passes.free()
    with torch.enable_grad(), Taps(free, len(leaves(inputs)[0])) as taps:
        outputs = passes.problem.outputs(fixed | free, buffers, inputs)[0]
    return heads(outputs, taps.matrices), taps.selects


def _same(row: Tensor, truth: Tensor) -> bool:
    tolerance = 10 * torch.finfo(truth.dtype).eps ** 0.5
    return bool((row - truth).abs().max() <= tolerance * (truth.abs().max() + torch.finfo(truth.dtype).tiny))
