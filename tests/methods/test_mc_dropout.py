"""MCDropout: where dropout is, what is random in prediction, masks that are held, learned rates, what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.methods.mc_dropout import MCDropout
from basinet.optim import SGD
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)
STACKED = bn.Engine(device="cpu", dtype=torch.float64, strategy="stacked", progress=False)
KEY = bn.Noise.seed(4)


def data(n: int = 24, width: int = 4, classes: int = 3) -> bn.Data:
    x = KEY.split("x").normal(torch.empty(n, width, dtype=torch.float64))
    return bn.Data(x, KEY.split("y").integers(n, classes))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def problem(net=plain) -> bn.Problem:
    return bn.Problem(net, bn.likelihoods.Categorical())


@pytest.mark.slow
def test_it_conforms_and_is_exact_in_a_linear_model():
    checks = check_method(MCDropout(epochs=4, batch_size=16))
    assert sum("predictions" in c.name and "sum w^2" in c.says for c in checks) == 1


def test_learned_rates_are_the_same_alone_and_in_a_stack():
    recipe = MCDropout(epochs=3, batch_size=16, insert="before", learned=True)
    posteriors = {s: bn.fit(recipe, problem(), data(), members=2, engine=e) for s, e in (("a", ENGINE), ("b", STACKED))}
    torch.testing.assert_close(
        posteriors["a"].predict(data().inputs).outputs, posteriors["b"].predict(data().inputs).outputs
    )


@pytest.mark.parametrize(("insert", "places"), [("before", "0, 2, 4"), ("after", "2, 4"), (None, "0, 2, 4")])
def test_dropout_is_inserted_where_the_recipe_says(insert, places):
    posterior = bn.fit(MCDropout(epochs=1, insert=insert, rate=0.25), problem(), data(), engine=ENGINE)
    lines = posterior.info["notes"][0]
    assert lines[0] == f"dropout of rate 0.25, before {places}"
    assert lines[1] == f"the prior is weight decay {1 / 24:.3g} per example, over the share kept"
    first = posterior.predict(data().inputs, samples=30).outputs[0]
    assert float(first.std(0).min()) > 0


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kind", ["centred", "family", "heavy tails"])
def test_the_share_kept_counts_under_priors_that_are_not_weight_decay(kind, learned):
    model = problem().network
    zeros = {n: torch.zeros(shape).double() for n, shape in model.params.items()}
    other = {
        "centred": bn.priors.Normal(scale=0.7, centre=zeros),
        "family": bn.priors.FromFamily(
            family=bn.families.Diagonal(zeros, {n: torch.full_like(x, 0.7) for n, x in zeros.items()}, {})
        ),
        "heavy tails": bn.priors.StudentT(df=1e9, scale=0.7),
    }[kind]
    recipe = MCDropout(epochs=4, batch_size=None, rate=0.4, insert="before", learned=learned)
    first, second = (
        bn.fit(recipe, bn.Problem(plain, bn.likelihoods.Categorical(), prior), data(), engine=ENGINE)
        for prior in (bn.priors.Normal(scale=0.7), other)
    )
    torch.testing.assert_close(second.mean(), first.mean(), rtol=1e-6, atol=1e-7)


class WithNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, 3)
        self.double()

    def forward(self, x):
        return self.b(self.drop(torch.relu(self.norm(self.a(x)))))


def test_only_dropout_is_on_in_prediction_and_its_masks_are_an_inputs_own():
    posterior = bn.fit(MCDropout(epochs=2), problem(WithNorm), data(), engine=ENGINE)
    inputs = data().inputs
    all_, few = posterior.predict(inputs, samples=6).outputs, posterior.predict(inputs[:3], samples=6).outputs
    torch.testing.assert_close(all_[:, :, :3], few)  # batch statistics would depend on the other inputs
    module = posterior.module()
    hidden = torch.relu(module.norm(module.a(inputs[:1])))
    possible = {tuple((module.b(hidden * torch.tensor(mask) / 0.6)[0]).round(decimals=6).tolist())
                for mask in product((0.0, 1.0), repeat=6)}  # fmt: skip
    drawn = posterior.predict(inputs[:1], samples=20).outputs[0, :, 0]
    assert all(tuple(row.round(decimals=6).tolist()) in possible for row in drawn)


def test_the_rate_of_layers_that_are_there_can_be_changed():
    start = bn.Posterior.of(WithNorm(), problem(WithNorm))
    still = {"epochs": 1, "optimizer": SGD(lr=0.0)}
    own = bn.fit(MCDropout(**still), problem(WithNorm), data(), start=start, engine=ENGINE)
    less = bn.fit(MCDropout(rate=0.01, **still), problem(WithNorm), data(), start=start, engine=ENGINE)
    spread = [float(p.predict(data().inputs, samples=50).outputs.std(1).mean()) for p in (own, less)]
    assert spread[1] < 0.5 * spread[0]


class Attends(nn.Module):
    def __init__(self, inner: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=inner, batch_first=True)
        self.head = nn.Linear(4, 3)
        self.double()

    def forward(self, x):
        rows = x.reshape(len(x), 2, 4)
        return self.head(self.attention(rows, rows, rows)[0].mean(1))


def test_attention_has_its_own_dropout_on():
    sequences = data(width=8)
    posterior = bn.fit(MCDropout(epochs=1), problem(lambda: Attends(0.5)), sequences, engine=ENGINE)
    outputs = posterior.predict(sequences.inputs, samples=10).outputs
    assert float(outputs.std(1).min()) > 0
    assert "notes" in posterior.info and "before" not in posterior.info["notes"][0][0]
    less = bn.fit(MCDropout(epochs=1, rate=1e-3), problem(lambda: Attends(0.5)), sequences, engine=ENGINE)
    assert float(less.predict(sequences.inputs, samples=10).outputs.std(1).mean()) < 0.2 * float(outputs.std(1).mean())


@pytest.mark.slow
def test_learned_rates_are_the_same_compiled(monkeypatch):
    """The compiler asks the key about uniform numbers too; its front end is enough to see that."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    recipe = MCDropout(epochs=1, batch_size=16, insert="before", learned=True)
    plain, compiled = (
        bn.fit(recipe, problem(), data(), members=2, engine=replace(STACKED, compile=c)) for c in (False, True)
    )
    for one, other in zip(plain.points(), compiled.points()):
        torch.testing.assert_close(ravel(one.params), ravel(other.params))


