"""A trajectory that doubles until it turns back, leaf by leaf: the tree of the no-U-turn sampler without recursion.

Of a subtree with 2^j leaves, which are made one after another, only j momenta are kept at a time, with the sums of
momenta up to them (checkpoints). Leaf n, if odd, ends one or more balanced subtrees, whose first leaves are in the
checkpoints number b(n) - t(n) + 1 ... b(n), where b counts the ones in n // 2 and t those at the end of n. All chains
are at their own place in their own tree. Shapes are (M, ...).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """A point of a trajectory."""

    position: Tensor  # (M, d)
    momentum: Tensor
    slopes: Tensor


class Proposal(NamedTuple):
    """What may become the next draw."""

    position: Tensor  # (M, d)
    slopes: Tensor
    energy: Tensor  # (M,)


class Tree(NamedTuple):
    """The trajectory so far, and the subtree that is being added to it."""

    left: Place
    right: Place
    proposal: Proposal
    weight: Tensor  # (M,), log of the sum of exp(H_0 - H) over its leaves
    total: Tensor  # (M, d), sum of momenta
    depth: Tensor  # (M,)
    forward: Tensor  # (M,), bool: the subtree grows to the right
    tip: Place  # its last leaf
    leaf: Tensor  # (M,), number of its next leaf
    offered: Proposal  # of the subtree
    offered_weight: Tensor  # (M,)
    offered_total: Tensor  # (M, d)
    momenta: Tensor  # (M, D, d), checkpoints
    sums: Tensor  # (M, D, d)
    start: Tensor  # (M,), H_0
    chances: Tensor  # (M,), sum of min(1, exp(H_0 - H)) over all leaves
    leaves: Tensor  # (M,), how many


def mask(which: Tensor, x: Tensor) -> Tensor:
    """(M,) in a shape that goes with x, (M, ...)."""
    return which.reshape(-1, *[1] * (x.dim() - 1))


def pick(which: Tensor, yes: Any, no: Any) -> Any:
    """Where `which` (M,) is true, `yes`, in tuples of tensors of any depth."""
    if isinstance(yes, Tensor):
        return torch.where(mask(which, yes), yes, no)
    return type(no)(*(pick(which, a, b) for a, b in zip(yes, no)))


def begun(place: Place, energy: Tensor, start: Tensor, forward: Tensor, depth: int) -> Tree:
    """A tree of one point."""
    x, p, g = place
    none, zero = torch.zeros_like(energy), torch.zeros_like(start).long()
    proposal = Proposal(x, g, energy)
    room = p.new_zeros(len(p), depth, p.shape[1])
    subtree = (place, zero, proposal, none - torch.inf, torch.zeros_like(p), room, room.clone())
    return Tree(place, place, proposal, none, p, zero.clone(), forward, *subtree, start, none.clone(), none.clone())


def grown(tree: Tree, leaf: Place, energy: Tensor, error: Tensor, u: Tensor, variance: Tensor) -> tuple[Tree, Tensor]:
    """The tree with one more leaf in its subtree, and whether that turned back; u (M,) is uniform."""
    weight = torch.logaddexp(tree.offered_weight, -error)
    taken = u.log() < -error - weight
    new = Proposal(leaf.position, leaf.slopes, energy)
    offered = pick(taken, new, tree.offered)
    total = tree.offered_total + leaf.momentum
    n, levels = tree.leaf, torch.arange(tree.momenta.shape[1], device=u.device)
    ones, trailing = _ones(n // 2), _trailing(n)
    here = ((levels == ones[:, None]) & (n % 2 == 0)[:, None]).unsqueeze(-1)
    momenta = torch.where(here, leaf.momentum.unsqueeze(1), tree.momenta)
    sums = torch.where(here, total.unsqueeze(1), tree.sums)
    ends = (levels <= ones[:, None]) & (levels > (ones - trailing)[:, None]) & (n % 2 == 1)[:, None]
    between = total.unsqueeze(1) - sums + momenta
    turns = (turning(momenta, leaf.momentum.unsqueeze(1), between, variance.unsqueeze(1)) & ends).any(1)
    after = tree._replace(
        tip=leaf,
        leaf=n + 1,
        offered=offered,
        offered_weight=weight,
        offered_total=total,
        momenta=momenta,
        sums=sums,
        chances=tree.chances + (-error).clamp(max=0.0).exp().nan_to_num(0.0),
        leaves=tree.leaves + 1,
    )
    return after, turns


def joined(tree: Tree, u: Tensor, variance: Tensor) -> tuple[Tree, Tensor]:
    """The tree with its subtree, and whether the whole turned back; u (M,) is uniform. The subtree's proposal is taken
    with the ratio of their weights, which prefers points far away."""
    taken = u.log() < tree.offered_weight - tree.weight
    total = tree.total + tree.offered_total
    left = pick(~tree.forward, tree.tip, tree.left)
    right = pick(tree.forward, tree.tip, tree.right)
    after = tree._replace(
        left=left,
        right=right,
        proposal=pick(taken, tree.offered, tree.proposal),
        weight=torch.logaddexp(tree.weight, tree.offered_weight),
        total=total,
        depth=tree.depth + 1,
    )
    return after, turning(left.momentum, right.momentum, total, variance)


def doubled(tree: Tree, forward: Tensor) -> Tree:
    """The tree with an empty subtree at one of its ends."""
    tip = pick(forward, tree.right, tree.left)
    none = torch.zeros_like(tree.weight) - torch.inf
    empty = torch.zeros_like(tree.total)
    return tree._replace(
        forward=forward, tip=tip, leaf=torch.zeros_like(tree.leaf), offered_weight=none, offered_total=empty
    )


def turning(first: Tensor, last: Tensor, total: Tensor, variance: Tensor) -> Tensor:
    """Whether a trajectory with these momenta at its ends, and their sum over it, no longer moves apart (Betancourt
    2017), over the last axis. The ends count half, as in an integral."""
    middle = total - (first + last) / 2
    return ((first * variance * middle).sum(-1) <= 0) | ((last * variance * middle).sum(-1) <= 0)


def _ones(n: Tensor) -> Tensor:
    """How many ones n has in binary."""
    bits = torch.arange(16, device=n.device)
    return ((n[:, None] >> bits) & 1).sum(1)


def _trailing(n: Tensor) -> Tensor:
    """How many ones n ends with in binary."""
    return _ones(n ^ (n + 1)) - 1
