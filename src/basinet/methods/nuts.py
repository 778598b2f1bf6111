"""The no-U-turn sampler: Hamiltonian trajectories that double, to either side, until they turn back.

    draws from the points of the trajectory with probability proportional to exp(-H), doublings preferred

(Hoffman & Gelman 2014; multinomial weights and the turning of sums of momenta by Betancourt 2017). No length to choose:
each transition is as long as it pays. One update is one leapfrog step of every chain, each at its own place in its own
tree; chains end transitions at their own times, and learn step size and scales together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..chains import Chain
from ..chains.chain import sample_of
from ..chains.energy import normals, split, uniforms
from ..chains.ledger import DIVERGENT, Ledger, astray, gathered
from ..chains.metropolis import WINDOWS, kinetic
from ..chains.pace import Pace
from ..chains.pace import pick as pick_pace
from ..chains.proof import exact_checks
from ..chains.scales import Scales
from ..chains.tree import Place, Tree, begun, doubled, grown, joined, mask, pick
from ..core.noise import Noise
from ..core.tree import Params, Point, ravel, tree_map
from ..engine import Info, Step
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check

MARGIN = 1.4  # transitions may turn out to take that much more: each chain has lengths of its own


class Climbing(NamedTuple):
    """The state of a chain in the middle of a tree."""

    params: Params  # where the transition began
    buffers: Params
    energy: Tensor  # (), U there; infinite before the first gradient
    slopes: Tensor  # (d,)
    tree: Tree
    fresh: Tensor  # (), bool: a transition begins
    size: Tensor  # (), of its steps
    variance: Tensor  # (d,), of its momenta, inverse
    next_variance: Tensor  # (d,), what the next transitions take: the same for all chains
    window: Tensor  # ()
    settled: Tensor  # (), bool: the warm-up is over
    pooled: Tensor  # (3,), of transitions since the last step size: their number, leaves, and the sum of acceptances
    pace: Pace
    scales: Scales
    ledger: Ledger


@dataclass(frozen=True, kw_only=True)
class NUTS(Chain):
    """The no-U-turn sampler with full batches: chains that warm up together, from trained networks."""

    enough: ClassVar[int] = 8000

    step_size: float | None = None
    """Size of a leapfrog step; None: found in the warm-up, for the acceptance aimed for."""
    depth: int = 8
    """The most doublings: 2^depth - 1 gradients per transition; two fewer in the warm-up."""
    acceptance: float = 0.8
    """The mean acceptance over a trajectory for which the step size is found."""
    scaled: bool = True
    """Whether the warm-up finds how far each parameter spreads; False: all alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(f"expected a finite step_size of more than 0, or None to find it, got {self.step_size}")
        if not 1 <= self.depth <= 14:
            raise ValueError(f"expected a depth of 1 to 14 doublings, got {self.depth}")
        if not 0 < self.acceptance < 1:
            raise ValueError(f"expected an acceptance between 0 and 1, got {self.acceptance}")

    @property
    def deepest(self) -> int:
        """Doublings at most, such that a few transitions are made in any case."""
        return max(1, min(self.depth, ((self.total - self.warm) // 5 + 1).bit_length() - 1))

    @property
    def longest(self) -> float:
        """Gradients of a transition at most."""
        return 2.0**self.deepest - 1

    def init(self, point: Point, problem: Problem, noise: Noise) -> Climbing:
        x = ravel(point.params)
        number = torch.zeros((), dtype=torch.float64, device=x.device)
        yes, no = number == 0, number == 1
        place = Place(x.unsqueeze(0), torch.zeros_like(x).unsqueeze(0), torch.zeros_like(x).unsqueeze(0))
        one = number.unsqueeze(0)
        tree = tree_map(lambda t: t[0].clone(), begun(place, one, one, yes.unsqueeze(0), self.depth))
        pace, scales, ledger = Pace.at(self.step_size, x), Scales.none(x), Ledger.empty(x)
        ones = torch.ones_like(x)
        return Climbing(
            *point, number + math.inf, torch.zeros_like(x), tree, yes, number + 1.0, ones, ones.clone(),
            number.long(), no, torch.zeros(3, dtype=torch.float64, device=x.device), pace, scales, ledger,
        )  # fmt: skip

    def update(self, state: Climbing, step: Step) -> tuple[Climbing, Info]:
        return step.lift.whole(self.moved)(state, step)

    def moved(self, state: Climbing, step: Step) -> tuple[Climbing, Info]:
        """One leapfrog step of all chains, and what follows where a subtree or a tree is complete."""
        known = state.ledger.gradients > 0
        x = ravel(state.params, 1)
        state = self._begin(state, step, x, state.fresh & known)
        tree, variance = state.tree, state.variance
        e = torch.where(tree.forward, state.size, -state.size).to(x.dtype)[:, None]
        half = tree.tip.momentum - e / 2 * tree.tip.slopes
        place = torch.where(known[:, None], tree.tip.position + e * variance * half, x)
        energy, slopes = self.energies(split(place, state.params), state.buffers, step)
        leaf = Place(place, half - e / 2 * slopes, slopes)
        error = energy + kinetic(leaf.momentum, variance) - tree.start
        error = torch.where(error.isnan(), torch.inf, error)
        divergent = ~(error < DIVERGENT)
        tree, turns = grown(tree, leaf, energy, error, uniforms(step, "leaf", known), variance)
        stopped = turns | divergent
        full = ~stopped & (tree.leaf >= 2**tree.depth)
        whole, turned_back = joined(tree, uniforms(step, "join", full), variance)
        tree = pick(full, whole, tree)
        searching = (state.pace.direction != 2) & (self.step_size is None) & ~state.ledger.frozen
        deepest = torch.where(searching, 1, torch.where(state.ledger.frozen, self.deepest, max(1, self.deepest - 2)))
        ended = known & (stopped | (full & (turned_back | (tree.depth >= deepest))))
        grows = full & ~ended
        forward = torch.where(grows, uniforms(step, "side", grows) < 0.5, tree.forward)
        tree = pick(grows, doubled(tree, forward), tree)
        moves = ended | ~known
        chosen = [torch.where(mask(ended, a), a, b) for a, b in zip(tree.proposal, (x, state.slopes, state.energy))]
        first = [place, slopes, energy]
        position, pull, height = (torch.where(mask(known, a), a, b) for a, b in zip(chosen, first))
        new = state._replace(params=split(position, state.params), energy=height, slopes=pull, tree=tree, fresh=moves)
        chance = tree.chances / tree.leaves.clamp(min=1)
        error = torch.where(divergent, torch.inf, error)
        cut = full & ~turned_back  # by the depth of the warm-up: later they may be as long as trees can be
        ledger = new.ledger.counted(ended, torch.where(cut, self.longest, tree.leaves), self.warm)
        ledger, keep = ledger.transition(ended, chance, error, self.wanted)
        away = astray(new.energy, x.shape[1])
        new = new._replace(ledger=ledger._replace(gradients=ledger.gradients + 1, astray=away))
        new = self._adapted(new, ended, chance)
        return new, Info(self.loss_of(new.energy, step), keep=keep, sample=sample_of(new.params, new.energy))

    def _begin(self, state: Climbing, step: Step, x: Tensor, fresh: Tensor) -> Climbing:
        """A momentum, a side and a step size, for chains that begin a transition."""
        z = normals(step, x, fresh)
        variance = torch.where(fresh[:, None], state.next_variance, state.variance)
        p = z * variance.rsqrt()
        forward = uniforms(step, "first", fresh) < 0.5
        start = state.energy + kinetic(p, variance)
        tree = pick(fresh, begun(Place(x, p, state.slopes), state.energy, start, forward, self.depth), state.tree)
        return state._replace(
            tree=tree,
            variance=variance,
            size=torch.where(fresh, state.pace.log_size.exp(), state.size),
            ledger=state.ledger._replace(frozen=state.ledger.frozen | (fresh & state.settled)),
        )

    def _adapted(self, state: Climbing, ended: Tensor, chance: Tensor) -> Climbing:
        """What the warm-up learns from the transitions that just ended; the same for all chains."""
        ledger, pace, x = state.ledger, state.pace, ravel(state.params, 1)
        warming = ~state.settled
        learns = ended & ~ledger.frozen
        leaves = state.tree.leaves
        each = torch.stack([torch.ones_like(chance), leaves, chance * leaves])  # (3, M)
        pooled = state.pooled + torch.where(learns, each, 0.0).sum(1)
        enough = 2 * pooled[:, 0] >= len(x)  # of the chains: those that end soonest are not the rule
        if self.step_size is None:
            mean = pooled[:, 2] / pooled[:, 1].clamp(min=1)
            pace = pick_pace(enough & warming, pace.heard(mean, self.acceptance), pace)
        state = state._replace(pooled=torch.where(enough[:, None], 0.0, pooled))
        scales = state.scales.add(x, learns)
        share = ledger.gradients / max(1, self.warm)
        passed = torch.stack([(share >= w).long() for w in WINDOWS]).sum(0)
        closes = warming & (passed > state.window)
        over = warming & (ledger.gradients >= self.warm)
        state = gathered(state, learns & (passed > 0))
        next_variance = state.next_variance
        if self.scaled:
            next_variance = torch.where(closes[:, None], scales.variance(), next_variance)
            none = Scales.none(x)
            scales = Scales(*(torch.where(mask(closes, a), b, a) for a, b in zip(scales, none)))
        if self.step_size is None:
            stretch = 0.5 * (state.next_variance / next_variance).log().double().mean(1)
            pace = pick_pace(closes, pace._replace(log_size=pace.log_size + stretch).anew(), pace)
            pace = pick_pace(over, pace.settled(), pace)
        ledger = state.ledger
        thinned = ledger.thinned(self.total - self.warm, self.draws, MARGIN, self.longest)
        ledger = ledger._replace(thin=torch.where(over, thinned.thin, ledger.thin))
        window = torch.where(closes, passed, state.window)
        return state._replace(
            pace=pace,
            scales=scales,
            next_variance=next_variance,
            window=window,
            settled=state.settled | over,
            ledger=ledger,
        )

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        yield from exact_checks(bench, cls(steps=800, warmup=300, draws=20), 64)
