"""Whether each row of what a layer gives is one example's, in their order.

Networks may pick rows inside (`x[mask]`), hand them to experts, sort them and put them back. Then row b of what a layer
gives is not that of example b, which may differ from batch to batch. Calls that can do so are recognised by name, for
which a pass is tried: with random v and one random number c for each example,

    d(sum_b c_b v_b' f_b) / dz_b = c_b d(sum_b v_b' f_b) / dz_b   for all rows b

holds where rows of z are those of the examples, and with probability one nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.noise import Noise

if TYPE_CHECKING:
    from .taps import Tap

_PICKING = {  # by the name of the function, without underscores around it
    "getitem",
    "setitem",
    "iter",
    "select",
    "narrow",
    "split",
    "tensor_split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "vsplit",
    "index_select",
    "index_add",
    "index_copy",
    "index_put",
    "index_fill",
    "index_reduce",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "gather",
    "take",
    "take_along_dim",
    "masked_select",
    "masked_scatter",
    "nonzero",
    "argwhere",
    "sort",
    "argsort",
    "msort",
    "topk",
    "unique",
    "unique_consecutive",
    "flip",
    "flipud",
    "roll",
    "repeat_interleave",
    "where",
    "pack_padded_sequence",
    "pad_packed_sequence",
}


def selects_rows(func: Any, args: Sequence[Any], examples: int) -> bool:
    """Whether a call may pick, move or put back rows: only where its first tensor has an axis for the examples."""
    name = getattr(func, "__name__", "").strip("_")
    x = args[0] if args else None
    if examples == 1 or name not in _PICKING or not isinstance(x, Tensor):
        return False
    if name in ("getitem", "setitem"):
        return not _leaves_rows(args[1]) and any(n % examples == 0 for n in x.shape)
    return any(n % examples == 0 for n in x.shape) and (name != "where" or len(args) == 1)


def misaligned(outputs: Tensor, taps: Sequence[Tap]) -> set[str]:
    """The parameters of those calls whose rows are not the examples'. The graph stays."""
    if not taps or not outputs.requires_grad:
        return set()
    key = Noise.seed(0, outputs.device).split("rows")
    v = key.split("outputs").normal(outputs.detach())
    c = key.split("examples").normal(outputs.detach().flatten(1)[:, 0] if outputs.dim() > 1 else outputs.detach())
    calls = [tap.output for tap in taps]
    plain, times = (
        torch.autograd.grad(outputs, calls, along, retain_graph=True, allow_unused=True, materialize_grads=True)
        for along in (v, v * c.reshape(-1, *(1,) * (v.dim() - 1)))
    )
    wrong: set[str] = set()
    for tap, a, b in zip(taps, plain, times):
        a, b = a.flatten(1) * c.unsqueeze(1), b.flatten(1)
        scale = torch.maximum(a.abs(), b.abs()).amax(1)  # of each row
        least = torch.finfo(scale.dtype).eps * scale.max() + torch.finfo(scale.dtype).tiny
        if bool(((a - b).abs().amax(1) > 10 * torch.finfo(scale.dtype).eps ** 0.5 * scale + least).any()):
            wrong |= set(tap.names)
    return wrong


def _leaves_rows(index: Any) -> bool:
    """Whether an index takes the whole first axis, and whatever of others no tensor picks: `x[:, 0]`, `x[..., 0]`."""
    parts = index if isinstance(index, tuple) else (index,)
    whole = not parts or parts[0] is Ellipsis or (isinstance(parts[0], slice) and parts[0] == slice(None))
    return whole and not any(isinstance(x, (Tensor, list)) for x in parts)
