"""The linear function around a member's mean against its Jacobian made row by row, for every structure and many layers.

Equality is to rounding in float64; moments of draws are held within 4.5 standard errors.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import Params, Point, leaves, ravel, stack, take, unravel
from basinet.families import Delta, Diagonal, Eigen, Family, Full, Kronecker, Partial
from basinet.predict import Draws, linear, tangent
from basinet.predict.jacobian import tapped
from basinet.problem import Problem
from basinet.problem.likelihoods import Categorical

KEY, Z = Noise.seed(0), 4.5


def normal(name: str, *shape: int) -> Tensor:
    return KEY.split(name).normal(torch.empty(shape, dtype=torch.float64))


class Twice(nn.Module):
    """A layer that is used twice, an in-place activation after a layer, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.same, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x):
        h = F.relu_(self.first(x))
        return self.gain * self.last(torch.tanh(self.same(torch.tanh(self.same(h)))))


class Steps(nn.Module):
    """A sequence through layers, with its examples on the first axis or on the second."""

    def __init__(self, first: bool):
        super().__init__()
        self.axis = 1 if first else 0
        self.norm, self.deep, self.last = nn.LayerNorm(3), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = x if self.axis == 1 else x.transpose(0, 1)
        return self.last(torch.tanh(self.deep(self.norm(x))).mean(self.axis))


class Tied(nn.Module):
    """A matrix that looks words up and scores them: used by a layer and otherwise."""

    def __init__(self):
        super().__init__()
        self.words, self.deep = nn.Embedding(4, 3), nn.Linear(3, 3)

    def forward(self, ids, scale):
        return F.linear(torch.tanh(self.deep(self.words(ids).mean(1))) * scale, self.words.weight)


