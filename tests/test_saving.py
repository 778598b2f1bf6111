"""Posteriors saved and loaded: equal predictions, or a refusal that names the file and the reason."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import leaves
from basinet.families import Diagonal, Empirical
from basinet.methods.map import MAP
from basinet.pool import FileError, files, read_tensors, write_json, write_tensors
from basinet.posterior import Part

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)
RECIPE = MAP(epochs=1, batch_size=5)


def net(h: int = 5, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(4, h), nn.BatchNorm1d(h), activation(), nn.Dropout(0.2), nn.Linear(h, 3))


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def classes(n: int = 12) -> bn.Data:
    key = bn.Noise.seed(3)
    return bn.Data(key.split("x").normal(torch.empty(n, 4)), key.split("y").integers(n, 3))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
DATA = classes()


def fit(method: Any = RECIPE, problem: bn.Problem = PROBLEM, data: bn.Data = DATA, **options: Any) -> bn.Posterior:
    return bn.fit(method, problem, data, engine=ENGINE, **options)


def equal(a: bn.Posterior, b: bn.Posterior) -> bool:
    """The same families, members, recipes, names in the same order, and predictions, to the bit."""
    for p, q in zip(a.parts, b.parts, strict=True):
        pairs = zip(leaves((p.family, p.inputs)), leaves((q.family, q.inputs)), strict=True)
        tensors = all(x is y is None or (torch.equal(x, y) and x.dtype == y.dtype) for x, y in pairs)
        names = list(p.family.mean().params) == list(q.family.mean().params)
        if not (tensors and names and p.members == q.members and p.recipe == q.recipe and p.info == q.info):
            return False
    return torch.equal(a.predict(DATA.inputs, 3).outputs, b.predict(DATA.inputs, 3).outputs)


@pytest.fixture(scope="module")
def ensemble() -> bn.Posterior:
    return fit(members=3, seed=5, val=classes(6))


@pytest.fixture
def saved(ensemble: bn.Posterior, tmp_path: Path) -> Path:
    ensemble.save(tmp_path / "out")
    return tmp_path / "out"


def part_of(folder: Path) -> Path:
    [path] = folder.glob("part-*.safetensors")
    return path


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# --- what comes back


def centred() -> bn.Posterior:
    prior = bn.priors.Normal(scale={"0": 0.5, "": 2.0}, centre={"0.bias": torch.arange(5.0)})
    problem = bn.Problem(net, bn.likelihoods.Categorical(), prior, 0.5, "likelihood")
    return bn.Posterior.of(net(), problem)


def with_family(make: Callable[[Any], Any]) -> Callable[[], bn.Posterior]:
    def build() -> bn.Posterior:
        part = fit(members=2).parts[0]
        return bn.Posterior((Part(part.problem, make(part.family), part.members),))

    return build


def diagonal(points: Any) -> Diagonal:
    return Diagonal(points.params, {n: 0.1 * torch.ones_like(x) for n, x in points.params.items()}, points.buffers)


def empirical(points: Any) -> Empirical:
    pair = lambda tree: {n: torch.stack([x, x + 1], 1) for n, x in tree.items()}  # noqa: E731
    return Empirical(pair(points.params), pair(points.buffers), 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fit(members=3),
        lambda: fit(bn.EMA(epochs=2, batch_size=5), members=2),  # keeps inputs to refresh norm statistics
        centred,
        with_family(diagonal),
        with_family(empirical),
        lambda: bn.mix([fit(members=2), fit(seed=1)], [0.3, 0.7]),
    ],
    ids=["MAP", "EMA", "of a module, centred prior", "Diagonal", "Empirical", "weighted"],
)
def test_what_is_loaded_predicts_the_same(make, tmp_path):
    posterior = make()
    posterior.save(tmp_path / "out")
    loaded = bn.load(tmp_path / "out", net)
    assert equal(loaded, posterior) and len(loaded) == len(posterior)
    assert torch.equal(loaded._mass(), posterior._mass())
    loaded.save(tmp_path / "again")
    assert names(tmp_path / "again") == names(tmp_path / "out")


def test_the_problem_comes_back(tmp_path):
    posterior = centred()
    posterior.save(tmp_path)
    problem = bn.load(tmp_path, net).problem
    assert (problem.temperature, problem.temper, problem.likelihood) == (
        0.5,
        "likelihood",
        bn.likelihoods.Categorical(),
    )
    assert problem.prior.scale == {"0": 0.5, "": 2.0} and problem.prior.centre["0.bias"].tolist() == [0, 1, 2, 3, 4]


def test_a_loaded_posterior_is_as_good_a_start(ensemble, saved):
    posterior, again = fit(start=ensemble), fit(start=bn.load(saved, net))
    assert again.members == ensemble.members
    pairs = zip(leaves(posterior.parts[0].family), leaves(again.parts[0].family), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


def test_an_ensemble_of_architectures_comes_back(ensemble, tmp_path):
    mixed = bn.mix([ensemble, fit(problem=bn.Problem(linear, PROBLEM.likelihood), members=2)], [0.4, 0.6])
    mixed.save(tmp_path)
    loaded = bn.load(tmp_path, [net, linear])
    assert equal(loaded, mixed) and torch.equal(loaded.weights, mixed.weights)
    with pytest.raises(ValueError, match="expected 2 models, one for each part, got 3"):
        bn.load(tmp_path, [net, linear, linear])
    with pytest.raises(FileError, match=r"part-0-.*: it belongs to another model"):
        bn.load(tmp_path, [linear, net])


def test_parts_keep_their_own_priors(tmp_path):
    priors = [bn.priors.Normal(centre={"bias": torch.full((3,), c)}) for c in (1.0, 2.0)]
    problems = [bn.Problem(linear, PROBLEM.likelihood, prior) for prior in priors]
    bn.mix([bn.Posterior.of(linear(), p) for p in problems]).save(tmp_path)
    loaded = bn.load(tmp_path, linear)
    assert [float(p.problem.prior.centre["bias"][0]) for p in loaded.parts] == [1.0, 2.0]


def test_parts_of_one_problem_share_it_again(ensemble, tmp_path):
    bn.mix([ensemble, fit(bn.EMA(epochs=1))]).save(tmp_path)
    loaded = bn.load(tmp_path, net)
    assert len(loaded.parts) == 2 and loaded.parts[0].problem is loaded.parts[1].problem


# --- saving


def test_saving_over_a_folder_replaces_it(ensemble, saved):
    other = fit(seed=9)
    mixed = bn.mix([other, fit(bn.EMA(epochs=1))])
    for posterior in (other, mixed, ensemble, ensemble):
        posterior.save(saved)
        assert equal(bn.load(saved, net), posterior)
        assert len(names(saved)) == 1 + len(posterior.parts)


def test_saving_leaves_other_files_alone(ensemble, saved):
    (saved / "notes.txt").write_text("mine")
    fit(seed=9).save(saved)
    assert (saved / "notes.txt").read_text() == "mine"


def fails_at(call: int) -> Callable[..., None]:
    from safetensors.torch import save_file

    left = [call]

    def save(tensors: dict[str, Tensor], path: str, metadata: Any = None) -> None:
        left[0] -= 1
        save_file(tensors, path, metadata=metadata)
        if left[0] == 0:
            os.truncate(path, os.path.getsize(path) // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return save


@pytest.mark.parametrize("call", [1, 2])
def test_a_full_disk_leaves_what_was_saved_before_and_nothing_else(ensemble, saved, monkeypatch, call):
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    monkeypatch.setattr("safetensors.torch.save_file", fails_at(call))
    with pytest.raises(OSError, match=r"could not write .*part-\d-.*No space left.*before is untouched"):
        bn.mix([fit(seed=9), fit(bn.EMA(epochs=1))]).save(saved)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    assert equal(bn.load(saved, net), ensemble)


def test_a_disk_that_is_full_at_the_manifest_leaves_what_was_saved_before(ensemble, saved, monkeypatch):
    before = names(saved)

    def full(path: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("basinet.saving.write_json", full)
    for posterior in (fit(seed=9), bn.mix([ensemble, fit(bn.EMA(epochs=1))])):  # the second shares a part with the old
        with pytest.raises(OSError, match="No space left"):
            posterior.save(saved)
        assert names(saved) == before
    assert equal(bn.load(saved, net), ensemble)


def test_a_posterior_is_a_folder(ensemble, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file: expected a folder to save into, got a file"):
        ensemble.save(tmp_path / "file")
    for name in ("file", "gone"):
        with pytest.raises(FileError, match=f"{name}: expected the folder of a saved posterior; there is none"):
            bn.load(tmp_path / name, net)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"posterior\.json: there is no such file"):
        bn.load(tmp_path / "empty", net)


# --- files that cannot be used


@pytest.mark.parametrize("tenth", range(10))
@pytest.mark.parametrize("which", ["part", "manifest"])
def test_a_file_cut_short_is_refused(saved, which, tenth):
    path = part_of(saved) if which == "part" else saved / "posterior.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * tenth // 10])
    with pytest.raises(FileError, match=f"{path.name}: it is damaged or cut short"):
        bn.load(saved, net)


@pytest.mark.parametrize("which", ["part", "manifest"])
def test_a_file_with_one_byte_altered_is_refused(saved, which):
    path = part_of(saved) if which == "part" else saved / "posterior.json"
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, max(1, len(whole) // 60)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(FileError, match=f"{path.name}: it"):
            bn.load(saved, net)
    path.write_bytes(whole)
    bn.load(saved, net)


def test_a_part_that_is_missing_or_was_swapped_is_named(saved):
    path = part_of(saved)
    path.rename(saved / "elsewhere")
    with pytest.raises(FileError, match=f"{path.name}: there is no such file"):
        bn.load(saved, net)
    fit(seed=9).save(saved.parent / "other")
    path.write_bytes(part_of(saved.parent / "other").read_bytes())
    with pytest.raises(FileError, match=f"{path.name}: it is another file than the one that was saved"):
        bn.load(saved, net)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: net(6), r"params\.0\.weight is \[5, 4\] in the file, \[6, 4\] here"),
        (lambda: net(activation=nn.ReLU), r"the line '\(2\): Tanh\(\)' in the file, '\(2\): ReLU\(\)' here"),
        (linear, r"params\.0\.weight is only in the file"),
    ],
    ids=["shape", "activation", "names"],
)
def test_another_model_is_refused_and_the_difference_named(saved, model, named):
    with pytest.raises(FileError, match=rf"part-0-.*\.safetensors: it belongs to another model: .*{named}"):
        bn.load(saved, model)


def test_a_newer_format_is_refused(ensemble, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", 7)
    ensemble.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(FileError, match=r"posterior\.json: it has format 7, newer than this basinet reads \(1\)"):
        bn.load(tmp_path, net)


def test_a_newer_part_is_refused(ensemble, saved, monkeypatch):
    tensors, meta = read_tensors(part_of(saved))
    monkeypatch.setattr(files, "FORMAT", 7)
    write_tensors(part_of(saved), tensors, meta)
    monkeypatch.undo()
    with pytest.raises(FileError, match=r"part-0-.*\.safetensors: it has format 7, newer than .* reads \(1\)"):
        bn.load(saved, net)


def forge(saved: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrites the part with a changed meta and right checksums, as someone who means ill would."""
    path = part_of(saved)
    tensors, meta = read_tensors(path)
    change(meta)
    checksum = write_tensors(path, tensors, meta)
    write_json(saved / "posterior.json", {"parts": [{"file": path.name, "checksum": checksum}], "weights": None})


