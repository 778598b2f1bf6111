"""The study of fidelity, made small: its records, what it makes again, and what a perfect answer would be."""

import json

import numpy as np
import pytest
import torch

import basinet as bn
from basinet.compare.rows import choose
from studies import Options, fidelity
from studies.fidelity import cifar, records, samplers, small, started


@pytest.fixture
def folder(tmp_path):
    """Data made up in the forms that the study reads."""
    place, generator = tmp_path / "data", np.random.default_rng(0)
    place.mkdir()
    for name in ("concrete", "yacht"):
        x = generator.normal(size=(90, 3))
        rows = np.stack([generator.permutation(90) for _ in range(2)])
        np.savez(
            place / f"uci_{name}.npz",
            X=x,
            y=x[:, 0] + 0.1 * generator.normal(size=90),
            train=rows[:, :70],
            test=rows[:, 70:],
            ref_test_mc_rmse=np.ones(2),
            ref_test_ll=np.ones(2),
        )
    return place


@pytest.fixture
def short(monkeypatch):
    """Few and short chains, few members."""
    for name, value in (("CHAINS", 2), ("MEMBERS", 2), ("ROWS", 50), ("VALIDATION", 20)):
        monkeypatch.setattr(small, name, value)
    base = bn.MAP(epochs=50)

    def rows(*asked):
        chosen = choose(*asked)
        return chosen._replace(rows=[r._replace(recipe=base) for r in chosen.rows if type(r.recipe) is bn.MAP])

    monkeypatch.setattr(small, "choose", rows)
    monkeypatch.setattr(small, "REFERENCE", bn.HMC(base=base, steps=200, warmup=100, draws=8))
    monkeypatch.setattr(samplers, "CHAINS", 2)
    brief = {"base": base, "steps": 300, "warmup": 100, "draws": 8}
    monkeypatch.setattr(samplers, "SAMPLERS", {"NUTS": bn.NUTS(**brief, depth=3), "MCLMC": bn.MCLMC(**brief)})
    monkeypatch.setattr(started, "SETS", ("yacht",))
    monkeypatch.setattr(started, "MEMBERS", 2)
    monkeypatch.setattr(started, "ENSEMBLE", bn.MAP(epochs=5))
    monkeypatch.setattr(started, "CHAINS", bn.MCLMC(steps=60, warmup=20, draws=4))


def test_the_study_writes_a_record_for_each_method_and_makes_none_again(tmp_path, short):
    said: list[str] = []
    options = Options(tmp_path, device="cpu", examples=60, methods=("MAP",))
    returned = fidelity.run(options, said.append)
    rows = ["half of the chains", "MAP", "tempered MAP", "deep ensemble", "tempered deep ensemble"]
    assert [r["method"] for r in returned] == rows
    written = [json.loads(line) for line in (tmp_path / "fidelity.jsonl").read_text().splitlines()]
    assert [r["total_variation"] for r in written] == [r["total_variation"] for r in returned]
    for record in returned:
        assert 0.3 < record["agreement"] <= 1 and 0 < record["total_variation"] < 0.7
    assert (
        said[1].startswith("digits, reference: 2 chains of 8 draws.")
        and "left out, for want of --folder with their files: concrete; " in said[0]
    )
    again = fidelity.run(options, said.append)
    assert again == returned and len((tmp_path / "fidelity.jsonl").read_text().splitlines()) == len(rows)


def test_numbers_are_compared_by_means_and_spreads(tmp_path, folder, short):
    options = Options(tmp_path, folder, device="cpu", sets=("concrete",), methods=("MAP",))
    by_method = {r["method"]: r for r in fidelity.run(options, lambda line: None)}
    assert {"half of the chains", "MAP", "deep ensemble"} <= set(by_method)
    for record in by_method.values():
        assert 0 <= record["mean_gap"] < 10 and 0 <= record["sd_gap"] < 10 and record["weights_sd"] > 0
    assert by_method["MAP"]["weights_sd"] < 1e-3 * by_method["half of the chains"]["weights_sd"]  # one network has none