class Same(torch.autograd.Function):
    """A user's own function, which has no rule for several gradients at once, nor for a forward derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, g):
        return g * (1 - ctx.saved_tensors[0].tanh().square())


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.gain = nn.Linear(3, 4), nn.Linear(4, 2), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.gain * self.last(Same.apply(self.first(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.cell, self.last = nn.Linear(3, 3), nn.LSTM(3, 2, batch_first=True), nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.cell(self.first(x))[0][:, -1])


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, (2, 1), groups=2, dilation=(1, 2)),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(12, 2))


IDS = {"ids": torch.tensor([[0, 1], [2, 3], [1, 1]]), "scale": normal("scale", 3, 1)}
NETWORKS = {  # network, inputs, and the names that are tapped (None: all)
    "dense": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), normal("dense", 5, 3), None),
    "twice": (Twice, normal("twice", 5, 3), {"first", "same", "last"}),
    "convolutions": (convolutions, normal("convolutions", 3, 2, 6, 5), None),
    "one axis": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3, 2, 1), nn.Tanh(), nn.Conv1d(3, 2, 2), nn.Flatten()),
        normal("one axis", 3, 2, 7),
        None,
    ),
    "three axes": (
        lambda: nn.Sequential(nn.Conv3d(1, 3, 2, stride=(1, 2, 1)), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)),
        normal("three axes", 3, 1, 3, 3, 3),
        None,
    ),
    "padding in words": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, (1, 3), padding="same"), nn.Tanh(), nn.Flatten(), nn.Linear(36, 2)),
        normal("words", 3, 2, 4, 3),
        None,
    ),
    "steps": (lambda: Steps(True), normal("steps", 3, 4, 3), None),
    "steps first": (lambda: Steps(False), normal("as many", 3, 3, 3), {"last"}),  # as many steps as examples
    "one place": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2)),
        normal("one place", 3, 4, 3, 3),
        None,
    ),
    "steps out": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), normal("out", 3, 2, 3), None),
    "tied, a dict": (Tied, IDS, {"deep"}),
    "recurrent": (Recurrent, normal("recurrent", 2, 3, 3), {"first", "last"}),
    "own function": (Own, normal("own", 3, 3), {"first", "last"}),
    "transformer": (transformer, normal("transformer", 3, 3, 4), {"linear1", "linear2", "norm1", "norm2", "2"}),
    "logistic": (lambda: nn.Linear(3, 1), normal("logistic", 4, 3), None),
}


def moments(*args, **options) -> tuple[Tensor, Tensor]:
    mean, spread = zip(*linear.moments(*args, **options))
    return torch.cat(mean), torch.cat(spread)


def problem_of(make) -> Problem:
    return Problem(lambda: make().double(), Categorical())


def point_of(problem: Problem) -> Point:
    """A point away from what initialisation makes special: norms have scales, shifts and statistics."""
    point = problem.init(Noise.seed(1))
    params = {n: x + 0.3 * KEY.split(n).normal(x) for n, x in point.params.items()}
    buffers = {
        n: x if not x.is_floating_point() else (x + 0.2 * KEY.split(n).normal(x)).abs() + 0.1
        for n, x in point.buffers.items()
    }
    return Point(params, buffers)


def diagonal(params: Params) -> Diagonal:
    return Diagonal(params, {n: 0.1 + KEY.split(n + " sd").uniform(x) for n, x in params.items()}, {})


def kronecker(params: Params) -> Kronecker:
    left, right, variance = {}, {}, {}
    for k, (n, x) in enumerate(params.items()):
        o, i = x.shape[0] if x.dim() else 1, x[0].numel() if x.dim() else 1
        variance[n] = 0.05 + normal(n + " variance", o, i).abs()
        if k % 4:
            left[n] = torch.linalg.qr(normal(n + " left", o, o))[0]
        if k % 4 != 2:
            right[n] = torch.linalg.qr(normal(n + " right", i, i))[0]
    return Kronecker(params, left, right, variance, {})


def full(params: Params) -> Full:
    p = ravel(params).numel()
    return Full(params, normal("factor", p, p).tril() / p**0.5, {})


def eigen(params: Params) -> Eigen:
    p = ravel(params).numel()
    basis = torch.linalg.qr(normal("basis", p, 3))[0].T
    variance = torch.tensor([0.1, 0.5, 3.0], dtype=torch.float64)
    return Eigen(params, stack([unravel(b, params) for b in basis]), variance, torch.tensor(2.0).double(), {})


def head(params: Params, make=full) -> Partial:
    last = list(params)[-1].rpartition(".")[0]
    inside = {n: x for n, x in params.items() if n.rpartition(".")[0] == last}
    return Partial(Delta({n: x for n, x in params.items() if n not in inside}, {}), make(inside))


def mixed(params: Params) -> Partial:
    """Independent parameters, and others that are not."""
    half = len(params) // 2
    rest, part = dict(list(params.items())[:half]), dict(list(params.items())[half:])
    return Partial(kronecker(rest), full(part))


FAMILIES = {"diagonal": diagonal, "kronecker": kronecker, "full": full, "eigen": eigen, "head": head, "mixed": mixed}


def dense(problem: Problem, family: Family, point: Point, inputs) -> tuple[Tensor, Tensor]:
    """Outputs, and J Sigma J' from rows of J that plain autograd makes one by one."""
    params = {n: x.detach().clone().requires_grad_() for n, x in point.params.items()}
    values, covariances = [], []
    for b in range(leaves(inputs)[0].shape[0]):
        outputs = problem.outputs(params, point.buffers, take(inputs, slice(b, b + 1)))[0]
        grads = [
            torch.autograd.grad(f, list(params.values()), retain_graph=True, materialize_grads=True)
            for f in outputs.reshape(-1)
        ]
        jacobian = {n: torch.stack([g[i] for g in grads]) for i, n in enumerate(params)}
        values.append(outputs.detach()[0])
        covariances.append(family.quad(jacobian))
    return torch.stack(values), torch.stack(covariances)


