"""Estimators for scikit-learn: what they predict, what they take and refuse, and where they are used."""

import copy
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import basinet as bn
from basinet.sklearn import EXPECTED_FAILED_CHECKS, BasinetClassifier, BasinetRegressor, DataWarning

QUICK = bn.MAP(epochs=40, batch_size=32, optimizer=bn.optim.Adam(lr=1e-2))
BRIEF = bn.MAP(epochs=1)
FAST = {  # checks that fit once or twice: all of them take a minute
    "check_complex_data",
    "check_dtype_object",
    "check_estimators_empty_data_messages",
    "check_estimators_nan_inf",
    "check_estimators_pickle",
    "check_estimators_unfitted",
    "check_fit2d_1sample",
    "check_fit_idempotent",
    "check_methods_subset_invariance",
    "check_n_features_in",
    "check_parameters_default_constructible",
    "check_requires_y_none",
    "check_supervised_y_no_nan",
}


def small(inputs: int, outputs: int) -> torch.nn.Module:
    return bn.networks.MLP(inputs, outputs, hidden=(16,))


def regressor(**given):
    return BasinetRegressor(**{"method": QUICK, "members": 2, "network": small, **given})


def classifier(**given):
    return BasinetClassifier(**{"method": QUICK, "members": 2, "network": small, **given})


def quietly(check, estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks provoke them
        check(estimator)


@pytest.fixture(scope="module")
def houses() -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame(
        {
            "area": rng.uniform(20, 150, n),
            "rooms": pd.array(rng.integers(1, 6, n), dtype="Int64"),
            "town": rng.choice(["Ash", "Bow", "Cam"], n),
            "zone": pd.Categorical(rng.integers(10, 14, n)),
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "new": rng.random(n) < 0.3,
        }
    )
    return frame, (10 * frame.area + 100 * (frame.town == "Ash") + rng.normal(0, 20, n)).rename("price")


@pytest.mark.parametrize(
    "estimator", [regressor(method=BRIEF), classifier(method=BRIEF)], ids=lambda e: type(e).__name__
)
def test_the_quick_checks_of_scikit_learn_pass(estimator):
    names = set()
    for given, check in estimator_checks_generator(estimator, expected_failed_checks=EXPECTED_FAILED_CHECKS):
        name = getattr(check, "func", check).__name__
        if name in FAST:
            quietly(check, given)
            names.add(name)
    assert names == FAST


@pytest.mark.slow
@pytest.mark.parametrize("network", [None, small], ids=["default", "own"])
@pytest.mark.parametrize("kind", [BasinetRegressor, BasinetClassifier])
def test_all_checks_of_scikit_learn_pass(kind, network):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            kind(QUICK, members=2, network=network), on_fail=None, expected_failed_checks=EXPECTED_FAILED_CHECKS
        )
    by = {status: {r["check_name"] for r in results if r["status"] == status} for status in ("failed", "xfail")}
    assert by == {"failed": set(), "xfail": set(EXPECTED_FAILED_CHECKS)}
    assert len(results) > 55


def test_a_regressor_predicts_distributions_in_units_of_the_target():
    X, y = load_diabetes(return_X_y=True)
    X, new, y, truth = train_test_split(X, y, random_state=0)
    model = regressor(members=3, network=None, method=bn.MAP(epochs=15)).fit(X, y)
    mean, sd = model.predict(new, return_std=True)
    assert model.score(new, truth) > 0.3
    interval = model.predict_interval(new, 0.9)
    held = ((interval[:, 0] <= truth) & (truth <= interval[:, 1])).mean()
    assert 0.7 < held < 1 and sd.min() > 10  # binomial sd of .9 over 111 rows: .03; the noise of this target is near 50
    distribution = model.predict_dist(new)
    assert distribution.mean.numpy() == pytest.approx(mean) and distribution.stddev.numpy() == pytest.approx(sd)
    for level, column in zip((0.05, 0.95), interval.T):
        assert distribution.cdf(torch.tensor(column)).numpy() == pytest.approx(level, abs=1e-6)
    quantiles = model.predict_quantiles(new, [0.05, 0.5, 0.95])
    assert quantiles[:, [0, 2]] == pytest.approx(interval) and quantiles.shape == (len(new), 3)
    assert model.predict_quantiles(new, 0.5) == pytest.approx(quantiles[:, 1])
    scores = model.encoder_.scores(bn.score(model.posterior_, _data(model, new, truth)))
    assert -distribution.log_prob(torch.tensor(truth)).mean().item() == pytest.approx(scores["nll"], rel=1e-4)
    assert np.sqrt(np.mean((mean - truth) ** 2)) == pytest.approx(scores["rmse"], rel=1e-4)


