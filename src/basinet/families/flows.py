"""Invertible maps of a vector z (P,), each with the logarithm of its determinant: what flows are made of.

    radial     z + b h (z - c),  h = 1 / (a + r),  r = |z - c|,  a > 0, b > -a            (Rezende & Mohamed 2015)
    planar     z + u tanh(w'z + d),  with w'u > -1
    coupling   half of z by an affine map whose scale and shift the other half gives      (RealNVP, Dinh et al. 2017)

Parameters are dicts of tensors, leaves (T, ...) for T maps in a row. All are the identity where they start. Inverses of
radial and coupling maps are in closed form; a planar one is a root on a line, found by bisection.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params

KINDS = ("radial", "planar", "coupling")
HIDDEN = 32  # units of a coupling's network
SMALL = 0.01  # size of what must not be zero at the start, so that gradients flow
MOST = 2.0  # largest logarithm of a coupling's scale
BISECTIONS = 80


def start(kind: str, maps: int, like: Tensor, noise: Noise) -> Params:
    """Parameters of maps that are (close to) the identity on vectors such as `like` (P,)."""
    count, zeros = len(like), like.new_zeros(maps)
    if kind == "radial":
        centre = like + SMALL * noise.split("centre").normal(like.new_empty(maps, count))
        return {"centre": centre, "a": zeros + 1.0, "b": zeros + math.log(math.e - 1)}  # b = 0
    if kind == "planar":
        w = noise.split("w").normal(like.new_empty(maps, count)) / math.sqrt(count)
        return {"w": w, "u": torch.zeros_like(w), "d": zeros}
    half = (count + 1) // 2
    first = noise.split("first").normal(like.new_empty(maps, HIDDEN, half)) / math.sqrt(max(1, half))
    return {
        "first": first,
        "bias": like.new_zeros(maps, HIDDEN),
        "second": like.new_zeros(maps, 2 * half, HIDDEN),
        "linear": like.new_zeros(maps, half, half),
        "shift": like.new_zeros(maps, 2 * half),
        "anchor": like.expand(maps, count).clone(),
    }


def forward(kind: str, params: Params, z: Tensor) -> tuple[Tensor, Tensor]:
    """Through all maps: the vector, and the log determinant."""
    total = z.new_zeros(())
    for t in range(len(next(iter(params.values())))):
        z, logs = _FORWARD[kind](_at(params, t), z, t)
        total = total + logs
    return z, total


def inverse(kind: str, params: Params, z: Tensor) -> tuple[Tensor, Tensor]:
    """Back through all maps: the vector they came from, and the log determinant of the way forward."""
    total = z.new_zeros(())
    for t in reversed(range(len(next(iter(params.values()))))):
        z = _BACK[kind](_at(params, t), z, t)
        total = total + _FORWARD[kind](_at(params, t), z, t)[1]
    return z, total


def _at(params: Params, t: int) -> Params:
    return {n: x[t] for n, x in params.items()}


def _radial_sizes(p: Params) -> tuple[Tensor, Tensor]:
    a = F.softplus(p["a"])
    return a, -a + F.softplus(p["b"]) * a  # b = 0 where softplus is 1


def _radial(p: Params, z: Tensor, t: int) -> tuple[Tensor, Tensor]:
    a, b = _radial_sizes(p)
    offset = z - p["centre"]
    r = (offset.square().sum() + torch.finfo(z.dtype).tiny).sqrt()
    h = 1 / (a + r)
    logs = (len(z) - 1) * torch.log1p(b * h) + torch.log1p(b * h - b * r * h.square())
    return z + b * h * offset, logs


def _radial_back(p: Params, z: Tensor, t: int) -> Tensor:
    """r' = r + b r / (a + r), a quadratic in r; the direction is kept."""
    a, b = _radial_sizes(p)
    offset = z - p["centre"]
    far = (offset.square().sum() + torch.finfo(z.dtype).tiny).sqrt()
    linear = a + b - far
    r = 0.5 * (-linear + (linear.square() + 4 * far * a).sqrt())
    return p["centre"] + offset * (r / far)


def _planar_u(p: Params) -> Tensor:
    """u moved along w so that w'u > -1; u itself where it is zero."""
    w, u = p["w"], p["u"]
    product = (w * u).sum()
    wanted = F.softplus(product + math.log(math.e - 1)) - 1
    return u + (wanted - product) * w / w.square().sum()


def _planar(p: Params, z: Tensor, t: int) -> tuple[Tensor, Tensor]:
    u, a = _planar_u(p), (p["w"] * z).sum() + p["d"]
    logs = torch.log1p((p["w"] * u).sum() * (1 - a.tanh().square()))
    return z + u * a.tanh(), logs


def _planar_back(p: Params, z: Tensor, t: int) -> Tensor:
    u, far = _planar_u(p), (p["w"] * z).sum() + p["d"]
    slope = (p["w"] * u).sum()  # far = a + slope tanh(a), which grows with a
    low, high = far - slope.abs() - 1, far + slope.abs() + 1
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        above = middle + slope * middle.tanh() > far
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return z - u * (0.5 * (low + high)).tanh()


def _halves(z: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """What is kept and what is moved: every other element, and the others in the next map."""
    half = (len(z) + 1) // 2
    first, second = z[:half], z[half:]
    return (first, second) if t % 2 == 0 else (second, first)


def _whole(kept: Tensor, moved: Tensor, t: int) -> Tensor:
    return torch.cat((kept, moved) if t % 2 == 0 else (moved, kept))


def _affine(p: Params, z: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The halves of z, the anchor of the half that moves, and the logarithm of its scale and its shift."""
    half = (len(z) + 1) // 2
    kept, moved = _halves(z, t)
    around, anchor = _halves(p["anchor"], t)
    given = F.pad(kept - around, (0, half - len(kept)))
    output = p["second"] @ torch.tanh(p["first"] @ given + p["bias"]) + p["shift"]
    logs = MOST * torch.tanh(output[:half] / MOST)[: len(moved)]
    return kept, moved, anchor, logs, (output[half:] + p["linear"] @ given)[: len(moved)]


def _coupling(p: Params, z: Tensor, t: int) -> tuple[Tensor, Tensor]:
    kept, moved, anchor, logs, shift = _affine(p, z, t)
    return _whole(kept, anchor + (moved - anchor) * logs.exp() + shift, t), logs.sum()


def _coupling_back(p: Params, z: Tensor, t: int) -> Tensor:
    kept, moved, anchor, logs, shift = _affine(p, z, t)
    return _whole(kept, anchor + (moved - anchor - shift) * (-logs).exp(), t)


_FORWARD = {"radial": _radial, "planar": _planar, "coupling": _coupling}
_BACK = {"radial": _radial_back, "planar": _planar_back, "coupling": _coupling_back}
