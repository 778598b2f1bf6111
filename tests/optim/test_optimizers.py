"""Optimisers against torch.optim, alone and lifted over members with their own clocks."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.optim.lr_scheduler import CosineAnnealingLR

from basinet.core import tree
from basinet.core.registry import known
from basinet.optim import SGD, Adam, AdamW, Constant, Cosine, Cyclic, Optimizer, WarmUp

STEPS = 200
PAIRS = {
    "SGD": (SGD(lr=0.05), torch.optim.SGD),
    "SGD decayed": (SGD(lr=0.05, weight_decay=0.1), torch.optim.SGD),
    "SGD momentum": (SGD(lr=0.02, momentum=0.9), torch.optim.SGD),
    "SGD momentum decayed": (SGD(lr=0.02, momentum=0.8, weight_decay=0.1), torch.optim.SGD),
    "SGD Nesterov": (SGD(lr=0.02, momentum=0.9, nesterov=True), torch.optim.SGD),
    "SGD Nesterov decayed": (SGD(lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.1), torch.optim.SGD),
    "Adam": (Adam(lr=0.02), torch.optim.Adam),
    "Adam decayed": (Adam(lr=0.02, weight_decay=0.1), torch.optim.Adam),
    "Adam other": (Adam(lr=0.02, betas=(0.3, 0.8), eps=0.1), torch.optim.Adam),
    "Adam no memory": (Adam(lr=0.02, betas=(0.0, 0.0), eps=0.1), torch.optim.Adam),
    "AdamW": (AdamW(lr=0.02), torch.optim.AdamW),
    "AdamW decayed": (AdamW(lr=0.02, weight_decay=0.5), torch.optim.AdamW),
    "AdamW undecayed": (AdamW(lr=0.02, weight_decay=0.0), torch.optim.AdamW),
}
RULES = [rule for rule, _ in PAIRS.values()]
LIFTED = [
    SGD(lr=0.05),
    SGD(lr=Cosine(peak=0.05), momentum=0.9, nesterov=True, weight_decay=0.1),
    Adam(lr=WarmUp(schedule=Cosine(peak=0.05), fraction=0.3)),
    Adam(lr=0.02, weight_decay=0.1),
    AdamW(lr=Cyclic(peak=0.05, cycles=3)),
]


@pytest.fixture(params=["quadratic", "mlp"])
def problem(request):
    """A loss of parameters by name and step, and where to start."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    if request.param == "quadratic":
        scales = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)
        params = {"a": normal(3), "b": normal(2, 2), "c": normal()}

        def loss(params: dict[str, Tensor], step: int) -> Tensor:
            pull = params["b"].sum() - params["c"]
            return 0.5 * (scales * params["a"] ** 2).sum() + 0.5 * pull**2 + 0.1 * (params["b"] ** 2).sum()
    else:
        params = {"w": normal(3, 8), "b": normal(8), "v": 0.5 * normal(8, 1), "c": normal(1)}
        inputs, targets = normal(10, 16, 3), normal(10, 16, 1)  # ten batches

        def loss(params: dict[str, Tensor], step: int) -> Tensor:
            hidden = torch.tanh(inputs[step % 10] @ params["w"] + params["b"])
            return (hidden @ params["v"] + params["c"] - targets[step % 10]).square().mean()

    return loss, params


def run(rule: Optimizer, loss, params, steps: int = STEPS, as_tensor: bool = False):
    state = rule.init(params)
    for step in range(steps):
        clock = torch.tensor(step) if as_tensor else step
        variables = {key: x.requires_grad_() for key, x in tree.tree_map(Tensor.detach, params).items()}
        grads = dict(zip(params, torch.autograd.grad(loss(variables, step), list(variables.values()))))
        params, state = rule.step(params, grads, state, clock, steps)
    return params


def run_torch(make, loss, params, schedule=None, **settings):
    variables = {key: x.clone().requires_grad_() for key, x in params.items()}
    optimizer = make(variables.values(), foreach=False, fused=False, **settings)
    scheduler = schedule(optimizer) if schedule else None
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(variables, step).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return {key: x.detach() for key, x in variables.items()}


