"""Norm statistics of points that training never visited: recomputed where a layer keeps them, and from whose data."""

from __future__ import annotations

import pytest
import torch
from batch_norm import PROBLEM, classes, net
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import take
from basinet.predict import norms

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)
SHORT = bn.MAP(epochs=2, batch_size=None)
RECIPES = (
    bn.SWA(iterates=3, batch_size=10, base=SHORT),
    bn.SWAG(iterates=3, rank=2, batch_size=10, base=SHORT),
    bn.EMA(epochs=3, batch_size=10),
)


class Kept(nn.Module):
    """A pre-trained part whose norm layer stays in eval mode, and a norm layer that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.head = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).double()
        self.body[1].running_mean.fill_(2.0)
        self.body[1].running_var.fill_(9.0)

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.body[1].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
def test_a_norm_layer_kept_in_eval_mode_keeps_its_statistics(recipe):
    problem, data = bn.Problem(Kept, PROBLEM.likelihood), classes()
    posterior = bn.fit(recipe, problem, data, engine=ENGINE)
    _, _, point = next(iter(posterior.parts[0].draws(1, 0)))
    mean, var = (point.buffers[f"body.1.running_{x}"] for x in ("mean", "var"))
    torch.testing.assert_close(mean, torch.full_like(mean, 2.0), rtol=0, atol=0)
    torch.testing.assert_close(var, torch.full_like(var, 9.0), rtol=0, atol=0)
    module = Kept().train()
    module.load_state_dict(point.params | point.buffers)
    hidden = module.body(data.inputs).detach()  # what the other norm layer sees
    torch.testing.assert_close(point.buffers["head.0.running_mean"], hidden.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(point.buffers["head.0.running_var"], hidden.var(0), rtol=0, atol=1e-12)


class Momentum(nn.Module):
    """A norm layer of any momentum, called once or twice in a pass."""

    def __init__(self, momentum: float | None, calls: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6).double()
        self.norm = nn.BatchNorm1d(6, momentum=momentum).double()
        self.last = nn.Linear(6, 3).double()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            hidden = self.norm(self.first(x))
        return self.last(hidden)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(("momentum", "calls"), [(0.1, 1), (0.1, 2), (None, 1), (None, 2), (1.0, 1), (0.3, 3)])
def test_statistics_are_those_of_the_data_at_any_momentum_and_number_of_calls(recipe, momentum, calls):
    data = classes()
    posterior = bn.fit(recipe, bn.Problem(lambda: Momentum(momentum, calls), PROBLEM.likelihood), data, engine=ENGINE)
    _, _, point = next(iter(posterior.parts[0].draws(1, 0)))
    hidden = data.inputs @ point.params["first.weight"].T + point.params["first.bias"]
    torch.testing.assert_close(point.buffers["norm.running_mean"], hidden.mean(0), rtol=0, atol=1e-11)
    torch.testing.assert_close(point.buffers["norm.running_var"], hidden.var(0), rtol=0, atol=1e-11)


class Instances(nn.Module):
    """InstanceNorm with running statistics, which counts no calls."""

    def __init__(self, momentum: float, calls: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 12).double()
        self.norm = nn.InstanceNorm1d(3, momentum=momentum, track_running_stats=True).double()
        self.last = nn.Linear(12, 3).double()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            hidden = self.norm(self.first(x).reshape(-1, 3, 4))
        return self.last(hidden.flatten(1))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(("momentum", "calls"), [(0.1, 1), (0.1, 2), (1.0, 2), (0.3, 3)])
def test_statistics_of_instances_at_any_momentum_and_number_of_calls(recipe, momentum, calls):
    data = classes()
    posterior = bn.fit(recipe, bn.Problem(lambda: Instances(momentum, calls), PROBLEM.likelihood), data, engine=ENGINE)
    _, _, point = next(iter(posterior.parts[0].draws(1, 0)))
    hidden = (data.inputs @ point.params["first.weight"].T + point.params["first.bias"]).reshape(-1, 3, 4)
    torch.testing.assert_close(point.buffers["norm.running_mean"], hidden.mean((0, 2)), rtol=0, atol=1e-11)
    torch.testing.assert_close(point.buffers["norm.running_var"], hidden.var(2).mean(0), rtol=0, atol=1e-11)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
def test_momentum_zero_keeps_the_statistics_there_were(recipe):
    data = classes()
    posterior = bn.fit(recipe, bn.Problem(lambda: Momentum(0.0), PROBLEM.likelihood), data, engine=ENGINE)
    assert bool(posterior.predict(data.inputs).probs.isfinite().all())
    _, _, point = next(iter(posterior.parts[0].draws(1, 0)))
    assert bool((point.buffers["norm.running_mean"] == 0).all()) and bool(
        (point.buffers["norm.running_var"] == 1).all()
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_statistics_of_a_member_are_those_of_its_own_examples(recipe, strategy, tmp_path):
    data = classes(60)
    sites = bn.Data(
        data.inputs * torch.arange(1, 4).repeat_interleave(20)[:, None],
        data.targets,
        rows=torch.arange(60).reshape(3, 20),
    )
    engine = bn.Engine(device="cpu", strategy=strategy, progress=False)
    fitted = bn.fit(recipe, PROBLEM, sites, members=3, engine=engine)
    for k in range(3):
        own = sites.member(k).inputs
        for posterior, place in ((fitted, k), (fitted[[2, k]], 1), (fitted[k], 0)):
            drawn = [(m, point) for m, _, point in posterior.parts[0].draws(2, 0) if m == place]
            for _, point in drawn:
                hidden = own @ point.params["0.weight"].T + point.params["0.bias"]
                torch.testing.assert_close(point.buffers["1.running_mean"], hidden.mean(0), rtol=0, atol=1e-11)
    fitted.save(tmp_path / "saved")
    loaded = bn.load(tmp_path / "saved", net)
    assert torch.equal(loaded[1:].predict(data.inputs).outputs, fitted[1:].predict(data.inputs).outputs)
    mixed = bn.mix([fitted[2], fitted[0]])
    expected = torch.cat([fitted[2].predict(data.inputs).outputs, fitted[0].predict(data.inputs).outputs])
    torch.testing.assert_close(mixed.predict(data.inputs).outputs, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[2]], ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("around", [bn.Laplace(), bn.PEP(draws=2)], ids=lambda r: type(r).__name__)
def test_methods_around_a_mean_take_its_statistics_along(recipe, around):
    data = classes()
    mean = bn.fit(recipe, PROBLEM, data, engine=ENGINE)
    posterior = bn.fit(around, PROBLEM, data, val=data, start=mean, engine=ENGINE)
    before, after = (next(iter(p.parts[0].draws(1, 0)))[2].buffers for p in (mean, posterior))
    for name, x in before.items():
        torch.testing.assert_close(after[name], x, rtol=0, atol=0)
    point = take(posterior.parts[0].family, 0).mean()
    hidden = data.inputs @ point.params["0.weight"].T + point.params["0.bias"]
    torch.testing.assert_close(point.buffers["1.running_mean"], hidden.mean(0), rtol=0, atol=1e-11)


def test_inputs_are_kept_from_all_over_the_data(monkeypatch):
    monkeypatch.setattr(norms, "KEEP", 6)
    data = classes(11)
    posterior = bn.fit(RECIPES[1], PROBLEM, data, engine=ENGINE)
    assert torch.equal(posterior.parts[0].inputs, data.inputs[[0, 1, 3, 5, 7, 9]])
    average = bn.fit(RECIPES[2], PROBLEM, data, engine=ENGINE)
    assert average.parts[0].inputs is None  # its statistics are there once and for all


def test_the_mean_of_swag_has_statistics_of_its_own():
    data = classes()
    posterior = bn.fit(RECIPES[1], PROBLEM, data, engine=ENGINE)
    point = posterior.points()[0]
    hidden = data.inputs @ point.params["0.weight"].T + point.params["0.bias"]
    torch.testing.assert_close(point.buffers["1.running_mean"], hidden.mean(0), rtol=0, atol=1e-11)
