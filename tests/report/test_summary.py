"""The summary says what the numbers say."""

import json

import numpy as np
import pytest
from runs import make_run, older

from basinet.report import read_run
from basinet.report.summary import summary
from basinet.report.table import table
from basinet.report.words import listed, number


def answers(folder):
    return dict(summary(read_run(folder)))


def shift(folder, label, by):
    """Makes every test example of a row worse by `by` nats, give or take what keeps the interval above zero."""
    path = folder / "arrays" / f"{label.replace(' ', '-')}-0.npz"
    arrays = dict(np.load(path))
    best = read_run(folder).rows[0]
    arrays["log_prob"] = best.arrays[0]["log_prob"] - np.float32(by)
    np.savez(path, **arrays)
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for r in lines:
        if r["method"] == label:
            r["scores"]["nll"] = best.value("nll") + by
    (folder / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))


def test_the_winner_and_its_margin(tmp_path):
    run = read_run(make_run(tmp_path))
    said = answers(tmp_path)["What won?"]
    assert f"{run.rows[0].name} of 5" in said and number(run.rows[0].value("nll")) in said
    assert (
        f"Next comes {run.rows[1].name}" in said and number(run.rows[1].value("nll") - run.rows[0].value("nll")) in said
    )
    assert "400 test examples, one seed" in said


def test_a_difference_that_is_real_is_called_so_and_one_that_is_not_is_not(tmp_path):
    make_run(tmp_path, labels={"MAP": (1, 0.5, 1.0), "EMA": (1, 0.5, 1.0)})
    second = read_run(tmp_path).rows[1].name
    shift(tmp_path, second, 0.02)
    said = answers(tmp_path)["Is the difference real?"]
    assert said.startswith("For these networks, yes: on the same 400 examples")  # one seed says no more
    assert f"Significantly worse: {second}" in said and "--seeds 3 would show" in said
    make_run(tmp_path, labels={"MAP": (1, 0.5, 1.0), "EMA": (1, 0.5, 1.0)})
    shift(tmp_path, second, 0.0)
    said = answers(tmp_path)["Is the difference real?"]
    assert said.startswith("Not") and "Not significantly different" in said


