"""Curvature in every structure, against the dense matrix that Jacobians give, for networks of many kinds."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import Params, ravel
from basinet.curvature import roots, structures
from basinet.curvature.follow import last_layer
from basinet.curvature.gaussians import CurvedKronecker
from basinet.curvature.passes import Passes
from basinet.problem import Batch
from basinet.problem.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    NoisyDirichlet,
    Poisson,
    StudentT,
)

KEY = Noise.seed(5)
N = 11


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs))


class CNN(nn.Module):
    """Strides, padding, groups, dilation, norm layers, and an activation that writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, groups=2, dilation=2, padding="same")
        self.group = nn.GroupNorm(2, 4)
        self.layer = nn.LayerNorm(36)
        self.head = nn.Linear(36, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)), inplace=True)
        return self.head(self.layer(torch.tanh(self.group(self.second(x))).flatten(1)))


class Series(nn.Module):
    """A 1-D convolution without a bias, and linear layers on (B, T, i)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 2, bias=False)
        self.each = nn.Linear(4, 3)

    def forward(self, x):
        return self.each(torch.tanh(self.conv(x)).mT).mean(1)


class Twice(nn.Module):
    """A layer that is used twice, and a parameter that no layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.again(torch.tanh(self.again(x)))) * self.scale)


class TwoBiases(nn.Module):
    """A weight with two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3))
        self.one, self.other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        x = torch.tanh(F.linear(x, self.weight, self.one))
        return self.head(torch.tanh(F.linear(x, self.weight, self.other)))


class Tied(nn.Module):
    """A weight that is an embedding too; sequences come first inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4)

    def forward(self, ids):
        x = torch.tanh(self.middle(self.embed(ids).transpose(0, 1))).mean(0)
        return F.linear(x, self.embed.weight)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, ids, shift):
        return self.head(self.block(self.embed(ids)).mean(1) + shift)


def numbers(*shape: int) -> torch.Tensor:
    return KEY.split(str(shape)).normal(torch.empty(N, *shape, dtype=torch.float64))


def whole(high: int, *shape: int) -> torch.Tensor:
    return KEY.split(str((high, shape))).integers(N * math.prod(shape), high).reshape(N, *shape)


CASES = {
    "categorical": (lambda: mlp(4), Categorical(), numbers(3), whole(4)),
    "gaussian": (lambda: mlp(2), Gaussian(noise=(0.3, 0.7)), numbers(3), numbers(2)),
    "learned noise": (lambda: mlp(2), Gaussian(noise=0.3, learned=True), numbers(3), numbers(2)),
    "bernoulli": (lambda: mlp(2), Bernoulli(), numbers(3), whole(2, 2)),
    "heteroscedastic": (lambda: mlp(4), Heteroscedastic(), numbers(3), numbers(2)),
    "poisson": (lambda: mlp(1), Poisson(), numbers(3), whole(4, 1)),
    "student": (lambda: mlp(1), StudentT(), numbers(3), numbers(1)),
    "dirichlet": (lambda: mlp(3), NoisyDirichlet(), numbers(3), whole(3)),
    "cnn": (CNN, Categorical(), numbers(2, 5, 5), whole(3)),
    "series": (Series, Categorical(), numbers(3, 6), whole(3)),
    "twice": (Twice, Categorical(), numbers(3), whole(3)),
    "two biases": (TwoBiases, Categorical(), numbers(3), whole(3)),
    "tied": (Tied, Categorical(), whole(5, 4), whole(5)),
    "attention": (Attention, Categorical(), {"ids": whole(5, 4), "shift": numbers(4)}, whole(3)),
    "sequence": (lambda: nn.Linear(3, 4), Categorical(), numbers(2, 3), whole(4, 2)),
}


def passes(case: str, **options) -> Passes:
    make, likelihood, inputs, targets = CASES[case]
    problem = bn.Problem(lambda: make().double(), likelihood)
    point = problem.init(Noise.seed(1))
    point = point._replace(params={n: 0.5 * x + 0.3 for n, x in point.params.items()})
    names = tuple(problem.split(point.params)[0])
    data = bn.Data(inputs, targets, options.pop("weights", None))
    given = {"names": names, "noise": Noise.seed(0), "batch_size": 4} | options
    return Passes(problem=problem, point=point, data=data, **given)


