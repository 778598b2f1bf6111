"""Makes the random layers of any module read their numbers from a key.

`nn.Dropout` and `F.dropout` draw from torch's global generator, so what a member sees would depend on who ran before
it. Inside `with KeyedRandomness(noise)` these calls are answered from the key instead: layer or function, attention's
inner dropout included. The i-th random call of a forward pass reads from `noise.split(i)`. What is not listed in
`_ANSWERS` still draws from the global generator; the engine's probe finds that and says so.

Torch's compiler asks a mode only about functions that torch lists as ones to override, and rand_like and randn_like are
not among them: `seen_by_compiler` adds them, without which a compiled network would read the global generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .noise import Noise


class KeyedRandomness(TorchFunctionMode):
    """Answers random calls from `noise`. With `always`, dropout is on even where the module is in eval mode.

    `part` says that the pass is over examples begin ... end - 1 of many: then these get the numbers that one pass over
    all would give them, where the examples are in front (on the first axis, alone or merged with others that follow).
    Numbers that are not per example, such as a mask over weights, are the same for all parts. `held` gives all examples
    the same numbers, where these are in front: one function for all of them.
    """

    def __init__(self, noise: Noise, always: bool = False, part: tuple[int, int] = (0, 1), held: bool = False) -> None:
        super().__init__()
        self.noise = noise
        self.always = always
        self.held = held
        self.begin, self.examples = part[0], part[1] - part[0]
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = _ANSWERS.get(func)
        if answer is None:
            return func(*args, **(kwargs or {}))
        return answer(self, *args, **(kwargs or {}))

    def fresh(self) -> Noise:
        """The key of the next random call."""
        self.calls += 1
        return self.noise.split(self.calls)

    def drawn(self, shape: torch.Size | tuple[int, ...]) -> torch.Size | tuple[int, ...]:
        """The shape of the numbers that are read for a tensor of this shape: where held, those of one example."""
        per_example = len(shape) > 0 and shape[0] % self.examples == 0
        return (shape[0] // self.examples, *shape[1:]) if self.held and per_example else shape

    def first(self, shape: torch.Size | tuple[int, ...]) -> int:
        """Where the numbers of this part begin among those of all examples."""
        per_example = len(shape) > 0 and shape[0] % self.examples == 0 and not self.held
        return self.begin * (math.prod(shape) // self.examples) if per_example else 0

    def spread(self, numbers: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """What was read for one example, for all of them."""
        return numbers if numbers.shape == tuple(shape) else numbers.repeat(self.examples, *(1,) * (len(shape) - 1))

    def drop(self, x: Tensor, p: float, training: bool, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """`x` times a mask of `shape` that keeps with probability 1 - p, over 1 - p."""
        if p == 0.0 or not (training or self.always):
            return x
        if p >= 1.0:
            return torch.zeros_like(x)
        keep = self.fresh().bernoulli(1 - p, torch.empty(self.drawn(shape), device=x.device), self.first(shape))
        return x * self.spread(keep, shape).to(x.dtype) / (1 - p)


def _dropout(
    mode: KeyedRandomness, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return mode.drop(input, p, training, input.shape)


def _channels(dims: int) -> Callable[..., Tensor]:
    """Dropout of whole channels for inputs with `dims` spatial axes; without a batch axis channels come first."""

    def answer(
        mode: KeyedRandomness, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        batched = input.dim() > dims + 1 or (dims == 2 and input.dim() == 3)  # torch reads 3-D as (N, C, L) there
        kept = 2 if batched else 1
        shape = input.shape[:kept] + (1,) * (input.dim() - kept)
        return mode.drop(input, p, training, shape)

    return answer


def _rand_like(mode: KeyedRandomness, input: Tensor, **options: Any) -> Tensor:
    like = torch.empty_like(input, **options).new_empty(mode.drawn(input.shape))
    return mode.spread(mode.fresh().uniform(like, mode.first(input.shape)), input.shape)


def _randn_like(mode: KeyedRandomness, input: Tensor, **options: Any) -> Tensor:
    return mode.fresh().normal(torch.empty_like(input, **options), mode.first(input.shape))


def _bernoulli(mode: KeyedRandomness, input: Tensor) -> Tensor:
    return (mode.fresh().uniform(input, mode.first(input.shape)) < input).to(input.dtype)


def _attention(
    mode: KeyedRandomness,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q k' / sqrt(d) + mask) v with the weights dropped by key; torch's own kernel where nothing is dropped."""
    if dropout_p == 0.0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = _softmax(scores)
    return mode.drop(weights, dropout_p, True, weights.shape) @ value


def _multi_head(
    mode: KeyedRandomness,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What nn.MultiheadAttention computes, with its inner dropout keyed. Inputs (L, B, E), or (L, E) unbatched."""
    if dropout_p == 0.0 or not (training or mode.always):
        return F.multi_head_attention_forward(
            query,
            key,
            value,
            embed_dim_to_check,
            num_heads,
            in_proj_weight,
            in_proj_bias,
            bias_k,
            bias_v,
            add_zero_attn,
            0.0,
            out_proj_weight,
            out_proj_bias,
            training,
            key_padding_mask,
            need_weights,
            attn_mask,
            use_separate_proj_weight,
            q_proj_weight,
            k_proj_weight,
            v_proj_weight,
            static_k,
            static_v,
            average_attn_weights,
            is_causal,
        )
    if any(x is not None for x in (bias_k, bias_v, static_k, static_v)) or add_zero_attn:
        raise ValueError(
            "nn.MultiheadAttention with dropout and with bias_k, bias_v or add_zero_attn cannot be keyed: "
            "set its dropout to 0, or leave those options off"
        )
    batched = query.dim() == 3
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    packed = (q_proj_weight, k_proj_weight, v_proj_weight) if in_proj_weight is None else in_proj_weight.chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    (length, batch, width), source = query.shape, key.shape[0]
    projected = (F.linear(x, w, b) for x, w, b in zip((query, key, value), packed, biases))  # type: ignore[arg-type]
    q, k, v = (x.reshape(x.shape[0], batch, num_heads, -1).permute(1, 2, 0, 3) for x in projected)  # (B, H, L, D)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, L, S)
    if attn_mask is not None:
        mask = attn_mask.reshape(-1, num_heads, length, source) if attn_mask.dim() == 3 else attn_mask
        scores = scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if key_padding_mask is not None:
        mask = key_padding_mask.reshape(batch, 1, 1, source)
        scores = scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    attention = _softmax(scores)
    attention = mode.drop(attention, dropout_p, True, attention.shape)
    mixed = (attention @ v).permute(2, 0, 1, 3).reshape(length, batch, width)
    output = F.linear(mixed, out_proj_weight, out_proj_bias)
    shown = None
    if need_weights:
        shown = attention.mean(1) if average_attn_weights else attention
    if not batched:
        output, shown = output.squeeze(1), None if shown is None else shown.squeeze(0)
    return output, shown


def _softmax(scores: Tensor) -> Tensor:
    """Attention weights; zero, as in torch's kernel, where everything is masked."""
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)  # before it too, for the gradient


def seen_by_compiler() -> None:
    """Has the compiler ask about all that is answered here. Called before anything is compiled."""
    from torch._dynamo.variables.torch import get_overridable_functions

    get_overridable_functions().update(_ANSWERS)


_ANSWERS: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    F.dropout1d: _channels(1),
    F.dropout2d: _channels(2),
    F.dropout3d: _channels(3),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.bernoulli: _bernoulli,
}
