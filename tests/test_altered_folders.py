"""Saved folders that were edited by hand are read or refused, and never more than that."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import altered_folders
import basinet as bn
from basinet.pool import read_json, write_json
from basinet.pool.files import read_tensors
from endings import fault_of

SLOW, QUICK = range(2_000), range(160)


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fails what takes longer, as something does that waits for a pipe."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> list[tuple[Path, bn.Posterior]]:
    folders = []
    for i, posterior in enumerate(altered_folders.posteriors()):
        folders.append((tmp_path_factory.mktemp("saved") / str(i), posterior))
        posterior.save(folders[-1][0])
    return folders


def faults(saved, seeds: range, tmp_path: Path) -> list[str]:
    faulty = []
    for seed in seeds:
        folder, posterior = saved[seed % len(saved)]
        model = posterior.problem.network._source
        shutil.copytree(folder, tmp_path / "altered")
        altered_folders.alter(tmp_path / "altered", seed)

        def call(posterior: bn.Posterior = posterior, model=model) -> None:
            again = bn.load(tmp_path / "altered", [model] * len(posterior.parts))
            again.predict(altered_folders.DATA.inputs)
            assert repr(again[0])

        with within(60):
            faulty += [f"{seed}: {fault}"] if (fault := fault_of(call)) else []
        shutil.rmtree(tmp_path / "altered")
    return faulty


def test_an_edited_folder_is_read_or_refused(saved, tmp_path):
    assert faults(saved, QUICK, tmp_path) == []


@pytest.mark.slow
def test_many_edited_folders_are_read_or_refused(saved, tmp_path):
    assert faults(saved, SLOW, tmp_path) == []


def test_no_name_in_a_file_imports_a_module(saved, tmp_path):
    """torch imports some of its modules when it is asked for their names."""
    program = (
        "import sys, torch; from basinet.pool import decode\n"
        "try: decode({'dtype': 'onnx'}, {})\nexcept ValueError as error: print(error)\n"
        "print('torch.onnx' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split("\n")[:2] == ["unknown dtype 'onnx'", "False"]


def test_a_part_that_is_listed_again_and_again_is_refused(saved, tmp_path):
    shutil.copytree(saved[0][0], tmp_path / "x")
    manifest = read_json(tmp_path / "x" / "posterior.json")
    write_json(tmp_path / "x" / "posterior.json", manifest | {"parts": manifest["parts"] * 20_000})
    with pytest.raises(bn.FileError, match=r"posterior\.json: it names a part twice"):
        bn.load(tmp_path / "x", altered_folders.net)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x * float("nan"), "expected finite values of scale, got NaN or infinity"),
        (lambda x: -x, "expected scale of at least 0, got -"),
    ],
    ids=["NaN", "negative"],
)
def test_impossible_spreads_are_refused(saved, tmp_path, change, message):
    [(folder, _)] = [(f, p) for f, p in saved if "Diagonal" in repr(p.parts[0].family) or _part(p) == "Diagonal"][:1]
    shutil.copytree(folder, tmp_path / "x")
    [file] = (tmp_path / "x").glob("part-*")
    tensors, meta = bn.pool.read_tensors(file)
    named = {n: change(x) if "/scale/" in n else x for n, x in tensors.items()}
    assert any("/scale/" in n for n in tensors)
    altered_folders.rewrite(tmp_path / "x" / "posterior.json", file, named, meta)
    with pytest.raises(bn.FileError, match=message):
        bn.load(tmp_path / "x", altered_folders.net)


def _part(posterior: bn.Posterior) -> str:
    return type(getattr(posterior.parts[0].family, "part", None)).__name__


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.half, torch.double, torch.long, torch.bool, torch.complex64], ids=str)
def test_every_tensor_of_another_kind_is_read_or_refused(saved, tmp_path, kind):
    """One tensor after another, in every family."""
    faulty = []
    for folder, posterior in saved:
        for part in sorted(folder.glob("*.safetensors")):
            tensors, meta = read_tensors(part)
            for name, x in tensors.items():
                shutil.rmtree(tmp_path / "altered", ignore_errors=True)
                shutil.copytree(folder, tmp_path / "altered")
                manifest, here = (tmp_path / "altered" / name for name in ("posterior.json", part.name))
                altered_folders.rewrite(manifest, here, tensors | {name: x.to(kind)}, meta)

                def call(posterior: bn.Posterior = posterior) -> None:
                    model = posterior.problem.network._source
                    again = bn.load(tmp_path / "altered", [model] * len(posterior.parts))
                    again.predict(altered_folders.DATA.inputs)

                faulty += [f"{name}: {fault}"] if (fault := fault_of(call)) else []
    assert faulty == []


def test_points_that_are_not_there_are_refused(tmp_path):
    problem = bn.Problem(lambda: nn.Linear(2, 1), bn.likelihoods.Gaussian(noise=1.0))
    data = bn.Data(torch.zeros(4, 2), torch.zeros(4, 1))
    recipe = bn.Snapshot(epochs=4, cycles=2)
    bn.fit(recipe, problem, data, engine=bn.Engine(device="cpu", progress=False)).save(tmp_path / "saved")
    [part] = (tmp_path / "saved").glob("*.safetensors")
    tensors, meta = read_tensors(part)
    text = json.dumps(meta)
    assert text.count('"count": 2') == 1
    changed = json.loads(text.replace('"count": 2', '"count": 3'))
    altered_folders.rewrite(tmp_path / "saved" / "posterior.json", part, tensors, changed)
    with pytest.raises(bn.FileError, match="expected 3 points of each member"):
        bn.load(tmp_path / "saved", lambda: nn.Linear(2, 1))
