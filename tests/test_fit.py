"""`fit` and the posterior it returns: members, starts, bases, slices, mixtures, and what is refused."""

from __future__ import annotations

import copy
import math
import random
import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import basinet as bn
from basinet.core.tree import Point, leaves, ravel, take, tree_map
from basinet.engine import Based, Member, Schedule
from basinet.families import Delta, Diagonal
from basinet.methods.map import MAP

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)
SHORT = MAP(epochs=2, batch_size=5)
STAY = MAP(epochs=0)  # no steps: each member is where it started


@dataclass(frozen=True, kw_only=True)
class Widen(Based):
    """Post-hoc: a normal around where the base ended, its width from the member's key."""

    samples: ClassVar[int] = 4

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def finish(self, state: Point, samples: Any, problem: Any, data: Any, val: Any, noise: bn.Noise) -> Diagonal:
        scale = {n: 0.1 + noise.split(n).uniform(x) for n, x in state.params.items()}
        return Diagonal(state.params, scale, state.buffers)


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@dataclass(frozen=True, kw_only=True)
class Soft(MAP):
    """MAP on a model that halves its logits."""

    def adapt(self, problem: bn.Problem) -> bn.Problem:
        return replace(problem, model=lambda: nn.Sequential(OrderedDict(net=net(), soft=Halved())))


@dataclass(frozen=True, kw_only=True)
class Tuned(MAP):
    """A method that cannot do without validation data."""

    needs: ClassVar[frozenset[str]] = frozenset({"data", "val"})


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 3)).double()


def other_net() -> nn.Module:
    return nn.Linear(4, 3, dtype=torch.float64)


def classes(n: int = 12) -> bn.Data:
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(inputs, key.split("y").integers(n, 3))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
OTHER = bn.Problem(other_net, bn.likelihoods.Categorical())
DATA = classes()


def fit(method: Any = SHORT, problem: Any = PROBLEM, data: Any = DATA, **options: Any) -> bn.Posterior:
    return bn.fit(method, problem, data, **{"engine": ENGINE, **options})


def apart(a: Any, b: Any) -> float:
    """The largest difference between two posteriors' members, or two trees."""
    a, b = (x.parts[0].family if isinstance(x, bn.Posterior) else x for x in (a, b))
    return max(float((x.double() - y.double()).abs().max()) for x, y in zip(leaves(a), leaves(b), strict=True))


@pytest.fixture(scope="module")
def six() -> bn.Posterior:
    """A short deep ensemble of seed 4."""
    return fit(members=6, seed=4)


# --- members, seeds and starts


@pytest.mark.parametrize(("members", "count"), [(None, 1), (1, 1), (3, 3)])
def test_members_are_as_many_as_asked_for(members, count):
    posterior = fit(members=members, seed=7)
    assert len(posterior) == count and posterior.members == tuple(Member(7, k) for k in range(count))
    assert posterior.predict(DATA.inputs).outputs.shape == (count, 1, 12, 3)
    assert posterior.recipe == SHORT and posterior.problem is PROBLEM and posterior.info["trained"] == count
    assert [len(row) for row in posterior.info["curves"]["loss"]] == [len(posterior.info["curves"]["step"][0])] * count


def test_a_member_depends_only_on_the_seed_and_its_number(six):
    assert apart(fit(members=2, seed=4), six[:2]) == 0
    assert apart(fit(seed=4), six[0]) == 0
    assert apart(fit(seed=5), six[0]) > 1e-3
    assert min(apart(six[i], six[j]) for i in range(6) for j in range(i)) > 1e-3


def test_one_start_is_for_all_members(six):
    posterior = fit(STAY, start=six[2], members=3, seed=9)
    assert posterior.members == (Member(9, 0), Member(9, 1), Member(9, 2))
    assert max(apart(posterior[k], six[2]) for k in range(3)) == 0
    trained = fit(start=six[2], members=2)
    assert apart(trained[0], trained[1]) > 1e-3  # each shuffles on its own


@pytest.mark.parametrize("members", [None, 6])
def test_as_many_starts_as_members_are_one_each_and_members_stay_who_they_are(six, members):
    posterior = fit(STAY, start=six, members=members, seed=9)
    assert posterior.members == six.members == tuple(Member(4, k) for k in range(6))
    assert apart(posterior, six) == 0


def test_another_number_of_starts_is_refused(six):
    with pytest.raises(ValueError, match="start has 6 members and 4 were asked for: expected 1 or 4"):
        fit(start=six, members=4)


