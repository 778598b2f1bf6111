"""Chooses how members run, by trying and, on a GPU, by measuring: the plan, and why."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import nn

from .memory import is_out_of_memory

Strategy = Literal["stacked", "streams", "loop"]
STRATEGIES = ("stacked", "streams", "loop")
LONG = 45.0  # seconds of eager training on a CPU above which compiling (10 to 20 s for dense networks) pays for itself

SECOND = (
    10  # a run on a GPU must be so many times longer than its first try took for a second one: compiling a stack of
)
# convolutions takes twice as long as streams do, with second derivatives minutes, and streams were rarely slower


class Plan(NamedTuple):
    """How a run is carried out, and why."""

    strategy: Strategy
    compiled: bool
    reason: str
    processes: int = 1  # over which groups are spread
    threads: int = 0  # of each of these processes; 0: all in this one, with the threads it has

    def words(self) -> str:
        """For the one line that is said."""
        spread = f" in {self.processes} processes" if self.processes > 1 else ""
        return f"{self.strategy}{' and compiled' if self.compiled else ''}{spread} ({self.reason})"


Try = Callable[[Plan, int], float]
"""Runs a few steps of a plan on so many members, without effect, and returns seconds a step."""


def choose(
    asked: Strategy | None,
    compiled: bool | None,
    members: int,
    steps: int,
    device: torch.device,
    module: nn.Module,
    attempt: Try,
    coupled: bool = False,
) -> Plan:
    """The plan asked for, or the one that fits."""
    if device.type == "cuda":
        return _on_gpu(asked, compiled, members, steps, module, attempt, coupled)
    return _on_cpu(asked, compiled, members, steps, module, attempt)


def _on_cpu(
    asked: Strategy | None, compiled: bool | None, members: int, steps: int, module: nn.Module, attempt: Try
) -> Plan:
    if asked == "streams":
        raise ValueError("strategy 'streams' runs members on parallel CUDA streams: on a CPU use 'stacked' or 'loop'")
    if compiled and shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ValueError("compile=True needs a C++ compiler (g++ or clang++) on a CPU: install one, or leave it off")
    if asked is not None or members == 1:
        plan = Plan(asked or "loop", False, "asked for" if asked else "one member")
        seconds = _try(attempt, plan, members)
    elif has_convolutions(module):
        plan = Plan("loop", False, "convolutions on a CPU are slower stacked")
        seconds = _try(attempt, plan, members)
    else:
        plan, seconds = _stacked_if_possible(attempt, members)
    if compiled is not None:
        return plan._replace(compiled=compiled)
    if plan.strategy == "stacked" and seconds * steps > LONG and shutil.which("g++") is not None:
        return _compiled_if_faster(attempt, plan, members, seconds)
    return plan


def _compiled_if_faster(attempt: Try, plan: Plan, members: int, seconds: float) -> Plan:
    """The plan compiled, if that works and is faster; what was compiled to find out is used."""
    try:
        faster = _try(attempt, plan._replace(compiled=True), members)
    except UnkeyedRandomness:
        raise
    except Exception as error:
        return plan._replace(reason=f"{plan.reason}; it does not compile: {_first_line(error)}")
    timings = f"a step takes {1e3 * seconds:.3g} ms, {1e3 * faster:.3g} compiled"
    return plan._replace(compiled=faster < seconds, reason=f"{plan.reason}; {timings}")


def _on_gpu(
    asked: Strategy | None,
    compiled: bool | None,
    members: int,
    steps: int,
    module: nn.Module,
    attempt: Try,
    coupled: bool,
) -> Plan:
    if compiled is False or importlib.util.find_spec("triton") is None:
        if asked == "streams":
            raise ValueError("strategy 'streams' is a compiled one: leave compile on, or use 'stacked' or 'loop'")
        if asked == "loop" or members == 1:
            _try(attempt, Plan("loop", False, ""), members)
            return Plan("loop", False, "asked for" if asked else "one member")
        return _stacked_if_possible(attempt, members)[0]
    if asked is not None:
        plan = Plan(asked, asked != "loop" if compiled is None else compiled, "asked for")
        _try(attempt, plan, members)
        return plan
    likely: Sequence[Strategy]
    tried: list[tuple[float, Plan]] = []
    reasons, spent = [], 0.0
    likely = _candidates(module) if members > 1 else ("streams",)
    for strategy in likely:
        if tried and tried[0][0] * steps < SECOND * spent:
            reasons.append(f"the run is too short to try {strategy}")
            continue
        began = time.perf_counter()
        plan = Plan(strategy, True, "")
        try:
            tried.append((_try(attempt, plan, members), plan))
        except (UnkeyedRandomness, TooLarge):
            raise
        except Exception as error:
            reasons.append(f"{strategy}: {_first_line(error)}")
        spent = time.perf_counter() - began
    if not tried and coupled:
        plan, _ = _stacked_if_possible(attempt, members)
        return plan._replace(reason=f"{plan.reason}; the step cannot be captured ({'; '.join(reasons)})")
    if not tried:
        _try(attempt, Plan("loop", False, ""), members)
        return Plan("loop", False, f"the step cannot be captured ({'; '.join(reasons)})")
    tried.sort(key=lambda x: x[0])
    timings = ", ".join(f"{p.strategy} {1e3 * s:.3g} ms" for s, p in tried)
    return tried[0][1]._replace(reason="; ".join([f"captured in a CUDA graph, a step takes {timings}", *reasons]))


def _candidates(module: nn.Module) -> Sequence[Strategy]:
    """What may be fastest on a GPU, the likely one first: compiling to find out takes a minute for a deep network.
    Ten networks of two convolutions took 2.6 ms a step stacked and 2.0 on streams, four WRN-16-4 16 and 6."""
    return ("streams", "stacked") if has_convolutions(module) else ("stacked",)


def _stacked_if_possible(attempt: Try, members: int) -> tuple[Plan, float]:
    try:
        plan = Plan("stacked", False, "vmap runs this network")
        return plan, _try(attempt, plan, members)
    except UnkeyedRandomness:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        plan = Plan("loop", False, f"the network cannot be stacked ({_first_line(error)})")
        return plan, _try(attempt, plan, members)


def has_convolutions(module: nn.Module) -> bool:
    """Whether a module has convolution layers."""
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())


class TooLarge(MemoryError):
    """The members that were tried at once do not fit."""


class UnkeyedRandomness(ValueError):
    """A module draws random numbers that no key controls."""


def _try(attempt: Try, plan: Plan, members: int) -> float:
    before = torch.get_rng_state()
    try:
        seconds = attempt(plan, members)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise TooLarge(str(error)) from error
        if "randomness error mode" in str(error):
            raise UnkeyedRandomness(_MESSAGE) from error
        raise
    finally:
        drew = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
    if drew:
        raise UnkeyedRandomness(_MESSAGE)
    return seconds


_MESSAGE = (
    "the module draws random numbers that no key controls, so members could not be told apart or repeated. Dropout "
    "(nn.Dropout, F.dropout, inside attention), rand_like, randn_like and bernoulli are keyed; replace other random "
    "calls (nn.LSTM's own dropout, RReLU, torch.rand) by these"
)


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return text if len(text) <= 160 else text[:157] + "..."
