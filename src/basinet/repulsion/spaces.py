"""The spaces in which members repel each other, and the way back to their params.

A member is seen as a vector z: its params; its outputs on the batch (and on extra inputs); or what one of its layers
gives on the batch. A method makes two matrices (M, M) of these vectors, D and R, and the members descend

    sum_j D_ij dU/dz_j + repulsion sum_j R_ij z_j,   both divided by N / T,   and through z = z(theta) by one vjp.

weights    z = theta; U the potential.
function   z = outputs. dU/dz is that of the likelihood; the prior pulls on each member's own params, as strongly as
           the likelihood does: times the sum of row i of D. Where z = J theta, the prior is N(0, S) and D = 1, members
           come to rest just where the score of z's own prior, -(J S J')^-1 z, would hold them: S^-1 theta = J' force,
           multiplied by J S. Parameters of the likelihood follow their own gradient, and terms of the problem pull as
           the prior does.
           With draws, that score is estimated (ssge) from the outputs of fresh prior draws at every step, as in the
           reference implementation. It then acts in the span of these few functions alone: rough ones, which the prior
           forbids most, are free, and a network that can fit the noise does.
features   z = a layer's output. The prior pulls on each member's own params, and layers behind z, which do not move
           it, follow their own gradient; both times the sum of row i of D.

With one member there is nothing to repel, and all of it is the gradient of U: MAP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.nearest import did_you_mean
from ..core.noise import Noise
from ..core.tree import Params, leaves, take, tree_map
from ..engine import Descent, Info, Step
from ..layers.features import Tapped
from ..problem import Batch, Problem
from ..problem.problem import PREFIX
from .kernels import Kernel, mixed
from .prior import weighted, with_prior, with_terms
from .scores import score_at

SPACES = ("weights", "function", "features")
PRIOR_KERNEL = Kernel("rbf", wide=True)  # between outputs of prior draws, by their own median
PRIOR_RIDGE = 0.1  # the score of a standard normal, from ten draws, has slope -1.0; at the members' .01 it has -1.8


class Coupling(NamedTuple):
    """What a method makes of the members it sees."""

    pull: float | Tensor  # factor of U's gradient: 1, or () what annealing says
    mix: Tensor | None  # (M, M), D = pull mix; None: the identity
    repel: Tensor  # (M, M), repulsion R
    members: list[Tensor]  # pieces (M, ...) that R multiplies: z, from any origin where R has rows of sum zero

    @property
    def share(self) -> float | Tensor:
        """What counts of a gradient that members do not share, for it to be as strong as what they do: pull times the
        sum of row i of mix, a number, () or (M,). Never negative, which the sum may be for a linear kernel."""
        return self.pull if self.mix is None else self.pull * self.mix.sum(1).clamp(min=0.0)


Couple = Callable[[list[Tensor]], Coupling]


@dataclass(frozen=True)
class Space:
    """A space by its word, with what it needs."""

    word: str
    layer: str | None = None  # the name of a submodule, for features
    extra: int = 0  # further inputs per step, for function
    reach: float = 2.0  # their standard deviation in those of the batch, feature by feature
    draws: int | None = 0  # of the prior per step, for function; None: as many as members; 0: it pulls on the params

    def __post_init__(self) -> None:
        if self.word not in SPACES:
            raise ValueError(f"unknown space {self.word!r}.{did_you_mean(self.word, SPACES)}")
        if (self.layer is not None) != (self.word == "features"):
            expected = "expected layer=, the name of a submodule such as 'layers.2', only with space='features'"
            raise ValueError(f"{expected}, got layer={self.layer!r} with space={self.word!r}")
        if not (isinstance(self.extra, int) and self.extra >= 0) or (self.extra and self.word != "function"):
            expected = "expected extra as a number of inputs, only with space='function'"
            raise ValueError(f"{expected}, got extra={self.extra!r} with space={self.word!r}")
        if not 0 < self.reach < math.inf:
            raise ValueError(f"expected a positive, finite reach of extra inputs, got {self.reach}")
        if self.draws != 0 and (self.word != "function" or (self.draws is not None and self.draws < 2)):
            expected = "expected prior_draws=0, or with space='function' at least 2, or None for as many as members"
            raise ValueError(f"{expected}, got prior_draws={self.draws} with space={self.word!r}")

    def adapt(self, problem: Problem) -> Problem:
        """The problem with what the space asks of it; raises where that is not there."""
        if self.word == "function" and self.draws != 0:
            try:
                problem.prior.sample(problem.network.init(Noise.seed(0)).params, Noise.seed(0))
            except ValueError as error:
                raise ValueError(f"space='function' knows the prior by its draws: {error}") from error
        return problem if self.layer is None else problem.through(Tapped(problem.network, self.layer))

    def gradient(self, couple: Couple, state: Descent, step: Step) -> tuple[Params, Info]:
        """What members descend, per example, and their losses and buffers."""
        if len(step.noise.key) == 1:
            return _own(state, step)
        ways = {"weights": _in_weights, "function": _in_outputs, "features": _in_features}
        return ways[self.word](self, couple, state, step)


def _own(state: Descent, step: Step) -> tuple[Params, Info]:
    """The gradients of U of each member, as MAP has them."""
    batch, problem, noise, _, lift = step

    def loss(params: Params, buffers: Params, key: Tensor) -> tuple[Tensor, Params]:
        potential, after = problem.data_potential(params, buffers, batch, Noise(key), "train")
        return potential / step.scale, after

    losses, buffers, back = lift.pull(loss)(state.params, state.buffers, noise.key)
    grads, losses = with_prior(back(torch.ones_like(losses)), losses, state.params, step)
    return grads, Info(losses, buffers=buffers)


def _in_weights(space: Space, couple: Couple, state: Descent, step: Step) -> tuple[Params, Info]:
    grads, info = _own(state, step)
    names = list(grads)
    coupling = _seen(couple, [state.params[n] for n in names])
    moved = _descent(coupling, [grads[n] for n in names], step.scale)
    return dict(zip(names, moved)), info


def _in_outputs(space: Space, couple: Couple, state: Descent, step: Step) -> tuple[Params, Info]:
    batch, problem, noise, _, lift = step
    inputs = {"batch": batch.inputs} | ({"extra": _around(space, batch, noise)} if space.extra else {})

    def run(params: Params, buffers: Params, key: Tensor) -> tuple[dict[str, Tensor], Params]:
        """Outputs on all inputs; extra ones in a pass of their own, which norm layers do not count."""
        outputs, after = problem.outputs(params, buffers, inputs["batch"], Noise(key), "train")
        if not space.extra:
            return {"batch": outputs}, after
        extra, _ = problem.outputs(params, buffers, inputs["extra"], Noise(key).split("extra"), "train")
        return {"batch": outputs, "extra": extra}, after

    def energy(given: dict[str, Any]) -> Tensor:
        return problem.likelihood_potential(given["outputs"], given["learned"], batch) / step.scale

    outputs, buffers, back = lift.pull(run)(state.params, state.buffers, noise.key)
    learned = {n: x for n, x in state.params.items() if n.startswith(PREFIX)}
    slopes, losses = lift(torch.func.grad_and_value(energy))({"outputs": outputs["batch"], "learned": learned})
    driven = {n: slopes["outputs"] if n == "batch" else torch.zeros_like(x) for n, x in outputs.items()}
    if space.draws != 0:
        driven = {n: x - s for (n, x), s in zip(driven.items(), _prior_score(space, state, step, run, outputs))}
    coupling = _seen(couple, [outputs[n] for n in driven])
    moved = _descent(coupling, list(driven.values()), step.scale)
    grads = back({n: x.to(outputs[n].dtype) for n, x in zip(driven, moved)})
    grads |= {n: grads[n] + coupling.pull * x for n, x in slopes["learned"].items()}
    grads, losses = with_terms(grads, losses, state, step, coupling.share)
    share = 0.0 if space.draws != 0 else coupling.share  # with draws the prior is in the score
    grads, losses = with_prior(grads, losses, state.params, step, share)
    return grads, Info(losses, buffers=buffers)


def _prior_score(
    space: Space, state: Descent, step: Step, run: Callable[..., Any], outputs: dict[str, Tensor]
) -> list[Tensor]:
    """That of the outputs' prior at the outputs, per example, from those of fresh draws of the params."""
    _, problem, noise, _, lift = step
    draws = len(noise.key) if space.draws is None else space.draws

    def prior_run(key: Tensor, buffers: Params) -> dict[str, Tensor]:
        network = problem.split(take(state.params, 0))[0]
        tensors: dict[str, Tensor] = run(problem.prior.sample(network, Noise(key).split("params")), buffers, key)[0]
        return tensors

    keys = Noise(noise.key[0]).split("prior").spread(draws).key
    drawn = lift(prior_run)(keys, tree_map(lambda x: x[:1].expand(draws, *x.shape[1:]), state.buffers))
    with _no_autocast(keys):
        queries, cloud = ([_real(tensors[n]) for n in outputs] for tensors in (outputs, drawn))
        share = 1 / (problem.prior_temperature * step.scale)
        return [share * s for s in score_at(queries, cloud, PRIOR_KERNEL, PRIOR_RIDGE)]