@pytest.mark.parametrize("method", [SHORT, Widen()], ids=["MAP", "post-hoc"])
def test_a_fit_on_a_slice_of_starts_is_the_slice_of_the_fit(six, method):
    whole, part = fit(method, start=six, seed=9), fit(method, start=six[4:], seed=9)
    assert part.members == whole[4:].members
    assert apart(part, whole[4:]) == 0
    torch.testing.assert_close(part.predict(DATA.inputs).outputs, whole.predict(DATA.inputs).outputs[4:])
    assert apart(fit(method, start=six[4:], seed=10), part) > 1e-4


def test_members_of_other_seeds_are_others(six):
    start = bn.mix([six[:1], fit(STAY, start=six[0], members=1, seed=4), fit(seed=5)])
    assert start.members == (Member(4, 0), Member(4, 0), Member(5, 0))
    scale = fit(Widen(), start=start).parts[0].family.scale["0.weight"]
    assert torch.equal(scale[0], scale[1]) and not torch.equal(scale[0], scale[2])


def test_a_field_base_that_nothing_reads_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Bare(MAP):
        base: MAP | None = None

    with pytest.raises(TypeError, match="Bare has a field base, which nothing reads: derive it from"):
        fit(Bare())


@pytest.mark.slow
def test_a_method_with_a_base_gets_map_where_none_is_given():
    posterior = fit(Widen(), members=2, seed=3)
    base = fit(MAP(), members=2, seed=3)
    assert apart(posterior.parts[0].family.centre, base.parts[0].family.params) == 0
    assert apart(posterior, fit(Widen(), start=base, seed=3)) == 0


def test_a_method_with_a_base_uses_the_one_it_has_and_its_pool(tmp_path):
    posterior = fit(Widen(base=SHORT), members=2, pool=tmp_path)
    assert apart(posterior.parts[0].family.centre, fit(members=2).parts[0].family.params) == 0
    assert sorted(p.name.split("-")[0] for p in tmp_path.iterdir()) == ["computes", "map", "pool.json", "widen"]
    again = fit(Widen(base=SHORT), members=2, pool=tmp_path, observe=lambda event: pytest.fail("trained again"))
    assert apart(again, posterior) == 0 and again.info["trained"] == 0


def test_a_method_may_wrap_the_model(tmp_path):
    posterior = fit(Soft(epochs=1), members=2)
    assert posterior.problem is PROBLEM
    plain = Delta(
        {n.removeprefix("net."): x for n, x in posterior.parts[0].family.params.items()},
        {n.removeprefix("net."): x for n, x in posterior.parts[0].family.buffers.items()},
    )
    unwrapped = bn.Posterior((replace(posterior.parts[0], family=plain, recipe=None),))
    outputs = posterior.predict(DATA.inputs).outputs
    torch.testing.assert_close(outputs, unwrapped.predict(DATA.inputs).outputs / 2, rtol=0, atol=1e-14)


def test_validation_data_do_not_change_what_is_learned(six):
    with_val = fit(members=2, seed=4, val=classes(5))
    assert apart(with_val, six[:2]) == 0
    assert "val_nll" in with_val.info["curves"] and "val_nll" not in six.info["curves"]


# --- what a fit leaves alone


def test_a_fit_never_changes_the_users_module():
    module = net()
    module[0].weight.grad = torch.ones_like(module[0].weight)
    module.eval()
    before, ids = copy.deepcopy(module.state_dict()), [id(p) for p in module.parameters()]
    problem = bn.Problem(module, bn.likelihoods.Categorical())
    posterior = fit(problem=problem, members=2)
    posterior.predict(DATA.inputs)
    after = module.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before) and [id(p) for p in module.parameters()] == ids
    assert not module.training and all(p.requires_grad for p in module.parameters())
    assert torch.equal(module[0].weight.grad, torch.ones_like(module[0].weight)) and module[4].weight.grad is None
    assert apart(posterior[0], posterior[1]) > 1e-3


def test_a_fit_leaves_the_global_generators_alone():
    state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    fit(members=2, val=classes(5), engine=bn.Engine(device="cpu", progress=False)).predict(DATA.inputs)
    fit(Widen(base=SHORT)).sample(3)
    assert torch.equal(state, torch.get_rng_state()) and random.getstate() == python_state
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_the_global_generator_does_not_change_a_fit(six):
    with torch.random.fork_rng():
        torch.manual_seed(123)
        assert apart(fit(seed=4), six[0]) == 0


