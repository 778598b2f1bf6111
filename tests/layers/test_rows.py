"""Networks that pick rows inside: the inputs decide which rows each layer sees. Curvature and linear predictive
are those of single examples, whatever comes first and together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import Params, ravel, stack
from basinet.curvature import structures
from basinet.curvature.gaussians import CurvedKronecker
from basinet.curvature.passes import Passes
from basinet.families import Diagonal, Full, Kronecker
from basinet.layers.rows import selects_rows
from basinet.predict import Draws, linear, tangent
from basinet.problem.likelihoods import Categorical

KEY = Noise.seed(8)
N = 14


class Masked(nn.Module):
    """A layer that sees only some of the examples, and a head that sees all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, some = self.first(x), x[:, 0] > 0
        h[some] = h[some] + self.extra(x[some])
        return self.head(torch.tanh(h))


class Experts(nn.Module):
    """A mixture of experts with hard routing; the last expert sees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        route = (x[:, 0] > 0).long()
        out = x.new_zeros(len(x), 2)
        for e, expert in enumerate(self.experts):
            rows = (route == e).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(torch.tanh(x[rows])))
        return out


class Sorted(nn.Module):
    """Layers that see all examples in an order of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.head(torch.tanh(self.deep(x[order])))[order.argsort()]


class Tokens(nn.Module):
    """Steps of all sequences in one axis, handed to one of two experts each."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.head = nn.ModuleList(nn.Linear(3, 4) for _ in range(2)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        out = tokens.new_zeros(len(tokens), 4)
        for e, expert in enumerate(self.experts):
            mine = (tokens[:, 0] > 0) == bool(e)
            out[mine] = expert(tokens[mine])
        return self.head(torch.tanh(out).reshape(len(x), -1, 4).mean(1))


class Stepwise(nn.Module):
    """Rows one after another, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(descending=True).tolist()
        hidden = torch.tanh(self.deep(torch.cat([x[i : i + 1] for i in order])))
        back = sorted(range(len(order)), key=lambda place: order[place])
        return self.head(torch.stack([hidden[place] for place in back]))


PICKING = {
    "masked": (Masked, (3,)),
    "experts": (Experts, (3,)),
    "sorted": (Sorted, (3,)),
    "tokens": (Tokens, (4, 3)),
    "stepwise": (Stepwise, (3,)),
}


def passes(case: str, order: Tensor | None = None, **options) -> Passes:
    make, shape = PICKING[case]
    problem = bn.Problem(lambda: make().double(), Categorical())
    inputs = KEY.split(case).normal(torch.empty(N, *shape, dtype=torch.float64))
    inputs[:4, ..., 0] = inputs[:4, ..., 0].abs()  # the first four take one way: what is tried tells of no other
    order = torch.arange(N) if order is None else order
    data = bn.Data(inputs[order], KEY.integers(N, 2)[order])
    point = problem.init(Noise.seed(1))
    given = {"names": tuple(point.params), "noise": Noise.seed(0), "batch_size": 7} | options
    return Passes(problem=problem, point=point, data=data, **given)


def dense(p: Passes) -> Tensor:
    """sum_n J' H J from each example alone."""
    total = 0
    for n in range(N):
        row = p.data.inputs[n : n + 1]

        def outputs(params: Params, row: Tensor = row) -> Tensor:
            return p.problem.outputs(params, {}, row)[0][0]

        j = ravel(torch.func.jacrev(outputs)(p.params), 1)
        total = total + j.T @ p.problem.likelihood.hessian(outputs(p.params)[None], None, {})[0] @ j
    return total


