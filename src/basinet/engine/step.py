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

import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.lift import apart, compiled, gradient, lift, may_run_alone, together
from ..core.noise import Noise
from ..core.products import OrderedProducts, StackedProducts
from ..core.tree import Params, leaves, take, tree_map
from ..optim import Optimizer
from ..problem import Batch, Problem

Back = Callable[[Any], Any]
"""From the derivatives of something with respect to outputs, leaves (M, ...), to those with respect to params."""


class Info(NamedTuple):
    """What a step tells beside the next state."""

    loss: Tensor  # (), what was minimised, or minus the log density, per example
    keep: Tensor | None = None  # (), bool: this step's sample goes to the bank
    sample: Any = None  # the tree of tensors that is kept then
    buffers: Params | None = None  # gradient methods: the buffers after the pass
    quadratic: dict[str, Any] = {}  # noqa: RUF012  # gradient methods: to the loss belong d/2 |x|^2, by name of x; d is a
    # number or (), and the engine adds them, and their gradients d x, outside of the graph
    extra: dict[str, Tensor] = {}  # noqa: RUF012  # anything a person may want to see; never written to


class Step(NamedTuple):
    """What one step is given beside the state: of one member, or of a stack, whose tensors have leaves (M, ...)."""

    batch: Batch
    problem: Problem
    noise: Noise
    context: Any = ()  # what the method's `context` took from the training data; the same for all members
    lift: Any = None  # a Lift: functions of one member, over the members of this step; None: Inside

    @property
    def scale(self) -> float:
        """N / T, what the potential is divided by to read as a loss per example."""
        return self.problem.scale(self.batch.total)

    def tensors(self) -> tuple[Any, ...]:
        """What differs from step to step."""
        b = self.batch
        return (b.inputs, b.targets, b.index, b.step, b.weights, self.noise.key)

    def frame(self) -> Frame:
        """What is the same at every step."""
        return Frame(self.problem, self.context, self.batch.total)


class Frame(NamedTuple):
    """A step without its tensors."""

    problem: Problem
    context: Any
    total: int

    def step(self, tensors: tuple[Any, ...], lift: Lift) -> Step:
        """The step with these tensors."""
        inputs, targets, index, clock, weights, key = tensors
        batch = Batch(inputs, targets, index, clock, self.total, weights)
        return Step(batch, self.problem, Noise(key), self.context, lift)


