"""Short trainings choose between problems: noise that is the same everywhere, and noise that is not."""

import pytest
import torch

import basinet as bn
from basinet import pilot as module
from basinet.defaults import candidates_for, problem_for
from basinet.optim import Adam, Cosine
from basinet.pilot import pilot

CPU = bn.Engine(device="cpu", progress=False)
FAST = bn.MAP(optimizer=Adam(lr=Cosine(peak=1e-2)))


def table(noise, n=600):
    """A sum of two inputs with noise of a size that the first decides, cut into training and validation."""
    key = torch.Generator().manual_seed(0)
    x = torch.rand(n, 3, generator=key) * 2 - 1
    y = x[:, :1] + x[:, 1:2] + noise(x[:, :1]) * torch.randn(n, 1, generator=key)
    return bn.Data(x[: n // 2], y[: n // 2]), bn.Data(x[n // 2 :], y[n // 2 :])


def candidates(data, **given):
    return candidates_for(data.inputs, 1, "real", hidden=(16,), **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "chosen"),
    [(lambda x: (3 * x).exp() / 20, "Heteroscedastic"), (lambda x: 0.3 * torch.ones_like(x), "Gaussian")],
)
def test_the_noise_model_of_the_data_is_chosen(noise, chosen, tmp_path):
    data, val = table(noise)
    problem, line = pilot(candidates(data), data, val, recipe=FAST, engine=CPU, pool=tmp_path)
    assert type(problem.likelihood).__name__ == chosen
    assert line.startswith(module.IN_WORDS[chosen]) and ", by validation: CRPS " in line and ", against " in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gaussian", "heteroscedastic"]


def test_a_pilot_is_no_longer_than_what_follows(tmp_path):
    data, val = table(lambda x: 0.1 + 0 * x, 100)
    problem, line = pilot(candidates(data), data, val, recipe=bn.MAP(epochs=2, batch_size=25), engine=CPU)
    assert "after 4 steps" in line and problem.likelihood in {p.likelihood for p in candidates(data)}
    assert pilot(candidates(data), data, val, recipe=bn.MAP(epochs=0), engine=CPU).line == ""


def test_without_a_choice_the_first_is_taken():
    data, val = table(lambda x: 0.1 + 0 * x, 100)
    several = candidates(data)
    assert [type(p.likelihood).__name__ for p in several] == ["Heteroscedastic", "Gaussian"]
    for held in (None, val.take(slice(0, 10))):
        assert pilot(several, data, held, engine=CPU) == (several[0], "")
    own = candidates(data, likelihood=bn.likelihoods.StudentT(scale=0.5, learned=True))
    assert len(own) == 1 and pilot(own, data, val, engine=CPU).problem is own[0]
    classes = candidates_for(data.inputs, 3, "classes")
    assert len(classes) == 1 and type(classes[0].likelihood).__name__ == "Categorical"
    assert candidates_for(data.inputs, 1, "real", lambda i, o: torch.nn.Linear(i, o))[0].likelihood.learned


def test_the_first_candidate_is_what_problem_for_gives():
    data, _ = table(lambda x: 0.1 + 0 * x, 100)
    first, plain = candidates(data)[0], problem_for(data.inputs, 1, "real", hidden=(16,))
    assert first.likelihood == plain.likelihood and first.prior.scale == plain.prior.scale == 3.0
