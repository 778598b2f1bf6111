"""Scores of mixtures of K members, for many subsets of the members at once, from the log-probabilities of samples.

A mixture has S samples in all. Its members take turns, in rounds of random order, and the j-th turn of a member brings
its j-th sample: so the first n samples of the list have the members equally often, up to one, for every n. Its
probabilities are then sums of each member's first n_m samples, and running sums over samples give all subsets, sizes
and numbers of samples from one pass over the images, which come in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from basinet import Noise
from basinet.calibrate.weigh import stacked
from basinet.metrics import auroc
from basinet.scoring import subsets_of

from .protocol import Protocol

BINS = 15  # of confidence
ROOM = 2**29  # bytes of probabilities that are held at once
PREFIXES = (5, 10, 20, 40, 80, 120, 160, 200)  # numbers of samples that are scored
SHOWN = (1, 2, 5, 10, 20)  # sizes for which they are


class Mixture(NamedTuple):
    """Some members, and how many samples of each count."""

    members: Tensor  # (K,)
    counts: Tensor  # (K,)
    weights: Tensor  # (K,), sum 1

    @property
    def size(self) -> int:
        return len(self.members)


def turns(size: int, samples: int, stratified: bool, noise: Noise) -> Tensor:
    """Which of `size` members has each of the samples, (samples,)."""
    if not stratified:
        return (noise.uniform(torch.empty(samples, dtype=torch.float64)) * size).long().clamp(max=size - 1)
    rounds = -(-samples // size)
    return torch.cat([noise.split(i).permutation(size) for i in range(rounds)])[:samples]


@dataclass(frozen=True)
class MixturePlan:
    """The mixtures that a protocol asks for, the same for all methods."""

    protocol: Protocol
    seed: int
    each: int  # samples of a member

    def sizes(self) -> range:
        """The numbers of members."""
        return range(1, self.protocol.largest + 1)

    def subsets(self, size: int) -> list[list[int]]:
        """The members of the mixtures of a size."""
        return subsets_of(self.protocol.members, size, self.protocol.subsets, self.seed)

    def mixtures(self, size: int, samples: int | None = None) -> list[Mixture]:
        """The mixtures of a size with `samples` in all; as many as the protocol says where None."""
        total = min(self.protocol.samples if samples is None else samples, size * self.each)
        root = Noise.seed(self.seed).split("turns").split(size)
        mixtures = []
        for i, members in enumerate(self.subsets(size)):
            if self.each == 1:
                counts = torch.ones(size, dtype=torch.long)
            else:
                order = turns(size, max(total, self.protocol.samples), self.protocol.stratified, root.split(i))[:total]
                counts = torch.bincount(order, minlength=size).clamp(max=self.each)
            mixtures.append(Mixture(torch.tensor(members), counts, counts / counts.sum()))
        return mixtures


class Running(NamedTuple):
    """Of some images: sums over each member's first n samples, n = 0 ... S."""

    probs: Tensor  # (M, S + 1, b, C)
    entropies: Tensor  # (M, S + 1, b)

    def of(self, mixture: Mixture) -> Mixed:
        """What a mixture says of the images."""
        place = mixture.members, mixture.counts
        weights = mixture.weights.to(self.probs)
        each = mixture.counts.clamp(min=1).to(self.probs)
        own = self.probs[place] / each[:, None, None]  # (K, b, C), the mean of each member
        probs = torch.einsum("k,kbc->bc", weights, own)
        aleatoric = torch.einsum("k,kb->b", weights, self.entropies[place] / each[:, None])
        inside = torch.einsum("k,kb->b", weights, torch.special.entr(own).sum(-1))
        return Mixed(probs, aleatoric, inside)


class Mixed(NamedTuple):
    """A mixture's probabilities, and the mean entropies of its samples and of its members."""

    probs: Tensor  # (b, C)
    aleatoric: Tensor  # (b,)
    inside: Tensor  # (b,)


