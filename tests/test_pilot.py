"""Short trainings choose between problems: noise that is the same everywhere, and noise that is not."""

import re

import pytest
import torch

import basinet as bn
from basinet import pilot as module
from basinet.defaults import Design, candidates_for, problem_for
from basinet.optim import Adam, Cosine
from basinet.pilot import Losses, pilot

CPU = bn.Engine(device="cpu", progress=False)
FAST = bn.MAP(optimizer=Adam(lr=Cosine(peak=1e-2)))


def table(noise, n=600):
    """A sum of two inputs with noise of a size that the first decides, cut into training and validation."""
    key = torch.Generator().manual_seed(0)
    x = torch.rand(n, 3, generator=key) * 2 - 1
    y = x[:, :1] + x[:, 1:2] + noise(x[:, :1]) * torch.randn(n, 1, generator=key)
    return bn.Data(x[: n // 2], y[: n // 2]), bn.Data(x[n // 2 :], y[n // 2 :])


def candidates(data, **given):
    return candidates_for(data.inputs, 1, "real", Design(hidden=(16,), **given))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "chosen"),
    [(lambda x: (3 * x).exp() / 20, "Heteroscedastic"), (lambda x: 0.3 * torch.ones_like(x), "Gaussian")],
)
def test_the_noise_model_of_the_data_is_chosen(noise, chosen, tmp_path):
    data, val = table(noise)
    problem, _, line = pilot(candidates(data), data, val, recipe=FAST, engine=CPU, pool=tmp_path)
    assert type(problem.likelihood).__name__ == chosen
    assert line.startswith(module.IN_WORDS[chosen]) and ", by validation: CRPS " in line and ", against " in line
    apart = re.findall(r"([+-][\d.e-]+) ± ([\d.e-]+)\) with", line)
    assert apart and all(float(x) > 0 and float(error) > 0 for x, error in apart[:1])  # what was chosen is better
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gaussian", "heteroscedastic"]


def classes_of(n, flips, key=0):
    """Two classes by a threshold of one input of eight, of which a share is the other one."""
    draws = torch.Generator().manual_seed(key)
    x = torch.randn(n, 8, generator=draws)
    return bn.Data(x, (x[:, 0] > 0).long() ^ (torch.rand(n, generator=draws) < flips).long())


def test_of_classes_the_network_and_the_step_size_are_chosen(tmp_path):
    data, val = classes_of(200, 0.2), classes_of(100, 0.2, 1)
    several = candidates_for(data.inputs, 2, "classes")
    assert [type(p.network.module).__name__ for p in several] == ["MLP", "TableNet"]
    problem, recipe, line = pilot(several, data, val, engine=CPU, pool=tmp_path)
    assert line.startswith(module.IN_WORDS[type(problem.network.module).__name__] + " and step size 3e-4")
    assert line.count(" with ") == line.count(" ± ") == 5  # two networks at three step sizes
    assert " nats after " in line and module.in_a_line(recipe) == "MAP, step size 3e-4"
    assert recipe.optimizer.lr.peak < bn.MAP().optimizer.lr.peak  # what a small noisy table asks for
    assert {path.name for path in tmp_path.iterdir()} == {"mlp-rates", "tablenet-rates"}
    own = bn.MAP(optimizer=Adam(lr=1e-2), epochs=3)
    assert pilot(several, data, val, recipe=own, engine=CPU).recipe == own  # the user's own step size stays
    unjudged = pilot(several, data, val.take(slice(0, module.FEWEST - 1)), engine=CPU)
    assert (unjudged.problem, unjudged.line) == (several[0], "")
    assert unjudged.recipe.optimizer.lr.peak == pytest.approx(0.0003)  # careful, where nothing can be chosen


def test_of_classes_what_is_careful_is_taken_unless_it_is_clearly_worse(monkeypatch):
    """Losses that are given for each network and step size."""
    data, val = classes_of(60, 0.2), classes_of(40, 0.2, 1)
    several = candidates_for(data.inputs, 2, "classes")
    wobble = torch.linspace(-1, 1, 40, dtype=torch.float64)

    def chosen(best):
        """Of six, all of them at 0.7 but one, which is better by `best` on average."""

        def at(self, factors, problem):
            gain = [best if (f == 1.0 and problem is several[1]) else 0.0 for f in factors]
            level = {f: 0.7 - g * (1 + wobble) for f, g in zip(factors, gain)}
            return {f: Losses(nll, nll) for f, nll in level.items()}

        monkeypatch.setattr(module._Runs, "at", at)
        problem, recipe, _ = pilot(several, data, val, engine=CPU)
        return type(problem.network.module).__name__, recipe.optimizer.lr.peak

    assert chosen(0.0) == ("MLP", pytest.approx(0.0003))
    assert chosen(0.3) == ("TableNet", pytest.approx(0.003))