@pytest.mark.parametrize("structure", FAMILIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_moments_are_those_of_the_dense_jacobian(network, structure):
    make, inputs, _ = NETWORKS[network]
    problem = problem_of(make)
    point = point_of(problem)
    family = FAMILIES[structure](point.params)
    mean, covariance = dense(problem, family, point, inputs)
    for full_matrix, expected in ((True, covariance), (False, covariance.diagonal(dim1=1, dim2=2))):
        means, spread = moments(problem, family, point, inputs, full=full_matrix)
        torch.testing.assert_close(means, mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(spread, expected, rtol=1e-9, atol=1e-11)
        assert not means.requires_grad and not spread.requires_grad


@pytest.mark.parametrize("network", NETWORKS)
def test_layers_are_found_by_what_they_call(network):
    make, inputs, expected = NETWORKS[network]
    problem = problem_of(make)
    point = point_of(problem)
    layers = {n.rpartition(".")[0].rpartition(".")[2] for n in tapped(problem, point, inputs, point.params)}
    assert layers == (expected or {n.rpartition(".")[0] for n in point.params})


@pytest.mark.parametrize("structure", FAMILIES)
@pytest.mark.parametrize("full_matrix", [True, False])
def test_little_room_and_small_batches_change_nothing(structure, full_matrix, monkeypatch):
    for network in ("convolutions", "twice"):
        make, inputs, _ = NETWORKS[network]
        problem = problem_of(make)
        point = point_of(problem)
        family = FAMILIES[structure](point.params)
        whole = moments(problem, family, point, inputs, full=full_matrix)
        small = moments(problem, family, point, inputs, full=full_matrix, batch_size=2)
        monkeypatch.setitem(linear.ROOM, "cpu", 64)  # an input and an output at a time
        tight = moments(problem, family, point, inputs, full=full_matrix)
        monkeypatch.undo()
        for other in (small, tight):
            torch.testing.assert_close(other, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("structure", FAMILIES)
@pytest.mark.parametrize("network", ["dense", "convolutions", "one place", "tied, a dict", "steps out"])
def test_families_that_differ_in_their_variances_are_done_at_once(network, structure):
    make, inputs, _ = NETWORKS[network]
    problem = problem_of(make)
    point = point_of(problem)
    family = FAMILIES[structure](point.params)
    families = [family, other_variances(family), family.scaled(0.3)]
    for full_matrix in (True, False):
        parts = linear.moments_of_several(problem, families, point, inputs, full=full_matrix, batch_size=2)
        spreads = torch.cat([spread for _, spread in parts], 1)
        for spread, one in zip(spreads, families, strict=True):
            alone = moments(problem, one, point, inputs, full=full_matrix)[1]
            torch.testing.assert_close(spread, alone, rtol=1e-10, atol=1e-12)


def other_variances(family: Family) -> Family:
    """The same in the same basis with variances of its own; of families that have none, another scale."""
    if isinstance(family, Partial):
        return Partial(other_variances(family.rest), other_variances(family.part))
    if isinstance(family, Diagonal):
        return Diagonal(family.centre, {n: x.flip(0) if x.dim() else x for n, x in family.scale.items()}, {})
    if isinstance(family, Kronecker):
        return Kronecker(**(vars(family) | {"variance": {n: x.flip(0, 1) for n, x in family.variance.items()}}))
    return family.scaled(2.0)


def test_layers_may_share_a_basis():
    """Gradients are turned once for a layer's matrix and its shift, and again for the next layer."""
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))  # noqa: E731
    problem = problem_of(make)
    point, inputs = point_of(problem), NETWORKS["dense"][1]
    family = kronecker(point.params)
    basis = torch.linalg.qr(normal("basis", 4, 4))[0]
    family = Kronecker(**(vars(family) | {"left": {n: basis.clone() for n in point.params}}))
    covariance = dense(problem, family, point, inputs)[1]
    torch.testing.assert_close(moments(problem, family, point, inputs, full=True)[1], covariance)


def test_a_point_does_not_spread():
    problem = problem_of(NETWORKS["dense"][0])
    point, inputs = point_of(problem), NETWORKS["dense"][1]
    mean, spread = moments(problem, Delta(point.params, {}), point, inputs, full=True)
    assert torch.equal(spread, torch.zeros(5, 3, 3).double())
    torch.testing.assert_close(mean, problem.outputs(point.params, point.buffers, inputs)[0])


def drawn(problem: Problem, families: list[Family], samples: int) -> Draws:
    return Draws(problem, stack(families), KEY.spread(len(families)).key, samples)


@pytest.mark.parametrize(
    "network", ["dense", "convolutions", "tied, a dict", "recurrent", "transformer", "own function"]
)
def test_samples_are_the_mean_and_the_jacobian_times_the_step(network):
    make, inputs, _ = NETWORKS[network]
    problem = problem_of(make)
    points = [point_of(problem), problem.init(Noise.seed(2))]
    families = [Kronecker(**(vars(kronecker(p.params)) | {"buffers": p.buffers})) for p in points]
    draws = drawn(problem, families, 11)
    outputs, learned = tangent.samples(draws, draws.centres(), inputs)
    assert outputs.shape[:2] == (2, 11) and learned == {}
    for m, s, at in draws:
        step = {n: at.params[n] - points[m].params[n] for n in at.params}
        value = problem.outputs(points[m].params, points[m].buffers, inputs)[0]
        epsilon = 1e-6  # a central difference: its error is of the order of the square
        ends = [
            problem.outputs({n: x + e * step[n] for n, x in points[m].params.items()}, points[m].buffers, inputs)[0]
            for e in (-epsilon, epsilon)
        ]
        expected = value + (ends[1] - ends[0]) / (2 * epsilon)
        torch.testing.assert_close(outputs[m, s], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("structure", ["kronecker", "head", "mixed"])
def test_samples_have_the_moments(structure):
    make, inputs, _ = NETWORKS["dense"]
    problem = problem_of(make)
    point = point_of(problem)
    family, count = FAMILIES[structure](point.params), 4000
    draws = drawn(problem, [family], count)
    outputs = tangent.samples(draws, draws.centres(), inputs)[0][0]
    mean, covariance = moments(problem, family, point, inputs, full=True)
    variance = covariance.diagonal(dim1=1, dim2=2)
    assert float(((outputs.mean(0) - mean) / (variance / count).sqrt()).abs().max()) < Z
    empirical = torch.einsum("sbi,sbj->bij", outputs - mean, outputs - mean) / count
    error = ((covariance.square() + variance[:, :, None] * variance[:, None, :]) / count).sqrt()
    assert float(((empirical - covariance) / error).abs().max()) < Z


def test_parts_and_batch_sizes_do_not_change_samples():
    make, inputs, _ = NETWORKS["convolutions"]
    problem = problem_of(make)
    point = point_of(problem)
    family = Partial(Delta(point.params, point.buffers), head(point.params).part)
    draws = drawn(problem, [family], 9)
    whole = tangent.samples(draws, draws.centres(), inputs)[0]
    one = tangent.samples(draws, draws.centres(), inputs, batch_size=1)[0]
    kept = tangent.samples(draws, draws.centres(), take(inputs, slice(1, 3)), draws.kept())[0]
    torch.testing.assert_close(one, whole, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(kept, whole[:, :, 1:], rtol=1e-10, atol=1e-12)


def test_norm_statistics_that_are_refreshed_are_those_of_the_mean():
    problem = problem_of(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)))
    point, inputs = point_of(problem), normal("training", 40, 3)
    family = Diagonal(point.params, {n: 0.1 + 0 * x for n, x in point.params.items()}, point.buffers)
    draws = Draws(problem, stack([family]), KEY.spread(1).key, 2, refresh=inputs)
    [centre] = draws.centres()
    expected = F.linear(inputs, point.params["0.weight"], point.params["0.bias"]).mean(0)
    torch.testing.assert_close(centre.buffers["1.running_mean"], expected)
    assert centre.params is point.params or all(torch.equal(centre.params[n], x) for n, x in point.params.items())


def test_memory_does_not_grow_with_the_jacobian():
    """1,000 outputs of 46,000 parameters: 50 rows of J would be 9 GB."""
    problem = Problem(lambda: nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 1000)), Categorical())
    point = problem.init(Noise.seed(0))
    inputs = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    family = Diagonal(point.params, {n: torch.full_like(x, 0.1) for n, x in point.params.items()}, point.buffers)
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            sizes = [x.untyped_storage().nbytes() for x in leaves(out) if isinstance(x, Tensor)]
            largest = max([largest, *sizes])
            return out

    with Largest():
        _, variance = moments(problem, family, point, inputs, full=False)
    assert largest <= 2 * linear.ROOM["cpu"]
    a = torch.tanh(inputs @ point.params["0.weight"].T + point.params["0.bias"])
    w = point.params["2.weight"]
    back = w * (1 - a.square()).unsqueeze(1)  # (50, 1000, 40)
    expected = 0.01 * (
        1 + a.square().sum(1, keepdim=True) + back.square().sum(2) * (1 + inputs.square().sum(1))[:, None]
    )
    torch.testing.assert_close(variance, expected, rtol=1e-4, atol=1e-6)
    draws = Draws(problem, stack([family]), KEY.spread(1).key, 3)
    assert tangent.samples(draws, draws.centres(), inputs)[0].shape == (1, 3, 50, 1000)


