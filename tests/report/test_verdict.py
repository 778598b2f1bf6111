"""The verdict names a row and a reason that the numbers have, and the tiles are that row's."""

import json
from types import SimpleNamespace

import numpy as np
from runs import make_run

from basinet.report import read_run
from basinet.report.measures import Difference
from basinet.report.summary import summary
from basinet.report.verdict import falling, recommended, tiles, verdict

TWO = {"MAP": (1, 0.5, 1.0), "deep ensemble": (5, 0.5, 1.0)}


def records(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def changed(folder, label, **values):
    lines = [r | values if r["method"] == label else r for r in records(folder)]
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    return folder


def alike(folder, first="MAP", second="deep-ensemble"):
    """Both rows predict the same."""
    path = folder / "arrays"
    arrays = dict(np.load(path / f"{second}-0.npz"))
    np.savez(path / f"{first}-0.npz", **arrays)
    return folder


def about(folder):
    return dict(summary(read_run(folder)))["What is its uncertainty about?"]


def test_what_is_as_good_and_cheaper_is_to_be_used(tmp_path):
    alike(make_run(tmp_path, labels=TWO))
    changed(
        tmp_path, "MAP", scores=records(tmp_path)[1]["scores"] | {"nll": records(tmp_path)[1]["scores"]["nll"] + 1e-4}
    )
    run = read_run(tmp_path)
    assert run.rows[0].name == "deep ensemble" and recommended(run).name == "MAP"
    said = verdict(run)
    assert said.startswith(
        "Use MAP, because on these examples it is not significantly different from the best row, deep ensemble of 5"
    )
    assert "one forward pass and 800 training steps against 5 forward passes and 4,000 training steps" in said


def test_a_row_that_is_significantly_but_hardly_worse_is_said_to_be_so(tmp_path):
    alike(make_run(tmp_path, labels=TWO))
    score = records(tmp_path)[1]["scores"] | {"nll": records(tmp_path)[1]["scores"]["nll"] + 0.004}
    run = read_run(changed(tmp_path, "MAP", scores=score))
    run.differences["MAP"] = Difference(0.004, 0.002, 0.006)
    assert verdict(run).startswith("Use MAP, because on these examples it is hardly worse than the best row, deep")


def test_a_row_that_another_beats_at_the_same_cost_is_not_recommended():
    """Its difference from the best is not significant because it is noisy, and that of the other, smaller one is."""

    def row(name, nll, draws, steps):
        numbers = {"nll": nll, "draws": draws, "steps": steps}
        return SimpleNamespace(name=name, reference=False, value=numbers.__getitem__)

    rows = [row("chains", 0.08, 100, 30_000), row("shared", 0.09, 8, 3000), row("MAP", 0.1, 1, 3000)]
    rows.append(row("tempered MAP", 0.12, 1, 3000))
    differences = {name: SimpleNamespace(matters=name == "MAP", low=0.0) for name in ("shared", "MAP", "tempered MAP")}
    run = SimpleNamespace(rows=rows, differences=differences, leader=rows[0])
    assert recommended(run).name == "shared"


def test_passes_of_prediction_count(tmp_path):
    """PEP of one network trains as little as MAP, and predicts at 25 times its price."""
    labels = {"MAP": (1, 0.5, 1.0), "PEP": (1, 0.5, 1.0)}
    alike(make_run(tmp_path, labels=labels), "MAP", "PEP")
    pep = next(r for r in records(tmp_path) if r["method"] == "PEP")
    changed(tmp_path, "PEP", draws=25)
    changed(tmp_path, "MAP", scores=pep["scores"] | {"nll": pep["scores"]["nll"] + 1e-4})
    run = read_run(tmp_path)
    assert run.rows[0].name == "PEP" and recommended(run).name == "MAP"
    cheapest = dict(summary(run))["What is the cheapest row that does as well?"]
    assert cheapest.startswith("MAP: one forward pass and 800 training steps against 25 forward passes")


def test_what_is_significantly_best_is_to_be_used(tmp_path):
    make_run(tmp_path, labels={"MAP": (1, 4.0, 3.0), "deep ensemble": (5, 0.1, 1.0)})
    said = verdict(read_run(tmp_path))
    assert said == "Use deep ensemble of 5, because it predicts best, and every other row is significantly worse."


def test_tiles_are_error_coverage_and_cost_of_the_row_that_is_named(tmp_path):
    run = read_run(make_run(tmp_path / "a", labels={"MAP": (1, 4.0, 3.0), "deep ensemble": (5, 0.1, 1.0)}))
    error, coverage, price = tiles(run)
    assert error.value == f"{1 - run.rows[0].value('accuracy'):.1%}" and "95 % interval" in error.note
    assert coverage.name == "Mean confidence" and price.value == "5 passes" and "4,000 steps" in price.note
    real = read_run(make_run(tmp_path / "b", "real", labels={"MAP": (1, 0.0, 3.0)}))
    error, coverage, price = tiles(real)
    assert "k$" in error.value and coverage.value == f"{real.rows[0].value('coverage_90'):.1%}"
    assert coverage.warn and "too narrow" in coverage.note and price.value == "1 pass"


def test_training_that_had_not_ended_is_reported_first_and_prominently(tmp_path):
    make_run(tmp_path, labels=TWO)
    best = read_run(tmp_path).rows[0].name
    training = {"curve": "val_nll", "falling": True, "drop": 0.27, "error": 0.01, "steps": 1000}
    changed(tmp_path, best, training=training, spread="members")
    run = read_run(tmp_path)
    assert falling(run) == {best: 0.27}
    assert verdict(run).startswith(f"Train longer before you choose: the training of {best}")
    question, answer = summary(run)[0]
    assert (
        question == "Had training ended?" and answer.startswith("NO. The loss was STILL FALLING") and "0.27" in answer
    )
    assert "not all noise: training had not ended" in about(tmp_path) and "stays" not in about(tmp_path)


def test_words_on_uncertainty_follow_from_what_the_method_is(tmp_path):
    for spread, said, unsaid in (
        ("tuned", "of a size that was tuned on validation examples", "uncertainty about the weights"),
        ("members", "disagreement of its 1 members", "tuned"),
        ("posterior", "uncertainty about the weights under its posterior, which more data would reduce", "tuned"),
        ("point", "is a single network, so it has no uncertainty about its weights", "more data would reduce"),
    ):
        folder = make_run(tmp_path / spread, labels={"PEP": (1, 0.5, 1.0)})
        changed(folder, "PEP", spread=spread)
        assert said in about(folder) and unsaid not in about(folder)


def test_errors_that_another_row_does_not_make_are_not_noise(tmp_path):
    folder = make_run(tmp_path, "real", labels={"MAP": (1, 0.5, 1.0), "EMA": (1, 0.5, 1.0)}, inputs="rows")
    run = read_run(folder)
    best, other = (row.name for row in run.rows)
    path = folder / "arrays" / f"{other}-0.npz"
    arrays = dict(np.load(path))
    arrays["mean"] = run.test["targets"] + np.float32(0.01)
    np.savez(path, **arrays)
    changed(folder, best, spread="posterior")
    assert f"not all noise: {other} makes smaller errors" in about(folder)


def test_a_better_reference_is_mentioned_and_never_taken_for_a_posterior(tmp_path):
    labels = {"MAP": (1, 4.0, 3.0), "boosting (no posterior)": (1, 0.1, 1.0)}
    changed(make_run(tmp_path, labels=labels), "boosting (no posterior)", reference=True, draws=0, steps=0)
    run = read_run(tmp_path)
    assert run.rows[0].reference and run.leader.name == "MAP" == recommended(run).name
    assert verdict(run).startswith(
        "Use boosting (no posterior), or train longer: it predicts significantly better than every network"
    )
    assert "not all noise: boosting (no posterior) makes smaller errors" in about(tmp_path)
    alike(tmp_path, "MAP", "boosting-no-posterior-")
    said = verdict(read_run(tmp_path))
    assert said.startswith("Use MAP if you need a posterior; boosting (no posterior) does as well")
