"""NAME=VALUE on the command line: numbers and words, what fields hold inside, priors and likelihoods."""

from __future__ import annotations

import pytest

import basinet as bn
from basinet.cli.network import hidden_widths
from basinet.cli.settings import make_likelihood, make_prior, make_recipe, set_rows
from basinet.compare.rows import Row
from basinet.optim import SGD, Adam, Cosine
from basinet.problem.likelihoods import Gaussian, Heteroscedastic, StudentT
from basinet.problem.priors import Normal

NESTEROV = SGD(nesterov=True, momentum=0.5)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("MAP", ("epochs=3", "patience=None"), bn.MAP(epochs=3)),
        (
            "Laplace",
            ("structure=diagonal", "where=None", "via=probit"),
            bn.Laplace(structure="diagonal", where=None, via="probit"),
        ),
        ("laplace", ("where=layers.0.*", "prior_precision=2"), bn.Laplace(where="layers.0.*", prior_precision=2)),
        (
            "Laplace",
            ("prior_precision=marglik", "curvature=fisher"),
            bn.Laplace(prior_precision="marglik", curvature="fisher"),
        ),
        ("PEP", ("noise=uniform", "low=1e-3"), bn.PEP(noise="uniform", low=1e-3)),
        ("SWAG", ("unit_noise=False",), bn.SWAG(unit_noise=False)),
        ("MAP", ("optimizer.lr=0.01",), bn.MAP(optimizer=Adam(lr=0.01))),
        ("MAP", ("optimizer.lr.peak=0.01",), bn.MAP(optimizer=Adam(lr=Cosine(peak=0.01)))),
        ("MAP", ("optimizer=SGD:lr=0.1,momentum=0.9",), bn.MAP(optimizer=SGD(lr=0.1, momentum=0.9))),
        ("MAP", ("optimizer=sgd", "optimizer.nesterov=True", "optimizer.momentum=0.5"), bn.MAP(optimizer=NESTEROV)),
        ("Laplace", ("base.epochs=7",), bn.Laplace(base=bn.MAP(epochs=7))),
        ("Laplace", ("base=EMA:epochs=3",), bn.Laplace(base=bn.EMA(epochs=3))),
        ("Laplace", ("where='layers.0.*'",), bn.Laplace(where="layers.0.*")),
        ("FoRDE", ("repulsion=paper", "lengthscales=0.2"), bn.FoRDE(lengthscales=0.2)),
    ],
)
def test_settings_are_those_of_the_recipe(name, settings, expected):
    assert make_recipe(name, settings) == expected


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("MAP", "optimizr.lr=1", r"of MAP, got 'optimizr\.lr=1'\. Did you mean 'optimizer.*Known: batch_size, epochs"),
        ("MAP", "lr=0.1", r"got 'lr=0\.1'\. Did you mean 'optimizer\.lr'\?"),
        ("Laplace", "optimizer.lr=0.1", r"Did you mean 'base\.optimizer'\?"),
        ("MAP", "optimizer.lr.top=1", r"of Cosine, got 'optimizer\.lr\.top=1'.*Known: floor, peak"),
        ("MAP", "optimizer=Adan", r"expected the name of one optimizer, got 'Adan'\. Did you mean 'Adam'"),
        ("MAP", "optimizer=SGD:nesterov=True", "expected momentum above 0"),
        ("MAP", "optimizer.lr=-1", "expected lr to be a finite number of at least 0"),
        ("MAP", "optimizer.lr=Cosine", "Cosine: missing 1 required keyword-only argument: 'peak'"),
        ("MAP", "patience.lr=1", "expected something with fields"),
        ("MAP", "epochs=" + "9" * 30, "expected epochs of MAP as a number of at most 1,000,000,000"),
        ("MAP", "epochs=" + "9" * 5000, "expected epochs of MAP as int or None, got '999"),
        ("MAP", "epochs=" + "[" * 5000, "expected epochs of MAP as int or None"),
        ("MAP", "epochs=" + "-" * 100_000 + "1", "expected epochs of MAP as int or None"),
        ("MAP", "optimizer.lr=1e999", "as a number of at most"),
        ("MAP", "optimizer.lr=nan", "expected the name of one rate, got 'nan'"),
        ("MAP", "." * 100, "expected --set NAME=VALUE of MAP"),
        ("MAP", "a.b.c.d.e.f.g.h.i=1", "expected --set NAME=VALUE of MAP"),
        ("Laplace", "via=normal", "expected via of Laplace as sample or linear or probit or bridge, got 'normal'"),
        ("PEP", "draws=4.0", r"expected draws of PEP as int, got '4\.0'"),
    ],
)
def test_settings_that_a_recipe_does_not_take_are_refused(name, setting, message):
    with pytest.raises(ValueError, match=message):
        make_recipe(name, (setting,))