@pytest.mark.parametrize("where", ["recipe", "family", "inputs"])
def test_a_file_that_names_code_is_refused_and_nothing_is_run(saved, where, monkeypatch, tmp_path):
    marker = tmp_path / "ran"
    monkeypatch.setattr(os, "system", lambda command: marker.touch())
    evil = {"type": "os/system", "fields": {"command": f"touch {marker}"}}
    forge(saved, lambda meta: meta.update({where: evil}))
    with pytest.raises(FileError, match=r"part-0-.*: the file names a os 'system' that is not defined here"):
        bn.load(saved, net)
    assert not marker.exists()


def test_an_unknown_recipe_is_named_with_the_nearest(saved):
    forge(saved, lambda meta: meta["recipe"].update(type="method/MAPP"))
    with pytest.raises(FileError, match=r"part-0-.*: the file names a method 'MAPP' .*import the module.*mean 'MAP'\?"):
        bn.load(saved, net)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta.pop("family"), "family"),
        (lambda meta: meta.pop("problem"), "it is not a part of a posterior"),
        (lambda meta: meta["members"].pop(), "the tensors do not have 2 members"),
        (lambda meta: meta["family"]["fields"]["params"]["dict"].pop("0.bias"), "are not those of the model"),
        (lambda meta: meta["problem"].update(temperature=-1.0), "expected a positive, finite temperature"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(saved, change, message):
    forge(saved, change)
    with pytest.raises(FileError, match=rf"part-0-.*\.safetensors: .*{message}"):
        bn.load(saved, net)


def test_another_manifest_is_refused(saved):
    write_json(saved / "posterior.json", {"model": {}})
    with pytest.raises(FileError, match=r"posterior\.json: it is not the manifest of a posterior"):
        bn.load(saved, net)


def test_no_pickle_is_used(ensemble, tmp_path, monkeypatch):
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "dump", "dumps", "Pickler", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    ensemble.save(tmp_path)
    assert equal(bn.load(tmp_path, net), ensemble)


def test_a_pickle_in_the_place_of_a_part_is_refused_unread(saved, monkeypatch):
    torch.save({"x": torch.zeros(1)}, part_of(saved))
    monkeypatch.setattr("pickle.Unpickler", None)
    with pytest.raises(FileError, match="or not a safetensors file"):
        bn.load(saved, net)


@pytest.mark.parametrize("name", ["Laplace", "Snapshot"])
def test_a_process_that_never_named_the_method_loads_its_posterior(name, tmp_path):
    base = bn.fit(RECIPE, bn.Problem(linear, bn.likelihoods.Categorical()), DATA, engine=ENGINE)
    recipe = bn.Laplace() if name == "Laplace" else bn.Snapshot(epochs=2, cycles=2)
    posterior = bn.fit(recipe, base.problem, DATA, start=base, engine=ENGINE)
    posterior.save(tmp_path / "saved")
    program = (
        "import sys, basinet as bn\nfrom torch import nn\n"
        "loaded = bn.load(sys.argv[1], lambda: nn.Linear(4, 3))\n"
        "print(type(loaded.recipe).__name__)"
    )
    process = subprocess.run([sys.executable, "-c", program, str(tmp_path / "saved")], capture_output=True, text=True)
    assert process.stdout.strip() == name, process.stderr
