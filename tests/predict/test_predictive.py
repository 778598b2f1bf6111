"""What predictions of all kinds share: axes, weights, slices."""

import pytest
import torch

from basinet.core.noise import Noise
from basinet.predict import ClassPredictive, CountPredictive, LabelPredictive, RealPredictive, make_predictive
from basinet.problem.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Likelihood, Poisson

OUTPUTS = Noise.seed(0).normal(torch.empty(3, 2, 5, 4, dtype=torch.float64))  # (M, S, B, C)
WEIGHTS = torch.tensor([[1.0, 3.0], [0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)


def both(weights=None):
    return [
        ClassPredictive(OUTPUTS, Categorical(), {}, weights),
        RealPredictive(
            OUTPUTS, Gaussian(learned=True), {"log_noise": torch.arange(6.0).reshape(3, 2).double()}, weights
        ),
    ]


def quantities(predictive) -> list[torch.Tensor]:
    parts = [predictive.aleatoric, predictive.between, predictive.within, predictive.epistemic]
    if isinstance(predictive, ClassPredictive):
        return [*parts, predictive.probs, predictive.entropy, predictive.log_prob(torch.tensor([0, 1, 2, 3, 0]))]
    y = OUTPUTS[0, 0] + 1
    return [*parts, predictive.mean, predictive.variance, predictive.log_prob(y), predictive.quantile(0.3)]


def same(a, b):
    for x, y in zip(quantities(a), quantities(b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def test_the_likelihood_decides_the_kind():
    assert isinstance(make_predictive(OUTPUTS, Categorical(), {}), ClassPredictive)
    assert isinstance(make_predictive(OUTPUTS, Gaussian(), {}, WEIGHTS), RealPredictive)

    class Neither(Likelihood):
        def log_density(self, outputs, targets, learned):
            return outputs

        def check(self, outputs, targets):
            pass

        def sample(self, outputs, learned, noise):
            return outputs

    assert isinstance(make_predictive(OUTPUTS, Bernoulli(), {}), LabelPredictive)
    assert isinstance(make_predictive(OUTPUTS, Heteroscedastic(), {}), RealPredictive)
    assert isinstance(make_predictive(OUTPUTS, Poisson(), {}), CountPredictive)
    with pytest.raises(TypeError, match=r"expected one of ClassLikelihood, .*CountLikelihood, got Neither"):
        make_predictive(OUTPUTS, Neither(), {})


@pytest.mark.parametrize("predictive", both())
def test_lengths_count_members_and_samples(predictive):
    assert len(predictive) == 3 and predictive.samples == 2
    torch.testing.assert_close(predictive.mass, torch.full((3, 2), 1 / 6, dtype=torch.float64))


@pytest.mark.parametrize("predictive", both(WEIGHTS))
def test_weights_are_normalised_over_members_and_within_them(predictive):
    torch.testing.assert_close(predictive.mass, WEIGHTS / 8)
    member, inside = predictive.member_mass()
    assert member.tolist() == [0.5, 0.0, 0.5]
    assert inside.tolist() == [[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize("kind", [0, 1])
def test_equal_weights_are_no_weights_at_any_scale(kind):
    same(both(torch.full((3, 2), 7.0))[kind], both()[kind])


@pytest.mark.parametrize("kind", [0, 1])
def test_members_without_weight_do_not_count(kind):
    same(both(WEIGHTS)[kind], both(WEIGHTS)[kind][[0, 2]])


@pytest.mark.parametrize("kind", [0, 1])
def test_a_sample_of_twice_the_weight_is_that_sample_twice(kind):
    twice = both()[kind]
    index = torch.tensor([0, 1, 1])
    learned = {n: x[:, index] for n, x in twice.learned.items()}
    repeated = type(twice)(OUTPUTS[:, :, :][:, index], twice.likelihood, learned)
    weights = torch.tensor([[1.0, 2.0]]).expand(3, 2)
    same(both(weights)[kind], repeated)


@pytest.mark.parametrize("kind", [0, 1])
def test_slices_are_the_predictives_of_their_members(kind):
    whole = both(torch.arange(1.0, 7.0).reshape(3, 2))[kind]
    for index, rows in ((1, [1]), (-1, [2]), (slice(1, None), [1, 2]), ([2, 0], [2, 0]), (torch.tensor([1]), [1])):
        part = whole[index]
        assert type(part) is type(whole) and torch.equal(part.outputs, OUTPUTS[rows])
        assert torch.equal(part.weights, whole.weights[rows])
        learned = {n: x[rows] for n, x in whole.learned.items()}
        same(part, type(whole)(OUTPUTS[rows], whole.likelihood, learned, whole.weights[rows]))
    assert whole[torch.tensor(1)].outputs.shape == (1, 2, 5, 4)


@pytest.mark.parametrize("predictive", both())
@pytest.mark.parametrize("index", [3, -4, slice(3, None), []])
def test_members_that_do_not_exist_are_an_error(predictive, index):
    with pytest.raises(IndexError, match=r"one of the 3 members, 0 to 2, got|at least one of 3 members|with 3 members"):
        predictive[index]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(2, 3), r"expected weights \(members, samples\) \(3, 2\), got \(2, 3\)"),
        (torch.ones(3), r"expected weights \(members, samples\) \(3, 2\), got \(3,\)"),
        (torch.zeros(3, 2), "non-negative weights of which one at least is positive"),
        (torch.tensor([[1.0, -1.0]] * 3), "non-negative weights"),
        (torch.full((3, 2), torch.nan), "non-negative weights"),
    ],
)
def test_impossible_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        make_predictive(OUTPUTS, Categorical(), {}, weights)


def test_only_members_without_weight_are_an_error_and_not_nan():
    with pytest.raises(ValueError, match="one at least is positive"):
        both(WEIGHTS)[0][1]


@pytest.mark.parametrize("kind", [0, 1])
def test_one_member_has_nothing_between_and_one_sample_nothing_within(kind):
    whole = both()[kind]
    assert float(whole[0].between.abs().max()) < 1e-12 and float(whole[0].within.min()) > 0
    learned = {n: x[:, :1] for n, x in whole.learned.items()}
    single = type(whole)(OUTPUTS[:, :1], whole.likelihood, learned)
    assert float(single.within.abs().max()) < 1e-12 and float(single.between.min()) > 0


@pytest.mark.parametrize("predictive", both(WEIGHTS) + both(WEIGHTS.flip((0, 1))))
def test_draws_come_from_members_with_weight_even_at_the_edges(predictive, monkeypatch):
    for u in (0.0, 1 - 2.0**-53):
        monkeypatch.setattr(Noise, "uniform", lambda self, like, u=u: torch.full_like(like, u))
        m, s, b = predictive.choose(2, Noise.seed(0))
        assert m.shape == s.shape == b.shape == (2, 5)
        assert bool((predictive.weights[m, s] > 0).all())
        assert b.tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("shape", "likelihood", "printed"),
    [
        (
            (3, 1, 5, 4),
            Categorical(),
            "ClassPredictive(3 members x 1 sample x 5 inputs x 4, Categorical())",
        ),
        ((1, 2, 1, 1), Poisson(), "CountPredictive(1 member x 2 samples x 1 input x 1, Poisson())"),
    ],
)
def test_a_predictive_prints_itself_in_one_line(shape, likelihood, printed):
    assert repr(make_predictive(torch.zeros(shape), likelihood, {})) == printed


def test_missing_attributes_of_another_kind_of_prediction_are_explained():
    numbers = make_predictive(torch.zeros(2, 1, 3, 1), Gaussian(noise=2.0), {})
    classes = make_predictive(torch.zeros(2, 1, 3, 4), Categorical(), {})
    assert torch.equal(numbers.sd, torch.full((3, 1), 2.0))
    for name in ("probs", "entropy", "conformal_set"):
        with pytest.raises(AttributeError, match=rf"under Gaussian.* have no {name}: those of classes and labels"):
            getattr(numbers, name)
    for name in ("mean", "variance", "sd", "conformal_interval"):
        with pytest.raises(AttributeError, match=rf"under Categorical\(\) have no {name}: .* those of numbers mean"):
            getattr(classes, name)
    for name, argument in (("interval", 0.9), ("quantile", 0.5), ("cdf", torch.zeros(3))):
        with pytest.raises(AttributeError, match=f"have no {name}"):
            getattr(classes, name)(argument)
    assert not hasattr(numbers, "probs")