class Doubling(nn.Linear):
    """Doubles its inputs in place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_network_that_changes_its_inputs_leaves_the_data_alone(batch_size, strategy):
    """Before, the data were multiplied by a power of two, and a second prediction differed."""
    data, engine = classes(), bn.Engine(device="cpu", strategy=strategy, progress=False)
    recipe, plain = MAP(epochs=2, batch_size=batch_size), nn.Linear(4, 3, dtype=torch.float64)
    writer = bn.Problem(lambda: Doubling(4, 3, dtype=torch.float64), bn.likelihoods.Categorical())
    posterior = fit(recipe, writer, data, members=2, val=data, engine=engine)
    assert torch.equal(data.inputs, DATA.inputs)
    twice = bn.Data(2 * DATA.inputs, DATA.targets)
    expected = fit(recipe, bn.Problem(plain, bn.likelihoods.Categorical()), twice, members=2, val=twice, engine=engine)
    probs = [posterior.predict(data.inputs).probs for _ in range(2)]
    assert torch.equal(data.inputs, DATA.inputs) and torch.equal(*probs)
    assert torch.allclose(probs[0], expected.predict(twice.inputs).probs)


class Answer(nn.Module):
    """A network that returns what is scored among other things."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.net(x)


def test_a_network_that_returns_a_tuple_takes_output(tmp_path):
    problem = bn.Problem(Answer, bn.likelihoods.Categorical(), output=1)
    posterior = fit(problem=problem)
    posterior.save(tmp_path)
    loaded = bn.load(tmp_path, Answer)
    assert loaded.problem.output == 1
    assert torch.equal(loaded.predict(DATA.inputs).probs, posterior.predict(DATA.inputs).probs)
    assert replace(problem, temperature=2.0).output == 1
    with pytest.raises(ValueError, match="the model has output=1, and the problem output=0"):
        bn.Problem(problem.model, bn.likelihoods.Categorical(), output=0)


@pytest.mark.parametrize("recipe", [SHORT, Widen(base=SHORT), bn.SWA(base=SHORT)], ids=["MAP", "Widen", "SWA"])
def test_a_member_as_a_plain_module(recipe):
    posterior = fit(recipe, members=2)
    module = posterior.module(1)
    assert not module.training
    expected = posterior[1].predict(DATA.inputs, samples=1).outputs[0, 0]
    if not isinstance(recipe, Widen):
        assert torch.equal(module(DATA.inputs), expected)
    point = posterior.points()[1]
    assert all(torch.equal(p, point.params[n]) for n, p in module.named_parameters())
    with torch.no_grad():
        module[0].weight += 1
    assert torch.equal(posterior[1].predict(DATA.inputs, samples=1).outputs[0, 0], expected)