ORDERS = {"as given": None, "backwards": torch.arange(N).flip(0), "mixed": KEY.split("order").permutation(N)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", PICKING)
def test_full_and_diagonal_are_those_of_single_examples(case, order):
    p = passes(case, ORDERS[order])
    expected = dense(p)
    torch.testing.assert_close(structures.full(p).values, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(ravel(structures.diagonal(p).values), expected.diagonal(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", PICKING)
def test_low_rank_is_that_of_single_examples(case):
    p = passes(case)
    expected = torch.linalg.eigvalsh(dense(p)).flip(0)[:3]
    torch.testing.assert_close(structures.low_rank(p, 3, tolerance=1e-12).values, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", PICKING)
def test_kronecker_factors_do_not_depend_on_the_order_and_corrected_ones_are_right(case):
    corrected = []
    for order in ORDERS.values():
        p = passes(case, order)
        plain = CurvedKronecker.of(structures.kronecker(p), p.params)
        corrected.append(plain.corrected(structures.diagonal(p, plain.left, plain.right)))
        exact, begin = dense(p), 0
        for n, x in p.params.items():
            here = slice(begin, begin := begin + x.numel())
            left = plain.left.get(n, torch.eye(x.shape[0]).double())
            right = plain.right.get(n, torch.eye(x[0].numel()).double())
            basis = torch.kron(left, right)
            along = (basis.T @ exact[here, here] @ basis).diagonal()
            torch.testing.assert_close(corrected[-1].values[n].flatten(), along, rtol=0, atol=1e-11)
    for other in corrected[1:]:
        for n, x in corrected[0].values.items():
            torch.testing.assert_close(other.values[n].sum(), x.sum(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("structure", [structures.full, structures.diagonal, structures.kronecker])
def test_an_expert_that_sees_no_data_has_no_curvature(structure):
    curvature = structure(passes("experts"))
    if structure is structures.full:
        assert bool((curvature.values[-8:] == 0).all())
    else:
        values = curvature.values if structure is structures.diagonal else curvature.diagonal
        assert bool((values["experts.2.weight"] == 0).all()) and bool((values["experts.2.bias"] == 0).all())


@pytest.mark.parametrize("structure", ["full", "kronecker", "eigen-corrected", "diagonal", "low-rank"])
def test_laplace_can_be_fitted(structure):
    p = passes("experts")
    start = bn.Posterior.of(_module(p), p.problem)
    recipe = bn.Laplace(structure=structure, where=None, prior_precision="prior")
    posterior = bn.fit(recipe, p.problem, p.data, start=start)
    spread = posterior.predict(p.data.inputs, samples=20).epistemic
    assert bool(spread.isfinite().all()) and float(spread.max()) > 0


def _module(p: Passes) -> nn.Module:
    module = PICKING["experts"][0]().double()
    module.load_state_dict(p.point.params)
    return module


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "full"])
@pytest.mark.parametrize("case", PICKING)
def test_the_linear_predictive_is_that_of_each_single_input(case, structure):
    """Inputs first in any order, in batches of several sizes: J Sigma J' from the rows of each input's own Jacobian."""
    p = passes(case)
    family = FAMILIES[structure](p.params)
    expected = []
    for n in range(N):
        row = p.data.inputs[n : n + 1]
        jacobian = torch.func.jacrev(lambda params, row=row: p.problem.outputs(params, {}, row)[0][0])(p.params)
        expected.append(family.quad(jacobian))
    covariance = torch.stack(expected)
    for order in ORDERS.values():
        order = torch.arange(N) if order is None else order
        for size in (None, 5, 1):
            parts = linear.moments(p.problem, family, p.point, p.data.inputs[order], full=True, batch_size=size)
            spreads = torch.cat([spread for _, spread in parts])
            torch.testing.assert_close(spreads, covariance[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", PICKING)
def test_draws_of_the_linear_function_are_those_of_each_single_input(case):
    p = passes(case)
    family = FAMILIES["kronecker"](p.params)
    draws = Draws(p.problem, stack([family]), KEY.spread(1).key, 3)
    outputs, _ = tangent.samples(draws, draws.centres(), p.data.inputs)
    for n in range(N):
        alone, _ = tangent.samples(draws, draws.centres(), p.data.inputs[n : n + 1])
        torch.testing.assert_close(outputs[:, :, n : n + 1], alone, rtol=0, atol=1e-12)


def test_an_index_that_leaves_rows_alone_asks_for_nothing():
    x = torch.zeros(4, 4, 3)
    for index in ((slice(None), 0), (..., 0), (slice(None), slice(1, 3)), (slice(None), None)):
        assert not selects_rows(Tensor.__getitem__, (x, index), 4)
    for index in (0, slice(2), torch.tensor([1, 0]), [1, 0], (slice(None), torch.tensor([1, 0])), x[:, 0, 0] > 0):
        assert selects_rows(Tensor.__getitem__, (x, index), 4)
    assert selects_rows(Tensor.index_add_, (x,), 4) and not selects_rows(Tensor.tanh, (x,), 4)
    assert not selects_rows(torch.where, (x > 0, x, x), 4) and selects_rows(torch.where, (x > 0,), 4)
    assert not selects_rows(torch.sort, (torch.zeros(5, 3),), 4) and not selects_rows(torch.sort, (x,), 1)


def diagonal(params: Params) -> Diagonal:
    return Diagonal(params, {n: 0.1 + KEY.split(n).uniform(x) for n, x in params.items()}, {})


def kronecker(params: Params) -> Kronecker:
    def basis(name: str, size: int) -> Tensor:
        return torch.linalg.qr(KEY.split(name).normal(torch.empty(size, size, dtype=torch.float64)))[0]

    matrices = {n: x.reshape(len(x), -1) for n, x in params.items()}
    left = {n: basis(n + " left", x.shape[0]) for n, x in matrices.items()}
    right = {n: basis(n + " right", x.shape[1]) for n, x in matrices.items() if n.endswith("weight")}
    return Kronecker(params, left, right, {n: 0.1 + KEY.split(n).uniform(x) for n, x in matrices.items()}, {})


def full(params: Params) -> Full:
    size = ravel(params).numel()
    return Full(params, KEY.normal(torch.empty(size, size, dtype=torch.float64)).tril() / size**0.5, {})


FAMILIES = {"diagonal": diagonal, "kronecker": kronecker, "full": full}
