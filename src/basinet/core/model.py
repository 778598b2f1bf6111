"""Any `nn.Module` as a pure function of (params, buffers, inputs, noise). The user's module is never changed."""

from __future__ import annotations

import copy
import inspect
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .keyed import KeyedRandomness
from .noise import Noise
from .threads import own_copy
from .tree import Params, Point, leaves, tree_map
from .unkeyed import OwnGenerator
from .where import Where, select

Mode = Literal["train", "eval", "dropout"]
"""train: norm layers use batch statistics and dropout is on; eval: neither; dropout: eval with dropout on."""

Factory = Callable[[], nn.Module]
Make = Callable[[str, nn.Module], nn.Module]
"""What a layer is replaced by, from its name and the layer; the layer itself, to leave it."""

Output = int | str | None
"""Which of what a module returns is scored: the place in a tuple, the key or the attribute; None: there is only one."""

UNTOLD = r" at 0x[0-9a-f]+|,? ?\bbias=(True|False)"
"""What the description of a module leaves out: addresses, and whether there is a bias, which shapes of parameters tell
and which newer versions of torch print for norm layers too: a file must outlive both."""

GENERATOR = threading.RLock()  # torch has one generator for all threads: held while it stands at another state


class Model:
    """A pure function made from a factory `() -> nn.Module` or from a module, of which it keeps a private copy.

    Inputs reach the module as its forward takes them: a dict as keywords, a tuple or list as positions, anything
    else as the one argument. Parameters that take no gradient travel with the buffers and stay as they are.
    """

    def __init__(self, source: Factory | nn.Module, output: Output = None) -> None:
        if not callable(source):
            raise TypeError(f"expected a factory () -> nn.Module or an nn.Module, got {type(source).__name__}")
        if isinstance(output, bool) or not isinstance(output, (int, str, type(None))):
            raise TypeError(f"expected output= as a place in a tuple, a key or an attribute, got {output!r}")
        if not isinstance(source, nn.Module) and (needed := _required(source)):
            name = getattr(source, "__name__", type(source).__name__)
            raise TypeError(
                f"expected a factory that takes no arguments, got {name}, which needs {', '.join(needed)}: give them, "
                f"as in lambda: {name}({', '.join(['...'] * len(needed))})"
            )
        self._source, self.output = source, output
        self._writes: bool | None = None  # whether it changes its inputs; None: it has not been seen to run
        with seeded(0), OwnGenerator(0):
            module = self._build()
        _check(module)
        self.description = re.sub(UNTOLD, "", repr(module))
        self.params = {n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
        self.frozen = {n: tuple(p.shape) for n, p in module.named_parameters() if not p.requires_grad}
        self.buffers = {n: tuple(b.shape) for n, b in module.named_buffers()}
        self.norms = _norm_momenta(module)
        self._tied = _has_ties(module)
        if not self.params:
            raise ValueError(
                "expected a module with parameters that take gradients, got none: nothing can be inferred. "
                "Check requires_grad."
            )
        for part in module.modules():
            if isinstance(part, nn.TransformerEncoder):
                part.use_nested_tensor = False  # a way around padding that vmap cannot follow
        self._train = _Reader(module).train()
        memo = {id(x): x for x in (*module.parameters(), *module.buffers())}  # both copies share their dummy tensors
        self._eval = copy.deepcopy(self._train, memo).eval()

    @property
    def module(self) -> nn.Module:
        """The private copy: to look at its layers, never to run or change it."""
        return self._train.net

    def init(self, noise: Noise) -> Point:
        """A fresh initialisation: the factory run, or the module re-initialised, under a seed from the key."""
        seed = noise.integer()
        with seeded(seed), OwnGenerator(seed):
            module = self._source() if not isinstance(self._source, nn.Module) else self._build()
        return self.read(module)  # which copies, so that what a factory hands out is never written to

    def read(self, module: nn.Module) -> Point:
        """The point at which a module of this kind stands: its parameters and buffers, copied."""
        if not isinstance(module, nn.Module):
            raise TypeError(f"expected an nn.Module, got {type(module).__name__}")
        module = _bare(module)
        parameters = {n: p.detach().clone() for n, p in module.named_parameters()}
        buffers = {n: b.detach().clone() for n, b in module.named_buffers()}
        expected = {**self.params, **self.frozen, **self.buffers}
        shapes = {n: tuple(x.shape) for n, x in (parameters | buffers).items()}
        if difference := describe_difference(expected, shapes):
            raise ValueError(f"the module does not fit this model: {difference}")
        params = {n: parameters.pop(n) for n in self.params}
        return Point(params, parameters | buffers)

    def __call__(
        self, params: Params, buffers: Params, inputs: Any, noise: Noise | None = None, mode: Mode = "eval"
    ) -> tuple[Tensor, Params]:
        """The outputs, and the buffers after the pass (norm statistics move in train mode; nothing passed in does)."""
        net = own_copy(self._train if mode == "train" else self._eval)
        if self._writes is not False:
            inputs = tree_map(torch.clone, inputs)
        args, kwargs = _arguments(inputs)
        before = _versions(inputs)
        state = {f"net.{n}": x for n, x in (params | buffers).items()}
        state |= {f"net.{n}": buffers[n].clone() for n in self.buffers}  # layers write into what they are given
        with nullcontext() if noise is None else KeyedRandomness(noise, always=mode == "dropout"):
            outputs, after = functional_call(net, state, args, kwargs, tie_weights=self._tied)
        self._learn(before, _versions(inputs))
        moved = {n: x for n, x in after.items() if n in self.buffers} if mode == "train" else {}
        return _tensor(outputs, self.output), buffers | moved

    def _learn(self, before: list[int] | None, after: list[int] | None) -> None:
        """Notes at the first call whether the module changes its inputs; those that do get copies from then on."""
        if before is None or after is None or self._writes:
            return
        changed = before != after
        if changed and self._writes is False:
            raise ValueError(
                "the network changed its inputs in place, unlike the first time it ran: copy them at the beginning of "
                "forward (x = x.clone()). The inputs of this call have been changed"
            )
        self._writes = changed

    def at(self, point: Point) -> nn.Module:
        """A plain module of this kind that stands at a point, in eval mode: the inverse of `read`."""
        module = copy.deepcopy(self._eval.net)
        values = point.params | point.buffers
        with torch.no_grad():
            for name, x in (*module.named_parameters(), *module.named_buffers()):
                x.data = values[name].detach().clone()
        return module

    def swapped(self, where: Where, make: Make) -> Model:
        """The model of the module whose leaf layers that `where` names ("head", "blocks.*"; None: all) are replaced by
        what `make(name, layer)` returns.

        A replacement that holds the parameters of the layer, as the same objects and by the same names, keeps their
        names, starts and ties; what it adds is named after the layer. Leaf layers are modules without modules inside,
        and nn.MultiheadAttention, which never calls those it has. Random layers read `torch.randn_like` and the like,
        which are keyed.
        """
        if type(self) is not Model:
            raise TypeError(
                f"expected a model of a plain module, got {type(self).__name__}, which wraps one: swap layers of the "
                "model inside, then wrap"
            )
        return Model(lambda: _swap(self._build(), where, make), self.output)

    def holding(self, names: Collection[str]) -> Model:
        """The model in which these parameters stay as they are: they take no gradient and travel with the buffers. It
        always runs in eval mode, since norm statistics stay as well and dropout would change what the others see."""

        def held() -> nn.Module:
            module = self._build()
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(parameter.requires_grad and name not in names)
            return module

        model = Model(held, self.output)
        model._train, model.norms = model._eval, {}
        return model

    def alone(self) -> Model:
        """The model of the module itself, where this one differs from it in training alone."""
        return self

    def spec(self) -> dict[str, Any]:
        """What identifies the model in a file: shapes by name, and the module as it prints itself."""
        shapes = {"params": self.params, "frozen": self.frozen, "buffers": self.buffers}
        extras = {"module": self.description} | ({} if self.output is None else {"output": self.output})
        return {k: {n: list(s) for n, s in v.items()} for k, v in shapes.items()} | extras

    def _build(self) -> nn.Module:
        if isinstance(self._source, nn.Module):
            return _reinitialise(copy.deepcopy(_bare(self._source)))
        module = self._source()
        if not isinstance(module, nn.Module):
            raise TypeError(f"expected the factory to return an nn.Module, got {type(module).__name__}")
        return copy.deepcopy(_bare(module))  # a factory may hand out a module that someone else still uses


class _Reader(nn.Module):
    """Runs a module and reads its buffers afterwards, whether it wrote into them or replaced them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.reads = any(True for _ in net.buffers())

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Params]:
        outputs = self.net(*args, **kwargs)
        return outputs, dict(self.net.named_buffers()) if self.reads else {}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs its body with torch's global generators at `seed`, and puts them back."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    with GENERATOR, torch.random.fork_rng(devices=cuda):
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:  # without a note for devices that may come to be used, which takes a hundred times as long
            torch.default_generator.manual_seed(seed)
        yield


def describe_difference(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    """In words, the first way in which two tables of shapes differ; empty if they do not."""
    for name in expected:
        if name not in got:
            return f"it has no {name} {expected[name]}"
        if tuple(expected[name]) != tuple(got[name]):
            return f"{name} is {tuple(got[name])} where {tuple(expected[name])} was expected"
    for name in got:
        if name not in expected:
            return f"it has {name} {tuple(got[name])}, which was not expected"
    return ""


def _bare(module: nn.Module) -> nn.Module:
    """The module inside of what `torch.compile` or `nn.DataParallel` made: with the names that the module has."""
    inside = module._modules.get("_orig_mod") or (module.module if isinstance(module, nn.DataParallel) else None)
    return module if inside is None else _bare(inside)


def _required(source: Factory) -> list[str]:
    """The arguments without which a factory cannot be called; none where its signature cannot be read."""
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _check(module: nn.Module) -> None:
    """Refuses parameters that have no values yet, or none on the real line."""
    for name, x in module.named_parameters():
        if isinstance(x, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"expected a module with all its parameters, got {name} without a shape: run a lazy module once on an "
                "example in the factory, before it is returned"
            )
        if x.requires_grad and not x.is_floating_point():
            raise ValueError(
                f"expected real parameters, for which priors are defined, got {name} of {x.dtype}: hold real and "
                "imaginary parts as a parameter each, and join them with torch.complex in forward"
            )


def _reinitialise(module: nn.Module) -> nn.Module:
    """Fresh values for what takes gradients; parameters that take none, and layers made of them, stay."""
    frozen = [(p, p.detach().clone()) for p in module.parameters() if not p.requires_grad]
    for part in module.modules():
        inside = list(part.parameters())
        if inside and not any(p.requires_grad for p in inside):
            continue
        for name in ("reset_parameters", "_reset_parameters"):  # attention layers have the second
            reset = getattr(part, name, None)
            if callable(reset):
                reset()
                break
    with torch.no_grad():
        for parameter, value in frozen:
            parameter.copy_(value)
    return module


def _swap(module: nn.Module, where: Where, make: Make) -> nn.Module:
    """The module with its layers replaced, at every place where it has them."""
    inside = {id(child) for part in module.modules() if _is_attention(part) for child in part.children()}
    layers = {
        name: part
        for name, part in module.named_modules()
        if _is_attention(part) or (id(part) not in inside and not list(part.children()))
    }
    replacements = {id(layers[name]): _replacement(make, name, layers[name]) for name in select(layers, where, "layer")}
    for part in list(module.modules()):
        for name, child in part._modules.items():
            if id(child) in replacements:
                setattr(part, name, replacements[id(child)])
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # its fast path reads the weights of its layers and does not call them
    return replacements.get(id(module), module)


def _replacement(make: Make, name: str, layer: nn.Module) -> nn.Module:
    replacement = make(name, layer)
    if not isinstance(replacement, nn.Module):
        raise TypeError(f"expected an nn.Module in place of layer {name!r}, got {type(replacement).__name__}")
    return replacement


def _is_attention(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention)


def _has_ties(module: nn.Module) -> bool:
    """Whether a parameter or buffer stands at several places, which have to be set together."""
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return len({id(x) for _, x in every}) < len(every)


def _norm_momenta(module: nn.Module) -> dict[str, float]:
    """For each norm layer that keeps running statistics, its name and how far one batch moves them from a fresh
    start."""
    momenta = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is not None:
            momenta[name] = 1.0 if part.momentum is None else float(part.momentum)
    return momenta


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def _versions(inputs: Any) -> list[int] | None:
    """How often each input was written to; None where that cannot be seen: under vmap, and while compiling."""
    if torch.compiler.is_compiling():
        return None
    tensors = leaves(inputs)
    hidden = any(torch._C._functorch.is_functorch_wrapped_tensor(x) or x.is_inference() for x in tensors)
    return None if hidden else [x._version for x in tensors]


def _tensor(returned: Any, output: Output) -> Tensor:
    """The tensor to be scored, of what a module returned."""
    chosen = returned if output is None else _part(returned, output)
    if output is None and isinstance(returned, Mapping) and "logits" in returned:
        chosen = returned["logits"]
    elif output is None and not isinstance(returned, Tensor) and hasattr(returned, "logits"):
        chosen = returned.logits
    if not isinstance(chosen, Tensor):
        what = type(returned).__name__ + (f" whose {output!r} is {type(chosen).__name__}" if output is not None else "")
        raise TypeError(
            f"expected the module to return a tensor (or something with 'logits'), got {what}: say which part is to be "
            "scored with bn.Problem(..., output=0) for the first of a tuple, output='name' for a key or an attribute"
        )
    return chosen


def _part(returned: Any, output: int | str) -> Any:
    try:
        if isinstance(output, str) and not isinstance(returned, Mapping):
            return getattr(returned, output)
        return returned[output]
    except (KeyError, IndexError, AttributeError, TypeError):
        inside = f"of {len(returned)}" if isinstance(returned, (tuple, list)) else ""
        inside = f"with {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else inside
        raise ValueError(
            f"expected the network to return something with output={output!r}, got {type(returned).__name__} {inside}"
        ) from None