def _in_features(space: Space, couple: Couple, state: Descent, step: Step) -> tuple[Params, Info]:
    batch, problem, noise, _, lift = step
    network = problem.network
    assert isinstance(network, Tapped)  # adapt has seen to it

    def run(params: Params, buffers: Params, key: Tensor, shift: Tensor) -> tuple[dict[str, Tensor], Params]:
        outputs, values, after = network.tap(problem.split(params)[0], buffers, batch.inputs, Noise(key), shift)
        potential = problem.data_potential_of(outputs, params, buffers, batch, Noise(key))
        return {"loss": potential / step.scale, "values": values}, after

    nothing = torch.zeros(len(noise.key), dtype=next(iter(state.params.values())).dtype, device=noise.key.device)
    evaluated, buffers, back = lift.pull(run)(state.params, state.buffers, noise.key, nothing)
    coupling = _seen(couple, [evaluated["values"]])
    moved = _force(coupling, step.scale)[0]
    if coupling.mix is not None:  # what the loss hands down is each member's own: replace it by what members share

        def slope(params: Params, buffers: Params, key: Tensor, shift: Tensor) -> Tensor:
            return torch.func.grad(lambda shift: run(params, buffers, key, shift)[0]["loss"])(shift)

        own = _real(lift(slope)(state.params, state.buffers, noise.key, torch.zeros_like(evaluated["values"])))
        with _no_autocast(own):
            moved = moved + coupling.pull * mixed(coupling.mix, [own])[0] - weighted(own, coupling.share)
    cotangents = {
        "loss": coupling.share * torch.ones_like(evaluated["loss"]),
        "values": moved.to(evaluated["values"].dtype),
    }
    grads, losses = with_prior(back(cotangents), evaluated["loss"], state.params, step, coupling.share)
    return grads, Info(losses, buffers=buffers)


