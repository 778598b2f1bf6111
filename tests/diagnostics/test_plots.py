"""What plots of chains show: autocorrelations, ranks, records, pictures and ArviZ's own object."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from autoregressions import autoregressive

import basinet as bn
from basinet.diagnostics import autocorrelation, rank_counts


def test_autocorrelations_are_those_of_the_definition():
    draws = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).double()
    correlations = autocorrelation(draws, lags=5)
    centred = draws - draws.mean(1, keepdim=True)
    for lag in range(6):
        direct = (centred[:, : 40 - lag] * centred[:, lag:]).sum(1) / centred.square().sum(1)
        assert torch.allclose(correlations[:, lag], direct, atol=1e-12)
    assert correlations.shape == (3, 6) and autocorrelation(draws, lags=99).shape == (3, 40)


def test_an_autoregression_has_the_powers_of_its_coefficient():
    correlations = autocorrelation(autoregressive(8, 5000, 0.8, seed=0), lags=4).mean(0)
    error = (1.8 / 0.2 / 40_000) ** 0.5  # of a lag, at most
    assert torch.allclose(correlations, 0.8 ** torch.arange(5.0).double(), atol=5 * error)


def test_a_chain_that_stands_still_stays_correlated():
    assert autocorrelation(torch.ones(2, 10)).eq(1).all()


def test_ranks_are_flat_where_chains_agree_and_show_one_that_does_not():
    draws = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    counts = rank_counts(draws, bins=10)
    assert counts.sum(1).tolist() == [1000] * 4 and counts.sum(0).tolist() == [400] * 10
    assert (counts - 100).abs().max() < 5 * (100 * 0.9 * 0.75) ** 0.5  # five standard deviations
    draws[2] += 3
    shifted = rank_counts(draws, bins=10)
    assert shifted[2, -1] > 300 and shifted[2, 0] == 0
    assert rank_counts(torch.zeros(2, 6), bins=4).tolist() == [[0, 0, 6, 0]] * 2  # equal draws share a stretch


@pytest.fixture(scope="module")
def diagnosis():
    x = torch.linspace(-1, 1, 30)[:, None]
    y = 2 * x + 0.3 * torch.randn(30, 1, generator=torch.Generator().manual_seed(0))
    problem = bn.Problem(lambda: torch.nn.Linear(1, 1), bn.likelihoods.Gaussian(noise=0.3, learned=True))
    recipe = bn.MCLMC(base=bn.MAP(epochs=20), steps=200, warmup=100, draws=10)
    chains = bn.fit(
        recipe, problem, bn.Data(x, y), members=3, engine=bn.Engine(device="cpu", progress=False, compile=False)
    )
    return bn.diagnose(chains, bn.Data(x, y))


def test_a_table_has_the_loss_the_noise_and_a_verdict_in_words(diagnosis):
    text = str(diagnosis)
    lines = text.splitlines()
    assert lines[0] == "3 chains of 10 draws" and all(w in lines[1] for w in ("mean", "MCSE", "R-hat", "bulk", "tail"))
    assert lines[2].startswith("loss") and "noise" in lines[3] and lines[-1] == diagnosis.verdict
    assert len(diagnosis.verdict.split()) > 3


def test_a_record_is_json_with_what_is_drawn(diagnosis):
    record = json.loads(json.dumps(diagnosis.record(), allow_nan=False))
    assert record["verdict"] == diagnosis.verdict and record["rows"][0]["name"] == "loss"
    assert next(iter(record["shown"])) == "loss" and len(record["shown"]) == 3
    for shown in record["shown"].values():
        assert np.shape(shown["trace"]) == (3, 10) and np.shape(shown["ranks"]) == (3, 20)
        assert np.shape(shown["autocorrelation"]) == (3, 10)


def test_chains_are_drawn_as_pictures(diagnosis, tmp_path):
    pytest.importorskip("matplotlib")
    from basinet.report import write_chains

    paths = write_chains(diagnosis, tmp_path)
    assert [p.name for p in paths] == ["chains.png", "chains.svg"] and all(p.stat().st_size > 1000 for p in paths)


@pytest.mark.parametrize("version", ["0.23.4", "1.2.0"])
def test_arviz_is_given_the_quantities(diagnosis, monkeypatch, version):
    given = SimpleNamespace(__version__=version, from_dict=lambda posterior: posterior)
    monkeypatch.setitem(sys.modules, "arviz", given)
    exported = diagnosis.to_arviz()
    exported = exported if version.startswith("0") else exported["posterior"]
    assert exported["loss"].shape == (3, 10) and exported["prediction"].shape == (3, 10, 20)
    assert any("noise" in name for name in exported)


def test_arviz_itself_has_the_draws(diagnosis):
    pytest.importorskip("arviz", reason='ArviZ is not installed: pip install "basinet[arviz]"')
    posterior = diagnosis.to_arviz()["posterior"]
    assert np.array_equal(posterior["loss"].values, diagnosis.draws["loss"].cpu().numpy())
    assert posterior["prediction"].shape == (3, 10, 20)


def test_without_arviz_the_error_says_how_to_install_it(diagnosis, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install \"basinet\[arviz\]\""):
        diagnosis.to_arviz()
