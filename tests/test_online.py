"""`bn.online` and `posterior.update`: what goes in, what is refused, and resuming from a file."""

import numpy as np
import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import leaves, ravel
from basinet.testing.exact import conjugate

EXACT = conjugate()
X, Y = EXACT.data.inputs, EXACT.data.targets
QUIET = bn.Engine(progress=False)


def linear():
    return nn.Linear(3, 1, bias=False, dtype=torch.float64)


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def tensors(posterior):
    return [x.clone() for x in leaves(posterior.parts[0].family)]


def test_before_any_data_it_is_the_prior():
    posterior = bn.online(bn.Kalman(), EXACT.problem)
    predictive = posterior.predict(X)
    torch.testing.assert_close(predictive.mean, torch.zeros(40, 1).double())
    torch.testing.assert_close(predictive.variance.squeeze(-1), 1.5**2 * X.square().sum(1) + 0.25)
    assert posterior.info["online"] == {"rows": 0, "skipped": 0, "batches": 0, "inputs": None}


def test_an_update_leaves_the_posterior_as_it_was():
    first = bn.online(bn.EKF(), bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5)))
    before = tensors(first)
    second = first.update((X, Y))
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(first)))
    assert not torch.equal(ravel(first.mean()), ravel(second.mean()))
    assert first.info["online"]["rows"] == 0 and second.info["online"]["rows"] == 40


def test_data_tensors_and_arrays_are_the_same_batch():
    start = bn.online(bn.Kalman(), EXACT.problem)
    given = [EXACT.data, (X, Y), (X.numpy(), Y.numpy()), [X, Y]]
    means = [ravel(start.update(batch).mean()) for batch in given]
    assert all(torch.equal(m, means[0]) for m in means)


def test_rows_without_a_target_are_skipped_and_counted():
    y = Y.clone()
    y[[3, 17]] = torch.nan
    known = ~y.isnan()
    posterior = bn.online(bn.Kalman(), EXACT.problem)
    for batch in ((X, y), (X.numpy(), y.numpy())):
        updated = posterior.update(batch)
        torch.testing.assert_close(updated.mean(), posterior.update((X[known], Y[known])).mean())
        assert updated.info["online"] | {"inputs": None} == {"rows": 38, "skipped": 2, "batches": 1, "inputs": None}
    nothing = updated.update((X[:2], torch.full((2,), torch.nan).double()))
    assert nothing.info["online"]["skipped"] == 4 and nothing.info["online"]["batches"] == 1
    assert torch.equal(ravel(nothing.mean()), ravel(updated.mean()))


@pytest.mark.parametrize(
    ("batch", "kind", "says"),
    [
        ((X[:0], Y[:0]), ValueError, "at least one row"),
        ((X[:, :2], Y), ValueError, "columns of a stream must stay the same"),
        ((X, Y[:5]), ValueError, "5"),
        ((X * torch.nan, Y), ValueError, "NaN"),
        ((X, torch.zeros(40, dtype=torch.long)), ValueError, "floating-point targets"),
        (X, TypeError, "expected a batch as"),
        ((X, 1.0), ValueError, "leading axis"),
        (bn.Data(X, Y, rows=torch.zeros(1, 4, dtype=torch.long)), ValueError, "rows"),
        (bn.Data.stream([(X, Y)], 40), TypeError, "one batch"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(batch, kind, says):
    posterior = bn.online(bn.Kalman(), EXACT.problem).update((X, Y))
    with pytest.raises(kind, match=says):
        posterior.update(batch)


def test_the_first_batch_must_fit_the_network():
    with pytest.raises(ValueError, match="does not run on the data"):
        bn.online(bn.Kalman(), EXACT.problem).update((X[:, :2], Y))


def test_what_is_not_a_filter_is_refused():
    with pytest.raises(TypeError, match="expected a filter"):
        bn.online(bn.MAP(), EXACT.problem)
    fitted = bn.fit(bn.MAP(epochs=1), EXACT.problem, EXACT.data, engine=QUIET)
    with pytest.raises(TypeError, match="update is for the posterior of a filter"):
        fitted.update((X, Y))
    one = bn.online(bn.Kalman(), EXACT.problem)
    with pytest.raises(TypeError, match="a mixture"):
        bn.mix([one, fitted]).update((X, Y))


@pytest.mark.parametrize(
    ("recipe", "problem", "says"),
    [
        (bn.EKF(), bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5), bn.priors.Laplace(scale=1.0)), "normal prior"),
        (bn.EKF(), bn.Problem(net, bn.likelihoods.Gaussian(learned=True)), "takes the noise as known"),
        (bn.Kalman(), bn.Problem(net, bn.likelihoods.Bernoulli()), "exact for normal noise"),
        (bn.EKF(where="head.*"), bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5)), "no parameter matches"),
    ],
)
def test_a_problem_that_no_filter_is_for_is_refused(recipe, problem, says):
    with pytest.raises(ValueError, match=says):
        bn.online(recipe, problem)


