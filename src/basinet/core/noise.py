"""Random numbers from keys: the same key gives the same numbers, in any stack, on any strategy, after any restart.

A `Noise` is a 64-bit key. `normal`, `uniform` and `bernoulli` read numbers from it, `split` derives independent keys.
There is no hidden state, so member k alone sees what member k sees in a stack, and a checkpoint has no generator to
store. The generator is Philox4x32-10 (`core/philox.py`), in integer tensor operations that run under `vmap` and
`torch.compile`. Reading a key twice gives the same numbers twice: split first.
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import torch
from torch import Tensor

from .philox import MASK, blocks, philox
from .tree import Params

_BLOCKS, _NAMES = 0, 1  # the last counter word: numbers are read from one half of a key's space, keys from the other


def _name_words(name: str) -> tuple[int, int]:
    """A name as two 32-bit words."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


# a name is known when a step is compiled; torch.compiler.assume_constant_result says so, but imports the compiler
_name_words._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Noise(NamedTuple):
    """A key of random numbers. `key` is int64 of shape (..., 2), each entry a 32-bit word; leading axes are members or
    samples. An argument `noise` of this class is such a key; a number `noise=`, as of `bn.likelihoods.Gaussian`, is a
    standard deviation."""

    key: Tensor

    @staticmethod
    def seed(seed: int, device: torch.device | str | None = None) -> Noise:
        """The root key of a seed (any Python integer of up to 64 bits)."""
        if not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
            raise ValueError(f"expected a seed as a whole number of at most 64 bits, got {seed!r}")
        return Noise(torch.tensor([seed & MASK, (seed >> 32) & MASK], device=device))

    def split(self, name: str | int | Tensor) -> Noise:
        """An independent key for a name, a number, or an integer tensor (whose axes broadcast with the key's)."""
        if isinstance(name, str):
            (c0, c1), c2 = _name_words(name), 1
        else:
            number = name.long() if isinstance(name, Tensor) else name
            c0, c1, c2 = number & MASK, (number >> 32) & MASK, 0  # type: ignore[assignment]
        if not isinstance(name, Tensor) and _alone(self.key):
            k0, k1 = self.key.tolist()
            words = philox((c0, c1, c2, _NAMES), (k0, k1))[:2]
            return Noise(torch.tensor(words, device=self.key.device))
        k0, k1 = self.key.unbind(-1)
        first = _zero(k0) + c0
        words = philox(
            (first, torch.zeros_like(first) + c1, torch.full_like(first, c2), torch.full_like(first, _NAMES)),
            (k0, k1),
        )
        return Noise(torch.stack(words[:2], -1))

    def spread(self, n: int) -> Noise:
        """`n` independent keys as a new last leading axis: the stack of split(0) ... split(n - 1)."""
        return Noise(self.key.unsqueeze(-2)).split(torch.arange(n, device=self.key.device))

    def words(self, n: int, begin: int = 0) -> Tensor:
        """`n` uniform 32-bit words from number `begin` on, int64 of shape (n,). For one key, not a stack of keys (lift
        it over those)."""
        return self._words(n, begin).long()

    def _words(self, n: int, begin: int) -> Tensor:
        """The same as they come: int64, or uint32 where Python may read the key."""
        first, last = begin // 4, (begin + n + 3) // 4
        if _alone(self.key):
            k0, k1 = self.key.tolist()
            words = torch.from_numpy(blocks(first, last, (k0, k1)))
        else:
            k0, k1 = self.key.unbind(-1)
            block = _zero(k0) + torch.arange(first, last, device=self.key.device)
            zero = torch.zeros_like(block)
            words = torch.stack(philox((block & MASK, block >> 32, zero, zero + _BLOCKS), (k0, k1)), -1)
        return words.reshape(-1)[begin % 4 : begin % 4 + n]

    def uniform(self, like: Tensor, begin: int = 0) -> Tensor:
        """Uniform on [0, 1), in the shape, dtype and device of `like`: the key's numbers from number `begin` on."""
        n = like.numel()
        if like.dtype == torch.float64:
            u = _fraction(*self.words(2 * n, 2 * begin).reshape(n, 2).unbind(-1))
        else:
            bits = 1 - round(math.log2(torch.finfo(like.dtype).eps))  # what the dtype holds, so that none rounds to 1
            u = (self.words(n, begin) >> (32 - bits)).float() * 2.0**-bits
        return u.reshape(like.shape).to(like)

    def normal(self, like: Tensor, begin: int = 0) -> Tensor:
        """Standard normal by Box-Muller, in the shape, dtype and device of `like`: from number `begin` on."""
        n = like.numel()
        odd, first = begin % 2, begin // 2  # numbers come in pairs
        pairs = (odd + n + 1) // 2
        if like.dtype == torch.float64:
            a, b, c, d = self.words(4 * pairs, 4 * first).reshape(pairs, 4).unbind(-1)
            u, v = _fraction(a, b) + 2.0**-53, _fraction(c, d)  # u in (0, 1]: its logarithm is finite
        else:
            a, c = self._words(2 * pairs, 2 * first).reshape(pairs, 2).unbind(-1)
            u, v = (a.float() + 1).mul_(2.0**-32), c.float().mul_(2.0**-32)  # all 32 bits: tails to 6.6 sd
        radius, angle = u.log_().mul_(-2).sqrt_(), v.mul_(2 * math.pi)
        z = torch.stack((radius * angle.cos(), radius * angle.sin()), -1).reshape(-1)[odd : odd + n]
        return z.reshape(like.shape).to(like)

    def bernoulli(self, p: float | Tensor, like: Tensor, begin: int = 0) -> Tensor:
        """True with probability `p`, in the shape and device of `like`: from number `begin` on."""
        return self.uniform(torch.empty(like.shape, device=like.device), begin) < p

    def normal_params(self, like: Params) -> Params:
        """Standard normal numbers in the shape of a dict of tensors, each from a key of its own name."""
        return {name: self.split(name).normal(x) for name, x in like.items()}

    def integers(self, n: int, below: int) -> Tensor:
        """`n` integers uniform on 0 ... below - 1 (bias under 2^-31 of a count for any `below` under 2^31)."""
        a, b = self.words(2 * n).reshape(n, 2).unbind(-1)
        return ((a << 31) | (b >> 1)) % below

    def permutation(self, n: int) -> Tensor:
        """A random order of 0 ... n - 1."""
        a, b = self.words(2 * n).reshape(n, 2).unbind(-1)
        return torch.argsort((a << 31) | (b >> 1), stable=True)

    def integer(self) -> int:
        """One Python integer of 63 bits, to seed a generator that is not ours (nn.init's)."""
        k0, k1 = self.key.tolist()
        a, b = philox((0, 0, 0, _BLOCKS), (k0, k1))[:2]  # words(2) in Python's numbers: a hundred times as fast
        return int((a << 31) | (b >> 1))


def _alone(key: Tensor) -> bool:
    """Whether it is one key whose words Python may read: then its numbers are twenty times as fast as tensors."""
    if torch.compiler.is_compiling() or key.dim() != 1 or key.device.type != "cpu" or type(key) is not Tensor:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(key)


def _zero(word: Tensor) -> Tensor:
    """Zero that a compiler cannot see: Inductor would multiply a bare arange as a 32-bit index, which overflows."""
    return word & 0


def _fraction(a: Tensor, b: Tensor) -> Tensor:
    """53 bits of two words as a number in [0, 1); doubles before the first product, where torch would take floats."""
    return ((a >> 5).double() * 2.0**26 + (b >> 6)) * 2.0**-53
