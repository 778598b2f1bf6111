"""Kernels: how the steps of a group of members are carried out. All give each member the same, up to rounding.

    Eager      step by step: the whole stack in one vectorised call, or one member. Gradient methods use torch's
               fused optimisers.
    Captured   the whole step as a CUDA graph (captured.py)

A kernel owns its state and writes into it, so the same kernel serves one group after another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.lift import compiled, lift
from ..core.noise import Noise
from ..core.tree import Point, stack, take, tree_map
from ..data import Data, Stream, some
from ..problem import Batch, Problem
from .bank import Bank
from .batches import Batches, Streamed
from .coupled import Lift
from .memory import is_out_of_memory
from .method import CoupledMethod, GradientMethod, Info, Method, Schedule


class Kernel(ABC):
    """Members side by side. `begin` loads a group, `advance` moves it, `row` and `put` read and replace one member."""

    def __init__(
        self,
        method: Method,
        problem: Problem,
        data: Data | Stream,
        schedule: Schedule,
        autocast: torch.dtype | None = None,
        lift: Lift | None = None,
    ) -> None:
        self.method, self.problem, self.data, self.schedule, self.autocast = method, problem, data, schedule, autocast
        self.coupling = lift or Lift()  # how functions of one member are computed for all, in coupled methods
        self.bank = Bank(0, 0)

    def begin(self, members: Sequence[int], points: Sequence[Point], keys: Tensor) -> None:
        """Loads a group: member numbers (their index lists), starting points, keys (g, 2)."""
        self.size = len(members)
        shufflers = 1 if self.method.coupled else self.size  # coupled members see the batches of the first
        self.batches: Batches | Streamed = (
            Streamed(self.data, self._trains_on_one(points[0], keys[0]))
            if isinstance(self.data, Stream)
            else Batches(self.data, list(members[:shufflers]), keys[:shufflers], self.schedule.batch_size)
        )
        self.keys = Noise(keys).split("step").key
        self.bank = Bank(self.size, self.schedule.bank)
        self.load(points, keys)

    def _trains_on_one(self, point: Point, key: Tensor) -> bool:
        """Whether the network runs on one example alone in training; norm layers may need more."""
        if not self.problem.network.norms:
            return True
        inputs = tree_map(lambda x: x[:1], some(self.data).inputs)
        try:
            with torch.no_grad():
                self.problem.outputs(point.params, point.buffers, inputs, Noise(key), "train")
        except ValueError:
            return False
        return True

    @abstractmethod
    def load(self, points: Sequence[Point], keys: Tensor) -> None:
        """Makes the states before the first step."""

    @abstractmethod
    def advance(self, clocks: Sequence[int], count: int, total: Tensor) -> Tensor:
        """Makes `count` steps from each member's clock; returns `total` (g,) plus the losses, added one by one."""

    @abstractmethod
    def states(self) -> Any:
        """The states of all members, leaves (g, ...)."""

    @abstractmethod
    def put(self, j: int, state: Any) -> None:
        """Replaces the state of member j."""

    def row(self, j: int) -> Any:
        """A copy of the state of member j."""
        return tree_map(torch.clone, take(self.states(), j))

    def rekey(self, j: int, key: Tensor) -> None:
        """Gives member j another key, from which its shuffling and noise follow."""
        if j == 0 or not self.method.coupled:
            self.batches.rekey(j, key)
        self.keys[j] = Noise(key).split("step").key

    def init(self, point: Point, key: Tensor) -> Any:
        """The state of one member before its first step, in memory of its own."""
        return tree_map(torch.clone, self.method.init(point, self.problem, Noise(key).split("init")))

    def step(
        self,
        state: Any,
        inputs: Any,
        targets: Tensor,
        weights: Tensor | None,
        index: Tensor,
        key: Tensor,
        clock: Tensor,
    ) -> tuple[Any, Info]:
        """One step of one member, or of a stack of coupled ones."""
        batch = self.batch(inputs, targets, weights, index, key, clock)
        with self.precision():
            if isinstance(self.method, CoupledMethod):
                return self.method.update(state, batch, self.problem, Noise(key), self.coupling)
            return self.method.update(state, batch, self.problem, Noise(key))

    def batch(self, inputs: Any, targets: Any, weights: Any, index: Any, key: Tensor, clock: Any) -> Batch:
        """What one member sees: the examples, augmented with its own noise (coupled members: that of the first)."""
        if self.data.augment is not None:
            own = Noise(key[0] if self.method.coupled else key)
            inputs = self.data.augment(inputs, own.split("augment"))
        return Batch(inputs, targets, index, clock, self.batches.n, weights)

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast, where it was asked for."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.keys.device.type, self.autocast)

    def dims(self) -> tuple[Any, ...]:
        """Which arguments of `step` have a member axis."""
        if self.method.coupled:
            return (0, None, None, None, None, 0, None)
        shared = None if self.batches.shared else 0
        weighted = None if shared is None or self.data.weights is None else 0
        return (0, shared, shared, weighted, shared, 0, 0)


