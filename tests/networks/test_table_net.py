"""The network for tables: embeddings, robust scaling, stacking, saving."""

import math

import pytest
import torch

import basinet as bn
from basinet.defaults import problem_for
from basinet.networks import NumberEmbedding, TableNet
from basinet.networks.table import bins_for, edges_of, numbers_among


def inputs(n=200):
    """A normal number, a flag, a number with heavy tails, and one of three values."""
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=noise)
    x[:, 1] = (x[:, 1] > 0).float()
    x[:, 2] = x[:, 2].mul(4).exp()
    x[:, 3] = x[:, 3].clamp(-1, 1).round()
    return x


def test_numbers_are_inputs_of_more_than_two_values():
    assert numbers_among(inputs()) == (0, 2, 3)


def test_an_embedding_begins_linear_and_has_waves_and_pieces():
    torch.manual_seed(0)
    embedding = NumberEmbedding(2, features=3).fitted(inputs()[:, [0, 3]])
    x = torch.linspace(-5, 5, 11).unsqueeze(1).repeat(1, 2)
    assert torch.allclose(embedding(x).diff(n=2, dim=0), torch.zeros(9, 2, 3), atol=1e-5)
    with torch.no_grad():
        embedding.rises.fill_(1.0)
        embedding.weight.zero_()
        embedding.bias.zero_()
    inside = inputs()[:, [0, 3]].sort(0).values
    places = embedding(inside)[..., 0]
    bins = (embedding.edges.diff(dim=1) > 0).sum(1)
    assert bins[0] == 48 and bins[1] < 48  # few values make few bins
    assert torch.allclose(places[0], torch.zeros(2), atol=1e-5)
    assert torch.allclose(places[-1], bins.float(), atol=1e-4)  # the sum of all places counts bins
    assert (places.diff(dim=0) >= -1e-5).all()


def test_lines_go_through_every_value_of_a_number_that_repeats_itself():
    torch.manual_seed(0)
    values = torch.tensor([0.0, 1.0, 3.0, 3.5, 9.0])
    x = torch.stack([values.repeat(40), torch.linspace(0, 1, 200)], 1)
    assert bins_for(x, (0, 1)) == 48 and bins_for(x.repeat(5, 1), (0, 1)) == 62  # 1,000 rows, 16 for each bin
    assert bins_for(x.repeat(50, 1), (0, 1)) == 199  # between 200 values
    assert torch.equal(edges_of(x[:, 0], 48), values) and len(edges_of(x[:, 1], 199)) == 49
    embedding = NumberEmbedding(2, features=1).fitted(x)
    with torch.no_grad():
        embedding.rises.normal_()
        embedding.weight.zero_()
        embedding.bias.zero_()
    heights = torch.cat([torch.zeros(1), embedding.rises[0, :4, 0].cumsum(0)])  # at the values
    points = torch.tensor([0.0, 1.0, 3.0, 3.5, 9.0, 2.0, 9.0 + 5.5, -1.0])
    between, beyond, before = heights[[1, 2]].mean(), heights[4] + embedding.rises[0, 3, 0], -embedding.rises[0, 0, 0]
    expected = torch.cat([heights, torch.stack([between, beyond, before])])
    assert torch.allclose(embedding(points.unsqueeze(1).repeat(1, 2))[:, 0, 0], expected, atol=1e-5)


def test_as_many_bins_as_bounds_allow():
    x = torch.arange(2000.0).repeat(5).unsqueeze(1)
    assert bins_for(x, (0,)) == 512
    assert bins_for(x.repeat(1, 100), range(100)) == 2**14 // 100
    assert len(edges_of(x[:, 0].double(), 512)) == 513


def test_far_values_are_held_back_and_order_is_kept():
    net = TableNet(1, 1, features=0, hidden=(4,)).fitted(torch.linspace(-2, 2, 101).unsqueeze(1))
    x = torch.tensor([[-1e30], [-100.0], [0.0], [1.0], [100.0], [1e30]])
    scaled = net._scaled(x)[:, 0]
    assert (scaled.diff() > 0).all() and scaled.abs().max() < 100
    assert abs(scaled[2]) < 1e-6 and scaled[3] == pytest.approx(1.349 / 2, rel=1e-5)  # quartiles at -1 and 1


def test_one_outlier_does_not_move_the_others():
    x = torch.randn(500, 1, generator=torch.Generator().manual_seed(1))
    spoiled = x.clone()
    spoiled[0] = 1e6
    plain, robust = (TableNet(1, 1).fitted(a) for a in (x, spoiled))
    assert torch.allclose(plain.scale, robust.scale, rtol=0.05)


def test_outputs_shapes_and_which_inputs_are_embedded():
    x = inputs()
    net = TableNet(4, 2, (0, 2, 3), hidden=(16, 8)).fitted(x)
    assert net(x).shape == (200, 2) and net.others == (1,)
    assert net.embedding is not None and net.embedding.weight.shape == (3, 1 + 32, 8)
    assert net.embedding.rises.shape == (3, 48, 8)
    assert TableNet(4, 2, (), hidden=(8,))(x).shape == (200, 2)
    assert TableNet(4, 2, features=0, hidden=(8,)).embedding is None
    assert net(torch.full((1, 4), 1e30)).isfinite().all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TableNet(3, 1, (0, 3)), r"expected numbers among the inputs 0 to 2, got \[0, 3\]"),
        (lambda: TableNet(3, 1, hidden=()), "expected a hidden layer"),
        (lambda: NumberEmbedding(2, bins=0), "expected numbers, features and bins of at least 1"),
    ],
)
def test_what_does_not_make_a_network_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_members_stack_and_scales_are_saved_with_the_posterior(tmp_path):
    x = inputs()
    y = x[:, :1] + 0.1 * x[:, 1:2]
    problem = bn.Problem(
        lambda: TableNet(4, 2, (0, 2, 3), hidden=(8,)).fitted(x), bn.likelihoods.Heteroscedastic(learned=True)
    )
    recipe = bn.MAP(epochs=2, batch_size=50)
    stacked, looped = (
        bn.fit(
            recipe, problem, bn.Data(x, y), members=2, engine=bn.Engine(device="cpu", strategy=s, dtype=torch.double)
        )
        for s in ("stacked", "loop")
    )
    for a, b in zip(stacked.points(), looped.points()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-9) for n in a.params)
    stacked.save(tmp_path / "posterior")
    again = bn.load(tmp_path / "posterior", lambda: TableNet(4, 2, (0, 2, 3), hidden=(8,)))  # without the data
    assert torch.equal(again.predict(x.double()).mean, stacked.predict(x.double()).mean)


@pytest.mark.slow
def test_a_linear_table_with_little_noise_is_learned_to_its_noise():
    """RMSE .01 is the noise; the old default ended at .35."""
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 10, generator=noise)
    y = (x @ torch.linspace(-1, 1, 10)).unsqueeze(1)
    y = y / y.std() + 0.01 * torch.randn(1500, 1, generator=noise)
    posterior = bn.fit(
        bn.MAP(),
        problem_for(x[:1000], 1, "real"),
        bn.Data(x[:1000], y[:1000]),
        val=bn.Data(x[1000:1250], y[1000:1250]),
        members=2,
        engine=bn.Engine(device="cpu", progress=False),
    )
    scores = bn.score(posterior, bn.Data(x[1250:], y[1250:]))
    assert scores["rmse"] < 0.02 and scores["nll"] < -math.log(1 / 0.05) + 0.5 and scores["coverage_90"] > 0.8