def test_kalman_refuses_outputs_that_are_not_linear():
    problem = bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5))
    with pytest.raises(ValueError, match="linear in the parameters, and these are not"):
        bn.online(bn.Kalman(), problem, start=bn.online(bn.EKF(), problem)).update((X, Y)).update((X, Y))


def test_a_noise_that_another_posterior_learned_is_known():
    problem = bn.Problem(net, bn.likelihoods.Gaussian(learned=True))
    start = bn.fit(bn.MAP(epochs=20), problem, EXACT.data, engine=QUIET)
    posterior = bn.online(bn.EKF(), problem, start=start).update((X, Y))
    name = "likelihood.log_noise"
    assert torch.equal(posterior.mean()[name], start.mean()[name])


@pytest.mark.parametrize("recipe", [bn.EKF(), bn.Laplace(base=bn.MAP(epochs=5))], ids=["EKF", "Laplace"])
def test_a_batch_of_one_class_is_learned_from(recipe):
    problem = bn.Problem(lambda: nn.Linear(3, 3).double(), bn.likelihoods.Categorical())
    posterior = bn.online(recipe, problem)
    for label in range(3):
        posterior = posterior.update((X[:8], torch.full((8,), label)))
    assert posterior.info["online"]["rows"] == 24
    with pytest.raises(ValueError, match=r"expects targets in 0 \.\.\. 2"):
        posterior.update((X[:8], torch.full((8,), 3)))


def test_targets_that_arrive_late_are_another_posterior_of_a_network():
    problem = bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5))
    start = bn.online(bn.EKF(), problem)
    in_time = start.update((X[:20], Y[:20])).update((X[20:], Y[20:]))
    late = start.update((X[20:], Y[20:])).update((X[:20], Y[:20]))  # linearised at other means
    assert float((ravel(in_time.mean()) - ravel(late.mean())).abs().max()) > 1e-4


def test_members_start_at_places_of_their_own_and_see_the_same():
    problem = bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5))
    pair = bn.online(bn.EKF(structure="diagonal"), problem, members=2).update((X, Y))
    one = bn.online(bn.EKF(structure="diagonal"), problem).update((X, Y))
    assert len(pair) == 2 and torch.equal(ravel(pair[0].mean()), ravel(one.mean()))
    assert not torch.equal(ravel(pair[0].mean()), ravel(pair[1].mean()))


@pytest.mark.parametrize(
    "recipe",
    [bn.EKF(drift=bn.filters.Forget(0.99)), bn.EKF(structure="decoupled"), bn.LOFI(rank=3), bn.EKF(where="2.*")],
    ids=["full", "decoupled", "LOFI", "last layer"],
)
def test_a_stream_resumes_from_a_file(recipe, tmp_path):
    posterior = bn.online(recipe, bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5))).update((X[:20], Y[:20]))
    posterior.save(tmp_path / "half")
    again = bn.load(tmp_path / "half", net)
    assert again.recipe == recipe and again.info["online"] == posterior.info["online"]
    straight, resumed = (p.update((X[20:], Y[20:])) for p in (posterior, again))
    assert all(torch.equal(a, b) for a, b in zip(tensors(straight), tensors(resumed)))
    assert resumed.info["online"] == {"rows": 40, "skipped": 0, "batches": 2, "inputs": [[3]]}
    with pytest.raises(bn.FileError, match="another model"):
        bn.load(tmp_path / "half", linear)


def test_targets_that_arrive_late_give_the_same_posterior_of_a_linear_model():
    late = np.array([1, 8, 30])
    known = np.setdiff1d(np.arange(40), late)
    posterior = bn.online(bn.Kalman(), EXACT.problem).update((X[known], Y[known])).update((X[late], Y[late]))
    torch.testing.assert_close(ravel(posterior.mean()), EXACT.mean)