def _data(model, X, y):
    table = bn.tables.table_of(X, "X").table
    return model.encoder_.data(bn.tables.Table("X", {**table.columns, model.encoder_.target.name: y}))


def test_predictions_in_several_chunks_are_those_in_one(monkeypatch):
    X, y = load_diabetes(return_X_y=True)
    model, kinds = regressor(method=BRIEF).fit(X, y), classifier(method=BRIEF).fit(X, y > 100)
    whole = model.predict(X, return_std=True), model.predict_dist(X).mean, kinds.predict_dist(X).probs
    monkeypatch.setattr("basinet.tables.fitted.BUDGET", 40 * 2 * 50)
    parts = model.predict(X, return_std=True), model.predict_dist(X).mean, kinds.predict_dist(X).probs
    assert parts[0][0] == pytest.approx(whole[0][0]) and parts[0][1] == pytest.approx(whole[0][1])
    assert torch.allclose(parts[1], whole[1]) and torch.allclose(parts[2], whole[2], rtol=1e-4)


def test_a_classifier_predicts_the_classes_as_they_were_given():
    X, y = load_wine(return_X_y=True)
    names = np.array(["red", "amber", "white"])[y]
    X, new, y, truth = train_test_split(X, names, random_state=0, stratify=names)
    model = classifier(network=None).fit(X, y)
    assert model.classes_.tolist() == ["amber", "red", "white"]
    assert model.score(new, truth) > 0.9
    probs = model.predict_proba(new)
    assert probs.sum(1) == pytest.approx(1) and (model.classes_[probs.argmax(1)] == model.predict(new)).all()
    assert torch.allclose(model.predict_dist(new).probs, torch.tensor(probs), atol=1e-6)


def test_frames_are_read_as_the_command_reads_files(houses, tmp_path):
    frame, y = houses
    model = regressor().fit(frame, y)
    assert model.feature_names_in_.tolist() == list(frame.columns)
    frame.assign(price=y).to_csv(tmp_path / "houses.csv", index=False)
    rules = bn.tables.Rules(kind="real", categories=("zone",), split="random")
    table = bn.tables.read_table(tmp_path / "houses.csv")
    encoder, _ = bn.tables.fit_table(table, "price", rules, (0.85, 0.15), say=lambda line: None)
    assert model.encoder_.features == encoder.features
    mine = model.encoder_.inputs(bn.tables.table_of(frame).table)
    assert torch.allclose(mine, encoder.inputs(table), atol=1e-6)
    assert model.score(frame, y) > 0.9
    with pytest.raises(ValueError, match="known: 'Ash', 'Bow', 'Cam'"):
        model.predict(frame.assign(town="Dee"))
    regressor(unseen="other", method=BRIEF).fit(frame, y).predict(frame.assign(town="Dee"))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[frame.columns[::-1]])


def test_missing_values_are_refused_or_imputed(houses):
    frame, y = houses
    gaps = frame.copy()
    for row, name in enumerate(("area", "rooms", "town", "zone", "sold")):
        gaps.loc[row, name] = None
    with pytest.raises(ValueError, match=r"5 missing ones .*'area', 'rooms', 'town', 'zone', 'sold'.*missing='impute'"):
        regressor().fit(gaps, y)
    model = regressor(missing="impute", method=BRIEF).fit(gaps, y)
    assert "town missing" in model.encoder_.features
    assert np.isfinite(model.predict(gaps)).all()
    empty = gaps[:2].astype(object)
    empty.loc[0] = None
    with pytest.warns(DataWarning, match="1 of 2 rows have no input at all"):
        assert np.isfinite(model.predict(empty)).all()
    without = gaps.astype(object)
    without.loc[7] = None
    with pytest.warns(DataWarning, match=r"1 row \(the first is 8\) has no input at all"):
        regressor(missing="impute", method=BRIEF).fit(without, y)
    numbers = np.stack([np.where(np.arange(200) % 7, np.arange(200.0), np.nan), np.arange(200) % 5], 1)
    assert np.isfinite(regressor(missing="impute", method=BRIEF).fit(numbers, y).predict(numbers)).all()


def test_columns_that_a_person_gave_are_used_though_they_count_rows():
    X = np.arange(60)[:, None]
    model = regressor().fit(np.hstack([X, np.full_like(X, 3)]), 2.0 * X[:, 0])
    assert model.encoder_.features == ("x0",) and model.score(np.hstack([X, np.full_like(X, 9)]), 2.0 * X[:, 0]) > 0.5
    classes = regressor(categories=(1,), method=BRIEF).fit(np.hstack([X, X % 3]), 2.0 * X[:, 0])
    assert classes.encoder_.features == ("x0", "x1 = 0", "x1 = 1", "x1 = 2")
    with pytest.raises(ValueError, match="categories among the columns"):
        regressor(categories=("size",)).fit(X, X[:, 0])