Loss = Callable[[Any, Any, Step], Info]
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
        self.behind: list[int] = []  # members whose clock is behind that of the others, since they started anew
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
            key = (_same(function), "whole")
            if key not in self._ready:
                frame = step.frame()

                def of_all(state: Any, tensors: tuple[Any, ...]) -> Any:
                    return self._cast(function, state, frame.step(tensors, self))

                self._ready[key] = compiled(of_all) if self.traced else of_all
            return self._ready[key](state, step.tensors())

        return stacked

    def gradient(self, loss: Loss, state: Any, step: Step) -> tuple[Any, Info]:
        """The gradient of each member's loss in `state.params`, and what the loss tells, its quadratic part included.

        By one backward pass for all members, that of their sum, since they share nothing; inside of what is lifted
        where the compiler looks on, and where only that can be stacked, as with nn.LSTM.
        """
        if self.tape:
            try:
                return self._by_tape(loss, state, step)
            except RuntimeError as error:
                if not may_run_alone(error) or (isinstance(self, Alone) and not self.compile):
                    raise
                self.tape = False
        return self._prepared(_Descended(loss), step, 1)(state, step.tensors())

    def move(
        self, optimizer: Optimizer, state: Any, grads: Any, decay: dict[str, float], clock: Tensor, steps: int
    ) -> tuple[Any, Any]:
        """The optimiser's step along `grads`, plus decay times params by name, written into the params and moments of
        `state`, which are returned. Members that started anew are behind, and step again by themselves."""
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
            vjp = _traced_vjp if self.traced else _vjp
            if self.recompute and len(parts) > 1:
                with torch.no_grad():
                    results = self._each([partial(called, *part) for part in parts])
                kept: list[Back] | None = None
            else:
                pulled = self._each([partial(vjp, called, part) for part in parts])
                results, kept = [(outputs, aux) for outputs, aux, _ in pulled], [back for _, _, back in pulled]
            outputs, aux = self._joined(results)

            def back(cotangents: Any) -> Any:
                pieces = [piece for (piece,) in self._parts((cotangents,), (0,))]
                if kept is not None:
                    return self._joined(self._each([partial(pull, piece) for pull, piece in zip(kept, pieces)]))

                def again(part: tuple[Any, ...], piece: Any) -> Any:
                    return vjp(called, part)[2](piece)

                return self._joined(self._each([partial(again, part, piece) for part, piece in zip(parts, pieces)]))

            return outputs, aux, back

        return all_members

    @property
    def traced(self) -> bool:
        """Whether a compiler looks on while members are computed, so that derivatives must be transforms."""
        return self.compile

    def _by_tape(self, loss: Loss, state: Any, step: Step) -> tuple[Any, Info]:
        flat, structure = pytree.tree_flatten(state.params)
        flat = [x.detach().requires_grad_() for x in flat]
        params = pytree.tree_unflatten(flat, structure)
        with torch.enable_grad():
            info = self._prepared(loss, step, 2)(params, state._replace(moments=()), step.tensors())
            slopes = torch.autograd.grad(info.loss.sum(), flat, materialize_grads=True)
        info = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, info)
        return with_energy(pytree.tree_unflatten(list(slopes), structure), info, state.params)

    def _prepared(self, function: Callable[..., Any], step: Step, trees: int) -> Callable[..., Any]:
        """A method's function of `trees` and a step as one of trees and the step's tensors, lifted and compiled once:
        between steps only tensors change."""
        key = (_same(function), trees, self.axes)
        if key not in self._ready:
            frame = step.frame()

            def of_one(*args: Any) -> Any:
                with self._products():
                    return self._cast(function, *args[:-1], frame.step(args[-1], INSIDE))

            lifted = self._over(of_one, trees)
            self._ready[key] = _compiled_tensors(lifted) if self.compile else lifted
        return self._ready[key]

    def _products(self) -> AbstractContextManager[Any]:
        """How linear layers of the members are computed."""
        return OrderedProducts() if self.compile else StackedProducts()

    def _cast(self, function: Callable[..., Any], *args: Any) -> Any:
        """A call in the precision that was asked for."""
        if self.autocast is None:
            return function(*args)
        with torch.autocast(*self.autocast):
            return function(*args)

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
        """Results of chunks as one tree; what is no tensor is the same in all."""
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
        return _Descended(loss)(state, step)

    def move(
        self, optimizer: Optimizer, state: Any, grads: Any, decay: dict[str, float], clock: Tensor, steps: int
    ) -> tuple[Any, Any]:
        pulled = dict(grads) | {n: grads[n] + d * state.params[n] for n, d in decay.items()} if decay else grads
        return optimizer.step(state.params, pulled, state.moments, clock, steps)


INSIDE = Inside()


