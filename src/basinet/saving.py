"""Posteriors as folders: a manifest in JSON, and one safetensors file a part."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .core.model import Factory, Model
from .core.tree import Point, leaves, take
from .engine import Member
from .methods import discover
from .pool import (
    FileError,
    decode,
    describe,
    encode,
    fingerprint,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from .pool.pool import difference
from .posterior import Part, Posterior
from .predict import Conformal, Temperature
from .predict.conformal import OF_CLASSES, OF_NUMBERS
from .problem import Problem

MANIFEST = "posterior.json"


def save(posterior: Posterior, folder: Path) -> None:
    """Writes the parts under new names, then the manifest that names them, in one move; then removes what it
    replaced."""
    if folder.exists() and not folder.is_dir():
        raise FileError(folder, "expected a folder to save into, got a file")
    before = set(folder.glob("part-*.safetensors"))
    written: dict[str, str] = {}
    weights = None if posterior.weights is None else posterior.weights.tolist()
    try:
        for number, part in enumerate(posterior.parts):
            name, tensors, meta = _contents(number, part)
            written[name] = write_tensors(folder / name, tensors, meta)
        listed = [{"file": name, "checksum": checksum} for name, checksum in written.items()]
        temperature = posterior.temperature
        scaled = {} if temperature is None else {"temperature": [temperature.of, temperature.values.tolist()]}
        rule = {} if posterior.conformal is None else {"conformal": posterior.conformal._asdict()}
        write_json(folder / MANIFEST, {"parts": listed, "weights": weights} | scaled | rule)
    except BaseException:
        _remove({folder / name for name in written} - before)
        raise
    _remove(before - {folder / name for name in written})


def load(
    path: Path | str,
    model: Factory | nn.Module | Sequence[Factory | nn.Module],
    device: torch.device | str = "cpu",
) -> Posterior:
    """The posterior that `save` wrote. `model` is what its Problem had (a list, in order, where parts differ in
    network).

    Nothing in the files is executed. A file that was cut short or altered, belongs to another model, or has a newer
    format is refused with its name and the reason.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileError(folder, "expected the folder of a saved posterior; there is none")
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or not {"parts", "weights"} <= set(manifest):
        raise FileError(folder / MANIFEST, "it is not the manifest of a posterior")
    models = list(model) if isinstance(model, Sequence) else [model] * len(manifest["parts"])
    if len(models) != len(manifest["parts"]):
        raise ValueError(f"expected {len(manifest['parts'])} models, one a part, got {len(models)}")
    discover()  # a file may name any of our methods, and finds those alone that were imported
    made: dict[int, Model] = {}
    problems: dict[str, Problem] = {}
    parts = []
    for listed, source in zip(manifest["parts"], models):
        file = folder / listed["file"]
        tensors, meta = read_tensors(file, device, listed["checksum"])
        if not isinstance(meta, dict) or "problem" not in meta:
            raise FileError(file, "it is not a part of a posterior")
        if id(source) not in made:
            made[id(source)] = Model(source)
        network = made[id(source)]
        if found := difference(meta["problem"]["model"], network.spec()):
            raise FileError(file, f"it belongs to another model: {found}")
        try:
            problem = decode_problem(meta["problem"], network, tensors)
            problem = problems.setdefault(fingerprint(describe_problem(problem)), problem)
            parts.append(_part(problem, meta, tensors))
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(file, str(error)) from error
    weights = manifest["weights"]
    mass = None if weights is None else torch.tensor(weights, dtype=torch.float64, device=device)
    count = sum(len(part.members) for part in parts)
    file = folder / MANIFEST
    return Posterior(tuple(parts), mass, _temperature(manifest, count, file), _conformal(manifest, file))


def _temperature(manifest: dict[str, Any], members: int, file: Path) -> Temperature | None:
    if "temperature" not in manifest:
        return None
    of, values = manifest["temperature"]
    found = torch.tensor(values, dtype=torch.float64)
    shapes = {"members": (members,), "average": (), "classes": (2, *found.shape[-1:])}
    if shapes.get(of) != tuple(found.shape):
        raise FileError(file, f"its temperature {of!r} {values} is not one of {members} members")
    return Temperature(of, found)


def _conformal(manifest: dict[str, Any], file: Path) -> Conformal | None:
    if "conformal" not in manifest:
        return None
    found = manifest["conformal"]
    if (
        not isinstance(found, dict)
        or set(found) != set(Conformal._fields)
        or found["kind"] not in OF_NUMBERS + OF_CLASSES
    ):
        raise FileError(file, f"its calibration {found} is not one that is known")
    return Conformal(**found)


def encode_problem(problem: Problem, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A problem as JSON: its model by description, the rest by value."""
    return {
        "model": problem.network.spec(),
        "likelihood": encode(problem.likelihood, tensors, "likelihood"),
        "prior": encode(problem.prior, tensors, "prior"),
        "temperature": problem.temperature,
        "temper": problem.temper,
    }


def decode_problem(saved: dict[str, Any], network: Model, tensors: dict[str, Tensor]) -> Problem:
    """The inverse of `encode_problem`, around a model that fits."""
    likelihood, prior = decode(saved["likelihood"], tensors), decode(saved["prior"], tensors)
    return Problem(network, likelihood, prior, saved["temperature"], saved["temper"])


def describe_problem(problem: Problem) -> dict[str, Any]:
    """A problem as JSON with digests for its tensors: to compare."""
    return {
        "model": problem.network.spec(),
        "likelihood": describe(problem.likelihood),
        "prior": describe(problem.prior),
        "temperature": problem.temperature,
        "temper": problem.temper,
    }


def _contents(number: int, part: Part) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    """A part's file name, tensors and JSON; the name says what is inside, so that no file is ever overwritten."""
    tensors: dict[str, Tensor] = {}
    meta = {
        "problem": encode_problem(part.problem, tensors),
        "family": encode(part.family, tensors, "family"),
        "recipe": encode(part.recipe, tensors, "recipe"),
        "inputs": encode(part.inputs, tensors, "inputs"),
        "rows": encode(part.rows, tensors, "rows"),
        "members": [list(m) for m in part.members],
        "info": part.info,
    }
    digits = fingerprint([meta, *(describe(t) for t in tensors.values())])
    return f"part-{number}-{digits}.safetensors", tensors, meta


def _remove(files: set[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


def _part(problem: Problem, meta: dict[str, Any], tensors: dict[str, Tensor]) -> Part:
    family = decode(meta["family"], tensors)
    members = tuple(Member(*m) for m in meta["members"])
    if any(x.shape[0] != len(members) for x in leaves(family) if isinstance(x, Tensor)):
        raise ValueError(f"the tensors do not have {len(members)} members")
    part = Part(
        problem,
        family,
        members,
        decode(meta["recipe"], tensors),
        decode(meta["inputs"], tensors),
        meta["info"],
        decode(meta.get("rows"), tensors),
    )
    point = take(family, 0).mean()
    shapes = {n: tuple(x.shape) for n, x in point.params.items()}
    expected = {n: tuple(x.shape) for n, x in _shapes(part.adapted()).params.items()}
    if shapes != expected:
        raise ValueError(f"its parameters {shapes} are not those of the model, {expected}")
    return part


def _shapes(problem: Problem) -> Point:
    from .core.noise import Noise

    return problem.init(Noise.seed(0))
