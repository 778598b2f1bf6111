"""Running draws on inputs: axes, chunks, keys, and norm statistics against torch's own update."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from basinet.core.noise import Noise
from basinet.core.tree import leaves, stack, take
from basinet.families import Delta, Diagonal, Empirical
from basinet.predict import Draws, forward
from basinet.predict.draws import refreshed
from basinet.problem import Problem
from basinet.problem.likelihoods import Categorical, Gaussian

KEY = Noise.seed(0)
X = KEY.split("x").normal(torch.empty(10, 3, dtype=torch.float64))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.4), nn.Linear(4, 2)).double()


PROBLEM = Problem(net, Categorical())


def diagonals(problem=PROBLEM, members=3) -> Diagonal:
    points = [problem.init(KEY.split(k)) for k in range(members)]
    scales = [{n: torch.full_like(x, 0.3) for n, x in p.params.items()} for p in points]
    return stack([Diagonal(p.params, s, p.buffers) for p, s in zip(points, scales)])


def draws(**options) -> Draws:
    return Draws(PROBLEM, diagonals(), KEY.split("draws").spread(3).key, 4, **options)


def test_outputs_are_those_of_each_draw_on_axes_m_s_b():
    outputs, learned = forward(draws(), X)
    assert outputs.shape == (3, 4, 10, 2) and learned == {}
    order = []
    for m, s, point in draws():
        order.append((m, s))
        expected, _ = PROBLEM.outputs(point.params, point.buffers, X)
        torch.testing.assert_close(outputs[m, s], expected)
        own = take(diagonals(), m).draw(Noise(draws().keys[m]).split("draw"), s)
        assert torch.equal(own.params["0.weight"], point.params["0.weight"])
    assert order == [(m, s) for m in range(3) for s in range(4)]
    assert len({float(outputs[m, s, 0, 0]) for m, s in order}) == 12


@pytest.mark.parametrize("batch_size", [1, 3, 10, 1000, None])
def test_chunks_do_not_change_outputs(batch_size):
    whole, _ = forward(draws(), X, batch_size=10)
    torch.testing.assert_close(forward(draws(), X, batch_size=batch_size)[0], whole, rtol=1e-12, atol=1e-14)


def test_single_members_give_what_they_give_together():
    whole, _ = forward(draws(), X)
    for m in range(3):
        alone = Draws(PROBLEM, take(diagonals(), slice(m, m + 1)), draws().keys[m : m + 1], 4)
        torch.testing.assert_close(forward(alone, X)[0][0], whole[m], rtol=1e-12, atol=1e-14)  # stacks may differ


def test_draws_kept_in_memory_are_the_same_draws(monkeypatch):
    drawn = draws()
    kept = drawn.kept()
    assert kept is not None and sum(map(len, kept)) == 12
    torch.testing.assert_close(forward(drawn, X, kept)[0], forward(drawn, X)[0], rtol=0, atol=0)
    monkeypatch.setitem(Draws.kept.__globals__, "CACHE", 100)  # bytes
    assert drawn.kept() is None


def test_trees_of_inputs_are_cut_along_their_rows():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 2).double()

        def forward(self, a, b):
            return self.last(a + b)

    problem = Problem(Sum, Categorical())
    drawn = Draws(problem, diagonals(problem), KEY.spread(3).key, 2)
    inputs = {"a": X, "b": 2 * X}
    torch.testing.assert_close(forward(drawn, inputs, batch_size=3)[0], forward(drawn, inputs)[0])


def test_learned_parameters_come_with_each_draw():
    problem = Problem(lambda: nn.Linear(3, 1).double(), Gaussian(learned=True))
    drawn = Draws(problem, diagonals(problem), KEY.spread(3).key, 2)
    outputs, learned = forward(drawn, X)
    assert outputs.shape == (3, 2, 10, 1) and learned["log_noise"].shape == (3, 2)
    for m, s, point in drawn:
        assert float(learned["log_noise"][m, s]) == float(point.params["likelihood.log_noise"])


def test_samples_of_points_are_stratified():
    points = [PROBLEM.init(KEY.split(k)) for k in range(4)]
    rows = stack(points)
    family = stack([Empirical(rows.params, rows.buffers, 4)])
    outputs, _ = forward(Draws(PROBLEM, family, KEY.spread(1).key, 4), X)
    each = torch.stack([PROBLEM.outputs(p.params, p.buffers, X)[0] for p in points])
    order = [int((each[:, 0, 0] - outputs[0, s, 0, 0]).abs().argmin()) for s in range(4)]
    assert sorted(order) == [0, 1, 2, 3]
    torch.testing.assert_close(outputs[0], each[order])


def test_dropout_masks_belong_to_a_draw():
    deltas = stack([Delta(p.params, p.buffers) for p in (PROBLEM.init(KEY.split(k)) for k in range(3))])
    keys = KEY.split("draws").spread(3).key
    still, _ = forward(Draws(PROBLEM, deltas, keys, 2), X)
    assert torch.equal(still[:, 0], still[:, 1])
    masked, _ = forward(Draws(PROBLEM, deltas, keys, 2, "dropout"), X)
    again, _ = forward(Draws(PROBLEM, deltas, keys, 2, "dropout"), X)
    assert torch.equal(masked, again) and not torch.allclose(masked[:, 0], masked[:, 1])
    assert not torch.allclose(masked[0], still[0])


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 4, None])
def test_dropout_masks_do_not_depend_on_chunks_or_parts(batch_size, stacked, monkeypatch):
    monkeypatch.setitem(forward.__globals__, "MANY", 2 if stacked else 10**9)
    masked = draws(mode="dropout")
    whole, _ = forward(masked, X, batch_size=10)
    torch.testing.assert_close(forward(masked, X, batch_size=batch_size)[0], whole, rtol=1e-12, atol=1e-14)
    for begin, end in ((0, 3), (3, 4), (4, 10)):
        part, _ = forward(masked, X[begin:end], batch_size=batch_size, begin=begin)
        torch.testing.assert_close(part, whole[:, :, begin:end], rtol=1e-12, atol=1e-14)
    repeated, _ = forward(masked, X[:1].expand(10, 3), batch_size=1)
    assert len({float(repeated[0, 0, i, 0]) for i in range(10)}) > 2  # examples have masks of their own


def calls(monkeypatch) -> list[tuple[int, ...]]:
    """Records the shape of what each call of a network gives; one more axis where draws are stacked."""
    shapes: list[tuple[int, ...]] = []
    outputs = Problem.outputs

    def noted(self, *args):
        out, buffers = outputs(self, *args)
        shapes.append((torch._C._functorch.is_batchedtensor(out), *out.shape))
        return out, buffers

    monkeypatch.setattr(Problem, "outputs", noted)
    return shapes


def many(problem: Problem, count: int) -> Draws:
    points = [problem.init(KEY.split(k)) for k in range(count)]
    family = stack([Delta(p.params, p.buffers) for p in points])
    return Draws(problem, family, KEY.split("many").spread(count).key, 1)


def test_many_draws_of_a_small_network_run_as_stacks(monkeypatch):
    drawn = many(PROBLEM, 100)
    one_by_one = torch.stack([PROBLEM.outputs(p.params, p.buffers, X)[0] for _, _, p in drawn])
    monkeypatch.setitem(forward.__globals__, "CPU", 32 * 1000)  # bytes: about 32 draws
    monkeypatch.setattr("basinet.predict.draws.BLOCK", {"cpu": 45 * 300})  # bytes: about 45 draws
    shapes = calls(monkeypatch)
    outputs, _ = forward(drawn, X)
    torch.testing.assert_close(outputs[:, 0], one_by_one, rtol=1e-12, atol=1e-14)
    assert all(stacked for stacked, *_ in shapes[1:]) and 4 < len(shapes) < 20  # the first measures widths


@pytest.mark.parametrize("kind", ["convolution", "lstm"])
def test_networks_that_should_not_or_cannot_be_stacked_run_one_by_one(kind, monkeypatch):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.body(x)[0][:, -1])

    def convolution() -> nn.Module:
        return nn.Sequential(nn.Conv1d(5, 4, 3), nn.Flatten(), nn.Linear(4, 2))

    problem = Problem(Recurrent if kind == "lstm" else convolution, Categorical())
    drawn, x = many(problem, 40), KEY.split("sequences").normal(torch.empty(20, 5, 3))
    expected = torch.stack([problem.outputs(p.params, p.buffers, x)[0] for _, _, p in drawn])
    shapes = calls(monkeypatch)
    torch.testing.assert_close(forward(drawn, x)[0][:, 0], expected)
    assert [shape for stacked, *shape in shapes if not stacked].count([20, 2]) == 40


@pytest.mark.parametrize("width", [64, 1000, 10_000])
def test_chunks_are_even_and_hold_the_widest_activation(width, monkeypatch):
    problem = Problem(lambda: nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2)), Categorical())
    n, x = 10_000 * 64 // width, torch.zeros(10_000 * 64 // width, 3)
    shapes = calls(monkeypatch)
    forward(many(problem, 2), x)
    chunks = [shape[0] for _, *shape in shapes[1:]]  # the first measures widths
    assert sum(chunks) == 2 * n and max(chunks) * width * 4 <= 2 * 2**20
    assert len(chunks) == 2 * -(-n * width * 4 // (2 * 2**20)) and max(chunks) - min(chunks) <= len(chunks)


def test_few_inputs_are_not_measured_first(monkeypatch):
    shapes = calls(monkeypatch)
    forward(many(PROBLEM, 3), X)
    assert [shape[0] for _, *shape in shapes] == [10, 10, 10]


def test_no_gradient_is_kept():
    assert not forward(draws(), X.clone().requires_grad_())[0].requires_grad


@pytest.mark.parametrize("momentum", [None, 0.1, 0.7])
@pytest.mark.parametrize(("n", "batches"), [(512, 2), (100, 1), (768, 3)])
def test_refreshed_norm_statistics_are_those_of_update_bn(momentum, n, batches):
    torch.manual_seed(0)

    def build() -> nn.Module:
        norms = (nn.BatchNorm2d(2, momentum=momentum), nn.BatchNorm1d(4, momentum=momentum))
        return nn.Sequential(nn.Conv2d(1, 2, 2), norms[0], nn.Flatten(), nn.Linear(8, 4), norms[1]).double()

    module = build()
    for norm in (module[1], module[4]):
        norm.running_mean += 3
        norm.running_var += 2
        norm.num_batches_tracked += 5
    problem = Problem(build, Gaussian())
    point = problem.network.read(module)
    before = copy.deepcopy(point)
    x = KEY.split("images").normal(torch.empty(n, 1, 3, 3, dtype=torch.float64)) + 1
    fresh = refreshed(problem, point, x, KEY)
    update_bn(x.chunk(batches), module)
    for name, expected in module.named_buffers():
        if name.endswith("num_batches_tracked"):
            assert int(fresh.buffers[name]) == 5
        else:
            torch.testing.assert_close(fresh.buffers[name], expected)
    assert all(torch.equal(a, b) for a, b in zip(leaves(point), leaves(before)))
    assert fresh.params is point.params


def test_batches_of_different_size_count_by_their_size():
    problem = Problem(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).double(), Gaussian())
    x = KEY.split("rows").normal(torch.empty(601, 3, dtype=torch.float64)) + torch.arange(601.0).unsqueeze(1)
    fresh = refreshed(problem, problem.init(KEY), x, KEY)
    torch.testing.assert_close(fresh.buffers["0.running_mean"], x.mean(0))


def test_refreshing_leaves_other_buffers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(3), nn.Linear(3, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return self.last(self.norm(x))

    problem = Problem(lambda: Net().double(), Gaussian())
    fresh = refreshed(problem, problem.init(KEY), X, KEY)
    assert float(fresh.buffers["seen"]) == 0
    torch.testing.assert_close(fresh.buffers["norm.running_var"], X.var(0))


def test_draws_with_inputs_to_refresh_from_have_their_own_statistics():
    drawn = draws(refresh=X)
    statistics = set()
    for m, s, point in drawn:
        expected = X @ point.params["0.weight"].T + point.params["0.bias"]
        torch.testing.assert_close(point.buffers["1.running_mean"], expected.mean(0))
        statistics.add((m, s, float(point.buffers["1.running_mean"][0])))
    assert len({x for _, _, x in statistics}) == 12
    outputs, _ = forward(drawn, X)
    m, s, point = next(iter(drawn))
    torch.testing.assert_close(outputs[m, s], PROBLEM.outputs(point.params, point.buffers, X)[0])
