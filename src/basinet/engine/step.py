"""What a step is given, and how functions of one member are computed for the members at hand.

    Inside    one member, within a function that is lifted over members or compiled: pure, by transforms
    Alone     one member by itself: torch's own tape, optimisers that write in place
    Lift      a stack: all members in one vectorised call, in chunks, or one by one
    Streams   on a GPU: a stack whose members run each on a stream of its own

A method writes functions of one member; `step.lift` gives their results for all that the step is about. Members that
see each other exchange only what these functions return, so that the result does not depend on the chunks, and memory
for activations is that of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.lift import apart, compiled, lift, may_run_alone, together
from ..core.noise import Noise
from ..core.products import OrderedProducts, StackedProducts
from ..core.tree import Params, leaves, take, tree_map
from ..optim import Optimizer
from ..problem import Batch, Problem
from .derivatives import Back, Descended, dense, detached, on_tape, plain, traced_vjp, vjp, with_energy


class Info(NamedTuple):
    """What a step reports beside the next state."""

    loss: Tensor  # (), what was minimised, or minus the log density, per example
    keep: Tensor | None = None  # (), bool: this step's sample goes to the bank
    sample: Any = None  # the tree of tensors that is kept then
    buffers: Params | None = None  # gradient methods: the buffers after the pass
    quadratic: dict[str, Any] = {}  # noqa: RUF012  # gradient methods: to the loss belong d/2 |x|^2, by name of x; d is a
    # number or (), and the engine adds them, and their gradients d x, outside of the graph
    extra: dict[str, Tensor] = {}  # noqa: RUF012  # anything a person may want to see; never written to


Loss = Callable[[Any, Any, "Step"], Info]
"""`loss(params, state, step)` of one member."""


class Lift:
    """Functions of one member, over a stack: `size` members in a call (None: all; 1: a plain call for each).

    With `recompute`, derivatives hold the activations of one chunk at a time, and the forward pass is made again for
    them; without, all that a backward pass needs is kept. `compile` compiles what is lifted, whose calls are then
    traced: derivatives by transforms, which a compiler can follow.
    """

    def __init__(self, size: int | None = None, *, recompute: bool = False, compile: bool = False) -> None:
        self.size, self.recompute, self.compile = size, recompute, compile
        self.axes: tuple[Any, ...] = (0, 0, 0, 0, 0, 0)  # of `Step.tensors`: 0 where members have their own, else None
        self.behind: list[int] = []  # members whose clock is behind that of the others, since they restarted
        self.autocast: tuple[str, torch.dtype] | None = None  # device and dtype of matrix products, where asked for
        self.tape = not compile  # gradients by torch's own tape, outside of what is lifted, until that fails
        self._ready: dict[Any, Callable[..., Any]] = {}

    def __call__(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        """`function` over the leading axis of its arguments; `in_dims` as in `core.lift.lift`."""

        def all_members(*args: Any) -> Any:
            dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
            called = self._call(function, dims)
            return self._joined(self._each([partial(called, *part) for part in self._parts(args, dims)]))

        return all_members

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function(*trees, step)` of one member, a method's own, over all members of trees and step."""

        def all_members(*args: Any) -> Any:
            *trees, step = args
            return self._prepared(function, step, len(trees))(*trees, step.tensors())

        return all_members

    def whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function(state, step)` that a method wrote for the whole stack; compiled where members are."""

        def stacked(state: Any, step: Step) -> Any:
            key = (plain(function), "whole")
            if key not in self._ready:
                again = step.again()

                def of_all(state: Any, tensors: tuple[Any, ...]) -> Any:
                    with self._precision():
                        return function(state, again(tensors, self))

                self._ready[key] = compiled(of_all) if self.traced else of_all
            return self._ready[key](state, step.tensors())

        return stacked

    def gradient(self, loss: Loss, state: Any, step: Step) -> tuple[Any, Info]:
        """The gradient of each member's loss in `state.params`, and what the loss tells, its quadratic part included.

        By one backward pass for all members, that of their sum, since they share nothing; inside of what is lifted
        where the compiler looks on, and where only that can be stacked, as with nn.LSTM.
        """
        if self.tape:
            flat, structure = on_tape(state.params)
            params = pytree.tree_unflatten(flat, structure)
            try:
                with torch.enable_grad():
                    info = self._prepared(loss, step, 2)(params, state._replace(moments=()), step.tensors())
                    slopes = torch.autograd.grad(info.loss.sum(), flat, materialize_grads=True)
                return with_energy(pytree.tree_unflatten(list(slopes), structure), detached(info), state.params)
            except RuntimeError as error:
                if not may_run_alone(error) or (isinstance(self, Alone) and not self.compile):
                    raise
                self.tape = False
        return self._prepared(Descended(loss), step, 1)(state, step.tensors())

    def move(
        self, optimizer: Optimizer, state: Any, grads: Any, decay: dict[str, float], clock: Tensor, steps: int
    ) -> tuple[Any, Any]:
        """The optimiser's step along `grads`, plus decay times params by name, written into the params and moments of
        `state`, which are returned. Members that restarted are behind, and step again by themselves."""
        moved = (state.params, dense(grads), state.moments)  # fused kernels take plain order for granted
        clocks = clock.reshape(-1)
        rows = [tree_map(torch.clone, take(moved, slice(j, j + 1))) for j in self.behind]
        lead = next(i for i in range(len(clocks)) if i not in self.behind)
        optimizer.step_in_place(*moved, _host(clocks[lead]), steps, decay)
        for j, row in zip(self.behind, rows):
            optimizer.step_in_place(*row, _host(clocks[j]), steps, decay)
            whole = take((state.params, state.moments), slice(j, j + 1))
            tree_map(lambda old, new: old.copy_(new), whole, (row[0], row[2]))
        return state.params, state.moments

    def pull(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., tuple[Any, Any, Back]]:
        """For `function(params, *rest) -> (outputs, aux)` of one member: the outputs and aux of all members, and a
        function from cotangents of the outputs to gradients with respect to params. Aux is carried, not derived."""

        def all_members(params: Any, *rest: Any) -> tuple[Any, Any, Back]:
            args = (params, *rest)
            dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
            called, parts = self._call(function, dims), self._parts(args, dims)
            pulled_back = traced_vjp if self.traced else vjp
            if self.recompute and len(parts) > 1:
                with torch.no_grad():
                    results = self._each([partial(called, *part) for part in parts])
                kept: list[Back] | None = None
            else:
                pulled = self._each([partial(pulled_back, called, part) for part in parts])
                results, kept = [(outputs, aux) for outputs, aux, _ in pulled], [back for _, _, back in pulled]
            outputs, aux = self._joined(results)

            def back(cotangents: Any) -> Any:
                pieces = [piece for (piece,) in self._parts((cotangents,), (0,))]
                if kept is not None:
                    return self._joined(self._each([partial(pull, piece) for pull, piece in zip(kept, pieces)]))

                def again(part: tuple[Any, ...], piece: Any) -> Any:
                    return pulled_back(called, part)[2](piece)

                return self._joined(self._each([partial(again, part, piece) for part, piece in zip(parts, pieces)]))

            return outputs, aux, back

        return all_members

    @property
    def traced(self) -> bool:
        """Whether a compiler looks on while members are computed, so that derivatives must be transforms."""
        return self.compile

    def _prepared(self, function: Callable[..., Any], step: Step, trees: int) -> Callable[..., Any]:
        """A method's function of `trees` and a step as one of trees and the step's tensors, lifted and compiled once:
        between steps only tensors change."""
        key = (plain(function), trees, self.axes)
        if key not in self._ready:
            again = step.again()

            def of_one(*args: Any) -> Any:
                with self._products(), self._precision():
                    return function(*args[:-1], again(args[-1], INSIDE))

            lifted = self._over(of_one, trees)
            self._ready[key] = _compiled_tensors(lifted) if self.compile else lifted
        return self._ready[key]

    def _products(self) -> AbstractContextManager[Any]:
        """How linear layers of the members are computed."""
        return OrderedProducts() if self.compile else StackedProducts()

    def _precision(self) -> AbstractContextManager[Any]:
        """That which was asked for."""
        return nullcontext() if self.autocast is None else torch.autocast(*self.autocast)

    def _over(self, function: Callable[..., Any], trees: int) -> Callable[..., Any]:
        """A function of `trees` and a step's tensors over all members."""
        return lift(function, (0,) * trees + (self.axes,))

    def _each(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each chunk gives."""
        return [call() for call in calls]

    def _call(self, function: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
        """`function` on a part: vectorised, or plain where a part is one member, without the axis."""
        return function if self.size == 1 else lift(function, dims)

    def _parts(self, args: tuple[Any, ...], dims: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The arguments of each call."""
        members = next(leaves(a)[0].shape[0] for a, d in zip(args, dims) if d == 0)
        if self.size == 1:
            return [tuple(take(a, i) if d == 0 else a for a, d in zip(args, dims)) for i in range(members)]
        size = members if self.size is None else min(self.size, members)
        cuts = [slice(i, min(i + size, members)) for i in range(0, members, size)]
        return [tuple(take(a, cut) if d == 0 else a for a, d in zip(args, dims)) for cut in cuts]

    def _joined(self, parts: list[Any]) -> Any:
        """Results of chunks as one tree; what is not a tensor is the same in all."""
        if self.size != 1 and len(parts) == 1:
            return parts[0]
        join = torch.stack if self.size == 1 else torch.cat
        return tree_map(lambda *xs: join(xs) if isinstance(xs[0], Tensor) else xs[0], *parts)


class Alone(Lift):
    """One member by itself, without a member axis. Compiled is its loss, whose backward pass the compiler then plans:
    what is cheap it computes again, rather than keep it."""

    def __init__(self, *, compile: bool = False) -> None:
        super().__init__(compile=compile)
        self.tape = True

    def __call__(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        return function

    def _over(self, function: Callable[..., Any], trees: int) -> Callable[..., Any]:
        return function

    def _products(self) -> AbstractContextManager[Any]:
        return nullcontext()


class Inside(Lift):
    """One member within a function that is lifted or compiled: nothing is written in place."""

    def __call__(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        return function

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def gradient(self, loss: Loss, state: Any, step: Step) -> tuple[Any, Info]:
        return Descended(loss)(state, step)

    def move(
        self, optimizer: Optimizer, state: Any, grads: Any, decay: dict[str, float], clock: Tensor, steps: int
    ) -> tuple[Any, Any]:
        pulled = dict(grads) | {n: grads[n] + d * state.params[n] for n, d in decay.items()} if decay else grads
        return optimizer.step(state.params, pulled, state.moments, clock, steps)


INSIDE = Inside()


class Step(NamedTuple):
    """What one step is given beside the state: of one member, or of a stack, whose tensors have leaves (M, ...)."""

    batch: Batch
    problem: Problem
    noise: Noise
    context: Any = ()  # what the method's `context` took from the training data; the same for all members
    lift: Lift = INSIDE  # functions of one member, over the members of this step

    @property
    def scale(self) -> float:
        """N / T, what the potential is divided by to read as a loss per example."""
        return self.problem.scale(self.batch.total)

    def tensors(self) -> tuple[Any, ...]:
        """What differs from step to step."""
        b = self.batch
        return (b.inputs, b.targets, b.index, b.step, b.weights, self.noise.key)

    def again(self) -> Callable[[tuple[Any, ...], Lift], Step]:
        """What makes this step of the tensors of another one; it holds none itself."""
        problem, context, total = self.problem, self.context, self.batch.total

        def step(tensors: tuple[Any, ...], lift: Lift) -> Step:
            inputs, targets, index, clock, weights, key = tensors
            batch = Batch(inputs, targets, index, clock, total, weights)
            return Step(batch, problem, Noise(key), context, lift)

        return step


def _compiled_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled to give tensors alone; what stands beside them, the same at every call, is learned from a
    first call that is not compiled. (Compilers differ in which tuples with names they can return.)"""
    rest: Any = None

    def tensors_of(*args: Any) -> tuple[Tensor, ...]:
        return apart(function(*args))[0]

    run = compiled(tensors_of)

    def call(*args: Any) -> Any:
        nonlocal rest
        if rest is None:
            rest = apart(function(*args))[1]
        return together(run(*args), rest)

    return call


def _host(clock: Tensor) -> int | Tensor:
    """A clock as a number, where reading it costs nothing."""
    return int(clock) if clock.device.type == "cpu" else clock
