"""The study of repulsion, made small: its records, scores of each image, and differences over images and seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from basinet.data import Data, datasets
from studies import Options, repulsion
from studies.repulsion import images, toys
from studies.repulsion.paired import Kept, differences


@pytest.fixture
def small(monkeypatch) -> None:
    """Digits instead of Fashion-MNIST, two members instead of ten, one corruption instead of nineteen."""
    load = datasets.load

    def digits(name: str, *, seed: int, folder: Any) -> Any:
        splits = load("digits", seed=0)

        def large(part: Data) -> Data:
            inputs = torch.nn.functional.interpolate(part.inputs.reshape(-1, 1, 8, 8), size=(28, 28))
            return Data((inputs - inputs.amin()) / (inputs.amax() - inputs.amin()), part.targets)

        return replace(splits, train=large(splits.train), test=large(splits.test))

    setting = replace(repulsion.IMAGES["fashion_mnist"], width=8, epochs=15, rate=0.01, members=2)
    monkeypatch.setitem(repulsion.IMAGES, "fashion_mnist", setting)
    monkeypatch.setattr(datasets, "load", digits)
    monkeypatch.setattr(images.corruptions, "NAMES", ("gaussian_noise",))


def asked(tmp_path: Any, seed: int = 0, methods: tuple[str, ...] = ("deep ensemble", "LIT")) -> Options:
    return Options(tmp_path, tmp_path, seed, "cpu", ("fashion_mnist",), methods, examples=100)


def test_records_have_paired_differences_over_images_and_a_run_prints_those_over_seeds(small, tmp_path):
    said: list[str] = []
    plain, lit = repulsion.run(asked(tmp_path), said.append)
    assert (plain["method"], lit["method"], plain["difference"], lit["difference"]["seeds"]) == (
        "deep ensemble", "LIT", None, 1,
    )  # fmt: skip
    for part in ("clean", "corrupted"):
        for name, row in lit["difference"][part].items():
            assert row["difference"] == pytest.approx(lit[part][name] - plain[part][name], abs=1e-5)
            assert row["low"] <= row["difference"] <= row["high"]
            assert row["low"] < row["high"] or name == "accuracy"  # which may be that of the same images
    assert "less deep ensemble: clean nll" in said[1] and not any("seeds:" in line for line in said)
    assert repulsion.run(asked(tmp_path), said.append) == []  # all are there
    again = repulsion.run(asked(tmp_path, seed=1), said.append)
    assert [r["seed"] for r in again] == [1, 1]
    means = {
        part: sum(r["difference"][part]["nll"]["difference"] for r in (lit, again[1])) / 2
        for part in ("clean", "corrupted")
    }
    assert "LIT                less deep ensemble, 2 seeds:" in said[-1]
    assert f"clean nll {means['clean']:+.4f} (" in said[-1] and f"corrupted nll {means['corrupted']:+.4f} (" in said[-1]


def test_records_without_scores_of_each_image_are_read(small, tmp_path):
    """Such as those from before differences were kept: there is nothing to compare with, and nothing fails."""
    file = tmp_path / "repulsion.jsonl"
    scores = {"accuracy": 0.9, "nll": 0.3, "ece": 0.02}
    old = {"data": "fashion_mnist", "method": "deep ensemble", "seed": 0, "clean": scores, "corrupted": scores}
    old |= {"gradient_cosine": 0.5, "seconds": 3.0}
    file.write_text(json.dumps(old) + "\n")
    said: list[str] = []
    [record] = repulsion.run(asked(tmp_path), said.append)
    assert record["method"] == "LIT" and record["difference"] is None
    assert repulsion.in_words(old).endswith("cosine 0.500   3 s")
    assert "less deep ensemble" not in repulsion.in_words(record)


def scores_of(shift: float, seed: int, n: int = 400) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hard = torch.rand(n, generator=torch.Generator().manual_seed(9))  # the same images are hard for all
    nll = hard + shift + 0.01 * torch.randn(n, generator=generator)
    both = torch.stack([nll, (hard < 0.5).float()])
    return {"clean": both, "corrupted": both, "targets": torch.arange(n)}


def test_differences_are_paired_and_those_over_seeds_are_wider():
    alone = differences([(scores_of(0.1, 0), scores_of(0.0, 1))])
    row = alone["clean"]["nll"]
    assert row["difference"] == pytest.approx(0.1, abs=0.005)
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * 0.01 * 2**0.5 / 400**0.5, rel=0.15)  # not that of nll
    assert alone["clean"]["accuracy"] == {"difference": 0.0, "low": 0.0, "high": 0.0}
    pairs = [(scores_of(shift, 2 * i), scores_of(0.0, 2 * i + 1)) for i, shift in enumerate((0.0, 0.1, 0.2))]
    several = differences(pairs)
    row = several["corrupted"]["nll"]
    assert several["seeds"] == 3 and row["difference"] == pytest.approx(0.1, abs=0.005)
    assert row["low"] < 0.03 and row["high"] > 0.17


def test_scores_of_other_images_are_left_out(tmp_path):
    mine, other = scores_of(0.1, 0), scores_of(0.0, 1)
    assert differences([(mine, other | {"targets": other["targets"] + 1})]) is None
    assert differences([(mine, None)]) is None
    few = scores_of(0.1, 2, n=50)
    assert differences([(mine, other), (few, few)])["seeds"] == 1
    kept = Kept(tmp_path, "cifar10", "FoRDE (pca)", 3)
    assert kept.read() is None and kept.path.name == "cifar10-forde--pca-3.npz"
    kept.write({part: mine[part] for part in ("clean", "corrupted")}, mine["targets"])
    torch.testing.assert_close(kept.read(), mine)


def test_unknown_methods_and_sets_are_refused_and_toys_that_are_there_are_not_made_again(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"unknown method 'FoRDE \(PCA\)': expected one of deep ensemble"):
        repulsion.run(Options(tmp_path, methods=("FoRDE (PCA)",)), print)
    for wrong in ({"preset": "resnet18"}, {"sets": ("gaps", "cifar10")}):
        with pytest.raises(ValueError, match=r"needs files: give --folder with the files of cifar10 \(Krizhevsky"):
            repulsion.run(Options(tmp_path, **wrong), print)
    with pytest.raises(ValueError, match=r"expected the files of cifar10, .*come from Krizhevsky"):
        repulsion.run(Options(tmp_path, tmp_path, preset="resnet18"), print)
    with pytest.raises(ValueError, match="unknown set 'gap': expected one of gaps"):
        repulsion.run(Options(tmp_path, sets=("gap",)), print)
    methods = toys.toy_methods
    monkeypatch.setattr(toys, "toy_methods", lambda steps: methods(3))
    options = Options(tmp_path, device="cpu", sets=("gaps", "random features"), methods=("deep ensemble",))
    assert [r["data"] for r in repulsion.run(options, lambda line: None)] == ["gaps", "random features"]
    monkeypatch.setattr(toys, "fit", None)
    assert repulsion.run(options, print) == []


def test_the_papers_setting_has_its_network_schedule_and_table_and_factors_change_one_by_one(tmp_path):
    setting = repulsion.PRESETS["resnet18"]
    assert sum(p.numel() for p in setting.make().parameters()) == 11_173_962
    assert setting.scale(50_000) == pytest.approx((5e-4 * 50_000) ** -0.5)  # weight decay 5e-4
    rate = setting.descent().lr
    assert [rate(step, 100) for step in (0, 50, 70, 95)] == pytest.approx([0.1, 0.1, 0.0505, 0.001])
    methods = repulsion.image_methods(setting)
    assert methods["FoRDE (tuned)"].lengthscales == 0.2 and methods["FoRDE (pca)"].epochs == 30
    assert (
        "corrupted accuracy 0.805  nll 0.71" in repulsion.in_table("FoRDE (pca)") and repulsion.in_table("SVGD") == ""
    )
    [(name, changed)] = repulsion._chosen(
        Options(tmp_path, preset="resnet18", changes=("width=16", "decay=1e-4"))
    ).items()
    assert name == "resnet18-width-16-decay-1e-4" and (changed.width, changed.decay) == (16, 1e-4)
    with pytest.raises(ValueError, match="no preset 'resnet8'"):
        repulsion.run(Options(tmp_path, preset="resnet8"), print)
    with pytest.raises(ValueError, match="give --preset, resnet18 say"):
        repulsion.run(Options(tmp_path, changes=("width=16",)), print)


def test_a_preset_runs_small_on_the_whole_training_part(tmp_path, monkeypatch):
    images_of = torch.rand(60, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    part = Data(images_of, torch.arange(60) % 10)
    monkeypatch.setattr(datasets, "load_images", lambda name, folder: {"train": part, "test": part})
    monkeypatch.setattr(images.corruptions, "NAMES", ("gaussian_noise",))
    changes = ("width=1", "epochs=1", "members=2", "corrupted=10", "batch_size=30")
    options = Options(tmp_path, tmp_path, device="cpu", preset="resnet18", changes=changes, methods=("deep ensemble",))
    said: list[str] = []
    [record] = repulsion.run(options, said.append)
    assert record["n_train"] == 60 and record["n_corrupted"] == 10 and record["setting"]["width"] == 1
    assert any(line.startswith("published: clean accuracy 0.963") for line in said)
    assert repulsion.run(options, said.append) == []