def assert_near(params, expected, started) -> None:
    for key, x in expected.items():
        assert (x - started[key]).abs().max() > 0.1  # it went somewhere
        torch.testing.assert_close(params[key], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pair", PAIRS)
def test_steps_are_those_of_torch(pair, problem):
    rule, make = PAIRS[pair]
    loss, params = problem
    expected = run_torch(make, loss, params, **vars(rule))
    assert_near(run(rule, loss, params), expected, params)
    assert_near(run(rule, loss, params, as_tensor=True), expected, params)


@pytest.mark.parametrize(
    ("rule", "make", "settings"),
    [
        (SGD(lr=Cosine(peak=0.05), momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
        (Adam(lr=Cosine(peak=0.05)), torch.optim.Adam, {}),
        (AdamW(lr=Cosine(peak=0.05), weight_decay=0.5), torch.optim.AdamW, {"weight_decay": 0.5}),
    ],
    ids=["SGD", "Adam", "AdamW"],
)
def test_steps_on_a_schedule_are_those_of_torch(rule, make, settings, problem):
    loss, params = problem
    expected = run_torch(make, loss, params, lambda o: CosineAnnealingLR(o, T_max=STEPS), lr=0.05, **settings)
    assert_near(run(rule, loss, params), expected, params)
    assert_near(run(rule, loss, params, as_tensor=True), expected, params)


@pytest.mark.parametrize(("rule", "make"), [(SGD, torch.optim.SGD), (Adam, torch.optim.Adam)])
def test_defaults_are_those_of_torch(rule, make, problem):
    loss, params = problem
    expected = run_torch(make, loss, params, lr=0.02)
    assert_near(run(rule(lr=0.02), loss, params), expected, params)


def test_first_steps_by_hand():
    x, g = {"x": torch.tensor(2.0, dtype=torch.float64)}, {"x": torch.tensor(4.0, dtype=torch.float64)}

    def first(rule: Optimizer) -> float:
        return rule.step(x, g, rule.init(x), 0, 10)[0]["x"].item()

    assert first(SGD(lr=0.1, weight_decay=0.5)) == pytest.approx(2 - 0.1 * (4 + 0.5 * 2), rel=1e-14)
    assert first(SGD(lr=0.1, momentum=0.9)) == pytest.approx(2 - 0.1 * 4, rel=1e-14)
    assert first(SGD(lr=0.1, momentum=0.9, nesterov=True)) == pytest.approx(2 - 0.1 * 1.9 * 4, rel=1e-14)
    assert first(Adam(lr=0.1, eps=1.0)) == pytest.approx(2 - 0.1 * 4 / (4 + 1), rel=1e-14)  # bias corrected
    assert first(AdamW(lr=0.1, weight_decay=0.5, eps=1.0)) == pytest.approx(1.9 - 0.1 * 4 / 5, rel=1e-14)


def test_coupled_decay_finds_the_mode_under_a_gaussian_prior_and_decoupled_does_not():
    n, precision, target = 50, 30.0, 2.0  # mean loss (x - 2)²/2: the mode is n target/(n + precision)
    mode = n * target / (n + precision)

    def loss(params, step):
        return 0.5 * (params["x"] - target) ** 2

    def end(kind: type[Optimizer]) -> float:
        rule = kind(lr=Cosine(peak=0.1), weight_decay=precision / n)
        return run(rule, loss, {"x": torch.zeros((), dtype=torch.float64)}, steps=400)["x"].item()

    assert end(SGD) == pytest.approx(mode, abs=1e-6)
    assert end(Adam) == pytest.approx(mode, abs=1e-6)
    assert abs(end(AdamW) - mode) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", LIFTED, ids=lambda rule: type(rule).__name__)
def test_four_members_with_their_own_clocks_are_four_runs(rule, dtype):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    first, rounds = torch.tensor([0, 3, 17, 40]), 20
    starts = [{"w": normal(3, 5), "b": normal(5), "s": normal()} for _ in first]
    grads = [[{"w": normal(3, 5), "b": normal(5), "s": normal()} for _ in first] for _ in range(rounds)]

    together = vmap(lambda p, g, s, clock: rule.step(p, g, s, clock, 60))
    params = tree.stack(starts)
    state = vmap(rule.init)(params)
    for k in range(rounds):
        params, state = together(params, tree.stack(grads[k]), state, first + k)

    for member, clock in enumerate(first):
        alone, memory = starts[member], rule.init(starts[member])
        for k in range(rounds):
            alone, memory = rule.step(alone, grads[k][member], memory, clock + k, 60)
        pairs = zip(tree.leaves((params, state)), tree.leaves((alone, memory)), strict=True)
        assert all(x.dtype == dtype and torch.equal(x[member], y) for x, y in pairs)


@pytest.mark.parametrize("rule", [Adam(lr=0.02), SGD(lr=Cosine(peak=0.1))], ids=["Adam", "SGD"])
def test_members_with_different_clocks_step_differently(rule):
    params = {"x": torch.zeros(4, 2)}
    state = vmap(rule.init)(params)
    grads = {"x": torch.ones(4, 2)}
    moved, _ = vmap(lambda p, g, s, clock: rule.step(p, g, s, clock, 60))(
        params, grads, state, torch.tensor([0, 3, 17, 40])
    )
    assert len(moved["x"][:, 0].unique()) == 4


@pytest.mark.parametrize("rule", LIFTED, ids=lambda rule: type(rule).__name__)
def test_the_lifted_step_is_one_graph(rule):
    def step(params, grads, state, clock):
        return vmap(lambda *args: rule.step(*args, 60))(params, grads, state, clock)

    params, clock = {"x": torch.ones(4, 2)}, torch.tensor([0, 3, 17, 40])
    arguments = params, {"x": torch.full((4, 2), 0.5)}, vmap(rule.init)(params), clock
    stepped = torch.compile(step, backend="eager", fullgraph=True)(*arguments)
    for x, y in zip(tree.leaves(stepped), tree.leaves(step(*arguments)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", LIFTED, ids=lambda rule: type(rule).__name__)
def test_dtypes_and_structure_are_kept(rule, dtype):
    params = {"a": torch.ones((), dtype=dtype), "b": (torch.ones(2, 3, dtype=dtype),)}
    state = rule.init(params)
    for clock in (0, torch.tensor(1)):
        moved, after = rule.step(params, params, state, clock, 10)
        shapes = [tree.tree_map(lambda x: (x.shape, x.dtype), t) for t in (params, state, moved, after)]
        assert shapes[2] == shapes[0] and shapes[3] == shapes[1]
        assert type(after) is type(state)


@pytest.mark.parametrize("rule", RULES, ids=PAIRS)
def test_nothing_is_changed_in_place(rule):
    generator = torch.Generator().manual_seed(5)
    params = {"x": torch.randn(4, generator=generator), "y": torch.randn((), generator=generator)}
    grads = tree.tree_map(lambda x: x + 1, params)
    state = tree.tree_map(lambda x: x + 0.5, rule.init(params))
    clock = torch.tensor(2)
    inputs = (params, grads, state, clock)
    copies = tree.tree_map(torch.clone, inputs)
    moved, after = rule.step(*inputs, 10)
    again, after_again = rule.step(*inputs, 10)
    for x, copy in zip(tree.leaves(inputs), tree.leaves(copies), strict=True):
        assert torch.equal(x, copy)
    for x, y in zip(tree.leaves((moved, after)), tree.leaves((again, after_again)), strict=True):
        assert torch.equal(x, y)
    assert all((x != y).all() for x, y in zip(tree.leaves(moved), tree.leaves(params), strict=True))


def test_state_holds_only_what_the_next_step_needs():
    params = {"x": torch.ones(3)}
    assert tree.size(SGD().init(params)) == 0
    assert tree.size(SGD(momentum=0.9).init(params)) == 3
    assert tree.size(Adam().init(params)) == tree.size(AdamW().init(params)) == 6


def test_learning_rate_is_the_number_or_the_schedule():
    assert Adam(lr=0.02).learning_rate(7, 10) == 0.02
    assert SGD(lr=Cosine(peak=0.2)).learning_rate(5, 10) == pytest.approx(0.1, rel=1e-12)
    rates = SGD(lr=Constant(value=0.2)).learning_rate(torch.tensor([0, 4]), 10)
    assert rates.tolist() == [0.2, 0.2]


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
@pytest.mark.parametrize("lr", [-0.1, math.nan, math.inf, "fast", None])
def test_a_wrong_learning_rate_is_refused(kind, lr):
    with pytest.raises(ValueError, match=f"{kind.__name__}: expected lr .* or a Rate, got .*{lr}.* Pass"):
        kind(lr=lr)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(momentum=1.0), r"SGD: expected momentum in \[0, 1\), got 1\.0"),
        (lambda: SGD(momentum=-0.1), r"SGD: expected momentum in \[0, 1\), got -0\.1"),
        (lambda: SGD(nesterov=True), "SGD: expected momentum above 0 with nesterov=True, got momentum=0"),
        (lambda: SGD(weight_decay=-1e-4), r"SGD: expected weight_decay .* got -0\.0001"),
        (lambda: Adam(betas=(0.9, 1.0)), r"Adam: expected betas in \[0, 1\), got 1\.0"),
        (lambda: Adam(betas=(-0.1, 0.9)), r"Adam: expected betas in \[0, 1\), got -0\.1"),
        (lambda: Adam(betas=(0.9,)), r"Adam: expected two betas, got \(0\.9,\)"),
        (lambda: Adam(eps=0.0), r"Adam: expected eps above 0, got 0\.0"),
        (lambda: Adam(weight_decay=math.inf), "Adam: expected weight_decay .* got inf"),
        (lambda: AdamW(betas=(1.0, 0.9)), r"AdamW: expected betas in \[0, 1\), got 1\.0"),
        (lambda: AdamW(eps=-1.0), r"AdamW: expected eps above 0, got -1\.0"),
        (lambda: AdamW(weight_decay=-1), "AdamW: expected weight_decay .* got -1"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_optimizers_are_frozen_comparable_and_known_by_name():
    assert {"SGD", "Adam", "AdamW"} <= set(known("optimizer"))
    assert "Optimizer" not in known("optimizer")
    assert Adam() == Adam(lr=1e-3) != AdamW()
    with pytest.raises(FrozenInstanceError):
        SGD().lr = 0.2
    with pytest.raises(TypeError):
        SGD(0.1)
    with pytest.raises(TypeError):
        Optimizer()