def test_a_member_that_is_more_than_the_network_has_no_module():
    posterior = fit(bn.RandomPrior(epochs=1), OTHER)
    with pytest.raises(TypeError, match=r"a member of RandomPrior.* is more than the network"):
        posterior.module()


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": MAP}, TypeError, r"expected a recipe such as MAP\(\), got the class MAP"),
        ({"method": "map"}, TypeError, r"expected a recipe such as bn\.MAP\(\), got str"),
        ({"problem": net}, TypeError, r"expected a bn\.Problem, got function"),
        ({"data": None}, ValueError, "MAP needs training data: pass data="),
        ({"method": Tuned()}, ValueError, "Tuned needs validation data: pass val="),
        ({"data": (DATA.inputs, DATA.targets)}, TypeError, r"expected data as bn\.Data\(inputs, targets\), got tuple"),
        ({"val": DATA.inputs}, TypeError, r"expected val as bn\.Data\(inputs, targets\), got Tensor"),
        (
            {"data": DataLoader(TensorDataset(DATA.inputs, DATA.targets))},
            TypeError,
            r"got a DataLoader: bn\.Data\.stream\(loader, n=len\(loader\.dataset\)\) reads one",
        ),
        ({"members": 0}, ValueError, "expected members to be a positive integer, got 0"),
        ({"members": 2.0}, ValueError, r"expected members to be a positive integer, got 2\.0"),
        ({"start": net()}, TypeError, r"expected start as a posterior, got Sequential: use bn\.Posterior\.of"),
        ({"data": DATA.bootstrap(2), "members": 3}, ValueError, "index lists for 2 members and 3 were asked for"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        fit(**arguments)


def test_the_hint_for_a_data_loader_works_as_it_is_written():
    loader = DataLoader(TensorDataset(DATA.inputs, DATA.targets), batch_size=5, shuffle=True)
    for ask in (lambda data: fit(data=data), lambda data: bn.cost(MAP(epochs=2), PROBLEM, data)):
        with pytest.raises(TypeError, match="got a DataLoader") as refused:
            ask(loader)
        hint = re.search(r"DataLoader: (bn\.Data\.stream\(.*\)) reads one", str(refused.value))
        ask(eval(hint[1], {"bn": bn, "loader": loader}))
    with pytest.raises(TypeError, match="n=how many examples it has"):
        fit(data=DataLoader(Endless()))


class Endless(IterableDataset):
    """Examples without a number."""

    def __iter__(self):
        yield from zip(DATA.inputs, DATA.targets)


def test_index_lists_must_reach_the_members_of_the_start(six):
    assert len(fit(STAY, data=DATA.bootstrap(6), start=six[4:])) == 2
    with pytest.raises(ValueError, match="index lists for 2 members and 6 were asked for"):
        fit(data=DATA.bootstrap(2), start=six[4:])


def test_a_start_of_another_network_is_refused(six):
    other = fit(problem=OTHER)
    for start in (other, bn.mix([six[:1], other])):
        with pytest.raises(ValueError, match=r"start has parameters \{'weight': \(3, 4\).*, but the problem has"):
            fit(start=start)


class Fixed(nn.Module):
    """A network that no seed changes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize("model", [Fixed, Fixed()], ids=["factory", "module"])
def test_members_that_cannot_be_made_to_differ_are_refused(model):
    problem = bn.Problem(model, bn.likelihoods.Categorical())
    with pytest.raises(ValueError, match=r"members start equal.*Pass a factory.*or members=1"):
        fit(problem=problem, members=2)
    assert len(fit(problem=problem, members=1)) == 1


# --- Posterior.of


def test_a_trained_module_becomes_a_posterior_and_stays_untouched():
    module = net()
    module(DATA.inputs)  # moves the norm statistics
    expected = copy.deepcopy(module).eval()(DATA.inputs)
    before = copy.deepcopy(module.state_dict())
    posterior = bn.Posterior.of(module, PROBLEM)
    assert len(posterior) == 1 and posterior.recipe is None and module.training
    assert torch.equal(posterior.predict(DATA.inputs).outputs[0, 0], expected)
    assert all(torch.equal(before[k], x) for k, x in module.state_dict().items())
    with torch.no_grad():
        module[0].weight.zero_()
    assert torch.equal(posterior.predict(DATA.inputs).outputs[0, 0], expected)


def test_a_posterior_of_a_module_has_what_the_likelihood_learns():
    problem = bn.Problem(lambda: nn.Linear(4, 1), bn.likelihoods.Gaussian(noise=0.5, learned=True))
    posterior = bn.Posterior.of(nn.Linear(4, 1), problem)
    assert float(posterior.mean()["likelihood.log_noise"]) == pytest.approx(math.log(0.5))


def test_a_wrong_module_is_refused():
    with pytest.raises(ValueError, match=r"does not fit this model: it has no 0\.weight"):
        bn.Posterior.of(other_net(), PROBLEM)
    with pytest.raises(ValueError, match=r"does not fit this model: weight is \(3, 5\) where \(3, 4\) was expected"):
        bn.Posterior.of(nn.Linear(5, 3), OTHER)
    with pytest.raises(TypeError, match=r"expected an nn\.Module, got OrderedDict"):
        bn.Posterior.of(net().state_dict(), PROBLEM)


def test_a_module_with_nan_is_refused():
    module = net()
    with torch.no_grad():
        module[4].bias[0] = float("nan")
    with pytest.raises(ValueError, match=r"expected finite parameters, got NaN or infinity in 4\.bias"):
        bn.Posterior.of(module, PROBLEM)


# --- slices


@pytest.mark.parametrize(
    ("index", "chosen"),
    [(0, [0]), (-1, [5]), (slice(1, 4), [1, 2, 3]), (slice(None, None, -2), [5, 3, 1]), ([4, 0, 4], [4, 0, 4])],
)
def test_a_slice_is_the_posterior_of_those_members(six, index, chosen):
    part, whole = six[index], six.predict(DATA.inputs).outputs
    assert part.members == tuple(Member(4, k) for k in chosen)
    assert torch.equal(part.predict(DATA.inputs).outputs, whole[chosen])
    assert part.info["curves"]["loss"] == [six.info["curves"]["loss"][k] for k in chosen]


@pytest.mark.parametrize("index", [6, -7, slice(6, 9), [], [0, 6]])
def test_members_that_are_not_there_are_refused(six, index):
    with pytest.raises(IndexError, match=r"expected members among 0 \.\.\. 5"):
        six[index]


# --- mixtures


@pytest.fixture(scope="module")
def pieces(six) -> tuple[bn.Posterior, bn.Posterior, bn.Posterior]:
    """Three members and one of a network, and two of another."""
    return six[:3], fit(seed=11), fit(problem=OTHER, members=2)


def probs(posterior: bn.Posterior) -> Tensor:
    return posterior.predict(DATA.inputs).probs


def test_a_mixture_of_one_network_is_one_ensemble(pieces):
    mixed = bn.mix(pieces[:2])
    assert len(mixed) == 4 and len(mixed.parts) == 1 and mixed.members == pieces[0].members + pieces[1].members
    assert len(mixed.info["curves"]["loss"]) == 4
    by_hand = (3 * probs(pieces[0]) + probs(pieces[1])) / 4  # every member counts the same
    torch.testing.assert_close(probs(mixed), by_hand, rtol=0, atol=1e-15)
    assert next(iter(mixed.sample(2).values())).shape[:2] == (4, 2)


def test_a_mixture_of_networks_predicts_and_has_no_common_parameters(pieces):
    mixed = bn.mix(pieces)
    assert len(mixed) == 6 and len(mixed.parts) == 2
    by_hand = (3 * probs(pieces[0]) + probs(pieces[1]) + 2 * probs(pieces[2])) / 6
    torch.testing.assert_close(probs(mixed), by_hand, rtol=0, atol=1e-15)
    outputs = torch.cat([p.predict(DATA.inputs).outputs for p in pieces])
    assert torch.equal(mixed.predict(DATA.inputs).outputs, outputs)
    for call in (lambda: mixed.sample(2), lambda: mixed.log_prob({}), mixed.mean, lambda: mixed.family):
        with pytest.raises(ValueError, match=r"mixes 2 kinds of members, which have no common (sample|family)"):
            call()
    assert mixed[4:].sample(2)["weight"].shape == (2, 2, 3, 4)


@pytest.mark.parametrize("which", [(0, 1), (0, 2), (0, 1, 2)])
def test_weights_are_those_of_the_posteriors(pieces, which):
    given = [pieces[i] for i in which]
    weights = [0.3, 1.2, 0.5][: len(given)]
    mixed = bn.mix(given, weights)
    by_hand = sum(w * probs(p) for w, p in zip(weights, given)) / sum(weights)
    torch.testing.assert_close(probs(mixed), by_hand, rtol=0, atol=1e-15)
    density = sum(w * p.predict(DATA.inputs).log_prob(DATA.targets).exp() for w, p in zip(weights, given))
    log_prob = mixed.predict(DATA.inputs).log_prob(DATA.targets)
    torch.testing.assert_close(log_prob, (density / sum(weights)).log(), rtol=0, atol=1e-14)


def test_a_mixture_of_mixtures_is_a_mixture(pieces):
    a, b, c = pieces
    inner = bn.mix([a, c], [0.25, 0.75])
    nested, flat = bn.mix([inner, b], [0.8, 0.2]), bn.mix([a, c, b], [0.2, 0.6, 0.2])
    torch.testing.assert_close(probs(nested), probs(flat), rtol=0, atol=1e-15)
    equal = (5 * probs(inner) + probs(b)) / 6  # without weights each member counts the same: five against one
    torch.testing.assert_close(probs(bn.mix([inner, b])), equal, rtol=0, atol=1e-15)


def test_a_slice_of_a_weighted_mixture_keeps_the_weights(pieces):
    mixed = bn.mix([pieces[0], pieces[2]], [0.3, 0.7])  # three members of 0.1, two of 0.35
    by_hand = (0.1 * probs(pieces[0][2]) + 0.35 * probs(pieces[2][0])) / 0.45
    torch.testing.assert_close(probs(mixed[2:4]), by_hand, rtol=0, atol=1e-15)
    torch.testing.assert_close(probs(mixed[[3, 2]]), by_hand, rtol=0, atol=1e-15)


def test_members_without_weight_make_no_posterior(pieces):
    mixed = bn.mix([pieces[0], pieces[2]], [0.0, 1.0])
    torch.testing.assert_close(probs(mixed), probs(pieces[2]), rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="have no weight in this mixture"):
        mixed[:3]


def test_parts_with_fewer_samples_are_padded_without_weight(six):
    wide = fit(Widen(), start=six[:2])
    mixed = bn.mix([six[2:], wide])
    predictive, inside = mixed.predict(DATA.inputs, samples=3), wide.predict(DATA.inputs, samples=3)
    assert predictive.outputs.shape == (6, 3, 12, 3)
    assert mixed.predict(DATA.inputs).outputs.shape == (6, Widen.samples, 12, 3)
    by_hand = (4 * probs(six[2:]) + 2 * inside.probs) / 6
    torch.testing.assert_close(predictive.probs, by_hand, rtol=0, atol=1e-15)
    torch.testing.assert_close(predictive.within, inside.within * 2 / 6, rtol=0, atol=1e-14)
    density = 4 * six[2:].predict(DATA.inputs).log_prob(DATA.targets).exp() + 2 * inside.log_prob(DATA.targets).exp()
    torch.testing.assert_close(predictive.log_prob(DATA.targets), (density / 6).log(), rtol=0, atol=1e-14)


def test_learned_noise_is_padded_with_its_samples():
    target = bn.Data(DATA.inputs, DATA.inputs[:, :1])
    problem = bn.Problem(lambda: nn.Linear(4, 1, dtype=torch.float64), bn.likelihoods.Gaussian(learned=True))
    points, wide = fit(problem=problem, data=target), fit(Widen(base=SHORT), problem, target)
    mixed = bn.mix([points, wide]).predict(DATA.inputs, samples=3)
    single = [p.predict(DATA.inputs, samples=3) for p in (points, wide)]
    assert mixed.learned["log_noise"].shape == (2, 3)
    torch.testing.assert_close(mixed.mean, (single[0].mean + single[1].mean) / 2, rtol=0, atol=1e-14)
    second = sum(p.variance + p.mean**2 for p in single) / 2
    torch.testing.assert_close(mixed.variance, second - mixed.mean**2, rtol=0, atol=1e-13)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.1], [0.0, 0.0], [1.0, math.nan], [1.0, math.inf]])
def test_bad_weights_are_refused(pieces, weights):
    with pytest.raises(ValueError, match="expected 2 non-negative weights, one per posterior, got"):
        bn.mix(pieces[:2], weights)


def test_only_posteriors_under_one_likelihood_mix(six):
    real = bn.Posterior.of(nn.Linear(4, 3), bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Gaussian()))
    with pytest.raises(ValueError, match=r"expected posteriors under one likelihood, got Categorical\(\) and Gaussian"):
        bn.mix([six, real])
    with pytest.raises(ValueError, match="expected at least one posterior to mix, got none"):
        bn.mix([])


# --- samples and densities


@pytest.fixture(scope="module")
def wide(six) -> bn.Posterior:
    return fit(Widen(), start=six[:3])


def test_samples_have_axes_members_and_draws(six, wide):
    for posterior in (six[:3], wide):
        drawn = posterior.sample(5)
        assert {n: tuple(x.shape) for n, x in drawn.items()} == {
            n: (3, 5, *s) for n, s in PROBLEM.network.params.items()
        }
    assert six.predict(DATA.inputs, samples=7).outputs.shape == (6, 1, 12, 3)  # more say nothing more
    points = six.sample(2)["0.weight"]
    assert torch.equal(points[:, 0], points[:, 1]) and torch.equal(points[:, 0], six.parts[0].family.params["0.weight"])


def test_samples_are_those_that_predict(wide):
    drawn, outputs = wide.sample(4, seed=8), wide.predict(DATA.inputs, samples=4, seed=8).outputs
    buffers = take(wide.parts[0].family, 2).buffers
    params = tree_map(lambda x: x[2, 3], drawn)
    torch.testing.assert_close(PROBLEM.outputs(params, buffers, DATA.inputs)[0], outputs[2, 3], rtol=0, atol=1e-13)
    assert not torch.equal(wide.sample(4, seed=9)["0.weight"], drawn["0.weight"])
    assert torch.equal(wide.sample(2, seed=8)["0.weight"], drawn["0.weight"][:, :2])
    assert torch.equal(wide[1:].sample(4, seed=8)["0.weight"], drawn["0.weight"][1:])


def test_too_few_samples_are_refused(wide):
    for call in (lambda: wide.sample(0), lambda: wide.predict(DATA.inputs, samples=0)):
        with pytest.raises(ValueError, match="expected at least one sample per member, got 0"):
            call()


@pytest.mark.parametrize("weights", [None, [0.2, 0.8]])
def test_log_prob_is_that_of_the_mixture_of_members(wide, weights):
    mixed = bn.mix([wide[:1], wide[1:]], weights)
    mass = torch.tensor([1 / 3] * 3 if weights is None else [0.2, 0.4, 0.4], dtype=torch.float64)
    params = tree_map(lambda x: x[1] + 0.05, wide.parts[0].family.centre)
    family = wide.parts[0].family
    each = [
        sum(Normal(family.centre[n][k], family.scale[n][k]).log_prob(x).sum() for n, x in params.items())
        for k in range(3)
    ]
    expected = torch.logsumexp(mass.log() + torch.stack(each), 0)
    torch.testing.assert_close(mixed.log_prob(params), expected, rtol=1e-13, atol=0)


def test_points_have_no_density(six):
    with pytest.raises(ValueError, match="Delta is made of points and has no density"):
        six.log_prob(tree_map(lambda x: x[0], six.parts[0].family.params))


@pytest.mark.parametrize("weights", [None, [0.2, 0.8]])
def test_the_mean_is_that_of_the_members(six, weights):
    mixed = bn.mix([six[:1], six[1:3]], weights)
    mass = torch.tensor([1 / 3] * 3 if weights is None else [0.2, 0.4, 0.4], dtype=torch.float64)
    each = ravel(six[:3].parts[0].family.params, 1)
    torch.testing.assert_close(ravel(mixed.mean()), mass @ each, rtol=0, atol=1e-15)


# --- predicting


def test_predictions_do_not_depend_on_batches_or_on_how_inputs_come(wide):
    whole = wide.predict(DATA.inputs)
    torch.testing.assert_close(wide.predict(DATA.inputs, batch_size=5).outputs, whole.outputs, rtol=0, atol=1e-13)
    single = wide.predict(DATA.inputs.float()).outputs
    assert single.dtype == torch.float64
    torch.testing.assert_close(wide.predict(DATA.inputs.float().numpy()).outputs, single, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.full((2, 4), float("nan")), "expected finite inputs, got 8 values that are NaN or infinite"),
        (torch.tensor([[0.0, 1.0, float("inf"), 0.0]]), "expected finite inputs, got 1 values"),
        (torch.empty(0, 4), "expected inputs with at least one row, got none"),
    ],
)
def test_inputs_that_cannot_be_predicted_are_refused(six, inputs, message):
    with pytest.raises(ValueError, match=message):
        six.predict(inputs)


def test_a_single_input_and_data_are_refused_with_what_to_pass(six):
    plain = bn.Problem(lambda: bn.networks.MLP(4, 3), bn.likelihoods.Categorical())
    with pytest.raises(ValueError, match=r"per example; the leading axis counts examples, x\[None\] is one"):
        bn.Posterior.of(bn.networks.MLP(4, 3), plain).predict(DATA.inputs[0])
    with pytest.raises(TypeError, match=r"expected inputs as tensors or arrays, got Data: predict\(data.inputs\)"):
        six.predict(DATA)


def test_an_unknown_way_to_predict_is_refused(six):
    with pytest.raises(ValueError, match="expected via as one of sample, linear, probit, bridge, got 'normal'"):
        six.predict(DATA.inputs, via="normal")


def test_bytes_are_those_of_the_members(six):
    one = sum(x.numel() * x.element_size() for x in net().state_dict().values())
    assert six.nbytes() == 6 * one and six.to("cpu").nbytes() == 6 * one


def test_a_posterior_prints_itself_in_one_line():
    rates = MAP(epochs=1, batch_size=5, optimizer=bn.optim.SGD(lr=[0.1, 0.2]))
    for posterior, says in (
        (fit(members=3), r"members=3: 3 of MAP\(epochs=2, batch_size=5\), Delta"),
        (fit(rates, members=10), r"members=10: 1 of MAP.*, \.\.\. \(10 kinds\)"),
        (bn.Posterior.of(net(), PROBLEM), "members=1: 1 of a module trained elsewhere, Delta over 53 parameters"),
    ):
        assert re.search(says, repr(posterior)), repr(posterior)
        assert len(repr(posterior)) < 600 and "\n" not in repr(posterior)


def test_members_of_several_recipes_come_in_the_order_asked_for():
    rates = MAP(epochs=1, batch_size=5, optimizer=bn.optim.SGD(lr=[0.1, 0.2, 0.3]))
    posterior = fit(rates)
    weighed = bn.mix([posterior[k] for k in range(3)], weights=[1, 2, 3])
    some = weighed[[2, 0, 1, 0]]
    assert [m.recipe.optimizer.lr for m in some] == [0.3, 0.1, 0.2, 0.1]
    assert some.weights is not None and some.weights.tolist() == [3, 1, 2, 1]
    alone = posterior[2].predict(DATA.inputs).probs
    assert torch.equal(some[0].predict(DATA.inputs).probs, alone)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(3, 5), r"the network does not run on the data \(inputs of shape \[\(5,\)\] per example\)"),
        (torch.zeros(3, 4, dtype=torch.long), r"the network does not run on the data"),
        ({"y": torch.zeros(3, 4)}, r"the network does not run on the data .*unexpected keyword"),
        ([[1.0, 2.0, 3.0, 4.0]], "expected inputs as tensors or arrays with a leading axis of examples, got numbers"),
        (torch.zeros(0, 4), "expected inputs with at least one row, got none"),
    ],
    ids=["width", "integers", "keyword", "numbers", "empty"],
)
@pytest.mark.parametrize("method", [SHORT, bn.Laplace(base=SHORT), bn.Laplace(base=SHORT, via="probit")])
def test_inputs_that_the_network_does_not_take_are_refused(method, inputs, message):
    posterior = fit(method)
    with pytest.raises(ValueError, match=message):
        posterior.predict(inputs)


def test_one_input_without_its_axis_is_not_a_batch():
    plain = bn.Problem(lambda: nn.Linear(4, 3).double(), bn.likelihoods.Categorical())
    posterior = fit(SHORT, plain)
    with pytest.raises(ValueError, match=r"expected one output row for each input, got outputs \(3,\) for 4 inputs"):
        posterior.predict(DATA.inputs[0])
    assert posterior.predict(DATA.inputs[:1]).probs.shape == (1, 3)


# --- who members are that were made from modules


def modules(count: int) -> list[nn.Module]:
    networks = []
    for k in range(count):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(k)
            networks.append(nn.Linear(2, 1, dtype=torch.float64))
    return networks


@pytest.mark.slow
@pytest.mark.parametrize("method", [bn.Anchored, bn.RandomPrior], ids=["Anchored", "RandomPrior"])
def test_modules_in_a_mixture_have_noise_of_their_own(method):
    """Each from its own module, members end as far apart as members that `fit` numbers do: a spread near 0 (2e-10)
    where they share an anchor or a random network."""
    key = bn.Noise.seed(1)
    inputs = key.split("x").normal(torch.empty(8, 2, dtype=torch.float64))
    data = bn.Data(inputs, key.split("y").normal(inputs[:, :1]))
    problem = bn.Problem(lambda: nn.Linear(2, 1, dtype=torch.float64), bn.likelihoods.Gaussian(noise=1.0))
    recipe = method(epochs=150, batch_size=None, optimizer=bn.optim.SGD(lr=0.1, momentum=0.9))
    start = bn.mix([bn.Posterior.of(module, problem) for module in modules(30)])
    assert len(set(start.members)) == 30

    def spread(posterior: bn.Posterior) -> Tensor:
        return posterior.predict(inputs, via="sample").outputs.std(0).mean()

    counted = fit(STAY, problem, data, members=30)
    apart_, numbered = (spread(fit(recipe, problem, data, start=s)) for s in (start, counted))
    assert 0.6 < apart_ / numbered < 1.6  # 30 draws each: the ratio of standard deviations has an error of .13, z = 3


def test_a_module_is_the_same_member_alone_and_with_others():
    problem = bn.Problem(lambda: nn.Linear(2, 1, dtype=torch.float64), bn.likelihoods.Gaussian())
    first, second = (bn.Posterior.of(module, problem) for module in modules(2))
    data = bn.Data(torch.ones(4, 2, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64))
    assert first.members == bn.Posterior.of(modules(1)[0], problem).members != second.members
    alone, mixed = (fit(Widen(), problem, data, start=s) for s in (second, bn.mix([first, second])))
    assert apart(alone, mixed[1]) == 0
    draws = mixed.sample(3)["weight"] - mixed.parts[0].family.centre["weight"][:, None]
    assert not torch.allclose(draws[0] / draws[1], (draws[0] / draws[1])[:1].expand_as(draws[0]))


# Starts


@pytest.mark.parametrize("factory", [True, False], ids=["factory", "module"])
def test_starts_are_what_torch_draws_under_the_seed_of_a_member(factory):
    """However they are made quickly: each member's start is the network built (or reset) after torch.manual_seed."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    problem = bn.Problem(build if factory else build(), bn.likelihoods.Categorical())
    start = bn.Noise.seed(11).split("fit").split(torch.tensor(11)).split(torch.arange(3)).split("start")
    words = torch.func.vmap(lambda key: bn.Noise(key).words(2))(start.key).tolist()
    starts: list[Any] = []

    class Looking(bn.MAP):
        def init(self, point: Any, problem: Any, noise: Any) -> Any:
            starts.append({n: x.clone() for n, x in point.params.items()})
            return super().init(point, problem, noise)

    data = bn.Data(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    engine = bn.Engine(device="cpu", progress=False, strategy="loop", processes=1)
    bn.fit(Looking(epochs=1), problem, data, members=3, seed=11, engine=engine)
    for (a, b), params in zip(words, starts[-3:], strict=True):
        torch.manual_seed((a << 31) | (b >> 1))
        module = build() if factory else problem.network._build()
        assert all(torch.equal(params[n], x) for n, x in module.named_parameters())