@pytest.mark.parametrize("learned", [False, True])
def test_masks_that_are_held_make_each_draw_one_function(learned):
    inputs = data().inputs[:1].repeat(7, 1)
    for held in (False, True):
        recipe = MCDropout(epochs=1, insert="before", rate=0.4, learned=learned, held=held)
        posterior = bn.fit(recipe, problem(), data(), engine=ENGINE)
        outputs = posterior.predict(inputs, samples=12).outputs[0]  # (S, B, C)
        same = bool((outputs == outputs[:, :1]).all())
        assert same == held and float(outputs.std(0).min()) > 0
        torch.testing.assert_close(posterior.predict(inputs, samples=12, batch_size=2).outputs[0], outputs)


def test_learned_rates_move_and_are_reported_saved_and_used(tmp_path):
    recipe = MCDropout(epochs=60, insert="before", learned=True, rate=0.3, batch_size=None)
    posterior = bn.fit(recipe, problem(), data(), members=2, engine=ENGINE)
    rates = posterior.info["curves"]["rates"]
    assert posterior.info["curves"]["rate_names"][0] == ["0", "2", "4"]
    assert all(0 < p < 1 and abs(p - 0.3) > 0.005 for row in rates for p in row)
    posterior.save(tmp_path / "saved")
    again = bn.load(tmp_path / "saved", plain)
    assert torch.equal(again.predict(data().inputs).outputs, posterior.predict(data().inputs).outputs)
    family = take(posterior.parts[0].family, 0)
    assert set(family.params) == set(problem().network.params) and "0.rate" in family.buffers


def test_learned_rates_feel_the_prior_of_the_weights_behind_them():
    """The prior's energy of a weight grows as 1 / (1 - p): a narrow prior holds rates down."""
    start = problem().init(KEY)
    rates = []
    for scale in (3.0, 0.1):
        one = bn.Problem(plain, bn.likelihoods.Categorical(), bn.priors.Normal(scale=scale))
        recipe = MCDropout(epochs=5, insert="before", learned=True, rate=0.3, batch_size=None)
        given = bn.Posterior.of(one.network.at(start), one)
        rates.append(bn.fit(recipe, one, data(), start=given, engine=ENGINE).info["curves"]["rates"][0])
    assert all(narrow < wide - 1e-4 for wide, narrow in zip(*rates))


def test_a_list_of_rates_trains_a_member_with_each():
    swept = bn.fit(MCDropout(epochs=2, rate=[0.1, 0.5]), problem(), data(), members=2, engine=STACKED)
    alone = bn.fit(MCDropout(epochs=2, rate=0.5), problem(), data(), members=2, engine=STACKED)
    torch.testing.assert_close(swept[1].predict(data().inputs).outputs, alone[1].predict(data().inputs).outputs)


def test_a_draw_is_not_a_set_of_params():
    posterior = bn.fit(MCDropout(epochs=1), problem(), data(), engine=ENGINE)
    with pytest.raises(ValueError, match="a draw of MCDropout is a mask"):
        posterior.sample(2)


@pytest.mark.parametrize(
    ("options", "net", "message"),
    [
        ({"rate": 0.0}, plain, "expected a rate between 0 and 1"),
        ({"rate": 1.0}, plain, "expected a rate between 0 and 1"),
        ({"rate": -0.1}, plain, "expected a rate between 0 and 1"),
        ({"insert": "inside"}, plain, "expected insert 'before', 'after' or None"),
        ({"patience": 0}, plain, "expected patience of at least 1"),
        ({"insert": "after"}, lambda: nn.Linear(4, 3).double(), "with a hidden layer to put dropout at"),
        ({}, lambda: nn.PReLU(3).double(), "linear layer or convolution to put dropout at"),
        ({"learned": True}, WithNorm, "learned=True is for dropout that is put into the network"),
    ],
)
def test_impossible_recipes_are_refused(options, net, message):
    with pytest.raises(ValueError, match=message):
        bn.fit(MCDropout(**options), problem(net), data(width=3 if "PReLU" in str(net()) else 4), engine=ENGINE)


def test_on_digits_it_is_less_sure_of_what_it_has_not_seen():
    splits = bn.datasets.load("digits")
    net = lambda: bn.networks.MLP(64, 10, hidden=(60,), dropout=0.3)  # noqa: E731
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)
    posterior = bn.fit(MCDropout(epochs=30), bn.Problem(net, bn.likelihoods.Categorical()), splits.train, engine=engine)
    predictive = posterior.predict(splits.test.inputs)
    assert float((predictive.probs.argmax(-1) == splits.test.targets).double().mean()) > 0.92
    away = posterior.predict(torch.flip(splits.test.inputs, (1,)))
    assert float(away.epistemic.mean()) > 1.5 * float(predictive.epistemic.mean())