def at_once(files: Sequence[Any]) -> int:
    """Images whose probabilities, and their running sums, there is room for."""
    _, s, c = files[0].shape
    return max(1, ROOM // (8 * len(files) * (s + 1) * c))


def running(files: Sequence[Any], device: torch.device) -> Iterator[tuple[slice, Running]]:
    """Chunks of the images, as many as there is room for."""
    b, step = files[0].shape[0], at_once(files)
    for begin in range(0, b, step):
        here = slice(begin, min(begin + step, b))
        logs = torch.stack([torch.from_numpy(f[here].copy()) for f in files]).to(device).float()  # (M, b, S, C)
        logs = logs.transpose(1, 2)
        probs = logs.exp()
        zero = torch.zeros_like(probs[:, :1])
        sums = torch.cat([zero, probs.cumsum(1)], 1)
        entropies = torch.special.entr(probs).sum(-1)
        yield here, Running(sums, torch.cat([zero[..., 0], entropies.cumsum(1)], 1))


class Scores(NamedTuple):
    """Of all mixtures of one size."""

    log_prob: Tensor  # (R, B), of each image
    rows: dict[str, list[float]]  # of each mixture: brier, ece, accuracy, entropies; auroc where images are outside


def scored(plan: MixturePlan, tested: Sequence[Any], targets: Tensor, outside: Sequence[Any] | None,
           learned: dict[int, Any], device: torch.device) -> dict[int, Scores]:  # fmt: skip
    """The scores of all mixtures of each size; `learned` has weights of members for each subset, by size, if any."""
    mixtures = {k: plan.mixtures(k) for k in plan.sizes()}
    for k, weights in learned.items():
        mixtures[k] = [m._replace(weights=w) for m, w in zip(mixtures[k], weights)]
    inside = {k: [_Sums(len(targets)) for _ in mixtures[k]] for k in mixtures}
    for here, sums in running(tested, device):
        own = targets[here].to(device)
        for k, those in mixtures.items():
            for total, mixture in zip(inside[k], those):
                total.add(here, sums.of(mixture), own)
    new: dict[int, list[list[Tensor]]] = {k: [[] for _ in those] for k, those in mixtures.items()}
    for _, sums in running(outside, device) if outside is not None else ():
        for k, those in mixtures.items():
            for entropies, mixture in zip(new[k], those):
                entropies.append(torch.special.entr(sums.of(mixture).probs).sum(-1).cpu())
    scores = {}
    for k in mixtures:
        rows = [total.row() for total in inside[k]]
        for row, total, entropies in zip(rows, inside[k], new[k]):
            if entropies:
                row["auroc"] = float(auroc(total.entropy, torch.cat(entropies)))
        logs = torch.stack([total.log_prob for total in inside[k]])
        scores[k] = Scores(logs, {name: [row[name] for row in rows] for name in rows[0]})
    return scores


def by_samples(
    plan: MixturePlan, tested: Sequence[Any], targets: Tensor, device: torch.device
) -> list[dict[str, float]]:
    """NLL against the number of samples, for some sizes."""
    sizes = [k for k in SHOWN if k in plan.sizes()]
    wanted = [(k, n) for k in sizes for n in PREFIXES if k <= n <= min(plan.protocol.samples, k * plan.each)]
    mixtures = {(k, n): plan.mixtures(k, n) for k, n in wanted}
    totals = dict.fromkeys(wanted, 0.0)
    for here, sums in running(tested, device):
        own = targets[here].to(device)[:, None]
        for place, those in mixtures.items():
            for mixture in those:
                logs = sums.of(mixture).probs.gather(1, own).clamp(min=1e-37).log()
                totals[place] -= float(logs.double().sum()) / len(those)
    return [{"size": k, "samples": n, "nll": totals[k, n] / len(targets)} for k, n in wanted]


def learned_weights(
    plan: MixturePlan, files: Sequence[Any], targets: Tensor, device: torch.device
) -> dict[int, list[Tensor]]:
    """For each subset of each size above 1 the weights of its members that the validation images prefer."""
    logs = []
    for here, sums in running(files, device):
        own = targets[here].to(device)
        means = sums.probs[:, -1] / (sums.probs.shape[1] - 1)  # (M, b, C)
        logs.append(means.gather(-1, own.expand(len(means), -1).unsqueeze(-1))[..., 0].clamp(min=1e-37).log())
    density = torch.cat(logs, 1).double().cpu()  # (M, B)
    return {k: [stacked(density[m.members]) for m in plan.mixtures(k)] for k in plan.sizes() if k > 1}


class _Sums:
    """What the scores of one mixture are made of, chunk by chunk."""

    def __init__(self, n: int) -> None:
        self.log_prob, self.entropy = torch.empty(n), torch.empty(n)
        self.confidence, self.right = torch.empty(n), torch.empty(n)
        self.n, self.brier, self.aleatoric, self.inside = n, 0.0, 0.0, 0.0

    def add(self, here: slice, mixed: Mixed, targets: Tensor) -> None:
        probs = mixed.probs
        own = probs.gather(1, targets[:, None])[:, 0]
        best, top = probs.max(1)
        self.log_prob[here] = own.clamp(min=1e-37).log().cpu()
        self.entropy[here] = torch.special.entr(probs).sum(-1).cpu()
        self.confidence[here], self.right[here] = best.cpu(), (top == targets).float().cpu()
        self.brier += float((probs.square().sum(1) - 2 * own + 1).double().sum())
        self.aleatoric += float(mixed.aleatoric.double().sum())
        self.inside += float(mixed.inside.double().sum())

    def row(self) -> dict[str, float]:
        entropy = float(self.entropy.double().mean())
        aleatoric, inside = self.aleatoric / self.n, self.inside / self.n
        place = (self.confidence * BINS).long().clamp(max=BINS - 1)
        gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, (self.confidence - self.right).double())
        return {
            "brier": self.brier / self.n,
            "ece": float(gaps.abs().sum()) / self.n,
            "accuracy": float(self.right.double().mean()),
            "entropy": entropy,
            "aleatoric": aleatoric,
            "between": entropy - inside,
            "within": inside - aleatoric,
        }