def jacobian(p: Passes) -> torch.Tensor:
    """(N, E, P)."""
    params = p.params

    def outputs(some: Params) -> torch.Tensor:
        return p.problem.outputs(p.point.params | some, p.point.buffers, p.data.inputs)[0].flatten(1)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        each = torch.func.jacrev(outputs)(params)
    return ravel({n: each[n] for n in params}, 2)


def dense(p: Passes, exact: bool = False) -> torch.Tensor:
    """sum_n J' H J, by brute force."""
    outputs = p.problem.outputs(p.point.params, p.point.buffers, p.data.inputs)[0]
    learned = p.problem.split(p.point.params)[1]
    targets = p.data.targets if exact or isinstance(p.problem.likelihood, NoisyDirichlet) else None
    h = p.problem.likelihood.hessian(outputs, targets, learned)
    j = jacobian(p)
    return torch.einsum("bep,bef,bfq->pq", j, h, j)


@pytest.mark.parametrize("case", CASES)
def test_the_full_matrix_and_its_diagonal_are_those_of_the_jacobians(case):
    p = passes(case)
    expected = dense(p)
    torch.testing.assert_close(structures.full(p).values, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(ravel(structures.diagonal(p).values), expected.diagonal(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_the_last_layer_is_found_and_is_a_block(case):
    p = passes(case)
    names = last_layer(p)
    expected = {"sequence": ("weight", "bias"), "tied": ("embed.weight",)}.get(case)
    assert names == (expected or tuple(p.params)[-2:])
    last = passes(case, names=names)
    torch.testing.assert_close(structures.full(last).values, dense(last), rtol=0, atol=1e-11)
    diagonal = ravel(structures.diagonal(last).values)
    torch.testing.assert_close(diagonal, dense(last).diagonal(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("bias", [True, False])
def test_wide_layers_are_made_by_blocks(bias):
    problem = bn.Problem(lambda: nn.Sequential(nn.Linear(3, 175), nn.Tanh(), nn.Linear(175, 3, bias)), Categorical())
    point = problem.init(KEY)
    point = point._replace(params={n: x.double() for n, x in point.params.items()})
    inputs = KEY.split("wide").normal(torch.empty(N, 3, dtype=torch.float64))
    data = bn.Data(inputs, KEY.integers(N, 3))
    p = Passes(problem=problem, point=point, data=data, names=tuple(point.params)[2:], noise=KEY, batch_size=4)
    torch.testing.assert_close(structures.full(p).values, dense(p), rtol=0, atol=1e-12)
    hidden = torch.tanh(inputs @ point.params["0.weight"].mT + point.params["0.bias"])
    factors = structures.kronecker(p)
    torch.testing.assert_close(factors.right["2.weight"], hidden.mT @ hidden / N, rtol=0, atol=1e-13)


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_any_subset_is_a_block(structure):
    whole_matrix = dense(passes("cnn"))
    everything = passes("cnn").params
    for names in (("first.weight",), ("head.bias",), ("norm.weight", "head.weight"), ("first.bias", "second.weight")):
        p = passes("cnn", names=names)
        inside = torch.cat([torch.full((x.numel(),), n in names) for n, x in everything.items()])
        expected = whole_matrix[inside][:, inside]
        if structure == "full":
            torch.testing.assert_close(structures.full(p).values, expected, rtol=0, atol=1e-11)
        else:
            diagonal = ravel(structures.diagonal(p).values)
            torch.testing.assert_close(diagonal, expected.diagonal(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("case", ["categorical", "gaussian", "cnn", "twice"])
@pytest.mark.parametrize("structure", [structures.full, structures.diagonal, structures.kronecker])
def test_the_size_of_batches_does_not_matter(case, structure):
    curvatures = [structure(passes(case, batch_size=size))[:-1] for size in (1, 3, None)]
    for other in curvatures[1:]:
        torch.testing.assert_close(other, curvatures[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", ["categorical", "heteroscedastic", "gaussian"])
def test_kronecker_factors_are_exact_for_one_example(case):
    p = passes(case)
    one = Passes(problem=p.problem, point=p.point, data=p.data.take([4]), names=p.names, noise=p.noise)
    factors, expected, begin = structures.kronecker(one), dense(one), 0
    for n, x in p.params.items():
        here = slice(begin, begin := begin + x.numel())
        block = factors.left[n] if n not in factors.right else torch.kron(factors.left[n], factors.right[n])
        torch.testing.assert_close(block, expected[here, here], rtol=0, atol=1e-12)


def test_kronecker_factors_are_the_sums_that_they_are_said_to_be():
    p = passes("categorical")
    factors = structures.kronecker(p)
    x = p.data.inputs
    hidden = torch.tanh(x @ p.params["0.weight"].T + p.params["0.bias"])
    torch.testing.assert_close(factors.right["0.weight"], x.T @ x / N, rtol=0, atol=1e-12)
    torch.testing.assert_close(factors.right["2.weight"], hidden.T @ hidden / N, rtol=0, atol=1e-12)
    exact, shapes = dense(p), [x.numel() for x in p.params.values()]
    blocks = dict(zip(p.params, torch.arange(sum(shapes)).split(shapes)))
    for bias, weight in (("0.bias", "0.weight"), ("2.bias", "2.weight")):  # one place per example: G is a bias's block
        expected = exact[blocks[bias]][:, blocks[bias]]
        torch.testing.assert_close(factors.left[bias], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(factors.left[weight], expected, rtol=0, atol=1e-12)


def test_what_is_not_a_matrix_has_its_diagonal_beside_kronecker_factors():
    p = passes("cnn")
    factors, exact = structures.kronecker(p), structures.diagonal(p).values
    assert set(factors.left) == {"first.weight", "first.bias", "head.weight", "head.bias"}
    assert set(factors.right) == {"first.weight", "head.weight"}
    for n in set(p.params) - set(factors.left):
        torch.testing.assert_close(factors.diagonal[n], exact[n], rtol=1e-12, atol=1e-13)
    assert set(factors.diagonal) | set(factors.left) == set(p.params)


@pytest.mark.parametrize(
    ("case", "others"),
    [("cnn", ()), ("series", ()), ("twice", ("scale",)), ("tied", ("embed.weight", "middle.weight"))],
)
def test_parameters_are_followed_through_their_layers_where_that_gives_their_gradients(case, others):
    chunk = next(iter(passes(case).run()))
    assert set(chunk.others) >= set(others) and (set(chunk.others) == set(others) or case == "tied")


def test_places_are_summed_over_as_if_they_were_examples():
    p = passes("series")
    factors = structures.kronecker(p)
    patches = torch.stack([p.data.inputs[:, :, t : t + 2].flatten(1) for t in range(5)], 1).flatten(0, 1)
    torch.testing.assert_close(factors.right["conv.weight"], patches.T @ patches / (5 * N), rtol=0, atol=1e-12)
    exact = structures.full(passes("series", names=("each.bias",))).values
    torch.testing.assert_close(factors.left["each.bias"], exact, rtol=0, atol=1e-12)  # a bias has its exact block


def test_corrected_eigenvalues_are_the_curvature_along_the_kronecker_basis():
    for case in ("categorical", "series"):
        p = passes(case)
        plain = CurvedKronecker.of(structures.kronecker(p), p.params)
        corrected = plain.corrected(structures.diagonal(p, plain.left, plain.right))
        exact, begin = dense(p), 0
        for n, x in p.params.items():
            here = slice(begin, begin := begin + x.numel())
            basis = plain.left[n] if n not in plain.right else torch.kron(plain.left[n], plain.right[n])
            along = (basis.T @ exact[here, here] @ basis).diagonal()
            torch.testing.assert_close(corrected.values[n].flatten(), along, rtol=0, atol=1e-11)
            assert float((corrected.values[n] - plain.values[n]).abs().max()) > 1e-3 or n not in plain.right


@pytest.mark.parametrize("case", ["categorical", "gaussian", "cnn", "attention"])
def test_low_rank_finds_the_largest_eigenvalues(case):
    p = passes(case)
    low_rank = structures.low_rank(p, 5, tolerance=1e-12)
    values, vectors = torch.linalg.eigh(dense(p))
    torch.testing.assert_close(low_rank.values, values.flip(0)[:5], rtol=1e-6, atol=1e-9)
    basis = ravel(low_rank.basis, 1)
    torch.testing.assert_close(basis @ basis.T, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-12)
    overlap = (basis[0] @ vectors[:, -1]).abs()
    torch.testing.assert_close(overlap, torch.ones_like(overlap), rtol=0, atol=1e-6)


def test_the_empirical_fisher_is_of_the_targets_gradients():
    p = passes("heteroscedastic", kind="fisher")
    params = p.params

    def energy(some: Params) -> torch.Tensor:
        outputs = p.problem.outputs(p.point.params | some, {}, p.data.inputs)[0]
        return -p.problem.likelihood.log_prob(outputs, p.data.targets, {})

    g = ravel(torch.func.jacrev(energy)(params), 1)
    torch.testing.assert_close(structures.full(p).values, g.T @ g, rtol=0, atol=1e-10)
    torch.testing.assert_close(ravel(structures.diagonal(p).values), g.square().sum(0), rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", ["categorical", "gaussian", "heteroscedastic", "student"])
def test_the_exact_hessian_of_a_last_layer(case):
    names = ("2.weight", "2.bias")
    p = passes(case, names=names, kind="hessian")

    def energy(some: Params) -> torch.Tensor:
        outputs = p.problem.outputs(p.point.params | some, {}, p.data.inputs)[0]
        return -p.problem.likelihood.log_prob(outputs, p.data.targets, {}).sum()

    blocks = torch.func.jacrev(torch.func.jacrev(energy))(p.params)
    rows = [torch.cat([blocks[a][b].reshape(p.params[a].numel(), -1) for b in names], 1) for a in names]
    expected = torch.cat(rows)
    torch.testing.assert_close(structures.full(p).values, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(ravel(structures.diagonal(p).values), expected.diagonal(), rtol=0, atol=1e-10)
    ggn = structures.full(passes(case, names=names)).values
    same = float((ggn - expected).abs().max()) < 1e-10
    assert same == (case in ("categorical", "gaussian"))


def test_the_exact_hessian_is_only_for_the_last_layer():
    with pytest.raises(ValueError, match=r"linear last layer.*0\.weight.*where='last'"):
        structures.full(passes("categorical", kind="hessian"))


def test_drawn_labels_give_the_exact_matrix_on_average():
    exact = structures.diagonal(passes("categorical")).values
    rounds = [
        structures.diagonal(passes("categorical", labels=4, noise=Noise.seed(k), batch_size=None)).values
        for k in range(200)
    ]
    each = torch.stack([ravel(r) for r in rounds])
    z = (each.mean(0) - ravel(exact)).abs() / (each.std(0) / len(each) ** 0.5)
    assert float(z.max()) < 4.5  # 44 numbers, so under 1e-3 by chance


def test_a_subset_stands_for_all_on_average():
    exact = ravel(structures.diagonal(passes("gaussian")).values)
    rounds = [
        structures.diagonal(passes("gaussian", subset=4, noise=Noise.seed(k), batch_size=None)) for k in range(300)
    ]
    assert all(r.run.seen == 4 for r in rounds)
    each = torch.stack([ravel(r.values) for r in rounds])
    z = (each.mean(0) - exact).abs() / (each.std(0) / len(each) ** 0.5).clamp(min=1e-9)
    assert float(z.max()) < 4.5
    everything = structures.diagonal(passes("gaussian", subset=N))
    torch.testing.assert_close(ravel(everything.values), exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize("case", ["categorical", "gaussian", "heteroscedastic", "series"])
def test_weights_count_examples(case):
    counts = torch.tensor([0, 1, 2, 1, 0, 3, 1, 1, 1, 1, 0])
    inputs, targets = CASES[case][2:]
    p = passes(case, weights=counts.double())
    repeated = Passes(
        problem=p.problem,
        point=p.point,
        data=bn.Data(inputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts, 0)),
        names=p.names,
        noise=p.noise,
    )
    for structure in (structures.full, structures.diagonal, structures.kronecker):
        torch.testing.assert_close(structure(p)[:-1], structure(repeated)[:-1], rtol=1e-10, atol=1e-10)
    fisher = [structures.full(Passes(**(vars(q) | {"kind": "fisher"}))).values for q in (p, repeated)]
    torch.testing.assert_close(*fisher, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", ["sequence", "heteroscedastic", "gaussian"])
def test_weights_mask_elements(case):
    likelihood, inputs, targets = CASES[case][1:]
    mask = torch.ones(targets.shape, dtype=torch.float64)
    mask[2, 1] = mask[5, 0] = 0
    p = passes(case, weights=mask)
    j, outputs = jacobian(p), p.problem.outputs(p.point.params, {}, inputs)[0]
    h = likelihood.hessian(outputs, None, {})
    if case == "sequence":
        keep = mask.unsqueeze(-1).expand(outputs.shape)
    else:
        keep = torch.cat([mask, mask], -1) if case == "heteroscedastic" else mask
    h = h * keep.flatten(1).unsqueeze(1) * keep.flatten(1).unsqueeze(2)
    expected = torch.einsum("bep,bef,bfq->pq", j, h, j)
    torch.testing.assert_close(structures.full(p).values, expected, rtol=0, atol=1e-11)


def test_a_stream_gives_what_data_in_memory_give():
    p = passes("categorical")
    inputs, targets = p.data.inputs, p.data.targets
    batches = [(inputs[i : i + 5], targets[i : i + 5]) for i in range(0, N, 5)]
    streamed = Passes(**(vars(p) | {"data": bn.Data.stream(batches, n=N), "batch_size": 3}))
    torch.testing.assert_close(structures.full(streamed).values, structures.full(p).values, rtol=1e-12, atol=1e-13)
    few = structures.diagonal(Passes(**(vars(streamed) | {"subset": 6})))
    assert few.run.seen == 6 and few.run.scale == N / 6


def test_the_log_likelihood_is_counted_on_the_way():
    for case in ("categorical", "heteroscedastic", "sequence"):
        p = passes(case)
        batch = Batch(p.data.inputs, p.data.targets, torch.arange(N), torch.tensor(0), N)
        expected = float(p.problem.log_likelihood(p.point.params, p.point.buffers, batch)[0])
        run = structures.diagonal(p).run
        assert run.log_likelihood == pytest.approx(expected, rel=1e-12)
        assert run.elements == p.data.targets.numel()


def test_layers_that_do_not_run_under_vmap_are_differentiated_in_a_loop():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(3, 2, batch_first=True)
            self.head = nn.Linear(2, 1)

        def forward(self, x):
            return self.head(self.cell(x)[0][:, -1])

    problem = bn.Problem(lambda: Recurrent().double(), Gaussian(noise=0.5))
    data, point = bn.Data(numbers(4, 3), numbers(1)), problem.init(Noise.seed(1))
    names = tuple(point.params)
    p = Passes(problem=problem, point=point, data=data, names=names, noise=Noise.seed(0))
    free = {n: x.clone().requires_grad_() for n, x in point.params.items()}
    outputs = problem.outputs(free, point.buffers, data.inputs)[0][:, 0]
    rows = [torch.autograd.grad(f, list(free.values()), retain_graph=True) for f in outputs]
    flat = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    torch.testing.assert_close(structures.full(p).values, flat.T @ flat / 0.25, rtol=0, atol=1e-12)


def test_a_thousand_classes_take_no_thousand_by_thousand_matrices():
    problem = bn.Problem(lambda: nn.Linear(20, 1000), Categorical())
    key = Noise.seed(2)
    data = bn.Data(key.normal(torch.empty(50, 20)), key.integers(50, 1000))
    p = Passes(problem=problem, point=problem.init(key), data=data, names=("weight", "bias"), noise=key)
    peak = _largest(lambda: structures.diagonal(p))
    assert peak <= 1000 * 50 * 2  # outputs of the batch, and the parameters: not 1,000 x 1,000 per example
    assert structures.kronecker(p).left["weight"].shape == (1000, 1000)


def _largest(function) -> int:
    """Elements of the largest tensor that is made."""
    from torch.overrides import TorchFunctionMode

    class Sizes(TorchFunctionMode):
        most = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            if isinstance(output, torch.Tensor):
                Sizes.most = max(Sizes.most, output.numel())
            return output

    with Sizes():
        function()
    return Sizes.most


def test_the_curvature_of_nearly_certain_outputs_is_not_lost_in_single_precision():
    """p (1 - p) of 1e-7 beside p of 1: the matrix of doubles to 1e-5, and no eigenvalue below zero by more than 1e-6 of
    the largest."""
    logits = 17 * F.one_hot(torch.arange(40) % 4, 4).float() + 0.3 * KEY.split("logits").normal(torch.empty(40, 4))
    fine = logits.double().softmax(-1)
    exact = torch.diag(fine.sum(0)) - fine.mT @ fine
    root = roots.Softmax(logits, None)
    torch.testing.assert_close(root.gram(), exact, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(root.matrices().double().sum(0), exact, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(root.diagonal().double(), fine * (1 - fine), rtol=1e-5, atol=1e-12)
    values = torch.linalg.eigvalsh(root.gram())
    assert values[0] > -1e-6 * values[-1]