class Streams(Lift):
    """On a GPU: one call for each member, on a stream of its own, to be recorded in a CUDA graph.

    Convolutions of many members in one call are grouped ones, whose second derivatives are slow; here they stay plain.
    With `recompute`, `at_once` members have activations in memory at a time.
    """

    def __init__(self, at_once: int | None = None, *, recompute: bool = False, compile: bool = False) -> None:
        super().__init__(1, recompute=recompute, compile=compile)
        self.at_once = at_once
        self.streams: list[torch.cuda.Stream] = []  # none: one member after another, to warm up
        self._codes: dict[types.CodeType, types.CodeType] = {}

    @property
    def traced(self) -> bool:
        """Each call is compiled by itself, so that derivatives are taken outside, by torch's own tape."""
        return False

    def spread(self, members: int) -> None:
        """Takes streams for this many members."""
        self.streams = [torch.cuda.Stream() for _ in range(min(self.at_once or members, members))]

    def _call(self, function: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
        if not self.compile or not hasattr(function, "__code__"):
            return super()._call(function, dims)
        code = self._codes.setdefault(function.__code__, function.__code__.replace())
        return super()._call(compiled(function, whole=True, code=code), dims)

    def _each(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return on_streams(self.streams, calls)


def on_streams(streams: Sequence[torch.cuda.Stream], calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What the calls give, each on one of the streams in turn; in sequence where there are none."""
    if not streams:
        return [call() for call in calls]
    current, results = torch.cuda.current_stream(), []
    for stream in streams:
        stream.wait_stream(current)
    for i, call in enumerate(calls):
        with torch.cuda.stream(streams[i % len(streams)]):
            results.append(call())
    for stream in streams:  # after all have been sent off: a join in between would make each wait for the last
        current.wait_stream(stream)
    return results


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


class _Descended:
    """The gradient of a loss with its quadratic part, of one member, by a transform. Equal for equal losses."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, state: Any, step: Step) -> tuple[Any, Info]:
        grads, info = gradient(self.loss, lambda info: info.loss)(state.params, state, step)
        return with_energy(dense(grads), info, state.params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descended) and _same(self.loss) is _same(other.loss)

    def __hash__(self) -> int:
        return hash(_same(self.loss))


def with_energy(grads: Any, info: Info, params: Any) -> tuple[Any, Info]:
    """The loss with the quadratic part that it named, the sum of d/2 |x|^2, of one member or of a stack, where losses
    are (M,). Its gradient d x is left to the optimiser's step where d is a number; other gradients have it added."""
    if not info.quadratic:
        return grads, info
    numbers = {n: d for n, d in info.quadratic.items() if not isinstance(d, Tensor)}
    terms = [(d, [params[n] for n in numbers if numbers[n] == d]) for d in dict.fromkeys(numbers.values())]
    pulled = {}
    for name, d in info.quadratic.items():
        if name not in numbers:
            x = params[name]
            terms.append((d, [x]))
            pulled[name] = grads[name] + d.reshape(d.shape + (1,) * (x.dim() - d.dim())) * x
    energies = [_norms(xs, info.loss.dim()).square().sum(0) * (0.5 * d) for d, xs in terms]
    return dict(grads) | pulled if pulled else grads, info._replace(loss=sum(energies, info.loss), quadratic=numbers)


def _norms(xs: list[Tensor], dims: int) -> Tensor:
    """The norm of each tensor, (P,), or of each member of it, (P, M): of one member by one kernel for many tensors,
    since hundreds of small ones take longer than what they read."""
    plain = not torch.compiler.is_compiling() and not torch._C._functorch.is_functorch_wrapped_tensor(xs[0])
    if dims == 0 and plain:
        return torch.stack(torch._foreach_norm(xs))
    return torch.stack([torch.linalg.vector_norm(x.reshape(*x.shape[:dims], -1), dim=-1) for x in xs])


def dense(tree: Any) -> Any:
    """The tree with leaves in plain order, which a checkpoint gives back: kernels then give the same bits."""
    if all(not isinstance(x, Tensor) or x.is_contiguous() for x in leaves(tree)):
        return tree
    return tree_map(lambda x: x.contiguous() if isinstance(x, Tensor) else x, tree)


def _host(clock: Tensor) -> int | Tensor:
    """A clock as a number, where reading it costs nothing."""
    return int(clock) if clock.device.type == "cpu" else clock


def _same(function: Any) -> Any:
    return getattr(function, "__func__", function)


def _vjp(called: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any, Back]:
    """By torch's own tape, outside of what is lifted: on a CPU cheaper than transforms inside of it."""
    flat, structure = pytree.tree_flatten(args[0])
    flat = [x.detach().requires_grad_() for x in flat]
    with torch.enable_grad():
        outputs, aux = called(pytree.tree_unflatten(flat, structure), *args[1:])

    def back(cotangents: Any) -> Any:
        pairs = [(o, c) for o, c in zip(leaves(outputs), leaves(cotangents)) if o.requires_grad]
        with torch.enable_grad():  # of a number: torch imports its compiler's algebra to check other cotangents
            along = torch.stack([(o * c).sum() for o, c in pairs]).sum()
        slopes = torch.autograd.grad(along, flat, materialize_grads=True)
        return pytree.tree_unflatten(list(slopes), structure)

    return _detached(outputs), _detached(aux), back


def _traced_vjp(called: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any, Back]:
    """The same by a transform, which a compiler can follow."""
    rest: Any = None

    def with_tensors(params: Any) -> tuple[Any, tuple[Tensor, ...]]:
        nonlocal rest
        outputs, aux = called(params, *args[1:])
        tensors, rest = apart(aux)
        return outputs, tensors

    outputs, pull, tensors = torch.func.vjp(with_tensors, args[0], has_aux=True)  # type: ignore[misc]
    return outputs, together(tensors, rest), lambda cotangents: pull(cotangents)[0]


def _detached(tree: Any) -> Any:
    return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, tree)
