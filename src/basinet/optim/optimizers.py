"""Optimisers: pure functions from parameters, gradients and a state to the next parameters and state.

They are written for one member and lifted over members by the engine, so nothing is changed in place and
nothing branches on a tensor. With g the gradient, l the learning rate and t = clock + 1, as torch does it:

    SGD     v <- momentum v + g;  x <- x - l v, or x - l (g + momentum v) for Nesterov's
    Adam    m <- b1 m + (1 - b1) g;  s <- b2 s + (1 - b2) g²                            (Kingma & Ba 2015)
            x <- x - l/(1 - b1^t) m / (sqrt(s)/sqrt(1 - b2^t) + eps)
    AdamW   x <- (1 - l weight_decay) x, then Adam's                              (Loshchilov & Hutter 2019)

**A Gaussian prior belongs in the Problem**, which knows the number of data N and scales it. The weight decay
of SGD and Adam is coupled: it adds `weight_decay * x` to the gradient. That is a Gaussian prior whose
precision depends on the scale of the loss: weight_decay * N for a mean loss, weight_decay for a summed one;
and it comes on top of the prior in the Problem. The weight decay of AdamW is decoupled: it escapes Adam's
rescaling and is not a Gaussian prior at any scale.

>>> import torch
>>> sgd = SGD(lr=0.25)
>>> params = {"x": torch.tensor([8.0])}
>>> for clock in range(3):  # the gradient of x² is 2x: every step halves x
...     params, state = sgd.step(params, {"x": 2 * params["x"]}, sgd.init(params), clock, 3)
>>> params["x"]
tensor([1.])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..core.recipe import Recipe
from ..core.tree import leaves, tree_map
from .schedules import Clock, Rate, Scalar, arithmetic, check_nonnegative

Tree = Any  # any nesting of dicts, tuples and NamedTuples with tensors at its leaves
T = TypeVar("T")
NONE: Mapping[str, float] = MappingProxyType({})


class Optimizer(Recipe, ABC, kind="optimizer"):
    """A rule that moves parameters along their gradients; its state is a NamedTuple of trees of tensors."""

    lr: float | Rate

    @abstractmethod
    def init(self, params: Tree) -> Any:
        """The state before the first step."""

    @abstractmethod
    def step(self, params: T, grads: T, state: Any, clock: Clock, steps: int) -> tuple[T, Any]:
        """The next parameters and state, for step `clock` = 0, 1, ... of `steps` planned ones."""

    @abstractmethod
    def step_in_place(
        self, params: Tree, grads: Tree, state: Any, clock: Clock, steps: int, decay: Mapping[str, float] = NONE
    ) -> None:
        """The same step written into params and state by torch's fused kernels; equal to `step` up to rounding.

        Elementwise, so it serves one member and a stack whose members share a clock alike. On a GPU the clock may be a
        tensor (), so that the step can be recorded in a CUDA graph. `decay` says what times x is added to the gradient
        of x, by name in a dict of params: the gradient of a quadratic, for which fused kernels need no pass of its own.
        """

    def learning_rate(self, clock: Clock, steps: int) -> Scalar:
        """The learning rate at step `clock` of `steps`."""
        return self.lr(clock, steps) if isinstance(self.lr, Rate) else self.lr


class SGDState(NamedTuple):
    velocity: Tree  # like the parameters; () without momentum


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent. Its weight decay is coupled: see the module's note on priors."""

    lr: float | Rate = 0.1
    """Learning rate, a number of at least 0 or a schedule."""
    momentum: float = 0.0
    """Part of the velocity kept each step, in [0, 1)."""
    nesterov: bool = False
    """Whether to look ahead along the velocity; needs momentum."""
    weight_decay: float = 0.0
    """This part of the parameters is added to the gradient; not scaled by N."""

    def __post_init__(self) -> None:
        _check_lr("SGD", self.lr)
        _check_kept("SGD", "momentum", self.momentum)
        check_nonnegative("SGD", weight_decay=self.weight_decay)
        if self.nesterov and self.momentum == 0:
            raise ValueError(
                "SGD: expected momentum above 0 with nesterov=True, got momentum=0. "
                "Set momentum=0.9, say, or nesterov=False."
            )

    def init(self, params: Tree) -> SGDState:
        return SGDState(velocity=_zeros(params) if _matters(self.momentum) else ())

    def step(self, params: T, grads: T, state: SGDState, clock: Clock, steps: int) -> tuple[T, SGDState]:
        rate = self.learning_rate(clock, steps)
        grads = _coupled(grads, params, self.weight_decay)
        if not _matters(self.momentum):
            return _descend(params, grads, rate), state

        def onward(v: Tensor, g: Tensor) -> Tensor:
            return _as(v, self.momentum) * v + g

        velocity = tree_map(onward, state.velocity, grads)
        ahead = tree_map(onward, velocity, grads) if self.nesterov else velocity
        return _descend(params, ahead, rate), SGDState(velocity=velocity)

    def step_in_place(
        self, params: Tree, grads: Tree, state: SGDState, clock: Clock, steps: int, decay: Mapping[str, float] = NONE
    ) -> None:
        if _needs_double(params, clock):
            _step_in_double(self, params, grads, state, clock, steps, decay)
            return
        velocity = (state.velocity,) if self.momentum else ()
        for d, (moved, slopes, *rest) in _by_decay(decay, params, grads, *velocity):
            torch._fused_sgd_(
                moved,
                slopes,
                rest[0] if rest else [],
                lr=_fused_rate(self.learning_rate(clock, steps), clock),
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.weight_decay + d,
                dampening=0.0,
                maximize=False,
                is_first_step=False,
            )


