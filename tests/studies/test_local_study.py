"""The study of local posteriors around the members of an ensemble, made small; its samples, scores and verdicts."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import basinet as bn
from basinet.pool import read_records
from basinet.predict import ClassPredictive
from studies import Options, local
from studies.local import mixtures, verdict
from studies.local.images import load
from studies.local.mixtures import Mixture, MixturePlan, scored, turns
from studies.local.modes import Modes, check_modes
from studies.local.protocol import PRESETS, Protocol

SMALL = ("members=3", "largest=3", "epochs=5", "iterates=4", "rank=2", "each=6", "samples=6", "hidden=8", "subsets=3")
METHODS = ("last-layer Laplace", "SWAG")


def small(tmp_path, *changes: str, methods: tuple[str, ...] = METHODS) -> Options:
    return Options(
        tmp_path, device="cpu", examples=80, preset="digits", methods=methods, changes=(*SMALL, *changes)
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 7])
def test_every_prefix_of_the_samples_is_stratified(size):
    order = turns(size, 20, True, bn.Noise.seed(0))
    assert len(order) == 20
    for n in range(1, 21):
        counts = torch.bincount(order[:n], minlength=size)
        assert counts.max() - counts.min() <= 1
    loose = turns(7, 700, False, bn.Noise.seed(0))
    counts = torch.bincount(loose, minlength=7)
    assert counts.max() - counts.min() > 1 and counts.sum() == 700


def random_files(members: int, samples: int, n: int, classes: int = 4) -> list[np.ndarray]:
    logits = torch.randn(members, n, samples, classes, generator=torch.Generator().manual_seed(0))
    return [x.log_softmax(-1).numpy() for x in logits]


def plan(members: int, each: int, **changes: object) -> MixturePlan:
    protocol = Protocol(data="digits", members=members, **{"largest": members, "subsets": 4, "samples": 5, **changes})
    return MixturePlan(protocol, 0, each)


def test_scores_of_a_mixture_are_those_of_the_predictive_with_the_same_samples(monkeypatch):
    """Where members have unequal numbers of samples, entropies are split by weights; images come in chunks."""
    monkeypatch.setattr(mixtures, "ROOM", 8 * 3 * 5 * 4 * 7)  # seven images at a time
    files, targets = random_files(3, 4, 30), torch.arange(30) % 4
    ours = scored(plan(3, 4), files, targets, random_files(3, 4, 20), {}, torch.device("cpu"))
    assert [len(ours[k].log_prob) for k in (1, 2, 3)] == [3, 3, 1]
    for k in (1, 2, 3):
        for i, mixture in enumerate(plan(3, 4).mixtures(k)):
            outputs = torch.stack([torch.from_numpy(files[m]).transpose(0, 1) for m in mixture.members])
            weights = (torch.arange(4) < mixture.counts[:, None]).float()
            assert weights.sum() == (4 if k == 1 else 5)
            predictive = ClassPredictive(outputs, bn.likelihoods.Categorical(), {}, weights)
            expected = bn.score(predictive, targets)
            torch.testing.assert_close(ours[k].log_prob[i], predictive.log_prob(targets), rtol=1e-4, atol=1e-5)
            for name in ("brier", "ece", "accuracy", "entropy", "aleatoric", "between", "within"):
                assert ours[k].rows[name][i] == pytest.approx(expected[name], abs=2e-5), name
    assert all(0 <= x <= 1 for x in ours[2].rows["auroc"])


def test_equal_members_are_one_and_a_point_has_no_uncertainty_within():
    [file] = random_files(1, 1, 25)
    scores = scored(plan(3, 1), [file] * 3, torch.zeros(25, dtype=torch.long), None, {}, torch.device("cpu"))
    torch.testing.assert_close(scores[3].log_prob[0], scores[1].log_prob[0])
    assert scores[3].rows["between"][0] == pytest.approx(0, abs=1e-6)
    assert scores[3].rows["within"][0] == pytest.approx(0, abs=1e-6)


def test_learned_weights_prefer_the_member_that_is_right():
    right = np.log(np.full((40, 1, 2), [0.9, 0.1], dtype=np.float32))
    wrong = np.log(np.full((40, 1, 2), [0.1, 0.9], dtype=np.float32))
    targets = torch.zeros(40, dtype=torch.long)
    weights = mixtures.learned_weights(plan(2, 1), [right, wrong], targets, torch.device("cpu"))
    assert float(weights[2][0][0]) > 0.999
    assert local._evenness([torch.tensor([0.5, 0.5])]) == pytest.approx(1.0)


def test_the_crossover_is_where_the_ensemble_stays_ahead():
    assert verdict.crossover([-0.1, 0.1, -0.1, 0.2, 0.3]) == 4
    assert verdict.crossover([0.1, 0.2]) == 1 and math.isinf(verdict.crossover([0.1, -0.2]))
    assert math.isinf(verdict.crossover([0.0, 0.0]))  # equal is not behind


def curves(shift: float, n: int = 4000) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A method that gains .1 less `shift` times K."""
    noise = torch.randn(n, generator=torch.Generator().manual_seed(0)).expand(5, n)
    theirs = [-1 + noise for _ in range(10)]
    ours = [x + 0.1 - shift * k + 0.3 * _own(k, n) for k, x in enumerate(theirs, 1)]
    return ours, theirs