@pytest.mark.slow
def test_samplers_are_compared_per_gradient_and_with_each_other(tmp_path, folder, short):
    options = Options(tmp_path, folder, device="cpu", sets=("samplers",))
    nuts, mclmc, both = fidelity.run(options, lambda line: None)
    for record in (nuts, mclmc):
        assert record["ess_per_1000"] >= record["least_per_1000"] > 0 and record["noise_ess"] > 0
        assert record["gradients"] <= 2 * 300
    assert both["quantities"] == 20 and both["mean_z"]["largest"] >= both["mean_z"]["rms"]


def test_z_scores_find_what_differs():
    draws = torch.randn(4, 400, generator=torch.Generator().manual_seed(0))
    other = torch.randn(4, 400, generator=torch.Generator().manual_seed(1))
    for z in (samplers.mean_z, samplers.variance_z):
        assert abs(z(draws, other)) < 4
    assert samplers.mean_z(draws + 0.5, other) > 8 and samplers.variance_z(1.5 * draws, other) > 8


def test_chains_from_an_ensemble_are_scored_beside_it(tmp_path, folder, short):
    said: list[str] = []
    options = Options(tmp_path, folder, device="cpu", sets=("started",), splits=1)
    ensemble, chains = fidelity.run(options, said.append)
    assert (ensemble["method"], chains["method"]) == started.METHODS and ensemble["split"] == 0
    assert chains["passes"] > ensemble["passes"] > 0 and "against" in said[-1]
    assert fidelity.run(options._replace(splits=2), said.append)[0] == ensemble  # the first split is not made again
    assert len((tmp_path / "fidelity.jsonl").read_text().splitlines()) == 4


def test_published_probabilities_must_give_what_is_published(tmp_path):
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(10), size=100).astype(np.float32)
    np.savez(tmp_path / cifar.FILE, probs=probs)
    with pytest.raises(ValueError, match=r"expected accuracy 0\.9144 and NLL 0\.2773"):
        cifar.published(tmp_path, torch.zeros(100, dtype=torch.long))


def test_cifar_is_compared_with_the_published_probabilities(tmp_path, monkeypatch):
    images = {
        part: bn.Data(torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 10)
        for part, n in (("train", 60), ("val", 20), ("test", 30))
    }
    splits = bn.datasets.Splits("cifar10", images["train"], images["val"], images["test"], classes=10)
    monkeypatch.setattr(cifar.datasets, "load", lambda name, seed, folder: splits)
    right = torch.nn.functional.one_hot(images["test"].targets, 10) * 0.9 + 0.01
    np.savez(tmp_path / cifar.FILE, probs=right.numpy())
    monkeypatch.setattr(cifar, "ACCURACY", 1.0)
    monkeypatch.setattr(cifar, "NLL", float(-np.log(0.91)))
    monkeypatch.setattr(cifar, "SwishResNet", lambda: bn.networks.SwishResNet(8))
    monkeypatch.setattr(cifar, "MODES", bn.MAP(epochs=1, batch_size=30))
    options = Options(tmp_path, tmp_path, device="cpu", sets=("cifar10",), methods=("MAP", "Laplace, last layer"))
    returned = fidelity.run(options, lambda line: None)
    assert [r["method"] for r in returned] == ["MAP", "Laplace, last layer"]
    assert all(0 <= r["agreement"] <= 0.6 and 0.3 < r["total_variation"] < 1 for r in returned)
    assert fidelity.run(options, lambda line: None) == returned


def test_a_set_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no set 'digit'.*digits"):
        fidelity.run(Options(tmp_path, sets=("digit",)), lambda line: None)


def test_work_is_spread_over_processes(monkeypatch):
    monkeypatch.setattr(records.os, "sched_getaffinity", lambda pid: set(range(4)), raising=False)
    assert sorted(records.spread(max, [(1, 2), (4, 3), (5, 5)], "cpu")) == [2, 4, 5]
    assert list(records.spread(max, [(1, 2), (4, 3)], "cuda")) == [2, 4]
