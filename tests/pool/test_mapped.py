"""Arrays that stay in their file: what is written where they lie, and which tensors lie there."""

from __future__ import annotations

import gc

import pytest
import torch
from safetensors.torch import load_file

from basinet.pool import FileError, mapped
from basinet.pool.mapped import Mapped, at, lies_in, side_by_side

LIKE = {"flag": ((3, 4), torch.bool), "x": ((3, 4, 5), torch.float32), "n": ((3, 4), torch.int64)}


def filled(path):
    file = Mapped.fill(path / "some.safetensors", LIKE, {"note": "yes"})
    for j in range(3):
        file.arrays["x"][j], file.arrays["n"][j] = j, 10 * j
    file.flush()
    return file


def test_a_file_is_filled_in_place_and_any_reader_knows_it(tmp_path):
    file = filled(tmp_path)
    read = load_file(file.path)
    assert {n: (tuple(x.shape), x.dtype) for n, x in read.items()} == LIKE
    again = Mapped.open(file.path)
    for name, x in read.items():
        assert torch.equal(x, again.arrays[name]) and torch.equal(x, file.arrays[name])
    assert again.meta["note"] == "yes"


def test_tensors_are_found_by_where_they_lie(tmp_path):
    x = filled(tmp_path).arrays["x"]
    place = lies_in(x[1, :2])
    assert place is not None and torch.equal(at(Mapped.open(tmp_path / "some.safetensors"), place), x[1, :2])
    assert lies_in(x[1].clone()) is None and lies_in(x[:, 1]) is None  # a copy; in several pieces


def test_members_that_lie_side_by_side_are_a_view(tmp_path):
    file = filled(tmp_path)
    members = [{"x": file.arrays["x"][j, :2], "own": torch.tensor(j)} for j in range(3)]
    whole = side_by_side(members)
    assert whole["x"].data_ptr() == file.arrays["x"].data_ptr()
    assert torch.equal(whole["x"], torch.stack([m["x"] for m in members])) and whole["own"].tolist() == [0, 1, 2]
    for order in ([0, 2, 1], [2, 1, 0], [1, 1, 1]):
        mixed = [members[j] for j in order]
        assert torch.equal(side_by_side(mixed)["x"], torch.stack([m["x"] for m in mixed]))
    assert torch.equal(side_by_side(members[1:2])["x"], members[1]["x"][None])


def test_files_are_forgotten_with_their_tensors(tmp_path):
    x = filled(tmp_path).arrays["x"][0]
    begin = x.untyped_storage().data_ptr()
    assert mapped._FILES[begin].endswith("some.safetensors")
    del x
    gc.collect()
    assert begin not in mapped._FILES


@pytest.mark.parametrize("bytes_left", [4, 40, -1, -60])
def test_a_file_that_was_cut_short_is_refused(tmp_path, bytes_left):
    path = filled(tmp_path).path
    path.write_bytes(path.read_bytes()[:bytes_left])
    with pytest.raises(FileError, match="damaged or cut short"):
        Mapped.open(path)


def test_what_does_not_lie_in_a_file_is_refused(tmp_path):
    file = filled(tmp_path)
    place = lies_in(file.arrays["x"][2])
    with pytest.raises(FileError, match="shorter than what is said to lie in it"):
        at(file, place._replace(shape=(1000, 1000)))
