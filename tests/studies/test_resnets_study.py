"""The study of the published ResNets, on networks of eight and fourteen layers with random weights."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import basinet as bn
from basinet.methods import laplace
from basinet.networks import ResNet
from studies import Options, resnets

SIZE = 20  # of each half
CHEAP = ("base", "temperature", "temperature of the average", "last layer full")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two networks, and images whose labels are mostly what the first says."""
    monkeypatch.setattr(resnets, "DEPTHS", {"ResNet-8": 8, "ResNet-14": 14})
    for name, value in (("HALF", SIZE), ("OUTSIDE", 15), ("TRAIN", 12)):
        monkeypatch.setattr(resnets, name, value)
    monkeypatch.setattr(resnets, "KNOWN", dict.fromkeys(("ResNet-8", "ResNet-14", resnets.FOUR), (0.5, 1.0)))
    monkeypatch.setattr(laplace, "FACTORS", [1.0, 1e3])
    place = tmp_path / "data"
    place.mkdir()
    nets = {}
    for depth in resnets.DEPTHS.values():
        torch.manual_seed(depth)
        nets[depth] = ResNet(depth).eval()
        save_file(nets[depth].state_dict(), place / f"cifar10_resnet{depth}.safetensors")
    rng = np.random.default_rng(0)
    mean, sd = (torch.tensor(x)[:, None, None] for x in resnets.PIXELS)
    for name, count in (("cifar10_test", 2 * SIZE), ("cifar10_train", 12), ("svhn_test", 30), ("cifar100_test", 30)):
        d = rng.integers(0, 3, size=(3, count, 32, 32), dtype=np.uint8)
        np.savez(place / f"{name}.npz", d=d, y=np.zeros(count, dtype=np.uint8))
        if name.startswith("cifar10_"):
            part = "test" if name.endswith("test") else "train"
            images = bn.datasets.load_images("cifar10", place)[part].inputs if part == "test" else None
            y = rng.integers(0, 10, size=count)
            if images is not None:
                said = nets[8]((images - mean) / sd).argmax(-1).numpy()
                y = np.where(rng.random(count) < 0.7, said, y)
            np.savez(place / f"{name}.npz", d=d, y=y.astype(np.uint8))
    return place


def run(folder, out, methods=CHEAP, said=None, **more):
    options = Options(out, folder=folder, device="cpu", methods=methods, **more)
    return resnets.run(options, lambda line: None if said is None else said.append(line))


def test_rows_are_what_the_networks_themselves_give(folder, tmp_path):
    records = run(folder, tmp_path / "out")
    rows = {(r["method"], r["network"]): r for r in records if r["kind"] == "row"}
    names = ("ResNet-8", "ResNet-14", resnets.FOUR)
    expected = {(m, n) for m in CHEAP for n in names if m != "temperature of the average" or n == resnets.FOUR}
    assert set(rows) == expected
    study = resnets._Study(Options(tmp_path / "out", folder=folder, device="cpu"), print)
    report, tune = study.parts["report"], study.parts["tune"]
    assert report.n == tune.n == SIZE
    both = torch.cat([report.inputs, tune.inputs]).flatten(1)
    assert len(both.unique(dim=0)) == 2 * SIZE  # no image tunes and reports
    wholes = [net.whole for net in study.nets]
    for name, posterior in zip(names, (*wholes, bn.mix(wholes))):
        row, scores = rows["base", name], bn.score(posterior, report)
        assert row["nll"] == pytest.approx(scores["nll"], rel=1e-5)
        assert row["scores"] == pytest.approx(scores, rel=1e-3, abs=1e-5)
        assert row["over_base"] == 0 and row["n_report"] == SIZE and row["n_svhn"] == 15
        outside = posterior.predict(study.parts["svhn"].inputs).entropy
        area = bn.metrics.auroc(posterior.predict(report.inputs).entropy, outside)
        assert row["auroc"]["svhn"] == pytest.approx(float(area), abs=1e-6)
    hot = bn.score(bn.temper(bn.mix(wholes), tune, of="average"), report)
    assert rows["temperature of the average", resnets.FOUR]["nll"] == pytest.approx(hot["nll"], rel=1e-5)
    for r in rows.values():
        assert r["over_base"] == pytest.approx(r["nll"] - rows["base", r["network"]]["nll"], abs=1e-6)
        assert r["low"] <= r["over_base"] <= r["high"] and r["device"] == "cpu" and r["N"] == 50_000