@pytest.mark.slow
def test_the_default_for_a_small_noisy_table_of_classes_is_not_worse_than_a_constant():
    """At the default step size it was: it learned such a table by heart before the second look at validation."""
    data, val, test = classes_of(130, 0.3), classes_of(25, 0.3, 1), classes_of(4000, 0.3, 2)
    chosen = pilot(candidates_for(data.inputs, 2, "classes"), data, val, engine=CPU)
    today = bn.fit(chosen.recipe, chosen.problem, data, val=val, members=5, engine=CPU)
    before = bn.fit(bn.MAP(), problem_for(data.inputs, 2, "classes"), data, val=val, members=5, engine=CPU)
    constant = 0.6931
    assert bn.score(today, test)["nll"] < constant + 0.01 < bn.score(before, test)["nll"]


def test_a_pilot_is_no_longer_than_what_follows(tmp_path):
    data, val = table(lambda x: 0.1 + 0 * x, 100)
    problem, _, line = pilot(candidates(data), data, val, recipe=bn.MAP(epochs=2, batch_size=25), engine=CPU)
    assert "after 4 steps" in line and problem.likelihood in {p.likelihood for p in candidates(data)}
    assert pilot(candidates(data), data, val, recipe=bn.MAP(epochs=0), engine=CPU).line == ""


def test_without_a_choice_the_first_is_taken():
    data, val = table(lambda x: 0.1 + 0 * x, 100)
    several = candidates(data)
    assert [type(p.likelihood).__name__ for p in several] == ["Heteroscedastic", "Gaussian"]
    for held in (None, val.take(slice(0, 10))):
        assert pilot(several, data, held, engine=CPU) == (several[0], bn.MAP(), "")
    own = candidates(data, likelihood=bn.likelihoods.StudentT(scale=0.5, learned=True))
    assert len(own) == 1 and pilot(own, data, val, engine=CPU).problem is own[0]
    images = candidates_for(data.inputs, 3, "classes", table=False)
    assert len(images) == 1 and type(images[0].likelihood).__name__ == "Categorical"
    assert candidates_for(data.inputs, 1, "real", Design(lambda i, o: torch.nn.Linear(i, o)))[0].likelihood.learned


def test_the_first_candidate_is_what_problem_for_gives():
    data, _ = table(lambda x: 0.1 + 0 * x, 100)
    first, plain = candidates(data)[0], problem_for(data.inputs, 1, "real", Design(hidden=(16,)))
    assert first.likelihood == plain.likelihood and first.prior.scale == plain.prior.scale == 3.0


@pytest.fixture
def few_steps(monkeypatch):
    """A pilot of 30 steps, from a step size with which they come to nothing."""
    tiny = Adam(lr=Cosine(peak=1e-4))
    monkeypatch.setattr(module, "STEPS", 30)
    monkeypatch.setattr(module, "RATES", (1 / 3, 100.0))
    monkeypatch.setattr(module, "USUAL", tiny)
    return bn.MAP(optimizer=tiny)


def test_a_recipe_is_said_with_its_step_size_by_name():
    rated = bn.MAP(epochs=5, optimizer=Adam(lr=Cosine(peak=3e-4)))
    assert module.in_a_line(rated) == "MAP(epochs=5), step size 3e-4" and module.in_a_line(bn.MAP()) == "MAP"
    for other in (bn.MAP(optimizer=Adam(lr=0.1)), bn.MAP(optimizer=Adam(lr=Cosine(peak=[1e-3, 1e-2]))), bn.SWAG()):
        assert "step size" not in module.in_a_line(other)


def test_a_step_size_that_is_far_better_is_taken(few_steps):
    data, val = table(lambda x: 0.1 + 0 * x, 400)
    _, recipe, line = pilot(candidates(data), data, val, recipe=few_steps, engine=CPU)
    assert recipe == bn.MAP(optimizer=Adam(lr=Cosine(peak=1e-2)))
    assert "; step size 1e-2: NLL " in line and " with 1e-4" in line and " with 3.33e-5" in line
    assert module.with_step_of(bn.EMA(), recipe) == bn.EMA()  # it had another
    assert module.with_step_of(few_steps, recipe) == recipe
    assert module.with_step_of(bn.Laplace(base=few_steps), recipe).base == recipe
    assert module.with_step_of(bn.Laplace(), few_steps) == bn.Laplace()
    given = bn.MAP(epochs=3)
    assert pilot(candidates(data), data, val, recipe=given, engine=CPU).recipe is given


@pytest.mark.parametrize(("gain", "chosen"), [(0.5, 0), (0.05, 1), (-0.5, 1)])
def test_predicted_noise_has_to_be_better_by_more_than_a_standard_error(gain, chosen):
    """Of 100 validation rows whose CRPS differ by 1 on average, from one noise to the other: a standard error of .1."""
    both = candidates_for(torch.randn(50, 3), 1, "real")[:2]  # predicted, and of one size
    predicted = torch.linspace(1, 2, 100, dtype=torch.float64)
    swing = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(50)
    losses = {both[0]: Losses(predicted, predicted), both[1]: Losses(predicted + gain + swing, predicted)}
    assert module._best_noise(losses) is both[chosen]


def test_a_lower_loss_that_was_not_chosen_is_explained():
    now, lower, higher = (module.Losses(torch.tensor([x]), torch.tensor([x])) for x in (1.0, 0.9, 1.1))
    assert module._by_chance({"a": lower, "b": higher}, now) == "; none is significantly better"
    assert module._by_chance({"b": higher}, now) == ""