def test_bad_targets_and_columns_are_refused(houses):
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(ValueError, match="values that differ, got 1 in every row"):
        regressor().fit(X, np.ones(60))
    with pytest.warns(DataWarning, match=r"3 different values \(0, 1, 2\).*BasinetClassifier"):
        regressor(method=BRIEF).fit(X, np.arange(60) % 3)
    with pytest.raises(ValueError, match="BasinetClassifier takes names"):
        regressor().fit(X, np.array(["a", "b"] * 30))
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        classifier().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="two classes"):
        classifier().fit(X, np.ones(60))
    tails = np.concatenate([np.linspace(0, 1, 299), [1e6]])
    with pytest.warns(
        DataWarning, match=r"standard deviations from the mean.*Take likelihood=bn\.likelihoods\.StudentT"
    ):
        model = regressor(method=BRIEF, validation_fraction=None).fit(np.tile(X, (5, 1)), tails)
    assert np.isfinite(model.predict_interval(X)).all()
    many = pd.DataFrame({"shop": [f"shop {i % 10_000}" for i in range(20_000)], "x": np.arange(20_000) % 7})
    with pytest.raises(ValueError, match=r"at most 1,000 different values.*got 10,000; drop it$"):
        regressor().fit(many, many.x + 0.5 * (many.index % 4))
    with pytest.raises(ValueError, match="as many targets as X has rows, 60, got 59"):
        regressor().fit(X, X[:59, 0])
    with pytest.raises(ValueError, match=r"got an array of shape \(60, 2\): .*MultiOutputRegressor\(BasinetRegressor"):
        regressor().fit(X, X)
    with pytest.raises(ValueError, match=r"MultiOutputClassifier\(BasinetClassifier"):
        classifier().fit(X, (X > 0).astype(int))
    with pytest.raises(ValueError, match=r"(unique column names|different name for each column)"):
        regressor().fit(pd.DataFrame(X, columns=["x", "x"]), X[:, 0])
    with pytest.raises(TypeError, match=r"recipe such as bn\.MAP\(\), got str"):
        regressor(method="MAP").fit(X, X[:, 0])
    with pytest.raises(ValueError, match="validation_fraction between 0 and 1"):
        regressor(validation_fraction=3).fit(X, X[:, 0])
    with pytest.raises(NotFittedError):
        regressor().predict_interval(X)
    for level in (0, 1, 90):
        with pytest.raises(ValueError, match="level between 0 and 1"):
            model.predict_interval(X, level)


def test_messages_name_parameters_and_no_options_of_the_command(houses):
    X, y = houses
    gaps = X.assign(area=X.area.where(X.area > 30))
    messages = []
    for given, changed in ((X, gaps), (gaps, X)):
        with pytest.raises(ValueError, match="missing='impute'") as error:
            regressor(method=BRIEF).fit(given, y).predict(changed)
        messages.append(str(error.value))
    with pytest.raises(ValueError, match="unseen='other'") as error:
        regressor(method=BRIEF).fit(X, y).predict(X.assign(town="Dee"))
    odd = X.assign(area=["no" if i == 7 else f"{v:.1f}" for i, v in enumerate(X.area)])
    with pytest.raises(ValueError, match=r"categories=\('area',\) takes all as names") as other:
        regressor().fit(odd, y)
    assert not any("--" in line for line in (*messages, str(error.value), str(other.value)))


def test_several_targets_are_fitted_one_by_one():
    X = np.random.default_rng(0).normal(size=(120, 2))
    both = np.column_stack([X[:, 0], 5 - X[:, 0]])
    model = MultiOutputRegressor(regressor(members=1)).fit(X, both)
    means = model.predict(X)
    assert means.shape == both.shape and np.corrcoef(means.T)[0, 1] < -0.9