class AdamState(NamedTuple):
    mean: Tree  # running mean of the gradient, before bias correction
    square: Tree  # running mean of its square, before bias correction


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adaptive moments. Its weight decay is coupled: see the module's note on priors."""

    lr: float | Rate = 1e-3
    """Learning rate, a number of at least 0 or a schedule."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Part kept of the gradient's mean and square, in [0, 1)."""
    eps: float = 1e-8
    """Added to the root of the square, above 0."""
    weight_decay: float = 0.0
    """This part of the parameters is added to the gradient; not scaled by N."""

    def __post_init__(self) -> None:
        _check_adam(self)

    def init(self, params: Tree) -> AdamState:
        return AdamState(mean=_zeros(params), square=_zeros(params))

    def step(self, params: T, grads: T, state: AdamState, clock: Clock, steps: int) -> tuple[T, AdamState]:
        rate = self.learning_rate(clock, steps)
        grads = _coupled(grads, params, self.weight_decay)
        return _adam(self, params, grads, state, clock, rate)

    def step_in_place(
        self, params: Tree, grads: Tree, state: AdamState, clock: Clock, steps: int, decay: Mapping[str, float] = NONE
    ) -> None:
        if _needs_double(params, clock):
            _step_in_double(self, params, grads, state, clock, steps, decay)
            return
        for d, lists in _by_decay(decay, params, grads, state.mean, state.square):
            _adam_in_place(self, torch._fused_adam_, lists, self.weight_decay + d, clock, steps)


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, which is not a Gaussian prior: see the module's note on priors."""

    lr: float | Rate = 1e-3
    """Learning rate, a number of at least 0 or a schedule."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Part kept of the gradient's mean and square, in [0, 1)."""
    eps: float = 1e-8
    """Added to the root of the square, above 0."""
    weight_decay: float = 1e-2
    """Multiplied by the learning rate, the part of the parameters that is lost in each step."""

    def __post_init__(self) -> None:
        _check_adam(self)

    def init(self, params: Tree) -> AdamState:
        return AdamState(mean=_zeros(params), square=_zeros(params))

    def step(self, params: T, grads: T, state: AdamState, clock: Clock, steps: int) -> tuple[T, AdamState]:
        rate = self.learning_rate(clock, steps)
        kept = 1 - rate * self.weight_decay
        params = tree_map(lambda x: _as(x, kept) * x, params)
        return _adam(self, params, grads, state, clock, rate)

    def step_in_place(
        self, params: Tree, grads: Tree, state: AdamState, clock: Clock, steps: int, decay: Mapping[str, float] = NONE
    ) -> None:
        if _needs_double(params, clock):
            _step_in_double(self, params, grads, state, clock, steps, decay)
            return
        if decay:  # its own weight decay is another one, which does not pass through the moments
            grads = dict(grads) | {n: torch.add(grads[n], params[n], alpha=d) for n, d in decay.items()}
        lists = [leaves(tree) for tree in (params, grads, state.mean, state.square)]
        _adam_in_place(self, torch._fused_adamw_, lists, self.weight_decay, clock, steps)


def _adam(rule: Adam | AdamW, params: T, grads: T, state: AdamState, clock: Clock, rate: Scalar) -> tuple[T, AdamState]:
    b1, b2 = rule.betas
    mean = tree_map(lambda m, g: torch.lerp(m, g, 1 - b1), state.mean, grads)
    square = tree_map(lambda s, g: torch.addcmul(b2 * s, g, g, value=1 - b2), state.square, grads)
    size, root = rate / _correction(b1, clock), _correction(b2, clock) ** 0.5

    def move(x: Tensor, m: Tensor, s: Tensor) -> Tensor:
        return x - _as(x, size) * m / (s.sqrt() / _as(x, root) + _as(x, rule.eps))

    return tree_map(move, params, mean, square), AdamState(mean=mean, square=square)