def test_priors_and_likelihoods_by_name():
    assert make_prior(None) is None and make_likelihood(None) is None
    assert repr(make_prior("0.5")) == repr(Normal(scale=0.5)) and repr(make_prior("he")) == repr(Normal(scale="he"))
    assert repr(make_prior("studentt:df=3,scale=lecun")) == repr(bn.priors.StudentT(df=3, scale="lecun"))
    assert make_likelihood("Gaussian") == Gaussian(noise=0.5, learned=True)
    assert make_likelihood("StudentT:df=3") == StudentT(df=3, scale=0.5, learned=True)
    assert make_likelihood("gaussian:noise=0.1,learned=False") == Gaussian(noise=0.1)
    assert make_likelihood("Heteroscedastic") == Heteroscedastic(learned=True)


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        (make_prior, "0", "expected a positive, finite prior"),
        (make_prior, "-1", "expected a positive, finite prior"),
        (make_prior, "Norml", "Did you mean 'Normal'"),
        (make_prior, "FromFamily", "FromFamily: missing 1 required"),
        (make_prior, "Normal:scal=1", "Did you mean 'scale'"),
        (make_likelihood, "Poisson", "expected the name of one likelihood, got 'Poisson'"),
        (make_likelihood, "Gaussian:noise", "expected --likelihood Gaussian:noise: NAME=VALUE of Gaussian"),
        (hidden_widths, "100,", "expected --width as widths of hidden layers"),
        (hidden_widths, "1e3", "expected --width"),
        (hidden_widths, "0", "expected --width"),
        (hidden_widths, "9" * 5000, "expected --width"),
        (hidden_widths, ",".join(["2"] * 1000), "expected --width"),
    ],
)
def test_bad_priors_likelihoods_and_widths_are_refused(make, text, message):
    with pytest.raises(ValueError, match=message):
        make(text)


def test_widths():
    assert hidden_widths(None) is None and hidden_widths("10") == (10,) and hidden_widths("10, 20") == (10, 20)


def test_settings_of_a_comparison_reach_rows_and_what_they_start_from():
    rows = [Row("MAP", bn.MAP(), 1), Row("Laplace", bn.Laplace(), 1), Row("given", None, 1)]
    changed = set_rows(rows, ("MAP.epochs=7", "laplace.structure=diagonal"))
    assert [row.recipe for row in changed] == [
        bn.MAP(epochs=7),
        bn.Laplace(structure="diagonal", base=bn.MAP(epochs=7)),
        None,
    ]
    assert set_rows(rows, ()) == rows
    for setting, message in (
        ("epochs=7", "expected --set METHOD.NAME=VALUE, such as MAP.epochs=50, got 'epochs=7'"),
        ("MPA.epochs=7", "Did you mean 'MAP'"),
        ("SWAG.rank=3", "got SWAG, which no row uses"),
    ):
        with pytest.raises(ValueError, match=message):
            set_rows(rows, (setting,))
