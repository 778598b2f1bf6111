"""What all families share: the conformance suite, trees, errors. The suite states its own z-scores."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor

from basinet.core.noise import Noise
from basinet.core.tree import Params, Point, leaves, stack, take, tree_map
from basinet.families import Delta, Diagonal, Empirical, Family, LowRank, LowRankPrecision, Mixture, family
from basinet.testing import check_family

KEY = Noise.seed(0)
SHAPES = {"layer.weight": (2, 3), "layer.bias": (2,)}
BUFFERS = {"norm.mean": torch.tensor([1.0, 2.0], dtype=torch.float64), "norm.count": torch.tensor(7)}


def params(name: str, *lead: int) -> Params:
    return {n: KEY.split(name).split(n).normal(torch.empty(*lead, *s).double()) for n, s in SHAPES.items()}


def diagonal(name: str) -> Diagonal:
    scale = {n: 0.5 + x.abs() for n, x in params(name + " scale").items()}
    return Diagonal(params(name), scale, BUFFERS)


def mixture(name: str, weights=(0.2, 0.5, 0.3)) -> Mixture:
    parts = [diagonal(f"{name} {k}") for k in range(len(weights))]
    return Mixture(stack(parts), torch.tensor(weights, dtype=torch.float64))


def empirical(count: int) -> Empirical:
    return Empirical(params("points", count), tree_map(lambda x: torch.stack([x] * count), BUFFERS), count)


EXAMPLES = {
    "delta": Delta(params("delta"), BUFFERS),
    "empirical": empirical(5),
    "diagonal": diagonal("diagonal"),
    "low rank": LowRank(params("low"), diagonal("low").scale, params("columns", 3), BUFFERS),
    "low-rank precision": LowRankPrecision(params("low"), diagonal("low").scale, params("columns", 3), BUFFERS),
    "mixture": mixture("mixture"),
    "mixture of deltas": Mixture(stack([Delta(params(k), BUFFERS) for k in "abc"]), torch.tensor([0.5, 0.2, 0.3])),
    "mixture of mixtures": Mixture(stack([mixture("a"), mixture("b")]), torch.tensor([0.4, 0.6], dtype=torch.float64)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_family_passes_the_conformance_suite(name):
    checks = check_family(EXAMPLES[name])
    continuous = name in ("diagonal", "low rank", "low-rank precision", "mixture", "mixture of mixtures")
    assert len(checks) == (6 if continuous else 5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_buffers_travel_with_the_draws_and_the_mean(name):
    for point in (EXAMPLES[name].sample(KEY), EXAMPLES[name].mean(), EXAMPLES[name].draw(KEY, 3)):
        assert isinstance(point, Point) and {n: x.shape for n, x in point.params.items()} == SHAPES
        torch.testing.assert_close(point.buffers["norm.mean"], BUFFERS["norm.mean"])
        assert int(point.buffers["norm.count"]) == 7


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, 5), (3, 12), (10, 15)])
def test_draws_in_a_row_are_the_draws_one_by_one(name, begin, end):
    one_by_one = stack([EXAMPLES[name].draw(KEY, s) for s in range(begin, end)])
    for drawn, expected in zip(leaves(EXAMPLES[name].draws(KEY, begin, end)), leaves(one_by_one)):
        torch.testing.assert_close(drawn, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", ["delta", "empirical", "mixture of deltas"])
def test_families_of_points_have_no_density(name):
    with pytest.raises(ValueError, match=r"is made of points and has no density: log_prob needs a continuous family"):
        EXAMPLES[name].log_prob(params("anywhere"))


@pytest.mark.parametrize(("name", "points"), [("delta", 1), ("empirical", 5), ("low rank", None), ("mixture", None)])
def test_points_are_counted_where_there_are_finitely_many(name, points):
    assert EXAMPLES[name].points == points


def test_a_family_that_is_wrong_fails_the_suite():
    @family
    class Biased(Family):
        centre: Params
        buffers: Params

        def sample(self, noise: Noise) -> Point:
            z = noise.normal_params(self.centre)
            return Point({n: c + z[n] + 0.2 for n, c in self.centre.items()}, self.buffers)

        def mean(self) -> Point:
            return Point(self.centre, self.buffers)

        def log_prob(self, params: Params) -> Tensor:
            return torch.stack([-(x - self.centre[n]).square().sum() for n, x in params.items()]).sum()

    with pytest.raises(AssertionError) as error:
        check_family(Biased(params("biased"), {}))
    assert "mean of draws" in str(error.value) and "density integrates to one" in str(error.value)


def test_fields_with_plain_numbers_are_static_however_they_are_annotated():
    def make(number: object, word: object) -> type:
        namespace = {"__annotations__": {"centre": "Params", "count": number, "name": word}, "__module__": __name__}
        methods = {n: getattr(Delta, n) for n in ("sample", "mean", "log_prob")}
        return family(type("Counted", (Family,), namespace | methods))

    for kind in (make("int", "str"), make(int, str)):
        instance = kind(centre={"a": torch.ones(3)}, count=4, name="x")
        assert len(leaves(instance)) == 1
        pair = stack([instance, instance])
        assert pair.count == 4 and pair.name == "x" and pair.centre["a"].shape == (2, 3)
        assert take(pair, 0).centre["a"].shape == (3,)


def test_families_are_frozen():
    with pytest.raises(FrozenInstanceError):
        EXAMPLES["delta"].params = {}
