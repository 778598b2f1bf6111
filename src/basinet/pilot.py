"""Which of a few problems suits the data, and which step size: short trainings, between which validation data choose.

For real numbers, first the noise is chosen, by the CRPS of the mixture at the spread that suits validation best: in
units of the target, it judges means and spreads alike, and one outlier does not decide. Noise that the network predicts
has to be better than one size for all rows by more than a standard error: on small tables it fits the training rows.
Then, under that noise, whether the network sees the target or a function of it (`Warped`): that has to have a better
NLL by more than a standard error and no worse CRPS, and then all kinds of noise are tried for it. Last the step size,
for recipes that have the default one: others, side by side in one stack, have to be better by more than two standard
errors.

For the classes of a table the network and the step size together: a plain one or one that embeds numbers, at a tenth,
three tenths or all of the default step size. Of those within a standard error of the best, the one with the smallest
steps is taken: a small noisy table is memorised before validation is looked at twice.

A run that is k times as short as what follows has k times its step size, k up to 3: it goes as far, and is as good as
the long one is with that step size. With the same step size in both, the largest one would win short runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .calibrate.temper import temper
from .data import Data, Stream
from .engine import Based, Engine, Method
from .engine.method import PATIENCE, plan_of
from .engine.method import short as brief
from .fit import fit
from .methods.map import MAP
from .optim import Adam, Cosine
from .posterior import Posterior
from .predict import ClassPredictive, NumberPredictive, Predictive, crps
from .problem import Problem
from .problem.likelihoods import ClassLikelihood, Heteroscedastic, Warped
from .scoring import predicted

USUAL = MAP().optimizer  # whose step size is looked for
STEPS, MEMBERS = 600, 2  # of a pilot run
FEWEST = 20  # validation examples: fewer choose by chance
RATES = (1 / 3, 3.0)  # of the default step size, which are tried too
CLASS_RATES = (0.1, 0.3, 1.0)  # of the default step size, which are tried for classes, the most careful first
LONGER = 3.0  # what follows, at most, for the step size of a pilot run
Z_NOISE, Z_WARP, Z_RATE = 1.0, 1.0, 2.0  # standard errors by which predicted noise, another target, or another step
# size have to be better
Z_CLASSES = 1.0  # standard errors by which a network with a more careful step size may be worse
SEEN = "of the target as the network sees it"
IN_WORDS = {
    "Gaussian": "one size of noise for all rows",
    "Heteroscedastic": "noise that the network predicts",
    "StudentT": "noise with heavy tails",
    "Log": "its logarithm",
    "YeoJohnson": "a power of it (Yeo and Johnson)",
    "TableNet": "a network that embeds numbers",
    "MLP": "a plain network",
}


class Pilot(NamedTuple):
    """What was chosen."""

    problem: Problem
    recipe: Method  # the one that was given, with the step size that was found
    line: str = ""  # what was chosen, and by how much; empty where nothing was


class Losses(NamedTuple):
    """Of each validation target that counts."""

    error: Tensor  # the CRPS of numbers, the Brier score of classes: a target far out does not decide
    nll: Tensor

    def better(self, other: Losses, z: float) -> bool:
        """Whether the NLL is lower, by more than z standard errors of the mean difference, and the error no larger."""
        gain = other.nll - self.nll
        clear = float(gain.mean()) > z * float(gain.std()) / math.sqrt(len(gain))
        return clear and float((self.error - other.error).mean()) <= 0


def pilot(
    candidates: Sequence[Problem],
    data: Data | Stream,
    val: Data | Stream | None,
    *,
    recipe: Method | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    pool: Path | None = None,
) -> Pilot:
    """One of the candidates, of real numbers or of the classes of a table; the first where there is nothing to choose
    by.

    A run has 600 steps, or those of the `recipe` that is to follow, where they are fewer. `pool` is a folder in which
    the runs are kept, so that the same choice is not made twice.
    """
    recipe = MAP() if recipe is None else recipe
    classes = isinstance(candidates[0].likelihood, ClassLikelihood)
    if len(candidates) < 2 or val is None:
        return Pilot(candidates[0], recipe)
    short = _short(recipe, data.n)
    rated = isinstance(recipe, MAP) and recipe.epochs is None and recipe.optimizer == USUAL
    rates = (CLASS_RATES if classes else RATES) if rated else ()
    if val.n < FEWEST or plan_of(short, data.n).steps == 0:
        if classes and rated and isinstance(recipe, MAP):
            recipe = _at(recipe, CLASS_RATES[0] * _peak(recipe))
        return Pilot(candidates[0], recipe)
    runs = _Runs(data, val, short, seed, replace(engine or Engine(), progress=False), pool)
    choose = _of_classes if classes else _of_numbers
    return choose(candidates, recipe, runs, rates) or Pilot(candidates[0], recipe)


def _of_numbers(candidates: Sequence[Problem], recipe: Method, runs: _Runs, rates: Sequence[float]) -> Pilot | None:
    """The noise, then a function of the target, then the step size; None if no run gave finite losses."""
    by_noise = runs.of([p for p in candidates if not isinstance(p.likelihood, Warped)])
    if not by_noise:
        return None
    plain = _best_noise(by_noise)
    now = by_noise[plain].error
    others = ", ".join(f"{_beside(x.error, now)} with {_words(p)}" for p, x in by_noise.items() if p is not plain)
    crps_here = f"CRPS {_mean(now)} {SEEN} after {runs.steps:,} steps{others and ', against ' + others}"
    best, losses, line = _warped(candidates, plain, by_noise[plain], runs)
    lines = [f"{_words(plain)}, by validation: {crps_here}", line]
    if isinstance(recipe, MAP) and rates:
        recipe, line = _stepping(recipe, best, losses, runs, rates)
        lines.append(line)
    return Pilot(best, recipe, "; ".join(filter(None, lines)))


def _of_classes(candidates: Sequence[Problem], recipe: Method, runs: _Runs, rates: Sequence[float]) -> Pilot | None:
    """The network and the step size; None if no run gave finite losses."""
    if rates:
        each = {p: runs.at(rates, p) for p in candidates}
        tried = {(rate, p): each[p][rate] for rate in rates for p in candidates if rate in each[p]}
    else:
        tried = {(1.0, p): losses for p, losses in runs.of(candidates).items()}
    if not tried:
        return None
    least = min(tried.values(), key=lambda x: float(x.nll.mean()))
    taken = next(key for key, x in tried.items() if not least.better(x, Z_CLASSES))
    usual = _peak(recipe) if isinstance(recipe, MAP) and rates else None

    def named(rate: float, problem: Problem) -> str:
        return _words(problem) + (f" and step size {_size(rate * usual)}" if usual else "")

    now = tried[taken].nll
    others = ", ".join(f"{_beside(x.nll, now)} with {named(*key)}" for key, x in tried.items() if key != taken)
    chance = "" if tried[taken] is least else "; none is significantly better"
    here = f"NLL {_mean(now)} nats after {runs.steps:,} steps{others and ', against ' + others}{chance}"
    if isinstance(recipe, MAP) and usual:
        recipe = _at(recipe, taken[0] * usual)
    return Pilot(taken[1], recipe, f"{named(*taken)}, by validation: {here}")


def _best_noise(losses: dict[Problem, Losses]) -> Problem:
    """The problem with the best CRPS, unless one with a single size of noise is hardly worse."""
    best = min(losses, key=lambda p: float(losses[p].error.mean()))
    simple = [p for p in losses if not isinstance(p.likelihood, Heteroscedastic)]
    if not simple or best in simple:
        return best
    single = min(simple, key=lambda p: float(losses[p].error.mean()))
    gain = losses[single].error - losses[best].error
    return best if float(gain.mean()) > Z_NOISE * float(gain.std()) / math.sqrt(len(gain)) else single


def with_step_of(recipe: Method, tried: Method) -> Method:
    """A recipe with the step size that was found for another, where both have the default one otherwise; and so what it
    starts from."""
    own: Any = getattr(tried, "optimizer", None)
    if own is None or own == USUAL:
        return recipe
    if isinstance(recipe, Based):
        recipe = replace(recipe, base=with_step_of(recipe.base or MAP(), tried))
    return replace(recipe, optimizer=own) if getattr(recipe, "optimizer", None) == USUAL else recipe  # type: ignore[call-arg]


@dataclass(frozen=True)
class _Runs:
    """Short trainings."""

    data: Data | Stream
    val: Data | Stream
    short: MAP
    seed: int
    engine: Engine
    pool: Path | None

    @property
    def steps(self) -> int:
        """Of each."""
        return plan_of(self.short, self.data.n).steps

    def of(self, problems: Sequence[Problem]) -> dict[Problem, Losses]:
        """The losses of those that are finite."""
        each = {p: self._fitted(self.short, p, MEMBERS, _name(p)) for p in problems}
        return {p: losses for p, fitted in each.items() if fitted and (losses := self._losses(fitted))}

    def at(self, factors: Sequence[float], problem: Problem) -> dict[float, Losses]:
        """The losses at several factors of the step size, in one stack."""
        peaks = [factor * _peak(self.short) for factor in factors]
        several = _at(self.short, peaks)
        fitted = self._fitted(several, problem, MEMBERS * len(peaks), f"{_name(problem)}-rates")
        parts = () if fitted is None else fitted.parts
        losses = {}
        for factor, peak in zip(factors, peaks):
            own = tuple(part for part in parts if isinstance(part.recipe, MAP) and _peak(part.recipe) == _round(peak))
            if own and (own_losses := self._losses(Posterior(own))) is not None:
                losses[factor] = own_losses
        return losses

    def _fitted(self, recipe: MAP, problem: Problem, members: int, name: str) -> Posterior | None:
        pool = None if self.pool is None else self.pool / name.lower()
        given: dict[str, Any] = {"val": self.val, "members": members, "seed": self.seed, "engine": self.engine}
        try:
            return fit(recipe, problem, self.data, pool=pool, **given)
        except FloatingPointError:  # all members diverged
            return None

    def _losses(self, posterior: Posterior) -> Losses | None:
        """At the spread that validation chooses; of members one by one where each has validation rows of its own. None
        where they are not finite."""
        val, seed = self.val, self.seed
        if isinstance(val, Data) and val.rows is not None:
            alone = [(posterior[k], val.member(member.k)) for k, member in enumerate(posterior.members)]
            chunks = [chunk for one, own in alone for chunk in predicted(one, own, None, None, seed)]
        else:
            numbers = not isinstance(posterior.problem.likelihood, ClassLikelihood)
            judged = temper(posterior, val, seed=seed) if numbers else posterior
            chunks = list(predicted(judged, val, None, None, seed))
        seen = [_losses_of(*chunk) for chunk in chunks]
        losses = Losses(*(torch.cat(each) for each in zip(*seen)))
        return losses if all(bool(x.isfinite().all()) for x in losses) else None


def _losses_of(predictive: Predictive, targets: Tensor, mask: Tensor | None) -> Losses:
    if isinstance(predictive, ClassPredictive):
        truth = torch.nn.functional.one_hot(targets.cpu(), predictive.probs.shape[-1])
        brier = (predictive.probs.double().cpu() - truth).square().sum(-1)
        return Losses(brier, -predictive.log_prob(targets, mask).double().cpu())
    assert isinstance(predictive, NumberPredictive)
    here = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
    each = crps(predictive, targets).reshape(targets.shape).cpu()[here.cpu()]
    some = here.reshape(len(here), -1).any(1).cpu()
    return Losses(each.double(), -predictive.log_prob(targets, mask).double().cpu()[some])


def _warped(candidates: Sequence[Problem], plain: Problem, now: Losses, runs: _Runs) -> tuple[Problem, Losses, str]:
    """The problem with the function of the target that is best, if one is better than the target itself, its losses,
    and a line about it."""
    known = {p: p.likelihood for p in candidates if isinstance(p.likelihood, Warped)}
    tried = runs.of([p for p, x in known.items() if x.of == plain.likelihood])
    better = [p for p, losses in tried.items() if losses.better(now, Z_WARP)]
    if not better:
        if not tried:
            return plain, now, ""
        against = ", ".join(f"{_beside(x.nll, now.nll)} with {_words(p)}" for p, x in tried.items())
        line = f"the target itself: NLL {_mean(now.nll)} nats, against {against}{_by_chance(tried, now)}"
        return plain, now, line
    best = min(better, key=lambda p: float(tried[p].nll.mean()))
    tried |= runs.of([p for p, x in known.items() if x.warp == known[best].warp and p is not best])
    same = [p for p in tried if known[p].warp == known[best].warp]
    best = min(same, key=lambda p: float(tried[p].error.mean()))
    noise = IN_WORDS.get(type(known[best].of).__name__, "")
    line = f"{_words(best)} in place of the target itself, with {noise}: NLL {_mean(tried[best].nll)} nats, against "
    return best, tried[best], line + _beside(now.nll, tried[best].nll)


def _stepping(recipe: MAP, problem: Problem, now: Losses, runs: _Runs, rates: Sequence[float]) -> tuple[MAP, str]:
    """The recipe with the step size that is best, and a line about it."""
    usual = _peak(recipe)
    tried = {factor * usual: losses for factor, losses in (runs.at(rates, problem) if rates else {}).items()}
    if not tried:
        return recipe, ""
    better = [rate for rate, losses in tried.items() if losses.better(now, Z_RATE)]
    if not better:
        best, chance = usual, _by_chance(tried, now)
    else:
        best, chance = min(better, key=lambda rate: float(tried[rate].nll.mean())), ""
        recipe = _at(recipe, best)
    each = {usual: now} | tried
    here = each.pop(best).nll
    others = ", ".join(f"{_beside(x.nll, here)} with {_size(rate)}" for rate, x in each.items())
    return recipe, f"step size {_size(best)}: NLL {_mean(here)} nats, against {others}{chance}"


def _by_chance(tried: Mapping[Any, Losses], now: Losses) -> str:
    """Why a lower number was not chosen, if there is one."""
    lower = any(float(losses.nll.mean()) < float(now.nll.mean()) for losses in tried.values())
    return "; none is significantly better" if lower else ""


def _short(recipe: Method, n: int) -> MAP:
    """A recipe for a mode by at most STEPS steps of the recipe's size, at its lowest validation NLL."""
    like = recipe if isinstance(recipe, MAP) else MAP()
    steps, batch = plan_of(like, n).steps, min(like.batch_size or n, n)
    epochs = math.ceil(min(steps, STEPS) * batch / n)
    short = MAP(epochs=epochs, batch_size=like.batch_size, optimizer=like.optimizer, patience=like.patience or PATIENCE)
    if like.optimizer != USUAL or not steps:
        return short
    return _at(short, _peak(like) * min(LONGER, max(1.0, steps / STEPS)))


