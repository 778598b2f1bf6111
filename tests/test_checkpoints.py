"""SWAG from files of another training: equal to the moments of what they hold; what is refused, by file and tensor."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, take

PROBLEM = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
INPUTS = torch.linspace(-2, 2, 80).reshape(20, 4)


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def states(count: int, make=lambda: nn.Linear(4, 3)) -> list[dict[str, torch.Tensor]]:
    state_dicts = []
    for seed in range(count):
        torch.manual_seed(seed)
        state_dicts.append(make().state_dict())
    return state_dicts


def write(folder, contents, name="epoch-{}.pt"):
    folder.mkdir(exist_ok=True)
    files = [folder / name.format(i) for i in range(len(contents))]
    for file, content in zip(files, contents):
        if file.suffix == ".safetensors":
            save_file(content, file)
        else:
            torch.save(content, file)
    return files


@pytest.mark.parametrize("name", ["epoch-{}.pt", "{}.safetensors", "net_{}_last.pth", "v{}.ckpt"])
def test_a_folder_becomes_the_normal_of_its_files(tmp_path, name):
    contents = states(12)  # so that names sort as numbers and not as text: 2 before 10
    write(tmp_path / "run", contents, name)
    swag = bn.swag_of_checkpoints(tmp_path / "run", PROBLEM, rank=3)
    family = take(swag.parts[0].family, 0)
    rows = torch.stack([ravel(c) for c in contents])
    torch.testing.assert_close(ravel(family.centre), rows.mean(0))
    torch.testing.assert_close(ravel(family.diagonal), rows.var(0, correction=0) / 2)
    torch.testing.assert_close(ravel(family.columns, 1), (rows[-3:] - rows.mean(0)) / math.sqrt(4))
    assert swag.info["checkpoints"][2:] == [name.format(i) for i in range(2, 12)]
    assert swag.predict(INPUTS).outputs.shape == (1, 20, 20, 3)


def test_files_are_taken_in_the_order_given(tmp_path):
    contents = states(4)
    files = write(tmp_path, contents)
    family = take(bn.swag_of_checkpoints(files[::-1], PROBLEM, rank=2).parts[0].family, 0)
    rows = torch.stack([ravel(c) for c in contents])
    torch.testing.assert_close(ravel(family.columns, 1), (rows[[1, 0]] - rows.mean(0)) / math.sqrt(2))


def in_lightning(state):
    return {"state_dict": state, "epoch": 3, "hyper_parameters": {"lr": 0.1}}


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda s: {"model": s, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}, "epoch": 3},
        in_lightning,
        lambda s: {"model_state_dict": s},
        lambda s: {"model": {"state_dict": s}},
        lambda s: {f"module.{n}": x for n, x in s.items()},
        lambda s: {"state_dict": {f"module._orig_mod.{n}": x for n, x in s.items()}},
        lambda s: {n: x.double() for n, x in s.items()},
    ],
)
def test_what_training_loops_write_is_understood(tmp_path, wrapped):
    contents = states(3)
    plain = bn.swag_of_checkpoints(write(tmp_path / "plain", contents), PROBLEM, rank=2)
    write(tmp_path / "wrapped", [wrapped(s) for s in contents])
    swag = bn.swag_of_checkpoints(tmp_path / "wrapped", PROBLEM, rank=2)
    assert torch.equal(swag.predict(INPUTS).outputs, plain.predict(INPUTS).outputs)


def test_norm_statistics_are_refreshed_from_the_data_and_saved(tmp_path):
    problem = bn.Problem(with_norm, PROBLEM.likelihood)
    files = write(tmp_path / "run", states(4, with_norm))
    with pytest.raises(ValueError, match=r"norm layers.*pass the training data, data="):
        bn.swag_of_checkpoints(files, problem, rank=3)
    data = bn.Data(INPUTS.double(), torch.arange(20) % 3)
    swag = bn.swag_of_checkpoints(files, problem, data, rank=3)
    assert swag.parts[0].inputs.dtype == torch.float32
    outputs, draw = swag.predict(INPUTS, samples=1).outputs[0, 0], swag.sample(1)
    params = {n: x[0, 0] for n, x in draw.items()}
    hidden = INPUTS @ params["0.weight"].T + params["0.bias"]
    standard = (hidden - hidden.mean(0)) / (hidden.var(0) + 1e-5).sqrt()
    expected = (standard * params["1.weight"] + params["1.bias"]) @ params["2.weight"].T + params["2.bias"]
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-4)
    swag.save(tmp_path / "saved")
    again = bn.load(tmp_path / "saved", with_norm)
    assert torch.equal(again.predict(INPUTS).outputs, swag.predict(INPUTS).outputs)


def test_layers_that_share_a_weight_may_be_written_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    contents = states(3, Tied)
    problem = bn.Problem(Tied, PROBLEM.likelihood)
    both = bn.swag_of_checkpoints(write(tmp_path / "both", contents), problem, rank=2)
    once = [{"b.weight": c["b.weight"]} for c in contents]
    swag = bn.swag_of_checkpoints(write(tmp_path / "once", once, "{}.safetensors"), problem, rank=2)
    assert torch.equal(swag.mean()["a.weight"], both.mean()["a.weight"])


def test_a_checkpoint_of_another_model_is_named_with_the_tensor_that_differs(tmp_path):
    files = write(tmp_path, [*states(3), nn.Linear(4, 2).state_dict()])
    with pytest.raises(
        bn.FileError, match=r"epoch-3\.pt: it belongs to another model: weight is \(2, 4\) where \(3, 4\)"
    ):
        bn.swag_of_checkpoints(tmp_path, PROBLEM, rank=2)
    torch.save(with_norm().state_dict(), files[3])
    with pytest.raises(bn.FileError, match=r"epoch-3\.pt: it belongs to another model: it has no weight"):
        bn.swag_of_checkpoints(tmp_path, PROBLEM, rank=2)
    torch.save(states(1)[0] | {"extra": torch.ones(2)}, files[3])
    with pytest.raises(bn.FileError, match=r"epoch-3\.pt: .*it has extra \(2,\), which was not expected"):
        bn.swag_of_checkpoints(tmp_path, PROBLEM, rank=2)


def test_too_few_files_for_the_rank_are_refused_with_both_numbers(tmp_path):
    files = write(tmp_path, states(3))
    with pytest.raises(ValueError, match=r"rank 20 is more than the 3 .*at least 20 checkpoints, or lower it, rank=3"):
        bn.swag_of_checkpoints(tmp_path, PROBLEM)
    with pytest.raises(ValueError, match=r"rank 2 is more than the 1 .*at least 2 checkpoints$"):
        bn.swag_of_checkpoints(files[:1], PROBLEM, rank=2)
    with pytest.raises(ValueError, match=r"expected a rank of at least 2, .* got 1"):
        bn.swag_of_checkpoints(files, PROBLEM, rank=1)
    family = take(bn.swag_of_checkpoints(files, PROBLEM, rank=0).parts[0].family, 0)
    rows = torch.stack([ravel(c) for c in states(3)])
    torch.testing.assert_close(ravel(family.scale), rows.std(0, correction=0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_by_file_and_tensor(tmp_path, value):
    contents = states(3)
    contents[1]["bias"][2] = value
    write(tmp_path, contents)
    with pytest.raises(bn.FileError, match=r"epoch-1\.pt: expected finite weights, got NaN or infinity in bias"):
        bn.swag_of_checkpoints(tmp_path, PROBLEM, rank=2)


def test_folders_without_checkpoints_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no weights here")
    with pytest.raises(bn.FileError, match=r"expected checkpoints, files that end in \.safetensors.*there are none"):
        bn.swag_of_checkpoints(tmp_path, PROBLEM)
    with pytest.raises(bn.FileError, match="there is no such folder"):
        bn.swag_of_checkpoints(tmp_path / "absent", PROBLEM)
    with pytest.raises(bn.FileError, match="there is no such file"):
        bn.swag_of_checkpoints([tmp_path / f"{i}.pt" for i in range(2)], PROBLEM, rank=2)


def test_files_that_could_run_code_or_are_damaged_are_not_read(tmp_path):
    files = write(tmp_path, states(3))
    torch.save(nn.Linear(4, 3), files[1])
    with pytest.raises(bn.FileError, match=r"epoch-1\.pt: it is damaged, or contains more than tensors"):
        bn.swag_of_checkpoints(files, PROBLEM, rank=2)
    for content in (b"", b"not a checkpoint", b"junk", b"PK\x03\x04", files[0].read_bytes()[:300]):
        files[1].write_bytes(content)
        with pytest.raises(bn.FileError, match=r"epoch-1\.pt: it is damaged"):
            bn.swag_of_checkpoints(files, PROBLEM, rank=2)
    torch.save([1, 2], files[1])
    with pytest.raises(bn.FileError, match=r"epoch-1\.pt: expected a state_dict, got list"):
        bn.swag_of_checkpoints(files, PROBLEM, rank=2)
    torch.save({"epoch": 3}, files[1])
    with pytest.raises(bn.FileError, match=r"epoch-1\.pt: expected a state_dict, alone or under state_dict"):
        bn.swag_of_checkpoints(files, PROBLEM, rank=2)