def _seen(couple: Couple, values: list[Tensor]) -> Coupling:
    """What the method makes of values, computed in full precision whatever the network runs in."""
    with _no_autocast(values[0]):
        return couple([_real(z) for z in values])


def _descent(coupling: Coupling, slopes: list[Tensor], scale: float) -> list[Tensor]:
    """pull mix dU/dz + repel z / scale, for slopes per example."""
    pull, mix, repel, members = coupling
    with _no_autocast(repel):
        driven = [_real(x) for x in slopes]
        if mix is not None:
            driven = mixed(pull * mix, driven)
        elif isinstance(pull, Tensor):
            driven = [pull * x for x in driven]
        return mixed(repel / scale, members, plus=driven)


def _force(coupling: Coupling, scale: float) -> list[Tensor]:
    with _no_autocast(coupling.repel):
        return mixed(coupling.repel / scale, coupling.members)


def _around(space: Space, batch: Batch, noise: Noise) -> Any:
    """Inputs normal around those of the batch, the same for all members."""
    common = Noise(noise.key[0]).split("inputs")

    def draw(x: Tensor, i: int) -> Tensor:
        if not x.is_floating_point():
            raise ValueError(
                f"extra inputs are drawn as real numbers, and the data have inputs of {x.dtype}: use extra=0"
            )
        like = x.new_empty(space.extra, *x.shape[1:])
        return x.mean(0) + space.reach * x.std(0, correction=0) * common.split(i).normal(like)

    places = iter(range(len(leaves(batch.inputs))))
    return tree_map(lambda x: draw(x, next(places)), batch.inputs)


def _real(x: Tensor) -> Tensor:
    """At least float32: sums over many numbers are to come."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _no_autocast(like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, enabled=False)