def _own(k: int, n: int) -> torch.Tensor:
    return torch.randn(5, n, generator=torch.Generator().manual_seed(k))


def test_the_crossover_has_an_interval_that_is_paired_and_a_verdict_in_words():
    gaps = verdict.differences(*curves(0.0182))
    assert gaps.mean.tolist() == pytest.approx([0.0182 * k - 0.1 for k in range(1, 11)], abs=4 * 0.3 / 20000**0.5)
    low, high = gaps.interval
    assert bool((low < gaps.mean).all() and (gaps.mean < high).all())
    assert float((high - low).max()) < 0.03  # the noise that both share, of sd 1, would make it .06
    cross = verdict.crossing(gaps)
    assert cross.at == 6 and cross.low <= 6 <= cross.high and cross.never == 0
    assert "the deep ensemble overtakes SWAG at K = 6 (95 %: K = " in verdict.in_words("SWAG", gaps)
    assert "Significantly better: K = 1 to 4; significantly worse: K = 6 to 10" in verdict.in_words("SWAG", gaps)
    never = verdict.differences(*curves(0.0))
    assert "no crossover up to there. Significantly better: K = 1 to 10; significantly worse: at no K" in (
        verdict.in_words("SWAG", never)
    )
    assert verdict.crossing(never).row() == {"at": None, "low": None, "high": None, "never": 1.0}
    ours, theirs = ([x[:, :40] for x in side[5:6]] for side in curves(0.0182))
    words = verdict.in_words("SWA", verdict.differences(ours, theirs))
    assert words.startswith("SWA is not significantly different from the deep ensemble at any K up to 1 (the mean")
    same = verdict.differences(curves(0)[1], curves(0)[1])
    assert verdict.in_words("PEP", same) == "PEP predicts what the deep ensemble does."


def test_equal_compute_buys_more_plain_members():
    plain = [1.0, 0.8, 0.7, 0.65]
    rows = verdict.matched([0.75, 0.7, 0.66], 20.0, plain, 10.0)
    assert rows == [
        {"size": 1, "plain_size": 2, "difference": pytest.approx(-0.05)},
        {"size": 2, "plain_size": 4, "difference": pytest.approx(0.05)},
    ]


def test_the_published_table_is_beside_ours():
    theirs = verdict.published()
    assert theirs[20, "DE"] == {"accuracy": 0.954, "elpd": -0.139, "ece": 0.009}
    assert theirs[1, "SWAG"]["elpd"] == -0.18 and theirs[20, "SWA"]["elpd"] == -0.134
    lines = verdict.beside_paper({"SWAG": [{"nll": 0.17, "accuracy": 0.94, "ece": 0.01}]})
    assert len(lines) == 2 and "-0.1700 -0.180 +0.0100" in lines[1]


def test_a_run_leaves_records_and_resumes_without_fitting(tmp_path, monkeypatch):
    said: list[str] = []
    records = local.run(small(tmp_path), said.append)
    assert [r["method"] for r in records] == ["deep ensemble", *METHODS]
    assert read_records(tmp_path / "local.jsonl") == records
    for r in records:
        assert [row["size"] for row in r["curve"]] == [1, 2, 3] and r["n_train"] == 80
        assert all(row["low"] <= row["over_ensemble"] <= row["high"] for row in r["curve"])
    base, laplace, swag = records
    assert base["curve"][0]["within"] == pytest.approx(0, abs=1e-5) and laplace["curve"][0]["within"] > 1e-4
    for row, plain in zip(swag["curve"], base["curve"]):
        assert row["over_ensemble"] == pytest.approx(row["nll"] - plain["nll"], abs=1e-5)
    assert len(swag["chosen"]["step_size"]) == len(laplace["chosen"]["prior_factor"]) == 3
    assert swag["cost"]["epochs_per_member"] == pytest.approx(5 + 1.6 * (4 + 5 * 2))  # 80 images are .625 of a batch
    assert any("SWAG" in line and "Significantly better" in line for line in said)
    study = local._Study.of(local._protocols(small(tmp_path))[0], small(tmp_path), said.append)
    maps = study.modes.maps
    assert base["curve"][-1]["nll"] == pytest.approx(bn.score(maps, study.modes.images.test)["nll"], rel=2e-3)
    monkeypatch.setattr(Modes, "_fit", None)  # nothing is fitted where all is there, nor where only scoring changes
    monkeypatch.setattr(Modes, "maps", maps)
    assert local.run(small(tmp_path), said.append) == records
    loose = local.run(small(tmp_path, "stratified=no", "samples=4"), said.append)
    assert loose[1]["chosen"] == laplace["chosen"] and loose[1]["curve"] != laplace["curve"]
    assert loose[0]["curve"] == base["curve"]  # points have no samples