def test_moments_need_no_gradients_of_the_caller():
    """`with torch.no_grad(): posterior.predict(x)` is how people predict."""
    problem = Problem(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), Categorical())
    point = problem.init(KEY)
    family = Diagonal(point.params, {n: torch.full_like(x, 0.1) for n, x in point.params.items()}, point.buffers)
    inputs = normal("inputs", 5, 3)
    [(mean, spread)] = linear.moments(problem, family, point, inputs, full=True)
    with torch.no_grad():
        [(again, same)] = linear.moments(problem, family, point, inputs, full=True)
    torch.testing.assert_close((again, same), (mean, spread))


@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_in_closed_form_under_autocast_only_the_network_has_low_precision(structure):
    problem = bn.Problem(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), bn.likelihoods.Categorical()
    )
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data = bn.Data(x, x.argmax(1) % 3)
    recipe = bn.Laplace(where=None, structure=structure, prior_precision="prior", via="probit", base=bn.MAP(epochs=20))
    posterior = bn.fit(recipe, problem, data, engine=bn.Engine(device="cpu", progress=False))
    exact = posterior.predict(x).probs
    with torch.autocast("cpu", torch.bfloat16):
        probs = posterior.predict(x).probs
    assert 0 < float((probs - exact).abs().max()) < 0.02