def test_weights_count_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1))
    y = np.where(np.arange(400) % 2, 1.0, -1.0) + 0.1 * rng.normal(size=400)
    heavy = np.where(y > 0, 9.0, 1.0)
    method = bn.MAP(epochs=30, optimizer=bn.optim.Adam(lr=0.05))
    quick = {"network": lambda i, o: torch.nn.Linear(i, o), "method": method}
    assert regressor(**quick).fit(X, y, sample_weight=heavy).predict(X).mean() == pytest.approx(0.8, abs=0.1)
    assert regressor(**quick).fit(X, y).predict(X).mean() == pytest.approx(0, abs=0.1)
    positive = regressor(**quick).fit(X, y, sample_weight=(y > 0).astype(float))
    assert positive.predict(X) == pytest.approx(regressor(**quick).fit(X[y > 0], y[y > 0]).predict(X), rel=1e-5)
    for wrong in (-heavy, 0 * heavy):
        with pytest.raises(ValueError, match=r"(sample_weight|Sample weights)"):
            regressor().fit(X, y, sample_weight=wrong)
    three = classifier(method=BRIEF).fit(X, np.arange(400) % 3, sample_weight=np.arange(400) % 3 != 1)
    assert three.predict_proba(X)[:, 1].max() == 0 and three.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "method",
    [
        bn.Laplace(base=BRIEF),
        bn.PEP(base=BRIEF, draws=5),
        bn.SWAG(base=BRIEF, iterates=5, rank=2, optimizer=bn.optim.SGD(lr=0.01)),
    ],
    ids=lambda method: type(method).__name__,
)
def test_any_recipe_is_a_method(method):
    X, y = load_diabetes(return_X_y=True)
    model = regressor(method=method).fit(X, y)
    assert len(model.posterior_) == 2 and model.predict_interval(X).shape == (len(X), 2)
    again = pickle.loads(pickle.dumps(model))
    assert again.predict(X) == pytest.approx(model.predict(X)) and repr(again.method) == repr(method)


def test_estimators_of_networks_defined_anywhere_are_copied_and_pickled():
    class Local(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.line = torch.nn.Linear(inputs, outputs)

        def forward(self, x):
            return self.line(x) * bn.Noise.seed(0).key.ndim  # names the package, as programs do

    X, y = load_wine(return_X_y=True)
    for network in (lambda i, o: Local(i, o), Local(13, 3), None):
        model = classifier(network=network, method=bn.MAP(epochs=2)).fit(X, y)
        for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert again.predict_proba(X) == pytest.approx(model.predict_proba(X))
            assert again.fit(X, y).predict_proba(X) == pytest.approx(model.predict_proba(X), abs=1e-5)
    fresh = pickle.loads(pickle.dumps(classifier(network=lambda i, o: Local(i, o))))
    assert not hasattr(fresh, "posterior_") and fresh.fit(X, y).score(X, y) > 0.3


def test_clones_have_the_same_parameters_and_fit_the_same(houses):
    frame, y = houses
    model = regressor(method=bn.MAP(epochs=2)).fit(frame, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params() and not hasattr(twin, "posterior_")
    assert twin.fit(frame, y).predict(frame) == pytest.approx(model.predict(frame))
    other = clone(model).set_params(random_state=1).fit(frame, y)
    assert abs(other.predict(frame) - model.predict(frame)).max() > 1e-3
    drawn = regressor(method=BRIEF, random_state=np.random.RandomState(3)).fit(frame, y)
    assert np.isfinite(drawn.predict(frame)).all()


def test_pipelines_and_searches_take_them():
    X, y = load_diabetes(return_X_y=True)
    pipe = make_pipeline(StandardScaler(), regressor(method=bn.MAP(epochs=3)))
    mean, sd = pipe.fit(X, y).predict(X, return_std=True)
    assert mean.shape == sd.shape == y.shape
    grid = {"basinetregressor__members": [1, 2], "basinetregressor__method": [BRIEF, bn.MAP(epochs=10)]}
    search = GridSearchCV(pipe, grid, cv=2).fit(X, y)
    assert search.best_params_["basinetregressor__method"] == bn.MAP(epochs=10)


@pytest.mark.slow
def test_members_of_a_search_are_the_same_in_other_processes():
    X, y = load_diabetes(return_X_y=True)
    search = GridSearchCV(regressor(), {"method": [BRIEF, bn.MAP(epochs=10)]}, cv=2, n_jobs=2).fit(X, y)
    assert search.best_params_["method"] == bn.MAP(epochs=10)
    alone = cross_val_score(regressor(method=bn.MAP(epochs=2)), X, y, cv=2)
    assert cross_val_score(regressor(method=bn.MAP(epochs=2)), X, y, cv=2, n_jobs=2) == pytest.approx(alone, abs=1e-4)


@pytest.mark.slow
def test_the_program_in_the_guide_runs(tmp_path):
    readme = (Path(__file__).parents[1] / "docs" / "guide" / "sklearn.md").read_text()
    program = re.search(r"```python\n([^`]*from basinet\.sklearn import.*?)```", readme, re.DOTALL)[1]
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert run.returncode == 0 and not run.stderr, run.stderr
    held = float(run.stdout.split()[0])
    assert 0.75 <= held <= 1  # binomial sd of .9 over 89 rows: .03
