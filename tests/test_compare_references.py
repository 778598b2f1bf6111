"""Rows that are not posteriors: they predict as the models they name, and are marked as what they are."""

import math

import pytest
import torch

import basinet as bn
from basinet.compare import table
from basinet.compare.api import Asking
from basinet.compare.references import fit_reference, offered
from basinet.compare.rows import choose
from basinet.data import Data, Splits
from basinet.data.toys import gaussians
from basinet.engine.method import Entry
from basinet.pool import read_records

torch.set_num_threads(1)


def line(n=200):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    noise = 0.1 * torch.randn(n, 1, generator=torch.Generator().manual_seed(1))
    return Splits("line", *Data(x, x[:, :1] - 2 * x[:, 1:2] + noise).split(0.6, 0.2, 0.2, seed=0), target_sd=3.0)


def spots():
    return Splits("spots", *gaussians(300, seed=1).split(0.6, 0.2, 0.2, seed=0), classes=5)


def test_numbers_have_the_mean_of_the_model_and_the_spread_of_validation_residuals():
    splits = line()
    constant, linear = (fit_reference(name, splits, "real", 0)(splits.test.inputs) for name in ("constant", "linear"))
    assert torch.allclose(constant.mean, splits.train.targets.mean().expand(40, 1))
    design = torch.cat([splits.train.inputs, torch.ones(120, 1)], 1).double()
    exact = torch.linalg.lstsq(design, splits.train.targets.double()).solution
    rows = torch.cat([splits.test.inputs, torch.ones(40, 1)], 1).double()
    assert torch.allclose(linear.mean.double(), rows @ exact, atol=1e-4)
    gap = torch.cat([splits.val.inputs, torch.ones(40, 1)], 1).double() @ exact - splits.val.targets
    assert torch.allclose(linear.variance.double(), gap.square().mean().expand(40, 1), rtol=1e-3)


def test_classes_have_the_probabilities_of_the_model():
    splits = spots()
    for name in ("constant", "linear", "boosting"):
        probs = fit_reference(name, splits, "classes", 0)(splits.test.inputs).probs
        assert probs.shape == (60, 5) and torch.allclose(probs.sum(1), torch.ones(60), atol=1e-5)
    counts = torch.bincount(splits.train.targets, minlength=5) + 1.0
    first = fit_reference("constant", splits, "classes", 0)(splits.test.inputs).probs[0]
    assert torch.allclose(first, counts / counts.sum(), atol=1e-6)
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=2000).fit(splits.train.inputs.double().numpy(), splits.train.targets.numpy())
    known = torch.as_tensor(model.predict_proba(splits.test.inputs.double().numpy()))
    assert torch.allclose(
        fit_reference("linear", splits, "classes", 0)(splits.test.inputs).probs.double(), known, atol=1e-5
    )


def test_they_are_rows_beside_the_posteriors_in_units_of_the_target(tmp_path):
    rows = [Entry("MAP", bn.MAP(epochs=3), 1), "constant", "linear", "boosting"]
    frame = bn.compare(line(), rows, out=tmp_path)
    assert frame["method"] == ["MAP", *(f"{name} (no posterior)" for name in ("constant", "linear", "boosting"))]
    constant, linear, _ = (frame[i] for i in (1, 2, 3))
    assert linear["rmse"] == pytest.approx(0.3, rel=0.3) and constant["rmse"] > 5  # noise .1 of targets of sd 3
    parts = line()
    own = -fit_reference("linear", parts, "real", 0)(parts.test.inputs).log_prob(parts.test.targets).mean()
    assert linear["nll"] == pytest.approx(float(own) + math.log(3.0), rel=1e-5)  # a density per unit of the target
    for record in read_records(tmp_path / "records.jsonl")[1:]:
        assert record["reference"] and record["draws"] == record["steps"] == 0
        assert record["unset"] == "it is not a posterior"
    heads, shown = table(frame.summary)
    assert {row[0] for row in shown} == {"MAP", "constant *", "linear *", "boosting *"} and heads[0] == "method"
    assert "(no posterior)" not in str(frame) and "* is not a posterior" in str(frame)
    said: list[str] = []
    bn.compare(line(), rows, out=tmp_path, say=said.append)
    assert sum("already" in text for text in said) == 4


def test_default_rows_have_them_for_numbers_and_classes_but_not_for_counts():
    def labels(splits, **options):
        return [row.label for row in Asking(**options).prepare(splits, None, lambda line: None)[1]]

    for splits in (line(), spots()):
        assert labels(splits)[-3:] == [f"{name} (no posterior)" for name in ("constant", "linear", "boosting")]
    counted = Splits("counts", *Data(line().train.inputs, torch.arange(120.0) % 4).split(0.6, 0.2, 0.2, seed=0))
    poisson = bn.Problem(lambda: bn.networks.MLP(3, 1, hidden=(4,)), bn.likelihoods.Poisson())
    assert not any("no posterior" in label for label in labels(counted, problem=poisson))


def test_they_come_by_default_where_they_are_quick():
    assert offered(line(), "real") == (["constant", "linear", "boosting"], [])
    assert offered(line(), "labels") == ([], [])
    big = Splits("big", *(Data(torch.zeros(4000, 300), torch.arange(4000) % 10),) * 3, classes=10)
    assert offered(big, "classes") == (["constant", "linear"], ["boosting"])
    labels = [row.label for row in choose(None, None, False, "real", ["constant"]).rows]
    assert labels[-1] == "constant (no posterior)"
    assert not any(row.reference for row in choose(["MAP"], None, False, "real", ["constant"]).rows)
    assert not any(row.reference for row in choose(None, None, True, "real", ["constant"]).rows)


def test_doubts_are_warnings_if_nobody_listens(tmp_path, caplog):
    file = tmp_path / "counts.csv"
    file.write_text("x,y\n" + "".join(f"{i * 7 % 11},{i % 14}\n" for i in range(140)))
    bn.compare(file, ["constant"], target="y")
    [line] = [
        r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "taken for classes" in r.getMessage()
    ]
    assert "14 different whole numbers" in line and "kind='real'" in line
    caplog.clear()
    bn.compare(file, ["constant"], target="y", say=lambda line: None)
    assert not caplog.records
