"""Training that ends when it is done, and what is reported if it was not."""

import pytest
import torch

import basinet as bn
from basinet.core.noise import Noise
from basinet.ended import fall_of, falling_line, stopped_line
from basinet.engine.method import PATIENCE, patience_of
from basinet.optim import SGD, Adam

X = Noise.seed(0).normal(torch.empty(60, 3))
Y = X[:, :1] + Noise.seed(1).normal(torch.empty(60, 1))
ENGINE = bn.Engine(device="cpu", progress=False)


def problem():
    return bn.Problem(lambda: torch.nn.Linear(3, 1), bn.likelihoods.Gaussian(learned=True))


def test_patience_is_for_recipes_that_do_not_say_how_long():
    assert patience_of(bn.MAP()) == PATIENCE
    assert patience_of(bn.MAP(epochs=5)) is None
    assert patience_of(bn.MAP(epochs=5, patience=2)) == 2 == patience_of(bn.MAP(patience=2))
    assert patience_of(bn.Laplace()) is None
    for recipe in (bn.Anchored, bn.RandomPrior, bn.EMA, bn.WGD):
        assert patience_of(recipe()) == PATIENCE and recipe().best and not recipe(epochs=5).best
    with pytest.raises(ValueError, match="expected patience of at least 1 report"):
        patience_of(bn.EMA(patience=0))


@pytest.mark.parametrize("recipe", [bn.Anchored, bn.RandomPrior, bn.EMA])
def test_other_points_end_at_their_best_validation_too(recipe):
    """Noise that a network of 200 weights fits 40 rows with: going on is worse."""
    wide = bn.Problem(lambda: bn.networks.MLP(3, 1, hidden=(50,)), bn.likelihoods.Gaussian(noise=0.3))
    val, data = bn.Data(X[40:], Y[40:]), bn.Data(X[:40], Y[:40])
    steps = {"optimizer": Adam(lr=0.03), "epochs": 400}
    stopped, whole = (
        bn.fit(recipe(**steps, **more), wide, data, val=val, engine=ENGINE) for more in ({"patience": 10}, {})
    )
    curves = {n: c[0] for n, c in stopped.info["curves"].items()}
    assert curves["step"][-1] < 400 and len(curves["val_nll"]) == 10 + 1 + curves["val_nll"].index(
        min(curves["val_nll"])
    )
    assert bn.score(stopped, val)["nll"] == pytest.approx(min(curves["val_nll"]), abs=1e-3)
    assert bn.score(stopped, val)["nll"] < bn.score(whole, val)["nll"] - 0.1


def test_a_default_fit_stops_at_its_best_with_validation_and_at_a_flat_loss_without():
    val = bn.Data(X[40:], Y[40:])
    judged = bn.fit(bn.MAP(optimizer=Adam(lr=0.1)), problem(), bn.Data(X[:40], Y[:40]), val=val, engine=ENGINE)
    curves = {n: c[0] for n, c in judged.info["curves"].items()}
    best = min(range(len(curves["val_nll"])), key=lambda i: curves["val_nll"][i])
    assert curves["step"][-1] < 3000 and len(curves["step"]) == best + 1 + PATIENCE
    assert bn.score(judged, val)["nll"] == pytest.approx(curves["val_nll"][best], abs=2e-3)
    plain = bn.Problem(lambda: torch.nn.Linear(3, 1), bn.likelihoods.Gaussian(noise=1.0))
    alone = bn.fit(bn.MAP(optimizer=SGD(lr=0.3)), plain, bn.Data(X, Y), engine=ENGINE)  # at its mode within 100 steps
    assert alone.info["curves"]["step"][0][-1] < 3000