def _needs_double(params: Tree, clock: Clock) -> bool:
    """Whether fused kernels would lose digits: on a GPU they take a learning rate that is a tensor in single."""
    return isinstance(clock, Tensor) and leaves(params)[0].dtype == torch.float64


def _step_in_double(
    rule: Optimizer, params: Tree, grads: Tree, state: Any, clock: Clock, steps: int, decay: Mapping[str, float]
) -> None:
    pulled = dict(grads) | {n: grads[n] + d * params[n] for n, d in decay.items()} if decay else grads
    after = rule.step(params, pulled, state, clock, steps)
    for old, new in zip(leaves((params, state)), leaves(after)):
        old.copy_(new)


def _by_decay(decay: Mapping[str, float], params: Tree, *trees: Tree) -> list[tuple[float, list[list[Tensor]]]]:
    """The leaves of params and of trees like them, for each value that decay has."""
    if not decay:
        return [(0.0, [leaves(tree) for tree in (params, *trees)])]
    values = {name: decay.get(name, 0.0) for name in params}
    return [
        (d, [[tree[n] for n in params if values[n] == d] for tree in (params, *trees)])
        for d in dict.fromkeys(values.values())
    ]


def _adam_in_place(
    rule: Adam | AdamW, kernel: Any, lists: list[list[Tensor]], weight_decay: float, clock: Clock, steps: int
) -> None:
    moved, grads, mean, square = lists
    count = (clock + 1).float() if isinstance(clock, Tensor) else torch.full((), clock + 1.0, device=moved[0].device)
    kernel(
        moved,
        grads,
        mean,
        square,
        [],
        [count] * len(moved),
        lr=_fused_rate(rule.learning_rate(clock, steps), clock),
        beta1=rule.betas[0],
        beta2=rule.betas[1],
        weight_decay=weight_decay,
        eps=rule.eps,
        amsgrad=False,
        maximize=False,
    )


def _fused_rate(rate: Scalar, clock: Clock) -> Scalar:
    """A learning rate as fused kernels take it: a number, or a tensor () where the clock is one."""
    if not isinstance(clock, Tensor):
        return float(rate)
    return rate.float() if isinstance(rate, Tensor) else torch.full((), rate, device=clock.device)


def _correction(beta: float, clock: Clock) -> Scalar:
    """1 - beta^(clock + 1), without cancellation and with the same bits alone and in a stack."""
    t, ops = arithmetic(clock + 1)
    return -ops.expm1(t * (math.log(beta) if beta else -math.inf))


def _coupled(grads: T, params: T, weight_decay: float) -> T:
    if not _matters(weight_decay):
        return grads
    return tree_map(lambda g, x: g + _as(x, weight_decay) * x, grads, params)


def _descend(params: T, direction: T, size: Scalar) -> T:
    return tree_map(lambda x, d: x - _as(x, size) * d, params, direction)


def _as(like: Tensor, value: Scalar) -> Scalar:
    """The value in the dtype of a leaf, which a float64 scalar must not change."""
    return value.to(like.dtype) if isinstance(value, Tensor) else value


def _matters(value: Scalar) -> bool:
    """Whether a number is more than zero; one per member always counts, since members share their steps."""
    return isinstance(value, Tensor) or value != 0


def _zeros(params: T) -> T:
    return tree_map(torch.zeros_like, params)


def _check_lr(owner: str, lr: float | Rate) -> None:
    if not isinstance(lr, Rate) and not (isinstance(lr, Real) and 0 <= lr < math.inf):
        raise ValueError(
            f"{owner}: expected lr to be a finite number of at least 0 or a Rate, got {lr!r}. "
            f"Pass {owner}(lr=1e-3) or {owner}(lr=Cosine(peak=1e-3)), say."
        )


def _check_kept(owner: str, name: str, value: float) -> None:
    if not (isinstance(value, Real) and 0 <= value < 1):
        raise ValueError(f"{owner}: expected {name} in [0, 1), got {value!r}. Pass 0.9, say: the part kept each step.")


def _check_adam(rule: Adam | AdamW) -> None:
    owner = type(rule).__name__
    _check_lr(owner, rule.lr)
    if not isinstance(rule.betas, tuple) or len(rule.betas) != 2:
        raise ValueError(f"{owner}: expected two betas, got {rule.betas!r}. Pass betas=(0.9, 0.999), say.")
    for beta in rule.betas:
        _check_kept(owner, "betas", beta)
    if not (isinstance(rule.eps, Real) and 0 < rule.eps < math.inf):
        raise ValueError(f"{owner}: expected eps above 0, got {rule.eps!r}. Pass eps=1e-8, say.")
    check_nonnegative(owner, weight_decay=rule.weight_decay)
