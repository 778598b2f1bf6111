"""Verdicts on calibration are tests: they hold their level where nothing is wrong, and say which way it is."""

import json
import math
from math import comb

import numpy as np
import pytest
from runs import make_run

from basinet.report import read_run
from basinet.report.trust import Finding, binomial_p, failed, flatness_p, right_p, trust_of


def rewritten(folder, label="MAP", seed=0, **arrays):
    """The run folder with other arrays of a row."""
    path = folder / "arrays" / f"{label}-{seed}.npz"
    np.savez(path, **(dict(np.load(path)) | {k: v.astype(np.float32) for k, v in arrays.items()}))
    return folder


def verdict(folder):
    run = read_run(folder)
    return trust_of(run, run.rows[0])


def normal_cdf(z):
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in z])


def test_exact_tails_of_binomial_and_poisson_binomial():
    for k, n, p in ((3, 10, 0.5), (0, 10, 0.3), (10, 10, 0.3), (9, 12, 0.9)):
        mass = [comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)]
        exact = min(1.0, 2 * min(sum(mass[: k + 1]), sum(mass[k:])))
        assert binomial_p(k, n, p) == pytest.approx(exact, rel=1e-10)
        assert right_p(k, np.full(n, p)) == pytest.approx(exact, rel=1e-10)
    assert right_p(2, np.array([1.0, 1.0, 0.0])) == 1.0 and right_p(3, np.array([1.0, 1.0, 0.0])) == 0.0
    assert binomial_p(50_200, 100_000, 0.5) == pytest.approx(
        math.erfc(199.5 / math.sqrt(25_000) / math.sqrt(2)), rel=0.02
    )
    large = np.full(4000, 0.5)  # beyond the exact computation
    assert right_p(2060, large) == pytest.approx(binomial_p(2060, 4000, 0.5), rel=0.02)


def test_holm_stops_at_the_first_that_passes():
    ps = [0.001, 0.04, 0.012, 0.5]
    findings = [Finding(str(i), 0, 0, p) for i, p in enumerate(ps)]
    assert [f.what for f in failed(findings)] == ["0", "2"]  # .001 < .05/4, .012 < .05/3, .04 > .05/2


def test_where_nothing_is_wrong_one_verdict_in_twenty_is_a_false_alarm(tmp_path):
    """1,000 samples of 200: at most 5 % may fail; 7.3 % is z = 3.3 above."""
    rng = np.random.default_rng(0)
    wrong = 0
    make_run(tmp_path, "real", n=200, labels={"MAP": (1, 0.0, 1.0)})
    run = read_run(tmp_path)
    for _ in range(1000):
        run.rows[0].arrays[0]["pit"] = rng.random(200)
        wrong += trust_of(run, run.rows[0]).wrong
    assert wrong < 73
    assert min(flatness_p(rng.random(50), 50) for _ in range(100)) > 1e-5


def test_calibrated_classes_are_called_wrong_once_in_twenty_times(tmp_path):
    rng = np.random.default_rng(1)
    wrong = 0
    make_run(tmp_path, n=300, labels={"MAP": (1, 0.0, 1.0)})
    run = read_run(tmp_path)
    for _ in range(300):
        confidence = rng.beta(5, 0.7, 300)
        run.rows[0].arrays[0].update(confidence=confidence, correct=rng.random(300) < confidence)
        wrong += trust_of(run, run.rows[0]).wrong
    assert wrong < 30  # 10 %: z = 4 above 5 %


def test_intervals_are_judged_at_all_levels(tmp_path):
    """Heavy tails: the 90 % interval holds 90 %, those of 50 % hold far more, those of 99 % fewer."""
    rng = np.random.default_rng(0)
    make_run(tmp_path, "real", n=2000, labels={"MAP": (1, 0.0, 1.0)})
    t = rng.standard_t(1.6, 2000)
    scale = np.quantile(np.abs(t), 0.9) / 1.6449
    rewritten(tmp_path, pit=normal_cdf(t / scale))
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    lines[0]["scores"]["coverage_90"] = 0.9
    (tmp_path / "records.jsonl").write_text(json.dumps(lines[0]) + "\n")
    judged = verdict(tmp_path)
    assert judged.wrong and judged.word == "too wide and too narrow"
    assert "too wide: those of 50% contain" in judged.said and "too narrow: those of" in judged.said
    assert "have the right width" not in judged.said


@pytest.mark.parametrize(
    ("z", "word"),
    [
        (lambda rng: rng.normal(size=400), "as promised"),
        (lambda rng: 0.5 * rng.normal(size=400), "too wide"),
        (lambda rng: 2.0 * rng.normal(size=400), "too narrow"),
        (lambda rng: 0.35 + rng.normal(size=400), "shifted"),
    ],
)
def test_which_way_intervals_are_off(tmp_path, z, word):
    make_run(tmp_path, "real", n=400, labels={"MAP": (1, 0.0, 1.0)})
    rewritten(tmp_path, pit=normal_cdf(z(np.random.default_rng(3))))
    judged = verdict(tmp_path)
    assert judged.word == word and judged.wrong == (word != "as promised")


def test_a_mean_that_is_right_does_not_hide_bands_that_are_not(tmp_path):
    """Over-confident where it is sure, too cautious elsewhere, right on the whole."""
    rng = np.random.default_rng(0)
    make_run(tmp_path, n=2000, labels={"MAP": (1, 0.0, 1.0)})
    confidence = np.where(np.arange(2000) % 2, 0.97, 0.7)
    truth = np.where(confidence > 0.9, 0.85, 0.82)
    rewritten(tmp_path, confidence=confidence)
    path = tmp_path / "arrays" / "MAP-0.npz"
    np.savez(path, **(dict(np.load(path)) | {"correct": rng.random(2000) < truth}))
    judged = verdict(tmp_path)
    assert judged.wrong and judged.word == "over-confident in places and too cautious in others"
    assert "95% to 99% sure" in judged.said and "50% to 80% sure" in judged.said


def test_seeds_share_their_examples(tmp_path):
    """The same predictions five times say no more than once."""
    rng = np.random.default_rng(5)
    pit = normal_cdf(1.12 * rng.normal(size=300))
    for seeds in (1, 5):
        folder = make_run(tmp_path / str(seeds), "real", n=300, seeds=seeds, labels={"MAP": (1, 0.0, 1.0)})
        for seed in range(seeds):
            rewritten(folder, seed=seed, pit=pit)
    once, often = verdict(tmp_path / "1"), verdict(tmp_path / "5")
    assert once.word == often.word