@pytest.mark.slow
def test_all_methods_run_and_only_the_scoring_may_change(tmp_path):
    everything = tuple(Modes.methods(Modes(PRESETS["digits"], None, 0, tmp_path, bn.Engine(device="cpu"))))
    options = small(tmp_path, "flow_epochs=1", methods=everything)
    records = local.run(options, lambda line: None)
    assert [r["method"] for r in records] == list(everything)
    assert [r["crossover"] is None for r in records] == [r["method"] == "deep ensemble" for r in records]
    said: list[str] = []
    again = local.run(small(tmp_path, "weights=learned", "stratified=no"), said.append)
    assert all(set(r["weight_entropy"]) == {"2", "3"} and r["weight_entropy"]["3"] <= 1 + 1e-9 for r in again)
    narrow = local.run(small(tmp_path, "scale=1e-12", methods=("last-layer Laplace",)), said.append)
    for row, plain in zip(narrow[1]["curve"], narrow[0]["curve"]):  # no covariance is the deep ensemble
        assert row["nll"] == pytest.approx(plain["nll"], abs=1e-3)
        assert row["within"] == pytest.approx(0, abs=1e-4)


def test_bad_input_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="members=5: train more, or lower the largest, --with largest=5"):
        local.run(Options(tmp_path, preset="digits", changes=("members=5",)), print)
    with pytest.raises(ValueError, match="no preset 'digit'"):
        local.run(Options(tmp_path, preset="digit"), print)
    with pytest.raises(ValueError, match="no method 'SWAGG'"):
        local.run(Options(tmp_path, device="cpu", preset="digits", methods=("SWAGG",), examples=50), print)
    with pytest.raises(ValueError, match="there is no setting 'epoch'"):
        local.run(Options(tmp_path, preset="digits", changes=("epoch=3",)), print)
    with pytest.raises(ValueError, match="expected a whole number for --with epochs=, got 'many'"):
        local.run(Options(tmp_path, preset="digits", changes=("epochs=many",)), print)
    with pytest.raises(ValueError, match=r"needs files: give --folder with the files of cifar10 \(Krizhevsky.*svhn"):
        local.run(Options(tmp_path, preset="cifar10"), print)
    with pytest.raises(ValueError, match=r"got none of: fashion_mnist\.npz.* Its files come from Zalando"):
        local.run(Options(tmp_path, tmp_path, preset="fashion_mnist"), print)
    with pytest.raises(ValueError, match=r"fashion_mnist needs files: give --folder .*Zalando.*; mnist \(LeCun"):
        local.run(Options(tmp_path, sets=("fashion_mnist",)), print)


OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())
"""


def test_a_users_own_network_is_known_by_what_its_file_says_and_computes(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(OWN)
    options = small(tmp_path / "out", f"network={file}:Net", methods=("temperature",))
    before = local.run(options, lambda line: None)
    file.write_text(OWN + "\n# a word more\n")
    again = local.run(options, lambda line: None)
    assert [r["curve"] for r in again] == [r["curve"] for r in before]
    assert again[0]["protocol"]["network_digest"] != before[0]["protocol"]["network_digest"]
    file.write_text(OWN.replace(".relu()", ".clamp(min=0, max=6)"))
    with pytest.raises(ValueError, match=r"it computes something else .*another --out"):
        local.run(options, lambda line: None)
    shutil.rmtree(tmp_path / "out" / "pool-digits-own")  # records and predictions are left
    file.write_text(OWN.replace(".relu()", ".tanh()"))
    assert [r["curve"] for r in local.run(options, lambda line: None)] != [r["curve"] for r in before]


def test_modes_of_several_networks_are_refused():
    protocol = replace(PRESETS["digits"], hidden=4)
    images = load(protocol, Options(Path(), examples=40))
    recipe, pool = bn.MAP(epochs=1), []
    for hidden in (4, 5):
        problem = replace(protocol, hidden=hidden).problem(images.inputs, 10, 40)
        pool.append(bn.fit(recipe, problem, images.train, members=2, engine=bn.Engine(device="cpu", compile=False)))
    with pytest.raises(ValueError, match="expected members of one network, got 2 kinds"):
        check_modes(bn.mix(pool), 3)
    with pytest.raises(ValueError, match="mixtures of up to 3 members need as many, got 2"):
        check_modes(pool[0], 3)
    assert check_modes(pool[0], 2) is pool[0]


def test_a_mixture_counts_its_members():
    assert Mixture(torch.arange(3), torch.ones(3), torch.ones(3) / 3).size == 3