def _peak(recipe: MAP) -> float:
    assert isinstance(recipe.optimizer, Adam) and isinstance(recipe.optimizer.lr, Cosine)
    return recipe.optimizer.lr.peak


def _at(recipe: MAP, peak: float | list[float]) -> MAP:
    """The recipe with another step size, or with several."""
    assert isinstance(recipe.optimizer, Adam) and isinstance(recipe.optimizer.lr, Cosine)
    peak = [*map(_round, peak)] if isinstance(peak, list) else _round(peak)
    rate = replace(recipe.optimizer.lr, peak=peak)  # type: ignore[arg-type]  # a list is a sweep
    return replace(recipe, optimizer=replace(recipe.optimizer, lr=rate))


def _round(x: float) -> float:
    """Without the digits that multiplying leaves at the end."""
    return float(f"{x:.12g}")


def _name(problem: Problem) -> str:
    likelihood = problem.likelihood
    if isinstance(likelihood, ClassLikelihood):
        return type(problem.network.module).__name__
    if isinstance(likelihood, Warped):
        return f"{type(likelihood.of).__name__}-{type(likelihood.warp).__name__}"
    return type(likelihood).__name__


def _words(problem: Problem) -> str:
    """What a problem assumes: which function of the target is seen, or what noise it has; of classes, which network."""
    likelihood: object = problem.likelihood
    if isinstance(likelihood, ClassLikelihood):
        likelihood = problem.network.module
    name = type(likelihood.warp if isinstance(likelihood, Warped) else likelihood).__name__
    return IN_WORDS.get(name, f"likelihood {name}")


def in_a_line(recipe: Method) -> str:
    """A recipe and what differs from its defaults; a step size by that name."""
    if not isinstance(recipe, MAP) or not isinstance(recipe.optimizer, Adam):
        return brief(recipe)
    rate = recipe.optimizer.lr
    if not isinstance(rate, Cosine) or not isinstance(rate.peak, float) or recipe.optimizer == USUAL:
        return brief(recipe)
    usual = _at(recipe, _peak(MAP()))
    return f"{brief(usual)}, step size {_size(rate.peak)}" if usual.optimizer == USUAL else brief(recipe)


def _mean(x: Tensor) -> str:
    return f"{float(x.mean()):.4g}"


def _beside(x: Tensor, now: Tensor) -> str:
    """A mean, and how far it is from that of what was chosen, with the standard error of the paired difference."""
    apart = x - now
    return f"{_mean(x)} ({float(apart.mean()):+.2g} ± {float(apart.std()) / math.sqrt(len(apart)):.1g})"


def _size(rate: float) -> str:
    """A step size, such as 3e-4."""
    digits, _, power = f"{rate:.2e}".partition("e")
    return f"{float(digits):g}e{int(power)}"
