"""Files are whole and right, or refused by name and reason; writing leaves the old file or the new one."""

from __future__ import annotations

import errno
import json
import os
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import Tensor

from basinet.pool import (
    FileError,
    append_record,
    files,
    read_json,
    read_records,
    read_tensors,
    write_json,
    write_tensors,
)

TENSORS = {
    "weight": torch.arange(6.0).reshape(2, 3),
    "count": torch.tensor(3),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "mask": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
    "view": torch.arange(12.0).reshape(3, 4).T,
}
META = {"z": [1, 2.5, None], "a": {"text": "ü"}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, META)
    return path


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "x.json"
    write_json(path, META)
    return path


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_tensors_and_meta_come_back(file):
    tensors, meta = read_tensors(file)
    assert set(tensors) == set(TENSORS)
    assert all(torch.equal(tensors[n], x) and tensors[n].dtype == x.dtype for n, x in TENSORS.items())
    assert meta == META and list(meta) == ["z", "a"]  # the order is kept
    assert names(file.parent) == ["x.safetensors"]


def test_tensors_that_share_memory_are_written_apart(tmp_path):
    x = torch.zeros(3)
    write_tensors(tmp_path / "x", {"a": x, "b": x, "c": x[:2]}, None)
    tensors, _ = read_tensors(tmp_path / "x")
    assert {n: y.tolist() for n, y in tensors.items()} == {"a": [0] * 3, "b": [0] * 3, "c": [0] * 2}


def test_json_comes_back_and_folders_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "x.json"
    write_json(path, META)
    assert read_json(path) == META


@pytest.mark.parametrize("tenth", range(10))
def test_a_tensor_file_cut_short_is_refused(file, tenth):
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * tenth // 10])
    with pytest.raises(FileError, match=r"x\.safetensors: it is damaged or cut short") as caught:
        read_tensors(file)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("tenth", range(10))
def test_a_json_file_cut_short_is_refused(manifest, tenth):
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: len(whole) * tenth // 10])
    with pytest.raises(FileError, match=r"x\.json: it is damaged or cut short"):
        read_json(manifest)


@pytest.mark.parametrize("flip", [1, 255])
def test_a_tensor_file_with_any_one_byte_altered_is_refused(file, flip):
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        with pytest.raises(FileError, match=r"x\.safetensors: it"):
            read_tensors(file)


@pytest.mark.parametrize("flip", [1, 255])
def test_a_json_file_with_any_one_byte_altered_is_refused(manifest, flip):
    whole = manifest.read_bytes()
    for at in range(len(whole) - 1):  # the last is the end of the line
        manifest.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        with pytest.raises(FileError, match=r"x\.json: it"):
            read_json(manifest)


def test_bytes_after_the_end_are_refused(file, manifest):
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(FileError, match="damaged"):
        read_tensors(file)
    manifest.write_bytes(manifest.read_bytes() + b"x")
    with pytest.raises(FileError, match="damaged"):
        read_json(manifest)


def test_an_altered_tensor_is_distinguished_from_an_altered_file(file):
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FileError, match="its contents were altered: the checksum does not fit"):
        read_tensors(file)


def test_a_right_file_that_is_not_the_one_expected_is_refused(file):
    checksum = write_tensors(file, TENSORS, META)
    assert read_tensors(file, checksum=checksum)[1] == META
    write_tensors(file, TENSORS, {"other": 1})
    with pytest.raises(FileError, match=r"x\.safetensors: it is another file than the one that was saved"):
        read_tensors(file, checksum=checksum)


