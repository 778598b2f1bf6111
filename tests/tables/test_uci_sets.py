"""The UCI sets: what a file must hold, and that only training rows set the units."""

import numpy as np
import pytest
import torch

from basinet.tables import uci


def write(folder, name="yacht", n=40, splits=3, **changed):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4)) * [1, 10, 0.1, 1] + [0, 5, 0, 0]
    x[:, 3] = 7.0  # constant
    rows = np.stack([rng.permutation(n) for _ in range(splits)]).astype(np.uint16)
    arrays = {
        "X": x.astype(np.float32),
        "y": (3 * x[:, 0] + rng.normal(size=n) + 50).astype(np.float32),
        "train": rows[:, : n - 8],
        "test": rows[:, n - 8 :],
        "ref_test_mc_rmse": np.linspace(1, 2, splits),
        "ref_test_ll": np.linspace(-2, -1, splits),
    } | changed
    np.savez(folder / f"uci_{name}.npz", **arrays)
    return arrays


def test_a_set_is_what_its_file_holds(tmp_path):
    arrays = write(tmp_path)
    known = uci.load("yacht", tmp_path)
    assert known.splits == 3 and known.name == "yacht"
    np.testing.assert_array_equal(known.train, arrays["train"])
    np.testing.assert_array_equal(known.test, arrays["test"])
    np.testing.assert_array_equal(known.reference_ll, arrays["ref_test_ll"])
    np.testing.assert_array_equal(known.reference_rmse, arrays["ref_test_mc_rmse"])


def test_parts_are_standardised_by_only_the_first_rows(tmp_path):
    write(tmp_path)
    known = uci.load("yacht", tmp_path)
    fit, other = known.train[1], known.test[1]
    (train, test), target = known.part(fit, other)
    assert train.inputs.mean(0).abs().max() < 1e-6
    spread = train.inputs.std(0, correction=0)
    assert spread[:3] == pytest.approx(torch.ones(3), abs=1e-6) and spread[3] == 0  # the constant column
    assert train.targets.shape == (32, 1) and float(train.targets.std(correction=0)) == pytest.approx(1, abs=1e-6)
    mean, sd = known.inputs[fit, :3].mean(0), known.inputs[fit, :3].std(0)
    np.testing.assert_allclose(test.inputs[:, :3], (known.inputs[other, :3] - mean) / sd, atol=1e-5)
    assert (test.inputs[:, 3] == 0).all()
    np.testing.assert_allclose(target.back(test.targets), known.targets[other], rtol=1e-5)
    known.inputs[other] += 100  # what is not in the first rows changes nothing in them
    assert torch.equal(known.part(fit, other)[0][0].inputs, train.inputs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.zeros((40, 1))}, r"expected X \(N, D\), y \(N,\).*y \(40, 1\)"),
        ({"ref_test_ll": np.zeros(2)}, r"a row of the others for each split.*ref_test_ll \(2,\)"),
        ({"test": np.zeros((3, 8), np.uint16)}, "expected every row of X once"),
        ({"test": np.zeros((3, 7), np.uint16)}, "expected every row of X once"),
    ],
)
def test_broken_files_are_refused(tmp_path, changed, message):
    write(tmp_path, **changed)
    with pytest.raises(ValueError, match=message):
        uci.load("yacht", tmp_path)


def test_unknown_names_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'yacht'"):
        uci.load("yaht", tmp_path)
    with pytest.raises(ValueError, match=r"uci_yacht\.npz: there is no such file; expected the folder"):
        uci.load("yacht", tmp_path)
