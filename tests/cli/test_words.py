"""NAME=VALUE on the command line: numbers, and the words that a method knows."""

from __future__ import annotations

import pytest

import basinet as bn
from basinet.cli.words import make_recipe


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
        ("FoRDE", ("repulsion=paper", "lengthscales=0.2"), bn.FoRDE(lengthscales=0.2)),
    ],
)
def test_settings_are_those_of_the_recipe(name, settings, expected):
    assert make_recipe(name, settings) == expected


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        (
            "MAP",
            "optimizer=Adam",
            r"expected --set NAME=VALUE of MAP, got 'optimizer=Adam'\..*Known: batch_size, epochs",
        ),
        ("Laplace", "base=MAP", "expected --set NAME=VALUE of Laplace, got 'base=MAP'"),
        ("Laplace", "via=normal", "expected via of Laplace as sample or linear or probit or bridge, got 'normal'"),
        ("PEP", "draws=4.0", r"expected draws of PEP as int, got '4\.0'"),
    ],
)
def test_what_a_recipe_does_not_take_is_said(name, setting, message):
    with pytest.raises(ValueError, match=message):
        make_recipe(name, (setting,))