def test_a_difference_that_is_real_and_tiny_is_called_so_and_costs_nobody_a_recommendation(tmp_path):
    make_run(tmp_path, labels={"MAP": (1, 0.5, 1.0), "EMA": (1, 0.5, 1.0)})
    second = read_run(tmp_path).rows[1].name
    shift(tmp_path, second, 0.005)
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    cheaper = [r | {"steps": r["steps"] // 10} if r["method"] == second else r for r in lines]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in cheaper))
    said = answers(tmp_path)
    real = said["Is the difference real?"]
    assert real.startswith("For these networks, yes, but it is too small to matter:")
    assert f"Significantly worse, but by less than 0.01: {second}." in real and "Significantly worse:" not in real
    assert said["What is the cheapest row that does as well?"].startswith(second)


def test_a_real_difference_over_seeds_is_plainly_called_real(tmp_path):
    said = answers(make_run(tmp_path, labels={"MAP": (1, 4.0, 3.0), "deep ensemble": (5, 0.1, 1.0)}, seeds=3))
    assert said["Is the difference real?"].startswith("Yes: on the same 400 examples MAP is worse by")
    assert "for new trainings and new examples" in said["Is the difference real?"]


def test_the_cheapest_is_among_those_that_do_not_differ_significantly(tmp_path):
    run = read_run(make_run(tmp_path))
    said = answers(tmp_path)["What is the cheapest row that does as well?"]
    tied = [run.rows[0]] + [r for r in run.rows[1:] if not run.differences[r.name].matters]
    least = min(tied, key=lambda r: (r.value("steps"), r.value("nll")))
    assert said.startswith(least.name) and number(least.value("steps")) in said
    assert all(r.name not in said for r in run.rows if r not in tied)


def test_what_is_cheap_and_worse_is_not_recommended(tmp_path):
    said = answers(make_run(tmp_path, labels={"MAP": (1, 4.0, 3.0), "deep ensemble": (5, 0.1, 1.0)}))
    assert said["What is the cheapest row that does as well?"].startswith("No row that does as well as deep ensemble")
    assert "MAP" not in said["What is the cheapest row that does as well?"]


def test_trust_speaks_of_calibration(tmp_path):
    def said(name, sharp):
        return answers(make_run(tmp_path / name, labels={"MAP": (1, 0.3, sharp)}))["How far can it be trusted?"]

    assert "over-confident" in said("sharp", 5.0)
    assert "too cautious" in said("flat", 0.3)
    assert "calibrated overall" in said("right", 0.95)
    real = make_run(tmp_path / "real", "real", labels={"MAP": (1, 0.0, 3.0)})
    assert "too narrow" in answers(real)["How far can it be trusted?"]


def test_labels_are_counted_one_by_one_and_together(tmp_path):
    said = answers(make_run(tmp_path, "labels", inputs="rows"))
    assert "The accuracy per label of" in said["What won?"]
    assert "holds all labels of an example together to be right" in said["How far can it be trusted?"]
    assert "its accuracy" not in said["How far can it be trusted?"]


def test_seeds_are_counted(tmp_path):
    said = answers(make_run(tmp_path, "real", seeds=3))
    assert "mean of 3 seeds" in said["What won?"] and "of 3 seeds" in said["Is the difference real?"]
    assert "k$" in said["What won?"]


def test_without_predictions_nothing_is_claimed(tmp_path):
    said = answers(older(tmp_path))
    assert said["Is the difference real?"].startswith("Unknown")
    assert "What is the cheapest row that does as well?" not in said


def test_of_few_examples_nothing_is_claimed(tmp_path):
    said = answers(make_run(tmp_path, labels={"MAP": (1, 4.0, 3.0), "deep ensemble": (5, 0.1, 1.0)}, n=8))
    assert said["Is the difference real?"] == "Unknown: 8 test examples are too few for an interval."


def test_one_row_is_compared_with_nothing(tmp_path):
    said = answers(make_run(tmp_path, labels={"MAP": (1, 1.0, 1.0)}))
    assert "only one row" in said["Is the difference real?"]


def test_losses_that_are_not_finite_are_named(tmp_path):
    make_run(tmp_path, labels={"MAP": (1, 0.5, 1.0), "EMA": (1, 0.5, 1.0)})
    run = read_run(tmp_path)
    path = tmp_path / "arrays" / f"{run.rows[1].name}-0.npz"
    arrays = dict(np.load(path))
    arrays["log_prob"][3] = -np.inf
    np.savez(path, **arrays)
    assert "not finite" in answers(tmp_path)["Is the difference real?"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (800.0, "800"), (12345.6, "12,346"), (0.123456, "0.123"), (-0.00457, "-0.00457"), (71.84, "71.84"),
        (1.0549, "1.055"), (3.2e-7, "3.2e-07"), (float("nan"), "-"), (float("inf"), "infinite"), (999.96, "1000.0"),
        (4.83e28, "4.83e+28"),
    ],
)  # fmt: skip
def test_numbers_in_digits_that_count(value, text):
    assert number(value) == text


def test_names_in_a_sentence():
    assert listed(["a"]) == "a" and listed(["a", "b", "c"]) == "a, b and c"
    assert listed([str(i) for i in range(20)], most=4) == "0, 1, 2 and 17 others"


def test_the_table_marks_the_best_and_leaves_out_what_nobody_has(tmp_path):
    run = read_run(make_run(tmp_path))
    columns, rows = table(run)
    keys = [c.key for c in columns]
    assert "brier" in keys and "rmse" not in keys and "auroc" not in keys  # no row has an AUROC here
    marked = [(row.name, c.key) for row, cells in rows for c, cell in zip(columns, cells) if cell.best]
    assert (run.rows[0].name, "nll") in marked and sum(key == "nll" for _, key in marked) == 1
    accurate = max(run.rows, key=lambda row: row.value("accuracy"))
    assert (accurate.name, "accuracy") in marked  # the highest, where higher is better
    assert not any(key == "ece" for _, key in marked)  # all rows are equal in it
    for row, cells in rows:
        assert cells[keys.index("nll")].value == row.value("nll")


@pytest.mark.parametrize(
    ("kind", "words"),
    [("real", "Its spread was multiplied by 1.500"), ("classes", "Its logits were divided by 1.500 (the mean")],
)
def test_a_tempered_row_says_what_was_done_to_its_predictions(tmp_path, kind, words):
    make_run(tmp_path, kind)
    best = read_run(tmp_path).rows[0].name
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    changed = [r | {"tempered": True, "temperature": [1.0, 2.0]} if r["method"] == best else r for r in records]
    assert "temperature" not in [c.key for c in table(read_run(tmp_path))[0]]  # no row has one
    assert words not in answers(tmp_path)["How far can it be trusted?"]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in changed))
    assert words in answers(tmp_path)["How far can it be trusted?"]
    columns, rows = table(read_run(tmp_path))
    [place] = [i for i, c in enumerate(columns) if c.key == "temperature"]
    assert [cells[place].text for _, cells in rows] == ["1.500"] + ["-"] * (len(rows) - 1)


def test_what_validation_chose_for_all_rows_is_an_answer_and_no_warning(tmp_path):
    question = "What did validation choose for all rows?"
    folder = make_run(tmp_path / "run", "real")
    assert question not in answers(folder)
    info = json.loads((folder / "run.json").read_text()) | {"chosen": "one size of noise, by CRPS"}
    (folder / "run.json").write_text(json.dumps(info))
    assert answers(folder)[question] == "One size of noise, by CRPS."
