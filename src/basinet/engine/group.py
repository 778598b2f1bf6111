"""A group of members from start to finish: reports, validation, early stopping, restarts, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.lift import lift_or_loop
from ..core.tree import Point, leaves, take, tree_map
from ..data import Data, Stream, examples, pieces
from ..problem import Batch
from ..problem.spread import energies, least
from .checkpoint import group_name
from .kernel import Kernel
from .method import Report, Review
from .slot import Slot, finish
from .sweep import Together
from .work import Event, Run, Trained

EVALUATE = 1000  # validation examples per pass
ATTEMPTS = 3  # how often a member that diverges starts, counting the first
BREATH = 1.0  # seconds of steps between looks at the clock and at Ctrl-C


class Group:
    """Members that train side by side."""

    def __init__(self, run: Run, kernel: Kernel, slots: Sequence[Slot]) -> None:
        self.run, self.work, self.kernel, self.slots = run, run.work, kernel, slots
        self.method = run.work.method
        self.name = group_name([s.position for s in slots])
        kernel.begin([s.member.k for s in slots], [s.point(0) for s in slots], torch.stack([s.key() for s in slots]))
        if run.checkpoints.folder is not None and self.work.schedule.bank:
            kernel.bank.kept_in(run.checkpoints.bank_file(self.name))
        self.rows = list(range(len(slots)))  # the slots whose members are in the kernel, row by row
        self.kept_best: Any = None  # the states at the lowest validation NLL, row by row, where members end there
        self.spent, self.pace = 0.0, 0.0  # seconds in all, and a step
        self.steps = 0  # that this group has made, whoever restarted: as many batches of a stream are gone
        self.consistent = True  # whether states and slots tell of the same moment
        self.rest: tuple[dict[str, Any], dict[str, Any]] | None = (
            None  # where a longer run would go on: as `save` has it
        )
        self._nll = lift_or_loop(self._nll_of_one, (0, None, None, None))

    def train(self) -> Iterator[Trained]:
        """Trains the members and yields each as it finishes."""
        try:
            self._resume()
            self.kernel.batches.start(self.steps)
            began = time.perf_counter() - self.spent
            while live := self._live():
                self.run.interrupt.check()
                count = min(self._next(s) - s.clock for s in live)
                if count > 0:  # a run that goes on may be at a report
                    self._advance(min(count, max(1, int(BREATH / self.pace)) if self.pace else 1))
                self.spent = time.perf_counter() - began
                yield from self._report([r for r, j in enumerate(self.rows) if self._at_boundary(self.slots[j])])
                self._rest()
                self._drop_finished()
                if self.run.checkpoints.due() and self._live():
                    self.save()
            if self.rest is not None:
                self.run.checkpoints.rest(self.name, *self.rest)
            self.run.checkpoints.remove(self.name)
        except KeyboardInterrupt:
            self._save_and_say()
            raise
        finally:
            self.kernel.batches.close()

    def save(self) -> None:
        """Writes where all members stand."""
        self.run.checkpoints.write(self.name, *self._standing())

    def _standing(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Where all members stand, as tensors and as JSON."""
        trees = {"state": self.kernel.states(), "best": self.kept_best, "bank": self.kernel.bank.contents()}
        slots, bank = [s.memory() for s in self.slots], self.kernel.bank.structure()
        return trees, {"slots": slots, "rows": self.rows, "steps": self.steps, "spent": self.spent, "bank": bank}

    def _rest(self) -> None:
        """Keeps where members stand at a report, if a longer run would come through here: by the seconds that copying
        takes, a run can then go on when it has ended."""
        here = self.run.checkpoints.folder is not None and len(self.rows) == len(self.slots)
        clocks = {slot.clock for slot in self.slots}
        if not here or clocks != {self.slots[0].boundary} or self.slots[0].clock % self.work.segment:
            return
        if self.method.rests(self.kernel.states()):
            trees, meta = self._standing()
            slots = [json.loads(json.dumps(s | {"finished": False})) for s in meta["slots"]]
            self.rest = (
                tree_map(torch.clone, {k: t for k, t in trees.items() if t is not None}),
                meta | {"slots": slots},
            )

    def _save_and_say(self) -> None:
        """After Ctrl-C: where the same fit would resume."""
        if not self.run.checkpoints.kept:
            return
        if self.consistent:
            self.save()
        step, where = max(s.clock for s in self.slots), "there" if self.consistent else "the checkpoint before"
        how = f"the same fit with the same pool resumes from {where}"
        self.run.progress.say(f"stopped at step {step:,} of {self.work.schedule.steps:,}: {how}")

    def _live(self) -> list[Slot]:
        return [self.slots[j] for j in self.rows if not self.slots[j].finished]

    def _advance(self, count: int) -> None:
        """Some steps of all members. How many at a time does not change what is computed, only when one looks up."""
        self.consistent = False
        began = time.perf_counter()
        here = [self.slots[j] for j in self.rows]
        before = torch.tensor([s.loss for s in here], dtype=torch.float64, device=self.kernel.keys.device)
        losses = self.kernel.advance([s.clock for s in here], count, before).tolist()
        for slot, loss in zip(here, losses):
            slot.clock += count
            slot.loss = loss
        self.steps += count
        self.pace = (time.perf_counter() - began) / count
        self.consistent = True

    def _drop_finished(self) -> None:
        """Members that are done cost nothing more, once they are half of those in the kernel: each time, a stack is
        compiled or recorded again. Members that see each other end together."""
        live = [r for r, j in enumerate(self.rows) if not self.slots[j].finished]
        if not live or 2 * len(live) > len(self.rows):
            return
        self.kernel.keep(live)
        self.kept_best = None if self.kept_best is None else take(self.kept_best, torch.tensor(live))
        self.rows = [self.rows[r] for r in live]

    def _resume(self) -> None:
        shape = {"state": self.kernel.states(), "best": self.kernel.states(), "bank": None}
        saved = self.run.checkpoints.read(self.name, shape)
        if saved is None:
            return
        trees, meta = saved
        if meta["rows"] != self.rows:
            self.kernel.keep(meta["rows"])
        self.rows = meta["rows"]
        for slot, memory in zip(self.slots, meta["slots"]):
            slot.recall(memory)
        for r, j in enumerate(self.rows):
            if self.slots[j].attempt:
                self.kernel.rekey(r, self.slots[j].key())
            self.kernel.put(r, take(trees["state"], r))
        self.kept_best, self.spent, self.steps = trees["best"], meta["spent"], meta["steps"]
        self.kernel.bank.restore(trees["bank"], meta["bank"], self.run.checkpoints.folder)
        reading = f", after reading past {self.steps:,} batches" if isinstance(self.work.data, Stream) else ""
        step = max(s.clock for s in self.slots)
        self.run.progress.say(f"resuming from step {step:,}, where the last run stopped{reading}")
        self.run.progress.advance(sum(s.boundary for s in self.slots), "")

    def _next(self, slot: Slot) -> int:
        return min(slot.boundary + self.work.segment, self.work.schedule.steps)

    def _at_boundary(self, slot: Slot) -> bool:
        return not slot.finished and slot.clock == self._next(slot)

    def _report(self, due: list[int]) -> Iterator[Trained]:
        """What is seen of the members that are at a report, by row; then what follows from it, all at once."""
        if not due:
            return
        run, slots = self.run, [self.slots[self.rows[r]] for r in due]
        val_nll = None if self.work.val is None else self._validate(self.work.val)
        means = [slot.loss / (slot.clock - slot.boundary) for slot in slots]
        if run.observe is not None:
            loss = torch.tensor(means, dtype=torch.float64)
            seen = None if val_nll is None else torch.tensor([val_nll[r] for r in due], dtype=torch.float64)
            step, who = max(slot.clock for slot in slots), tuple(slot.member for slot in slots)
            run.observe(Event(self.method.label, who, step, self.work.schedule.steps, loss, seen))
        done = sum(slot.clock - slot.boundary for slot in slots)
        self.consistent = False
        if self.method.coupled and not self._all_finite(means):
            means = [math.nan] * len(due)  # one that diverged takes with it all that saw it
        words: list[str] = []
        ended = [self._judge(r, mean, val_nll, words) for r, mean in zip(due, means)]
        self.consistent = True
        run.progress.advance(done, _shown(means, val_nll, words))
        yield from (trained for trained in ended if trained is not None)

    def _all_finite(self, means: Sequence[float]) -> bool:
        point = self.method.point(self.kernel.states())
        return all(map(math.isfinite, means)) and _finite(point)

    def _judge(self, r: int, mean: float, val_nll: Sequence[float] | None, words: list[str]) -> Trained | None:
        """Curves, restart, review and the end of the member in a row."""
        slot = self.slots[self.rows[r]]
        slot.boundary, slot.loss = slot.clock, 0.0
        slot.curves["step"].append(float(slot.clock))
        slot.curves["loss"].append(mean)
        if val_nll is not None:
            slot.curves.setdefault("val_nll", []).append(val_nll[r])
        if self.method.restarts and not math.isfinite(mean):
            return self._restart(r)
        self._watch(r, val_nll)
        review = self._review(r, mean, val_nll)
        if review.progress:
            words.append(review.progress)
        if not review.done and slot.clock < self.work.schedule.steps:
            return None
        state = self._result(r)
        if not _finite(self.method.point(state)):  # the loss of a step does not see what that step did
            return self._restart(r)
        return self._finish(r, state)

    def _watch(self, r: int, val_nll: Sequence[float] | None) -> None:
        """Whether validation is better than ever; what a member that ends at its best looks like then. Without it the
        loss is watched, and the last state stays: that of the lowest loss is no better."""
        slot, seen = self.slots[self.rows[r]], self._seen(r, val_nll)
        if seen is None and self.method.coupled:
            return
        judged = seen is not None
        seen = slot.curves["loss"][-1] if seen is None else seen
        if seen < slot.best:
            slot.best, slot.waited = seen, 0
            if self.method.best and judged:
                self._keep_best(r)
        else:
            slot.waited += 1

    def _seen(self, r: int, val_nll: Sequence[float] | None) -> float | None:
        """A member's validation NLL; coupled members are judged together."""
        if val_nll is None:
            return None
        return sum(val_nll) / len(val_nll) if self.method.coupled else val_nll[r]

    def _review(self, r: int, mean: float, val_nll: Sequence[float] | None) -> Review:
        """What the method makes of the report."""
        slot, state = self.slots[self.rows[r]], self.kernel.view(r)
        number, last = len(slot.curves["step"]), slot.clock >= self.work.schedule.steps
        seen, work = self._seen(r, val_nll), self.work
        shown = (number, slot.clock, last, mean, seen, slot.waited)
        report = Report(*shown, work.problem, work.data, slot.member.k, slot.key())
        review = self.method.review(state, report)
        if review.state is not state:
            self.kernel.put(r, review.state)
        for name, value in review.curves.items():
            slot.curves.setdefault(name, []).append(value)
        return review

    def _keep_best(self, r: int) -> None:
        if self.kept_best is None:
            self.kept_best = tree_map(torch.clone, self.kernel.states())
            return
        tree_map(lambda all_, one: all_[r].copy_(one), self.kept_best, self.kernel.view(r))

    def _result(self, r: int) -> Any:
        """The state that a member ends with: the last one, or the best."""
        best = self.kept_best is not None and math.isfinite(self.slots[self.rows[r]].best)
        return tree_map(torch.clone, take(self.kept_best, r)) if best else self.kernel.row(r)

    def _finish(self, r: int, state: Any) -> Trained:
        slot = self.slots[self.rows[r]]
        slot.finished = True
        began = time.perf_counter()
        done = finish(self.run, slot, state, self.kernel.bank.of(r))
        seconds = self.spent / len(self.slots) + time.perf_counter() - began
        return Trained(slot.position, done.family, slot.curves | done.curves | {"seconds": [seconds]})

    def _restart(self, r: int) -> Trained | None:
        slot, run, coupled = self.slots[self.rows[r]], self.run, self.method.coupled
        who, step = f"member {slot.member.k} (seed {slot.member.seed})", slot.clock
        first = r == 0 or not coupled  # speaks, for all where they belong together
        who = f"one of {len(self.rows)} members that see each other" if coupled else who
        fault = self.method.fault(self.kernel.view(r), self.work.problem)
        why = f" ({fault})" if fault else ""
        once = self.work.schedule.order == "given" and isinstance(self.work.data, Stream)
        if once or slot.attempt + 1 >= ATTEMPTS:
            slot.finished = True
            if first and once:
                run.progress.say(
                    f"the loss of {who} is not finite after {step:,} steps{why}; it is left out, since the stream "
                    "cannot be read again from its beginning"
                )
            elif first:
                run.progress.say(f"{who} diverged at each of {ATTEMPTS} attempts{why} and is left out")
            run.checkpoints.fail(slot.position)
            more: dict[str, list[Any]] = {"seconds": [self.spent / len(self.slots)], "fault": [fault]}
            return Trained(slot.position, None, slot.curves | more)
        slot.restart()
        restarts = "all restart" if coupled else "it restarts"
        if first:
            run.progress.say(
                f"the loss of {who} is not finite after {step:,} steps{why}: {restarts}, attempt {slot.attempt + 1} of "
                f"{ATTEMPTS}"
            )
        self.kernel.rekey(r, slot.key())
        self.kernel.put(r, self.kernel.init(slot.point(slot.attempt), slot.key()))
        self.kernel.bank.clear(r)
        return None

    def _validate(self, val: Data | Stream) -> list[float] | None:
        """NLL of each member in the kernel, per validation example that has weight; with noise of the size that suits
        it best."""
        if self.method.norm == "refresh" and self.work.problem.network.norms:
            return None  # the statistics that belong to the point are not there yet
        if isinstance(val, Data) and val.rows is not None:
            own = [val.member(self.slots[j].member.k) for j in self.rows]
            return [self._nll_on(part, partial(self._one, r))[0] for r, part in enumerate(own)]
        return self._nll_on(val, self._each)

    def _nll_on(self, val: Data | Stream, energies_of: Callable[[tuple[Any, ...]], Tensor]) -> list[float]:
        """The NLL per example, at the noise that suits it best, of those whose energies a function gives."""
        total, seen = torch.zeros((), dtype=torch.float64), 0
        with torch.no_grad():
            for piece in pieces(val, EVALUATE):
                each = energies_of(tuple(piece)).double()
                total, seen = total.to(each.device) + each, seen + examples(piece)
        return (least(total) / seen).tolist()

    def _one(self, r: int, piece: tuple[Any, ...]) -> Tensor:
        return self._nll_of_one(self.kernel.view(r), *piece).unsqueeze(0)

    def _each(self, piece: tuple[Any, ...]) -> Tensor:
        """Minus the log likelihood of all members: stacked where they are, else one after another."""
        if self.kernel.apart or self.kernel.lift.size == 1:
            return torch.cat([self._one(r, piece) for r in range(len(self.rows))])
        return self._nll(self.kernel.states(), *piece)

    def _nll_of_one(self, state: Any, inputs: Any, targets: Tensor, weights: Tensor | None) -> Tensor:
        method, val = self.method, self.work.val
        assert val is not None
        batch = Batch(inputs, targets, targets, torch.zeros(()), val.n, weights)
        own = method.seen(state) if isinstance(method, Together) else self.work.problem
        return energies(own, method.judged(state, own, self.work.data.n), batch)


def _finite(point: Point) -> bool:
    largest = torch._foreach_norm([x for x in leaves(point) if x.is_floating_point() and x.numel()], math.inf)
    return bool(torch.stack([x.double() for x in largest]).isfinite().all())


def _shown(losses: Sequence[float], val_nll: Sequence[float] | None, words: Sequence[str]) -> str:
    text = f"loss {sum(losses) / len(losses):.4g}"
    text = text if val_nll is None else f"{text}, val NLL {sum(val_nll) / len(val_nll):.4g}"
    return ", ".join([text, *dict.fromkeys(words)])