def test_when_members_stopped_and_which_state_was_best_is_reported(caplog):
    caplog.set_level("INFO", logger="basinet")
    parts, recipe = (bn.Data(X[:40], Y[:40]), bn.Data(X[40:], Y[40:])), bn.MAP(epochs=50, batch_size=40, patience=3)
    curves = bn.fit(recipe, problem(), parts[0], val=parts[1], engine=ENGINE).info["curves"]
    best, end = min(zip(curves["val_nll"][0], curves["step"][0]))[1], curves["step"][0][-1]
    line = f"training stopped after {end:.0f} of 50 steps; its state of step {best:.0f} is kept, where"
    assert line in caplog.text
    caplog.clear()
    bn.fit(bn.MAP(epochs=2), problem(), parts[0], val=parts[1], engine=ENGINE)
    assert "stopped after" not in caplog.text  # it ends where it is
    two = [{"step": [10, 20, 30], "val_nll": [1.0, 0.5, 0.7]}, {"step": [10, 20], "val_nll": [1.0, None]}]
    assert stopped_line(two, 5000).startswith(
        "members stopped after 20 to 30 of 5,000 steps; their states of steps 10 to 20 are kept"
    )
    assert stopped_line([{"step": [10], "val_nll": [None]}], 10) == stopped_line([{}], 10) == ""


def test_a_loss_that_still_falls_is_reported(caplog):
    slow = bn.Problem(lambda: torch.nn.Linear(3, 1), bn.likelihoods.Gaussian(noise=0.1))
    with caplog.at_level("INFO", "basinet"):
        posterior = bn.fit(bn.MAP(optimizer=Adam(lr=1e-5)), slow, bn.Data(X, Y), engine=ENGINE)
    assert posterior.info["still_falling"][0] > 0.05
    assert "training still improved over the second half of the 3,000 planned steps" in caplog.text


STEPS = list(range(10, 410, 10))


@pytest.mark.parametrize(
    ("curves", "low", "high"),
    [
        ({"step": STEPS, "loss": [40 - i for i in range(40)]}, 18, 20),
        ({"step": STEPS, "loss": [20 - min(i, 20) for i in range(40)]}, 0, 0),
        ({"step": STEPS[:-1], "loss": [40 - i for i in range(39)]}, 0, 0),  # it stopped before
        ({"step": STEPS, "loss": [9] * 40, "val_nll": [4 - i / 10 for i in range(40)]}, 1.8, 2),
        ({"step": STEPS[:8], "loss": [8 - i for i in range(8)]}, 0, 0),  # too few to tell
        ({"step": [], "loss": []}, 0, 0),
    ],
)
def test_the_fall_is_that_of_the_second_half(curves, low, high):
    constant = bn.MAP(optimizer=Adam(lr=1e-3))
    planned = 400 if len(curves["step"]) > 8 else 80
    assert low <= fall_of(curves, constant, planned) <= high


def test_a_loss_that_falls_only_with_the_step_size_had_ended():
    cosine = bn.MAP()  # whose step size goes to zero
    rates = cosine.optimizer.learning_rate(torch.arange(400), 400)
    falling = [5 + 100 * float(rates[s - 1]) for s in STEPS]
    assert fall_of({"step": STEPS, "loss": falling}, cosine, 400) == 0


def test_the_line_counts_members():
    assert falling_line([0.0, 0.2], 100).startswith(
        "1 of 2 members still improved over the second half of the 100 planned"
    )


def test_a_validation_that_rose_and_falls_again_asks_for_no_more_training():
    step = list(range(30, 3001, 30))
    worse = (
        [1.0 - 0.01 * i for i in range(30)] + [0.7 + 0.2 * i for i in range(20)] + [4.5 - 0.05 * i for i in range(50)]
    )
    recipe = bn.MAP(optimizer=SGD(lr=0.1))
    assert fall_of({"step": step, "val_nll": worse}, recipe, 3000) == 0
    better = [v - 3 * (i >= 50) for i, v in enumerate(worse)]  # the second half is below all before
    assert fall_of({"step": step, "val_nll": better}, recipe, 3000) > 1