def test_a_newer_format_asks_for_an_upgrade(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", 2)
    write_tensors(tmp_path / "x.safetensors", TENSORS, META)
    write_json(tmp_path / "x.json", META)
    monkeypatch.undo()
    for path, read in ((tmp_path / "x.safetensors", read_tensors), (tmp_path / "x.json", read_json)):
        with pytest.raises(FileError, match=rf"{path.name}: it has format 2, newer than .* reads \(1\): upgrade"):
            read(path)


def test_files_of_others_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(FileError, match=r"x\.safetensors: it was not written by basinet: it has no format number"):
        read_tensors(tmp_path / "x.safetensors")
    for content in ({"weights": 1}, [1], 3):
        (tmp_path / "x.json").write_text(json.dumps(content))
        with pytest.raises(FileError, match=r"x\.json: it was not written by basinet"):
            read_json(tmp_path / "x.json")


def test_files_that_are_not_there_are_named(tmp_path):
    for read in (read_tensors, read_json):
        with pytest.raises(FileError, match="gone: there is no such file"):
            read(tmp_path / "gone")
    with pytest.raises(FileError, match="there is no such file"):
        read_tensors(tmp_path)


def test_a_pickle_is_refused_without_being_read(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    torch.save({"weight": torch.zeros(2)}, path)
    _forbid_pickle(monkeypatch)
    with pytest.raises(FileError, match=r"x\.safetensors: it is damaged or cut short, or not a safetensors file"):
        read_tensors(path)
    with pytest.raises(FileError, match=r"x\.safetensors: it is damaged or cut short, or not JSON"):
        read_json(path)


def test_no_pickle_is_used(tmp_path, monkeypatch):
    _forbid_pickle(monkeypatch)
    write_tensors(tmp_path / "x.safetensors", TENSORS, META)
    assert read_tensors(tmp_path / "x.safetensors")[1] == META


def _forbid_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "dump", "dumps", "Pickler", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)


def _disk_is_full(tensors: dict[str, Tensor], path: str, metadata: object = None) -> None:
    Path(path).write_bytes(b"half of what was to be writ")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_file_and_no_other(file, monkeypatch):
    monkeypatch.setattr("safetensors.torch.save_file", _disk_is_full)
    with pytest.raises(OSError, match=r"could not write .*x\.safetensors: .*No space left.*before is untouched"):
        write_tensors(file, {"weight": torch.zeros(9)}, None)
    monkeypatch.undo()
    assert names(file.parent) == ["x.safetensors"] and read_tensors(file)[1] == META


def test_a_disk_that_fills_up_before_the_move_leaves_the_old_file_and_no_other(manifest, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not write .*x\.json"):
        write_json(manifest, {"new": 1})
    monkeypatch.undo()
    assert names(manifest.parent) == ["x.json"] and read_json(manifest) == META


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_any_other_end_leaves_the_old_file_and_no_other(file, monkeypatch, error):
    def stop(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", stop)
    with pytest.raises(error):
        write_tensors(file, {"weight": torch.zeros(9)}, None)
    monkeypatch.undo()
    assert names(file.parent) == ["x.safetensors"] and read_tensors(file)[1] == META


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_files_have_the_mode_that_the_umask_leaves(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "x.safetensors", TENSORS, META)
        write_json(tmp_path / "x.json", META)
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o666 & ~mask}


def test_the_json_checksum_is_that_of_the_content(manifest):
    """So that another program can write or check such a file."""
    whole = json.loads(manifest.read_text())
    assert whole["format"] == 1
    assert whole["checksum"] == sha256(json.dumps(META, sort_keys=True).encode()).hexdigest()


# --- records


def test_records_are_appended_and_stamped(tmp_path):
    path = tmp_path / "runs" / "records.jsonl"
    first = append_record(path, {"method": "MAP", "nll": 0.1})
    append_record(path, {"method": "EMA", "nll": 0.2})
    assert [r["nll"] for r in read_records(path)] == [0.1, 0.2] and read_records(path)[0] == first
    assert first["versions"]["torch"] == torch.__version__ and first["time"].endswith("+00:00")
    assert path.read_text().count("\n") == 2


@pytest.mark.parametrize("left", [1, 20, -3])
def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path, left):
    path = tmp_path / "records.jsonl"
    for number in range(3):
        append_record(path, {"number": number})
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[2][:left]]))
    assert [r["number"] for r in read_records(path)] == [0, 1]
    for number in (3, 4):  # the next run appends behind it
        append_record(path, {"number": number})
    assert [r["number"] for r in read_records(path)] == [0, 1, 3, 4]


def test_a_record_that_only_lacks_its_end_of_line_counts(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(path, {"number": 0})
    path.write_text(path.read_text().rstrip("\n"))
    append_record(path, {"number": 1})
    assert [r["number"] for r in read_records(path)] == [0, 1]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_damaged_line_is_named(tmp_path, at):
    path = tmp_path / "records.jsonl"
    for number in range(3):
        append_record(path, {"number": number})
    lines = path.read_text().splitlines()
    lines[at] = lines[at][:10]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(FileError, match=rf"records\.jsonl: line {at + 1} is not a record"):
        read_records(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_record_with_nan_is_refused_and_nothing_is_written(tmp_path, value):
    path = tmp_path / "records.jsonl"
    append_record(path, {"nll": 0.5})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_record(path, {"nll": value})
    assert path.read_bytes() == before
