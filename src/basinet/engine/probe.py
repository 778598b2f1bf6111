"""Chooses how members run, by trying and measuring: the plan, and why."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import nn

from ..core.lift import is_out_of_memory
from ..core.unkeyed import Noticed

Strategy = Literal["stacked", "streams", "loop"]
STRATEGIES = ("stacked", "streams", "loop")
LONG = {"cpu": 45.0, "cuda": 120.0}  # seconds of training above which compiling (10 to 40 s) may pay for itself
SECOND = 10  # a run on a GPU must be this many times longer than its first try took for another strategy to be tried
LARGE = 2**26  # bytes of a batch's activations above which one member keeps a GPU busy: a stack gains nothing


class Plan(NamedTuple):
    """How a run is carried out, and why."""

    strategy: Strategy
    compiled: bool
    reason: str
    processes: int = 1  # over which groups are spread
    threads: int = 0  # of each of these processes; 0: all in this one, with the threads it has
    captured: bool = False  # steps are recorded as a CUDA graph
    one_thread: bool = False  # in this process: other programs have the cores

    def words(self) -> str:
        """For the one line that is said."""
        spread = f" in {self.processes} processes" if self.processes > 1 else ""
        how = " and captured" * self.captured + " and compiled" * self.compiled + " in one thread" * self.one_thread
        return f"{self.strategy}{how}{spread} ({self.reason})"


class Asked(NamedTuple):
    """What the plan is for."""

    strategy: Strategy | None  # None: what fits
    compile: bool | None  # None: where it pays
    members: int
    steps: int
    module: nn.Module
    coupled: bool = False
    batch_bytes: int = 0  # of the activations of a member's batch
    capturable: bool = False  # steps can be recorded as a CUDA graph


Try = Callable[[Plan], float]
"""Runs a few steps of a plan, without effect, and returns the seconds that a step of all members takes."""


def choose(asked: Asked, device: torch.device, attempt: Try) -> Plan:
    """The plan asked for, or the one that fits."""
    plan, seconds = (_on_gpu if device.type == "cuda" else _on_cpu)(asked, attempt)
    if asked.compile is not None:
        return plan._replace(compiled=asked.compile)
    compiler = importlib.util.find_spec("triton") if device.type == "cuda" else shutil.which("g++")
    lifted = plan.strategy == "stacked" or plan.captured
    if lifted and seconds * asked.steps > LONG[device.type] and compiler is not None:
        return _compiled_if_faster(attempt, plan, seconds)
    return plan


def _on_cpu(asked: Asked, attempt: Try) -> tuple[Plan, float]:
    if asked.strategy == "streams":
        raise ValueError("strategy 'streams' runs members on parallel CUDA streams: on a CPU use 'stacked' or 'loop'")
    if asked.compile and shutil.which("g++") is None and shutil.which("clang++") is None:
        raise ValueError("compile=True needs a C++ compiler (g++ or clang++) on a CPU: install one, or leave it off")
    if asked.strategy is not None or asked.members == 1:
        plan = Plan(asked.strategy or "loop", False, "asked for" if asked.strategy else "one member")
        return plan, _try(attempt, plan)
    if has_convolutions(asked.module):
        plan = Plan("loop", False, "convolutions on a CPU are slower stacked")
        return plan, _try(attempt, plan)
    return _stacked_if_possible(attempt)


def _on_gpu(asked: Asked, attempt: Try) -> tuple[Plan, float]:
    """What records its steps fastest, of what is likely to: to record takes a second or a few."""
    if asked.strategy == "streams" and not asked.capturable:
        raise ValueError(
            "strategy 'streams' records steps on data in memory, which is not possible here: use 'stacked' or 'loop'"
        )
    if asked.strategy == "loop":
        plan = Plan("loop", False, "asked for")
        return plan, _try(attempt, plan)
    tried: list[tuple[float, Plan]] = []
    reasons, spent = [], 0.0
    for strategy in _candidates(asked) if asked.capturable else ():
        if tried and tried[0][0] * asked.steps < SECOND * spent:
            reasons.append(f"the run is too short to try {strategy}")
            continue
        began, plan = time.perf_counter(), Plan(strategy, False, "", captured=True)
        try:
            tried.append((_try(attempt, plan), plan))
        except (UnkeyedRandomness, TooLarge):
            raise
        except Exception as error:
            reasons.append(f"{strategy}: {_first_line(error)}")
        spent = time.perf_counter() - began
    if not tried:
        return _uncaptured(asked, attempt, reasons)
    tried.sort(key=lambda x: x[0])
    timings = ", ".join(f"{p.strategy} {1e3 * s:.3g} ms" for s, p in tried)
    reason = "; ".join([f"a step takes {timings}", *reasons])
    return tried[0][1]._replace(reason=reason), tried[0][0]


def _uncaptured(asked: Asked, attempt: Try, reasons: Sequence[str]) -> tuple[Plan, float]:
    """What runs step by step, where steps cannot be recorded."""
    why = f"; the step cannot be captured ({'; '.join(reasons)})" if reasons else ""
    if asked.strategy == "stacked" or (asked.members > 1 and (asked.coupled or not reasons)):
        plan, seconds = _stacked_if_possible(attempt)
    else:
        plan = Plan("loop", False, "one member" if asked.members == 1 else "one member after another")
        seconds = _try(attempt, plan)
    return plan._replace(reason=plan.reason + why), seconds


def _candidates(asked: Asked) -> Sequence[Strategy]:
    """What may be fastest on a GPU, the likely one first. A step of four WRN-16-4 took 16 ms stacked and 6 on streams,
    of eight small vision transformers 19 and 14; of fifty MLPs one stack is fastest by far."""
    if asked.strategy is not None:
        return (asked.strategy,)
    if asked.members == 1:
        return ("streams",)
    large = asked.batch_bytes > LARGE or has_convolutions(asked.module)
    return ("streams", "stacked") if large else ("stacked", "streams")


def _compiled_if_faster(attempt: Try, plan: Plan, seconds: float) -> Plan:
    """The plan compiled, if that works and is faster; what was compiled to find out is used."""
    try:
        faster = _try(attempt, plan._replace(compiled=True))
    except UnkeyedRandomness:
        raise
    except Exception as error:
        return plan._replace(reason=f"{plan.reason}; it does not compile: {_first_line(error)}")
    timings = f"a step takes {1e3 * seconds:.3g} ms, {1e3 * faster:.3g} compiled"
    return plan._replace(compiled=faster < seconds, reason=f"{plan.reason}; {timings}")


def _stacked_if_possible(attempt: Try) -> tuple[Plan, float]:
    try:
        plan = Plan("stacked", False, "vmap runs this network")
        return plan, _try(attempt, plan)
    except (UnkeyedRandomness, TooLarge):
        raise
    except Exception as error:  # where the mistake is the network's own, the loop raises it, too
        plan = Plan("loop", False, f"the network cannot be stacked ({_first_line(error)})")
        return plan, _try(attempt, plan)


def has_convolutions(module: nn.Module) -> bool:
    """Whether a module has convolution layers."""
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())


class TooLarge(MemoryError):
    """The members that were tried at once do not fit."""


class UnkeyedRandomness(ValueError):
    """A module draws random numbers that no key controls."""


def _try(attempt: Try, plan: Plan) -> float:
    before = torch.get_rng_state()
    try:
        seconds = attempt(plan)
        if not torch.equal(before, torch.get_rng_state()):  # someone drew: this thread, or another one
            with Noticed() as seen:
                attempt(plan._replace(strategy="loop", compiled=False))
            if seen.drew:
                torch.set_rng_state(before)
                raise UnkeyedRandomness(_MESSAGE)
            seconds = attempt(plan)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise TooLarge(str(error)) from error
        if "randomness error mode" in str(error):
            raise UnkeyedRandomness(_MESSAGE) from error
        raise
    return seconds


_MESSAGE = (
    "the module draws random numbers that no key controls, so members could not be repeated. Dropout (nn.Dropout, "
    "F.dropout, inside attention), rand_like, randn_like and bernoulli are keyed; use these in place of other random "
    "calls (nn.LSTM's own dropout, RReLU, torch.rand)"
)


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return text if len(text) <= 160 else text[:157] + "..."
