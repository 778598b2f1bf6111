"""The built-in sets: sizes, scaling by only the training part, and errors."""

import sys

import numpy as np
import pytest
import torch

import basinet.data
from basinet.data import Data, Splits, datasets

sklearn_datasets = pytest.importorskip("sklearn.datasets")

SIZES = {
    "digits": ((1078, 360, 359), 64, 10),
    "wine": ((107, 36, 35), 13, 3),
    "breast_cancer": ((341, 114, 114), 30, 2),
    "diabetes": ((265, 89, 88), 10, None),
    "gaps": ((120, 40, 40), 1, None),
    "moons": ((600, 200, 200), 2, 2),
    "gaussians": ((600, 200, 200), 2, 5),
}


def positions(name: str, raw_targets: np.ndarray, seed: int) -> list[torch.Tensor]:
    """Which of scikit-learn's rows each part holds."""
    stratify = SIZES[name][2] is not None
    parts = Data(torch.arange(len(raw_targets)), raw_targets).split(0.6, 0.2, 0.2, seed=seed, stratify=stratify)
    return [part.inputs for part in parts]


def test_names_lists_every_set_and_the_module_is_reachable():
    assert set(datasets.names()) == set(SIZES)
    assert len(datasets.names()) == len(SIZES)
    assert basinet.data.datasets.load is datasets.load


@pytest.mark.parametrize("name", SIZES)
def test_sizes_shapes_and_dtypes(name):
    sizes, features, classes = SIZES[name]
    splits = datasets.load(name)
    assert isinstance(splits, Splits)
    assert (splits.name, splits.classes) == (name, classes)
    assert (splits.train.n, splits.val.n, splits.test.n) == sizes
    assert splits.description.endswith(".")
    assert ". " not in splits.description
    for part in (splits.train, splits.val, splits.test):
        assert part.inputs.shape[1:] == (features,)
        assert part.inputs.dtype == torch.float32
        if classes is None:
            assert part.targets.shape == (part.n, 1)
            assert part.targets.dtype == torch.float32
        else:
            assert part.targets.shape == (part.n,)
            assert part.targets.dtype == torch.int64
            assert part.targets.unique().tolist() == list(range(classes))
    if splits.class_names is not None:
        assert len(splits.class_names) == classes
    if splits.feature_names is not None:
        assert len(splits.feature_names) == features


@pytest.mark.parametrize("name", SIZES)
def test_the_seed_decides_the_parts(name):
    first, again, other = (datasets.load(name, seed=s) for s in (0, 0, 1))
    assert first.train.fingerprint() == again.train.fingerprint()
    assert first.test.fingerprint() == again.test.fingerprint()
    assert first.train.fingerprint() != other.train.fingerprint()


@pytest.mark.parametrize("name", [name for name, (_, _, classes) in SIZES.items() if classes])
def test_classes_are_in_proportion(name):
    splits = datasets.load(name, seed=3)
    parts = (splits.train, splits.val, splits.test)
    counts = torch.stack([part.targets.bincount(minlength=splits.classes) for part in parts])
    share = counts.sum(0).double() * torch.tensor([[0.6], [0.2], [0.2]])
    assert (counts - share).abs().max() <= 1


def test_digits_are_divided_by_sixteen():
    raw = sklearn_datasets.load_digits()
    splits = datasets.load("digits", seed=2)
    for part, index in zip((splits.train, splits.val, splits.test), positions("digits", raw.target, 2)):
        assert torch.equal(part.inputs, torch.from_numpy(raw.data[index] / 16).float())
        assert torch.equal(part.targets, torch.from_numpy(raw.target[index]))
    assert splits.train.inputs.aminmax() == (0.0, 1.0)
    assert splits.class_names == tuple("0123456789")


@pytest.mark.parametrize("name", ["wine", "breast_cancer", "diabetes"])
def test_inputs_are_standardised_with_the_training_part_only(name):
    options = {"scaled": False} if name == "diabetes" else {}
    raw = getattr(sklearn_datasets, f"load_{name}")(**options)
    splits = datasets.load(name, seed=2)
    index = positions(name, raw.target, 2)
    mean, sd = raw.data[index[0]].mean(0), raw.data[index[0]].std(0)
    for part, rows in zip((splits.train, splits.val, splits.test), index):
        np.testing.assert_allclose(part.inputs.numpy(), (raw.data[rows] - mean) / sd, rtol=1e-5, atol=1e-6)
    assert splits.train.inputs.mean(0).abs().max() < 1e-5
    assert (splits.train.inputs.std(0, correction=0) - 1).abs().max() < 1e-5
    assert splits.test.inputs.mean(0).abs().max() > 1e-2
    assert splits.feature_names == tuple(raw.feature_names)


def test_diabetes_targets_are_standardised_and_lead_back():
    raw = sklearn_datasets.load_diabetes(scaled=False)
    splits = datasets.load("diabetes", seed=2)
    index = positions("diabetes", raw.target, 2)
    assert splits.target_mean == pytest.approx(raw.target[index[0]].mean())
    assert splits.target_sd == pytest.approx(raw.target[index[0]].std())
    for part, rows in zip((splits.train, splits.val, splits.test), index):
        back = part.targets[:, 0] * splits.target_sd + splits.target_mean
        np.testing.assert_allclose(back.numpy(), raw.target[rows], rtol=1e-5)
    assert splits.test.targets.mean().abs() > 1e-3


def test_a_feature_that_does_not_vary_is_only_centred():
    mean, sd = datasets._moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert mean.tolist() == [2.0, 5.0]
    assert sd.tolist() == [1.0, 1.0]


def test_other_targets_are_not_scaled():
    for name in ("digits", "gaps"):
        splits = datasets.load(name)
        assert (splits.target_mean, splits.target_sd) == (0.0, 1.0)


def test_gaps_come_with_ood_inputs_from_the_gaps():
    splits = datasets.load("gaps")
    for part in (splits.train, splits.val, splits.test):
        assert ((part.inputs.abs() - 0.5).abs() <= 0.2 + 1e-6).all()
    assert ((splits.ood.inputs.abs() - 0.5).abs() > 0.2 - 1e-6).all()
    assert datasets.load("moons").ood is None


@pytest.mark.parametrize(("name", "meant"), [("digit", "digits"), ("Breast-Cancer", "breast_cancer")])
def test_an_unknown_name_gets_the_nearest_and_the_list(name, meant):
    with pytest.raises(ValueError, match=f"got '{name}'. Did you mean '{meant}'") as error:
        datasets.load(name)
    assert all(known in str(error.value) for known in SIZES)


def test_a_missing_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for name in ("digits", "wine", "breast_cancer", "diabetes"):
        with pytest.raises(ImportError, match=r'expected scikit-learn, .* pip install "basinet\[all\]"'):
            datasets.load(name)
    assert datasets.load("moons").train.n == 600
