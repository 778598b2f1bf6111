"""A group of members from start to finish: reports, validation, early stopping, restarts, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import Point, leaves, take, tree_map
from ..data import Data, Stream, examples, pieces
from ..families import Family
from ..problem import Batch, Problem
from ..problem.spread import SHIFTS, energies, least
from .checkpoint import Checkpoints, group_name
from .interrupt import Interrupt
from .kernels import Kernel
from .method import Finished, Method, Schedule, name_of, patience_of
from .progress import Progress
from .sweep import Together

SEGMENTS = 100  # at most so many reports a run
EVALUATE = 1000  # validation examples a pass
ATTEMPTS = 3  # a member that diverges starts anew so often, counting the first
BREATH = 1.0  # seconds of steps between looks at the clock and at Ctrl-C


class Member(NamedTuple):
    """Who a member is, wherever it stands in a posterior: the seed of the run that made it, and its number there."""

    seed: int
    k: int


class Event(NamedTuple):
    """What `observe` is called with, about once an epoch."""

    method: str
    members: tuple[Member, ...]  # those that are reported
    step: int  # steps done
    steps: int  # steps planned
    loss: Tensor  # (g,), mean over the last steps
    val_nll: Tensor | None  # (g,), per validation example


Observer = Callable[[Event], None]


class Trained(NamedTuple):
    """A member that is done."""

    position: int  # in the list of members asked for
    family: Family | None  # None: it diverged at every attempt
    curves: dict[str, list[Any]]  # step, loss, val_nll with validation data; seconds it took; what `finish` adds


class Slot:
    """Where one member stands."""

    def __init__(self, member: Member, point: Callable[[int], Point], key: Tensor, position: int) -> None:
        self.member, self.point, self.root, self.position = member, point, key, position
        self.clock = self.attempt = self.boundary = 0
        self.loss, self.finished = 0.0, False
        self.best, self.waited = float("inf"), 0
        self.curves: dict[str, list[float]] = {"step": [], "loss": []}

    def key(self) -> Tensor:
        """The key of the attempt that is under way."""
        return self.root if self.attempt == 0 else Noise(self.root).split("attempt").split(self.attempt).key

    def restart(self) -> None:
        """Forgets what it did, and begins another attempt."""
        self.clock = self.boundary = 0
        self.loss, self.best, self.waited = 0.0, float("inf"), 0
        self.attempt += 1
        self.curves = {"step": [], "loss": []}

    def memory(self) -> dict[str, Any]:
        """What a checkpoint holds of it, as JSON."""
        names = ("clock", "attempt", "boundary", "loss", "finished", "best", "waited", "curves")
        return {name: getattr(self, name) for name in names}

    def recall(self, memory: dict[str, Any]) -> None:
        """The inverse of `memory`."""
        for name, value in memory.items():
            setattr(self, name, value)


class Run(NamedTuple):
    """What all groups of a run share."""

    method: Method
    problem: Problem
    data: Data | Stream | None
    val: Data | Stream | None
    schedule: Schedule
    progress: Progress
    observe: Observer | None
    checkpoints: Checkpoints
    interrupt: Interrupt


def run_group(run: Run, kernel: Kernel, slots: Sequence[Slot]) -> Iterator[Trained]:
    """Trains the members of a group and yields each as it finishes."""
    group = _Group(run, kernel, slots)
    try:
        yield from group.train()
    except KeyboardInterrupt:
        if run.checkpoints.folder is not None:
            where = "there" if group.consistent else "the checkpoint before"
            if group.consistent:
                group.save()
            step = max(s.clock for s in slots)
            how = f"the same fit with the same pool goes on from {where}"
            run.progress.say(f"stopped at step {step:,} of {run.schedule.steps:,}: {how}")
        raise
    finally:
        kernel.batches.close()


def finish_only(run: Run, slot: Slot) -> Trained:
    """A member of a method that makes no steps."""
    began = time.perf_counter()
    noise = Noise(slot.key())
    state = run.method.init(slot.point(0), run.problem, noise.split("init"))
    done = _finish(run, slot, state, None)
    curves = slot.curves | done.curves | {"seconds": [time.perf_counter() - began]}
    return Trained(slot.position, done.family, curves)


class _Group:
    def __init__(self, run: Run, kernel: Kernel, slots: Sequence[Slot]) -> None:
        self.run, self.kernel, self.slots = run, kernel, slots
        self.name = group_name([s.position for s in slots])
        kernel.begin([s.member.k for s in slots], [s.point(0) for s in slots], torch.stack([s.key() for s in slots]))
        self.patience = patience_of(run.method)
        self.kept_best: Any = None  # the states at the lowest validation NLL, with early stopping
        self.spent, self.pace = 0.0, 0.0  # seconds in all, and a step
        self.steps = 0  # that this group has made, whoever started anew: so many batches of a stream are gone
        self.stackable = kernel.coupling.size != 1  # until it is seen that evaluating is not
        self.consistent = True  # whether states and slots tell of the same moment

    def train(self) -> Iterator[Trained]:
        self._resume()
        self.kernel.batches.start(self.steps)
        length = segment(self.run.schedule, self.run.data)
        began = time.perf_counter() - self.spent
        while any(not s.finished for s in self.slots):
            self.run.interrupt.check()
            count = min(self._next(s, length) - s.clock for s in self.slots if not s.finished)
            if count > 0:  # a run that goes on may be at a report
                self._advance(min(count, max(1, int(BREATH / self.pace)) if self.pace else 1))
            self.spent = time.perf_counter() - began
            yield from self._report([j for j, s in enumerate(self.slots) if self._at_boundary(s, length)])
            if self.run.checkpoints.due() and any(not s.finished for s in self.slots):
                self.save()
        self.run.checkpoints.remove(self.name)

    def save(self) -> None:
        """Writes where all members stand."""
        trees = {"state": self.kernel.states(), "best": self.kept_best, "bank": self.kernel.bank.contents()}
        slots, bank = [s.memory() for s in self.slots], self.kernel.bank.structure()
        meta = {"slots": slots, "steps": self.steps, "spent": self.spent, "bank": bank}
        self.run.checkpoints.write(self.name, trees, meta)

    def _advance(self, count: int) -> None:
        """Some steps of all members. How many at a time does not change what is computed, only when one looks up."""
        self.consistent = False
        began = time.perf_counter()
        device = self.kernel.keys.device
        before = torch.tensor([s.loss for s in self.slots], dtype=torch.float64, device=device)
        losses = self.kernel.advance([s.clock for s in self.slots], count, before).tolist()
        for slot, loss in zip(self.slots, losses):
            slot.clock += count
            slot.loss = loss
        self.steps += count
        self.pace = (time.perf_counter() - began) / count
        self.consistent = True

    def _resume(self) -> None:
        shape = {"state": self.kernel.states(), "best": self.kernel.states(), "bank": None}
        found = self.run.checkpoints.read(self.name, shape)
        if found is None:
            return
        trees, meta = found
        for j, (slot, memory) in enumerate(zip(self.slots, meta["slots"])):
            slot.recall(memory)
            if slot.attempt:
                self.kernel.rekey(j, slot.key())
            self.kernel.put(j, take(trees["state"], j))
        self.kept_best, self.spent, self.steps = trees["best"], meta["spent"], meta["steps"]
        self.kernel.bank.restore(trees["bank"], meta["bank"])
        reading = f", after reading past {self.steps:,} batches" if isinstance(self.run.data, Stream) else ""
        step = max(s.clock for s in self.slots)
        self.run.progress.say(f"going on from step {step:,}, where the last run stopped{reading}")
        self.run.progress.advance(sum(s.boundary for s in self.slots), "")

    def _next(self, slot: Slot, length: int) -> int:
        return min(slot.boundary + length, self.run.schedule.steps)

    def _at_boundary(self, slot: Slot, length: int) -> bool:
        return not slot.finished and slot.clock == self._next(slot, length)

    def _report(self, due: list[int]) -> Iterator[Trained]:
        """What is seen of the members that are at a report; then what follows from it, all at once."""
        if not due:
            return
        run, slots = self.run, [self.slots[j] for j in due]
        val_nll = None if run.val is None else self._validate(run.val)
        means = [slot.loss / (slot.clock - slot.boundary) for slot in slots]
        if run.observe is not None:
            loss = torch.tensor(means, dtype=torch.float64)
            seen = None if val_nll is None else torch.tensor([val_nll[j] for j in due], dtype=torch.float64)
            step, who = max(slot.clock for slot in slots), tuple(slot.member for slot in slots)
            run.observe(Event(name_of(run.method), who, step, run.schedule.steps, loss, seen))
        run.progress.advance(sum(slot.clock - slot.boundary for slot in slots), _shown(means, val_nll))
        self.consistent = False
        if run.method.coupled and not self._all_finite(means):
            means = [math.nan] * len(due)  # one that diverged takes with it all that saw it
        ended = [self._judge(j, mean, val_nll) for j, mean in zip(due, means)]
        self.consistent = True
        yield from (trained for trained in ended if trained is not None)

    def _all_finite(self, means: Sequence[float]) -> bool:
        point = self.run.method.point(self.kernel.states())
        return all(map(math.isfinite, means)) and _finite(point)

    def _judge(self, j: int, mean: float, val_nll: Sequence[float] | None) -> Trained | None:
        """Curves, restart, early stopping and the end of one member."""
        slot = self.slots[j]
        slot.boundary, slot.loss = slot.clock, 0.0
        slot.curves["step"].append(float(slot.clock))
        slot.curves["loss"].append(mean)
        if val_nll is not None:
            slot.curves.setdefault("val_nll", []).append(val_nll[j])
        if not math.isfinite(mean):
            return self._restart(j)
        if not self._is_done(j, val_nll):
            self._tune(j)
            return None
        state = self._result(j)
        point = self.run.method.point(state)  # the loss of a step does not see what that step did
        if not _finite(point):
            return self._restart(j)
        return self._finish(j, state)

    def _is_done(self, j: int, val_nll: Sequence[float] | None) -> bool:
        slot, run = self.slots[j], self.run
        stopped = False
        if self.patience is not None and val_nll is not None:
            seen = sum(val_nll) / len(val_nll) if run.method.coupled else val_nll[j]  # coupled members stop together
            if seen < slot.best:
                slot.best, slot.waited = seen, 0
                self._keep_best(j)
            else:
                slot.waited += 1
                stopped = slot.waited >= self.patience
        elif self.patience is not None and not run.method.coupled:  # without validation the loss decides, and the last
            seen = slot.curves["loss"][-1]  # state stays: the lowest loss is no better
            slot.best, slot.waited = min(seen, slot.best), 0 if seen < slot.best else slot.waited + 1
            stopped = slot.waited >= self.patience
        if type(run.method).done is not Method.done:
            stopped = stopped or bool(run.method.done(take(self.kernel.states(), j)))
        return stopped or slot.clock >= run.schedule.steps

    def _tune(self, j: int) -> None:
        """What the method does between steps; a member that is no longer finite is left to start anew."""
        run, slot = self.run, self.slots[j]
        state = self.kernel.row(j) if run.method.tunes else None
        if state is None or not _finite(run.method.point(state)):
            return
        assert run.data is not None
        noise, report = Noise(slot.key()).split("tune").split(slot.clock), len(slot.curves["step"])
        own: Any = run.data.member(slot.member.k)
        done = run.method.tune(state, report, slot.clock, run.problem, own, noise)
        if done is not None:
            self.kernel.put(j, done.state)
            for name, value in done.curves.items():
                slot.curves.setdefault(name, []).append(value)

    def _keep_best(self, j: int) -> None:
        if self.kept_best is None:
            self.kept_best = tree_map(torch.clone, self.kernel.states())
            return
        row = self.kernel.row(j)
        tree_map(lambda all_, one: all_[j].copy_(one), self.kept_best, row)

    def _result(self, j: int) -> Any:
        """The state that member j ends with: the last one, or with early stopping the best."""
        best = self.kept_best is not None and math.isfinite(self.slots[j].best)
        return tree_map(torch.clone, take(self.kept_best, j)) if best else self.kernel.row(j)

    def _finish(self, j: int, state: Any) -> Trained:
        slot = self.slots[j]
        slot.finished = True
        began = time.perf_counter()
        done = _finish(self.run, slot, state, self.kernel.bank.of(j))
        seconds = self.spent / len(self.slots) + time.perf_counter() - began
        return Trained(slot.position, done.family, slot.curves | done.curves | {"seconds": [seconds]})

    def _restart(self, j: int) -> Trained | None:
        slot, run = self.slots[j], self.run
        who, step = f"member {slot.member.k} (seed {slot.member.seed})", slot.clock
        first = j == 0 or not run.method.coupled  # speaks, for all where they belong together
        who = f"one of {len(self.slots)} members that see each other" if run.method.coupled else who
        if slot.attempt + 1 >= ATTEMPTS:
            slot.finished = True
            if first:
                run.progress.say(f"{who} diverged at each of {ATTEMPTS} attempts and is left out")
            run.checkpoints.fail(slot.position)
            return Trained(slot.position, None, slot.curves | {"seconds": [self.spent / len(self.slots)]})
        slot.restart()
        anew = "all start" if run.method.coupled else "it starts"
        if first:
            run.progress.say(
                f"{who} is not finite after {step:,} steps: {anew} anew, attempt {slot.attempt + 1} of {ATTEMPTS}"
            )
        self.kernel.rekey(j, slot.key())
        self.kernel.put(j, self.kernel.init(slot.point(slot.attempt), slot.key()))
        self.kernel.bank.clear(j)
        return None

    def _validate(self, val: Data | Stream) -> list[float] | None:
        """NLL of each member, per validation example that has weight; with noise of the size that suits it best."""
        method, problem = self.run.method, self.run.problem
        if method.norm == "refresh" and problem.network.norms:
            return None  # the statistics that belong to the point are not there yet

        def nll(state: Any, inputs: Any, targets: Tensor, weights: Tensor | None) -> Tensor:
            point = method.point(state)
            batch = Batch(inputs, targets, targets, torch.zeros(()), val.n, weights)
            own = method.seen(state) if isinstance(method, Together) else problem
            return energies(own, point.params, point.buffers, batch)

        tried, seen = 1 if problem.likelihood.spread is None else len(SHIFTS), 0
        total = torch.zeros(len(self.slots), tried, dtype=torch.float64, device=self.kernel.keys.device)
        with torch.no_grad():
            for piece in pieces(val, EVALUATE):
                total += self._each(nll, tuple(piece))
                seen += examples(piece)
        return (least(total) / seen).tolist()

    def _each(self, function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> Tensor:
        """`function(state, *arguments)` of all members: stacked where that can be, else one after another."""
        states, g = self.kernel.states(), len(self.slots)
        if g > 1 and self.stackable:
            try:
                return lift(function, (0, *(None for _ in arguments)))(states, *arguments)
            except RuntimeError as error:  # nn.LSTM is stacked with gradients and not without
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self.stackable = False
        return torch.stack([function(take(states, j), *arguments) for j in range(g)])


def _finite(point: Point) -> bool:
    return all(bool(x.isfinite().all()) for x in leaves(point) if x.is_floating_point())


def _finish(run: Run, slot: Slot, state: Any, samples: Any) -> Finished:
    """What the method makes of a member, after saying what it has to say."""
    own: Any = None if run.data is None else run.data.member(slot.member.k)  # a stream says what it has not
    val: Any = run.val
    made = run.method.finish(state, samples, run.problem, own, val, Noise(slot.key()).split("finish"))
    done = made if isinstance(made, Finished) else Finished(made)
    for line in done.notes:
        run.progress.say(f"{name_of(run.method)}, member {slot.member.k} (seed {slot.member.seed}): {line}")
    return done


def segment(schedule: Schedule, data: Data | Stream | None) -> int:
    """Steps between reports: an epoch, or more where there would be too many of them."""
    epoch = 1 if schedule.batch_size is None or data is None else max(1, data.n // schedule.batch_size)
    return max(epoch, -(-schedule.steps // SEGMENTS))


def _shown(losses: Sequence[float], val_nll: Sequence[float] | None) -> str:
    text = f"loss {sum(losses) / len(losses):.4g}"
    return text if val_nll is None else f"{text}, val NLL {sum(val_nll) / len(val_nll):.4g}"