class Eager(Kernel):
    """Step by step, `stacked` or one member; with `compiled`, the function that is lifted is compiled."""

    def __init__(self, *args: Any, stacked: bool, compiled: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stacked, self.compiled = stacked, compiled
        self.fused = isinstance(self.method, GradientMethod)
        plain = self.fused and type(self.method).gradient is GradientMethod.gradient  # type: ignore[attr-defined]
        self.coupling.traced = self.compiled
        self.outside = plain and not self.compiled  # gradients are taken outside of what is lifted
        self._made: dict[Any, Callable[..., Any]] = {}

    def load(self, points: Sequence[Point], keys: Tensor) -> None:
        if self.stacked:
            self.state = _dense(lift(self.init)(stack(points), keys))
        else:
            self.state = _dense(self.init(points[0], keys[0]))

    def states(self) -> Any:
        return self.state if self.stacked else tree_map(lambda x: x.unsqueeze(0), self.state)

    def put(self, j: int, state: Any) -> None:
        if self.stacked:
            tree_map(lambda all_, one: all_[j].copy_(one), self.state, state)
        else:
            self.state = _dense(tree_map(torch.clone, state))

    def advance(self, clocks: Sequence[int], count: int, total: Tensor) -> Tensor:
        device = self.keys.device
        index = self.batches.index(clocks, count)
        ticks = torch.tensor(clocks, device=device) + torch.arange(count, device=device)[:, None]  # (count, g)
        keys = Noise(self.keys.unsqueeze(0)).split(ticks).key  # (count, g, 2)
        if self.method.coupled:
            ticks, index = ticks[:, 0], index if self.batches.shared else index[:, 0]
        elif not self.stacked:
            keys, ticks, index = keys[:, 0], ticks[:, 0], index if self.batches.shared else index[:, 0]
        for t in range(count):
            inputs = (*self.batches.gather(index[t]), index[t], keys[t], ticks[t])
            info = self._descend(inputs, [c + t for c in clocks]) if self.fused else self._update(inputs)
            total = total + info.loss.detach().reshape(-1)
            if info.keep is not None:
                sample = info.sample if self.stacked else tree_map(lambda x: x.unsqueeze(0), info.sample)
                self.bank.write(info.keep.reshape(-1), sample)
        return total

    def _update(self, inputs: tuple[Any, ...]) -> Info:
        state, info = self._lifted("step", self.step)(self.state, *inputs)
        self.state = _dense(state)
        return info

    def _descend(self, inputs: tuple[Any, ...], clocks: list[int]) -> Info:
        state = self.state
        grads, info = self._gradients(state, inputs)
        if info.keep is not None:
            info = info._replace(sample=tree_map(torch.clone, info.sample))  # the step below writes into the params
        self._move(state.params, _dense(grads), state.moments, clocks)  # fused kernels take plain order for granted
        self.state = state._replace(buffers=state.buffers if info.buffers is None else _dense(info.buffers))
        if type(self.method).absorb is not GradientMethod.absorb:  # type: ignore[attr-defined]
            self.state = _dense(self._lifted("absorb", self._absorb)(self.state, *inputs))
        return info

    def _gradients(self, state: Any, inputs: tuple[Any, ...]) -> tuple[Any, Info]:
        if self.outside:
            try:
                return self._backward(state, inputs)
            except RuntimeError as error:  # nn.LSTM is stacked where its gradient is taken inside, and not otherwise
                if is_out_of_memory(error) or not self.stacked:
                    raise
                self.outside = False
        return self._lifted("gradient", self._gradient)(state, *inputs)

    def _backward(self, state: Any, inputs: tuple[Any, ...]) -> tuple[Any, Info]:
        """The gradients of all losses by one backward pass: that of their sum, since members share nothing."""
        flat, structure = pytree.tree_flatten(state.params)
        flat = [x.detach().requires_grad_() for x in flat]
        decay = self._decay(state.params)
        name, function = ("loss", self._loss) if decay is None else ("data", self._data_loss)
        with torch.enable_grad():
            info = self._lifted(name, function)(pytree.tree_unflatten(flat, structure), state, *inputs)
            found = torch.autograd.grad(info.loss.sum(), flat, materialize_grads=True)
        grads = pytree.tree_unflatten(list(found), structure)
        info = tree_map(lambda x: x if x is None else x.detach(), info)
        return (grads, info) if decay is None else self._with_prior(state.params, grads, info, decay)

    def _decay(self, params: Any) -> dict[str, float] | None:
        """What the prior pulls parameters to zero with, per example, where that is all it does: then it needs no graph,
        which on a CPU costs a fifth of a step of a dense network."""
        assert isinstance(self.method, GradientMethod)
        if not self.method.plain:
            return None
        one = take(params, 0) if self.stacked else params  # a prior may look at shapes
        found, scale = self.problem.decay(one), self.problem.scale(self.batches.n)
        return None if found is None else {n: d / scale for n, d in found.items()}

    def _with_prior(self, params: Any, grads: Any, info: Info, decay: dict[str, float]) -> tuple[Any, Info]:
        dims, pulled, energies = info.loss.dim(), dict(grads), []  # one dimension where members are stacked
        for n, d in decay.items():
            pulled[n] = torch.add(grads[n], params[n], alpha=d, out=torch.empty_like(params[n]))
            energies.append(torch.linalg.vector_norm(params[n].flatten(dims), dim=dims).square() * (d / 2))
        return pulled, info._replace(loss=info.loss + torch.stack(energies).sum(0))

    def _move(self, params: Any, grads: Any, moments: Any, clocks: list[int]) -> None:
        """The optimiser's step in one call; members that started anew are behind, and step again by themselves."""
        assert isinstance(self.method, GradientMethod)
        step, steps, latest = self.method.optimizer.step_in_place, self.schedule.steps, max(clocks)
        behind = [j for j, clock in enumerate(clocks) if clock != latest]
        rows = [tree_map(torch.clone, take((params, grads, moments), slice(j, j + 1))) for j in behind]
        step(params, grads, moments, latest, steps)
        for j, row in zip(behind, rows):
            step(*row, clocks[j], steps)
            whole = take((params, moments), slice(j, j + 1))
            tree_map(lambda old, new: old.copy_(new), whole, (row[0], row[2]))

    def _loss(self, params: Any, state: Any, *inputs: Any) -> Info:
        assert isinstance(self.method, GradientMethod)
        with self.precision():
            return self.method.loss(params, state, self.batch(*inputs), self.problem, Noise(inputs[4]))

    def _data_loss(self, params: Any, state: Any, *inputs: Any) -> Info:
        with self.precision():
            batch = self.batch(*inputs)
            energy, buffers = self.problem.data_potential(params, state.buffers, batch, Noise(inputs[4]), "train")
            return Info(energy / self.problem.scale(batch.total), buffers=buffers)

    def _gradient(self, state: Any, *inputs: Any) -> Any:
        assert isinstance(self.method, GradientMethod)
        with self.precision():
            if isinstance(self.method, CoupledMethod):
                return self.method.gradient(state, self.batch(*inputs), self.problem, Noise(inputs[4]), self.coupling)
            return self.method.gradient(state, self.batch(*inputs), self.problem, Noise(inputs[4]))

    def _absorb(self, state: Any, inputs: Any, targets: Any, weights: Any, index: Any, key: Any, clock: Any) -> Any:
        assert isinstance(self.method, GradientMethod)
        return self.method.absorb(state, Batch(inputs, targets, index, clock, self.batches.n, weights))

    def _lifted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        where = (name, self.batches.shared)
        if where not in self._made:
            dims = (0, *self.dims()) if name in ("loss", "data") else self.dims()
            whole = self.method.coupled and name == "gradient"  # written for the stack
            made = lift(function, dims) if self.stacked and not whole else function
            compile_it = self.compiled and name != "absorb"
            self._made[where] = compiled(made) if compile_it else made
        return self._made[where]


def _dense(tree: Any) -> Any:
    """The tree with leaves in plain order, which a checkpoint gives back: kernels then give the same bits."""
    return tree_map(lambda x: x.contiguous(), tree)
