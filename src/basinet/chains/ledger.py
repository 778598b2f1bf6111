"""What is recorded about the transitions of each chain, and which chain got lost. Tensors are (M,)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

DIVERGENT = 1000.0  # an energy error beyond this is a divergence, as in Stan
FAR = 20.0  # in units of the spread of energies: a chain that far above the others is lost
MARGIN = 1.2  # transitions may turn out to take that much more


class Ledger(NamedTuple):
    """Counts from the end of the warm-up on, but for the first two."""

    gradients: Tensor  # in all
    restarted: Tensor  # how often the chain was put where another one was
    frozen: Tensor  # bool: the warm-up is over, and this chain's transition began after it
    transitions: Tensor
    accepted: Tensor  # sum of acceptance probabilities
    alive: Tensor  # bool: some chain has accepted something
    errors: Tensor  # sum of |H - H_0|, of those that are not divergences
    divergences: Tensor
    thin: Tensor  # transitions from one kept draw to the next
    kept: Tensor
    least: Tensor  # kept draws of the chain that has the fewest
    astray: Tensor  # bool: its energy is far above that of the others
    spent: Tensor  # gradients of transitions that ended in the second half of the warm-up, over all chains
    ended: Tensor  # those transitions

    @staticmethod
    def empty(like: Tensor) -> Ledger:
        """Of one chain, before the first gradient."""
        number = torch.zeros((), dtype=torch.float64, device=like.device)
        count, no = number.long(), number.bool()
        values: dict[str, Tensor] = dict.fromkeys(Ledger._fields, count)
        values |= {
            "frozen": no,
            "astray": no,
            "alive": no,
            "accepted": number,
            "errors": number,
            "spent": number,
            "ended": number,
        }
        return Ledger(**{name: x.clone() for name, x in values.items()})

    def transition(self, ended: Tensor, chance: Tensor, error: Tensor, draws: int) -> tuple[Ledger, Tensor]:
        """After a step in which the chains in `ended` finished a transition; and which of them keep a draw."""
        counts = ended & self.frozen
        divergent = ~(error < DIVERGENT)
        size = torch.where(divergent, 0.0, error.abs())
        transitions = self.transitions + counts
        keep = counts & (transitions % self.thin.clamp(min=1) == 0) & (self.kept < draws)
        kept = self.kept + keep
        accepted = self.accepted + torch.where(counts, chance, 0.0)
        after = self._replace(
            transitions=transitions,
            accepted=accepted,
            alive=(accepted > 0).any().expand_as(ended).clone(),
            errors=self.errors + torch.where(counts, size, 0.0),
            divergences=self.divergences + (counts & divergent),
            kept=kept,
            least=kept.min().expand_as(kept).clone(),
        )
        return after, keep

    def counted(self, ended: Tensor, taken: Tensor, warmup: int) -> Ledger:
        """Gradients that transitions take, from the second half of the warm-up."""
        late = (2 * self.gradients >= warmup) & ~self.frozen & ended
        spent = self.spent + torch.where(late, taken, 0.0).sum()
        return self._replace(spent=spent, ended=self.ended + late.sum())

    def thinned(self, left: int, draws: int, margin: float = MARGIN, longest: float = 1.0) -> Ledger:
        """With the gap between kept draws that makes them last for `left` gradients; `longest` is what a transition
        takes where none has ended in the warm-up."""
        each = torch.where(self.ended > 0, self.spent / self.ended.clamp(min=1), longest)
        thin = (left / (margin * each * draws)).floor().clamp(min=1)
        return self._replace(thin=torch.where(each == 1, left // draws, thin).long().clamp(min=1))

    def curves(self) -> dict[str, list[Any]]:
        """Of one chain, as `posterior.info` shows them."""
        total = max(1, int(self.transitions))
        return {
            "transitions": [int(self.transitions)],
            "acceptance": [float(self.accepted) / total],
            "energy_error": [float(self.errors) / total],
            "divergences": [int(self.divergences)],
            "thin": [int(self.thin)],
        }


def astray(energy: Tensor, dimension: int) -> Tensor:
    """Which chains have an energy (M,) far above that of most: by the median, in units of their spread, or of what a
    normal distribution of that dimension has, sqrt(d / 2), where that is more."""
    middle = energy.nanmedian()
    spread = 1.4826 * (energy - middle).abs().nanmedian()
    unit = spread.clamp(min=math.sqrt(dimension / 2))
    return ~(energy <= middle + FAR * unit)


def donors(energy: Tensor) -> Tensor:
    """The chain whose place those take that got lost, (): that of the median energy."""
    order = torch.where(energy.isfinite(), energy, math.inf).argsort()
    good = energy.isfinite().sum().clamp(min=1)
    return order.gather(0, ((good - 1) // 2).reshape(1))[0]


def gathered(state: Any, when: Tensor) -> Any:
    """States (params, energy, slopes, ledger among their fields) in which chains that got lost are put where the one
    of median energy is, where `when` (M,) says so."""
    lost, best = state.ledger.astray & when, donors(state.energy)

    def taken(x: Tensor) -> Tensor:
        there = x.index_select(0, best.reshape(1)).expand_as(x)
        return torch.where(lost.reshape(-1, *[1] * (x.dim() - 1)), there, x)

    params = {name: taken(x) for name, x in state.params.items()}
    ledger = state.ledger._replace(restarted=state.ledger.restarted + lost, astray=state.ledger.astray & ~lost)
    return state._replace(params=params, energy=taken(state.energy), slopes=taken(state.slopes), ledger=ledger)
