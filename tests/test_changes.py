"""Run lengths against the sum over all ways to cut a stream, and what is kept of them."""

import itertools
import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import leaves, ravel
from basinet.testing.exact import conjugate

EXACT = conjugate()
X, Y = EXACT.data.inputs, EXACT.data.targets


def log_evidence(rows):
    """Of one run, from the normal distribution of its targets."""
    x, y = X[rows], Y[rows]
    covariance = 1.5**2 * x @ x.T + 0.25 * torch.eye(len(x)).double()
    return float(torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), covariance).log_prob(y))


def test_the_weights_are_those_of_all_ways_to_cut_the_stream():
    hazard, batches, size = 0.2, 5, 2
    stream = bn.RunLength(bn.online(bn.Kalman(), EXACT.problem), hazard, keep=batches)
    for b in range(batches):
        stream = stream.update((X[b * size : b * size + size], Y[b * size : b * size + size]))
    truth = dict.fromkeys(range(1, batches + 1), 0.0)
    for cuts in itertools.product((False, True), repeat=batches - 1):
        edges = [0, *(b for b, cut in enumerate(cuts, 1) if cut), batches]
        log_p = sum(math.log(hazard if cut else 1 - hazard) for cut in cuts)
        log_p += sum(log_evidence(slice(a * size, b * size)) for a, b in itertools.pairwise(edges))
        truth[batches - edges[-2]] += math.exp(log_p)
    total = sum(truth.values())
    assert stream.lengths == pytest.approx({r: p / total for r, p in truth.items()}, abs=1e-9)
    weights, each = stream.posterior.weights, [run.predict(X[:3]).mean for run in stream.runs]
    torch.testing.assert_close(stream.posterior.predict(X[:3]).mean, sum(w * m for w, m in zip(weights, each)))


def changing(n=120):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
    before, after = torch.tensor([1.0, -1.0, 0.5]).double(), torch.tensor([-1.0, 1.0, 0.5]).double()
    y = torch.where(torch.arange(n) < n // 2, x @ before, x @ after)
    return x, y + 0.5 * torch.randn(n, dtype=torch.float64, generator=generator)


def test_a_change_is_found_and_what_is_kept_does_not_grow():
    x, y = changing()
    stream = bn.RunLength(bn.online(bn.Kalman(), EXACT.problem), 0.01, keep=4)
    held, likely = [], []
    for part in torch.arange(120).split(5):
        stream = stream.update((x[part], y[part]))
        held.append(sum(t.numel() for run in (stream.prior, *stream.runs) for t in leaves(run.parts[0].family)))
        likely.append(max(stream.lengths, key=stream.lengths.__getitem__))
    assert set(held[4:]) == {5 * (3 + 9)}  # of the prior and four runs: a mean and a factor each
    assert likely[11] == 12 and likely[-1] == 12
    assert sum(stream.lengths.values()) == pytest.approx(1.0)


def test_it_resumes_from_a_file(tmp_path):
    x, y = changing(60)
    prior = bn.online(bn.Kalman(), EXACT.problem)
    stream = bn.RunLength(prior, keep=3)
    for part in torch.arange(30).split(5):
        stream = stream.update((x[part], y[part]))
    stream.posterior.save(tmp_path / "half")
    saved = bn.load(tmp_path / "half", lambda: nn.Linear(3, 1, bias=False, dtype=torch.float64))
    again = bn.RunLength(prior, keep=3).resumed(saved)
    straight, resumed = (s.update((x[30:35], y[30:35])) for s in (stream, again))
    assert resumed.lengths == pytest.approx(straight.lengths, abs=1e-12)
    torch.testing.assert_close(
        ravel(resumed.posterior.parts[0].family.mean().params), ravel(straight.posterior.parts[0].family.mean().params)
    )


def test_rows_without_targets_change_no_weight():
    stream = bn.RunLength(bn.online(bn.Kalman(), EXACT.problem)).update((X[:5], Y[:5])).update((X[5:9], Y[5:9]))
    after = stream.update((X[:2], torch.full((2,), torch.nan).double()))
    assert after.log_weights == stream.log_weights and after.runs[0].info["online"]["skipped"] == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: bn.RunLength(p, hazard=0.0), "expected a hazard"),
        (lambda p: bn.RunLength(p, keep=0), "at least 1 hypothesis"),
        (lambda p: bn.RunLength(p.update((X, Y))), "before any data"),
        (lambda p: bn.RunLength(bn.online(bn.Kalman(), EXACT.problem, members=2)), "of one member"),
    ],
)
def test_what_means_nothing_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make(bn.online(bn.Kalman(), EXACT.problem))