def test_the_last_layer_on_features_is_the_last_layer_of_the_network(folder, tmp_path):
    row = next(r for r in run(folder, tmp_path, ("last layer full",)) if r["network"] == "ResNet-8")
    study = resnets._Study(Options(tmp_path, folder=folder, device="cpu"), print)
    train, net = study.parts["train"], study.nets[0]
    stream = bn.Data.stream(lambda: iter([(train.inputs, train.targets)]), n=50_000, prefetch=0)
    recipe = bn.Laplace(
        structure="full", where="last", prior_precision=row["chosen"]["prior_precision"], subset=12, via="probit"
    )
    whole = bn.fit(recipe, net.whole.problem, stream, start=net.whole, engine=bn.Engine(device="cpu"))
    assert row["nll"] == pytest.approx(bn.score(whole, study.parts["report"])["nll"], rel=1e-4)


@pytest.mark.slow
def test_noise_and_all_layers_run_and_are_sampled_only_for_the_first_network(folder, tmp_path):
    assert [r["network"] for r in run(folder, tmp_path, ("PEP",), examples=10)] == [
        "ResNet-8",
        "ResNet-14",
        resnets.FOUR,
    ]
    methods = ("all layers diagonal", "all layers kronecker sampled")
    rows = [r for r in run(folder, tmp_path, methods, examples=10) if r["kind"] == "row"]
    assert [(r["method"], r["network"]) for r in rows] == [
        (methods[0], "ResNet-8"),
        (methods[0], "ResNet-14"),
        (methods[0], resnets.FOUR),
        (methods[1], "ResNet-8"),
    ]
    for r in rows:
        assert r["recipe"]["fields"]["via"] == ("sample" if r["method"] in resnets.SAMPLED else "probit")
        assert r["recipe"]["fields"]["subset"] == 10 and r["n_report"] == 10


def test_a_stopped_run_resumes_and_the_check_reports(folder, tmp_path, monkeypatch):
    first = run(folder, tmp_path, ("base",))
    assert not any(f["agrees"] for f in first[0]["found"].values()) and first[0]["kind"] == "check"
    lines = (tmp_path / "resnets.jsonl").read_text().splitlines()
    (tmp_path / "resnets.jsonl").write_text(
        "\n".join(x for x in lines if json.loads(x)["network"] != "ResNet-14") + "\n"
    )
    said: list[str] = []
    again = run(folder, tmp_path, ("base",), said)
    assert len((tmp_path / "resnets.jsonl").read_text().splitlines()) == len(lines)
    assert [r["nll"] for r in again[1:]] == pytest.approx([r["nll"] for r in first[1:]])
    known = {n: (f["error"], f["nll"]) for n, f in first[0]["found"].items()}
    monkeypatch.setattr(resnets, "KNOWN", known)
    right = run(folder, tmp_path / "anew", ("base",))
    assert all(f["agrees"] for f in right[0]["found"].values())


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match="give --folder"):
        resnets.run(Options(tmp_path), print)
    with pytest.raises(ValueError, match="the study resnets has no method 'pep'"):
        resnets.run(Options(tmp_path, folder=tmp_path, methods=("pep",)), print)
    with pytest.raises(ValueError, match="the study resnets has no set 'resnet20'"):
        resnets.run(Options(tmp_path, folder=tmp_path, sets=("resnet20",)), print)


def test_a_subset_of_the_networks_has_no_mixture(folder, tmp_path):
    records = run(folder, tmp_path, ("base", "temperature of the average"), sets=("ResNet-14",))
    assert [(r["method"], r["network"]) for r in records] == [("base", "ResNet-14")]
