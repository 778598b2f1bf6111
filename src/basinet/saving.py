"""Posteriors as folders: a manifest in JSON, and one safetensors file per part."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .calibrate.conformal_sets import OF_CLASSES, OF_NUMBERS, Conformal
from .calibrate.temperature import Temperature
from .core.model import Factory, Model, Output
from .core.noise import Noise
from .core.tree import Point, leaves, nbytes, take
from .engine import Member, Method
from .families import Empirical, Family
from .filters import Filter as Filter  # files may name filters, which are known once they are imported
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
from .pool.files import alone
from .pool.mapped import read_mapped, write_mapped
from .pool.pool import difference
from .posterior import Part, Posterior
from .problem import Problem

MANIFEST = "posterior.json"
PART = re.compile(r"part-\d+-[0-9a-f]+\.safetensors")
LARGE = 256 * 2**20  # bytes of a part that stay in its file when it is loaded
AT_ONCE = 2**22  # numbers that are looked at together
AGAIN = 20  # times that a folder is read again, where another process saves into it meanwhile
SPREADS = ("scale", "sigma", "diagonal", "variance", "precision", "weights")  # fields of families, none below 0


def save(posterior: Posterior, folder: Path) -> None:
    """Writes the parts under new names, then the manifest that names them, in one move; then removes what it
    replaced."""
    if folder.exists() and not folder.is_dir():
        raise FileError(folder, "expected a folder to save into, got a file")
    with alone(folder / f".{MANIFEST}.lock"):
        _save(posterior, folder)


def _save(posterior: Posterior, folder: Path) -> None:
    before = set(folder.glob("part-*.safetensors"))
    written: dict[str, str] = {}
    weights = None if posterior.weights is None else posterior.weights.tolist()
    try:
        for number, part in enumerate(posterior.parts):
            name, tensors, meta = _contents(number, part)
            write = write_mapped if nbytes(list(tensors.values())) > LARGE else write_tensors
            written[name] = write(folder / name, tensors, meta)
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
    """The posterior that `save` wrote. `model` is what its Problem was given: a function that returns the network, or a
    module (a list of them, in order, if parts differ in network).

    Nothing in the files is executed. A file that was cut short or altered, belongs to another model, or has a newer
    format is refused with its name and the reason.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileError(folder, "expected the folder of a saved posterior; there is none")
    discover()  # a file may name any of our methods, and finds only those that were imported
    refused = None  # the manifest that could not be read the last time
    for _ in range(AGAIN):
        manifest = read_json(folder / MANIFEST)
        try:
            return _posterior(folder, manifest, model, device)
        except FileError:
            if refused == manifest:
                raise  # twice in a row; once may be another process, which saves here and may return to what was here
            refused = manifest
    raise FileError(folder, f"it was saved again {AGAIN} times while it was read: load it when that has ended")


def _posterior(folder: Path, manifest: Any, model: Any, device: torch.device | str) -> Posterior:
    """What a manifest and the parts that it names make."""
    file = folder / MANIFEST
    listed = _listed(manifest, file)
    models = list(model) if isinstance(model, Sequence) else [model] * len(listed)
    if len(models) != len(listed):
        raise ValueError(f"expected {len(listed)} models, one for each part, got {len(models)}")
    networks: dict[tuple[int, Output], Model] = {}
    problems: dict[str, Problem] = {}
    parts = []
    for (name, checksum), source in zip(listed, models):
        tensors, meta = _read(folder / name, device, checksum)
        key = id(source), _output(meta)
        if key not in networks:
            networks[key] = Model(source, key[1])
        parts.append(_checked_part(folder / name, tensors, meta, networks[key], problems))
    count = sum(len(part.members) for part in parts)
    mass = _weights(manifest["weights"], count, file, device)
    try:
        return Posterior(tuple(parts), mass, _temperature(manifest, count, file), _conformal(manifest, file))
    except FileError:
        raise
    except Exception as error:  # whatever a value of another kind leads to
        raise FileError(file, f"its values are not those of a posterior ({error})") from error


def _read(file: Path, device: torch.device | str, checksum: str) -> tuple[dict[str, Tensor], Any]:
    """A part: in memory, or where it is large and stays on the CPU, mapped, as predicting looks at it."""
    try:
        large = file.stat().st_size > LARGE and torch.device(device).type == "cpu"
    except OSError:  # it is gone, which reading says
        large = False
    return read_mapped(file, checksum) if large else read_tensors(file, device, checksum)


def _output(meta: Any) -> Output:
    """Which of what the network returns is scored, by the file; None where it says nothing that is known."""
    try:
        output = meta["problem"]["model"]["output"]
    except (KeyError, TypeError):
        return None
    return output if isinstance(output, (int, str)) and not isinstance(output, bool) else None


def _listed(manifest: Any, file: Path) -> list[tuple[str, str]]:
    """The parts that a manifest names, and their checksums."""
    if not isinstance(manifest, dict) or not {"parts", "weights"} <= set(manifest):
        raise FileError(file, "it is not the manifest of a posterior")
    parts = manifest["parts"]
    fits = isinstance(parts, list) and all(
        isinstance(p, dict) and isinstance(p.get("file"), str) and isinstance(p.get("checksum"), str) for p in parts
    )
    if not fits or not parts:
        raise FileError(file, "it names no parts of a posterior")
    names = [p["file"] for p in parts]
    if len(set(names)) < len(names) or any(not PART.fullmatch(name) for name in names):
        raise FileError(
            file, "it names a part twice, or a file that is not a part: expected part-*.safetensors, once each"
        )
    return [(p["file"], p["checksum"]) for p in parts]


def _checked_part(
    file: Path, tensors: dict[str, Tensor], meta: Any, network: Model, problems: dict[str, Problem]
) -> Part:
    """A part of a network, with a problem that it shares with others like it."""
    if not isinstance(meta, dict) or not isinstance(meta.get("problem"), dict):
        raise FileError(file, "it is not a part of a posterior")
    try:
        if differs := difference(meta["problem"]["model"], network.spec()):
            raise FileError(file, f"it belongs to another model: {differs}")
        problem = decode_problem(meta["problem"], network, tensors)
        problem = problems.setdefault(fingerprint(describe_problem(problem)), problem)
        return _part(problem, meta, tensors)
    except FileError:
        raise
    except Exception as error:  # whatever the classes that the file names make of what is in it
        reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise FileError(file, reason or type(error).__name__) from error


def _weights(weights: Any, members: int, file: Path, device: torch.device | str) -> Tensor | None:
    if weights is None:
        return None
    fits = isinstance(weights, list) and len(weights) == members and all(_number(w) and w >= 0 for w in weights)
    if not fits or not 0 < sum(weights) < math.inf:
        raise FileError(
            file, f"expected {members} weights of members, none below 0 and not all 0, got {short(weights)}"
        )
    return torch.tensor(weights, dtype=torch.float64, device=device)


def _temperature(manifest: dict[str, Any], members: int, file: Path) -> Temperature | None:
    if "temperature" not in manifest:
        return None
    try:
        of, values = manifest["temperature"]
        tensor = torch.tensor(values, dtype=torch.float64)
    except Exception as error:  # whatever torch makes of what is not a number
        raise FileError(file, f"its temperature {short(manifest['temperature'])} is not one") from error
    shapes = {"members": (members,), "average": (), "classes": (2, *tensor.shape[-1:]), "quantiles": tensor.shape[-1:]}
    if shapes.get(str(of)) != tuple(tensor.shape):
        raise FileError(file, f"its temperature {of!r} {short(values)} is not one of {members} members")
    if not bool(tensor.isfinite().all()) or (of != "classes" and not bool((tensor > 0).all())):
        raise FileError(file, f"expected temperatures above 0, got {short(values)}")
    return Temperature(of, tensor)


def _conformal(manifest: dict[str, Any], file: Path) -> Conformal | None:
    if "conformal" not in manifest:
        return None
    rule = manifest["conformal"]
    if (
        not isinstance(rule, dict)
        or set(rule) != set(Conformal._fields)
        or rule["kind"] not in OF_NUMBERS + OF_CLASSES
        or not (_number(rule["level"]) and 0 < rule["level"] < 1)
        or not isinstance(rule["threshold"], (int, float))
        or math.isnan(rule["threshold"])
        or not (isinstance(rule["n"], int) and rule["n"] > 0)
        or not all(isinstance(rule[name], (int, float)) for name in set(rule) - {"kind"})
    ):
        raise FileError(file, f"its calibration {short(rule)} is not one that is known")
    return Conformal(**rule)


def short(value: Any) -> str:
    """A value from a file, as an error shows it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def encode_problem(problem: Problem, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A problem as JSON: its model by description, the rest by value."""
    return _of_problem(problem, lambda value, name: encode(value, tensors, name))


def decode_problem(saved: dict[str, Any], network: Model, tensors: dict[str, Tensor]) -> Problem:
    """The inverse of `encode_problem`, around a model that fits."""
    likelihood, prior = decode(saved["likelihood"], tensors), decode(saved["prior"], tensors)
    terms = decode(saved["terms"], tensors) if "terms" in saved else ()
    return Problem(network, likelihood, prior, saved["temperature"], saved["temper"], terms=terms)


def describe_problem(problem: Problem) -> dict[str, Any]:
    """A problem as JSON with digests for its tensors: to compare."""
    return _of_problem(problem, lambda value, name: describe(value))


def _of_problem(problem: Problem, written: Callable[[Any, str], Any]) -> dict[str, Any]:
    terms = {"terms": written(tuple(problem.terms), "terms")} if problem.terms else {}
    return {
        "model": problem.network.spec(),
        "likelihood": written(problem.likelihood, "likelihood"),
        "prior": written(problem.prior, "prior"),
        "temperature": problem.temperature,
        "temper": problem.temper,
    } | terms


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
    family, recipe = decode(meta["family"], tensors), decode(meta["recipe"], tensors)
    members = tuple(_member(m) for m in meta["members"])
    if not isinstance(family, Family) or not (recipe is None or isinstance(recipe, Method)):
        raise ValueError(f"expected a family and a recipe, got {type(family).__name__} and {type(recipe).__name__}")
    parts = [x for x in leaves(family) if x is not None]
    if strange := [x for x in parts if not isinstance(x, Tensor)]:
        raise ValueError(f"expected a family of tensors, got {short(strange[0])}")
    if not members or any(x.dim() == 0 or x.shape[0] != len(members) for x in parts):
        raise ValueError(f"the tensors do not have {len(members)} members")
    info = meta["info"]
    curves = info.get("curves", {}) if isinstance(info, dict) else None
    if not isinstance(curves, dict) or any(not isinstance(c, list) or len(c) != len(members) for c in curves.values()):
        raise ValueError(f"expected info with curves of {len(members)} members, got {short(info)}")
    notes = info.get("notes", [[]] * len(members))
    if not isinstance(notes, list) or len(notes) != len(members):
        raise ValueError(f"expected notes of {len(members)} members, got {short(notes)}")
    inputs, rows = decode(meta["inputs"], tensors), decode(meta.get("rows"), tensors)
    if rows is not None:
        _check_rows(rows, inputs, len(members))
    part = Part(problem, family, members, recipe, inputs, info, rows)
    _check_values(family)
    one, like = take(family, 0), part.adapted().init(Noise.seed(0))
    for point in (one.mean(), take(one.draws(Noise.seed(0, leaves(family)[0].device), 0, 1), 0)):
        _check_point(point, like)
    if part.inputs is not None:
        _check_inputs(part.inputs, next(iter(point.params.values())).dtype)
        part.adapted().tried(part.inputs, point)
    return part


def _check_rows(rows: Any, inputs: Any, members: int) -> None:
    """Refuses what cannot be the places of each member's own examples among the inputs that are kept."""
    whole = isinstance(rows, Tensor) and not rows.is_floating_point() and rows.dim() == 2 and rows.numel() > 0
    kept = [len(x) for x in leaves(inputs) if isinstance(x, Tensor) and x.dim()]
    if not whole or len(rows) != members or not kept or not bool(((rows >= 0) & (rows < min(kept))).all()):
        raise ValueError(f"expected rows as places of examples for {members} members, got {short(rows)}")


def _check_inputs(inputs: Any, dtype: torch.dtype) -> None:
    """Refuses what cannot be the training inputs that are kept for norm statistics."""
    kept = leaves(inputs)
    lengths = {len(x) if isinstance(x, Tensor) and x.dim() else 0 for x in kept}
    if len(lengths) != 1 or min(lengths) < 2:
        raise ValueError("expected inputs for norm statistics as tensors of one length, with two rows at least")
    if any(not bool(x.isfinite().all()) or (x.is_floating_point() and x.dtype != dtype) for x in kept):
        raise ValueError(f"expected finite inputs of {dtype} for norm statistics")


def _check_point(point: Point, like: Point) -> None:
    """Refuses a point whose tensors have other names, shapes or kinds than those of the model."""
    shapes, expected = ({n: tuple(x.shape) for n, x in p.params.items()} for p in (point, like))
    if shapes != expected:
        raise ValueError(f"its parameters {shapes} are not those of the model, {expected}")
    kinds: dict[torch.dtype, torch.dtype] = {}  # a float32 network may have been trained in float64, as a whole
    for name, x in (like.params | like.buffers).items():
        tensor = (point.params | point.buffers).get(name)
        if tensor is None or tensor.shape != x.shape:
            raise ValueError(f"its {name} is not that of the model: expected {tuple(x.shape)}")
        same = kinds.setdefault(x.dtype, tensor.dtype if x.is_floating_point() else x.dtype) == tensor.dtype
        if not same or tensor.is_floating_point() != x.is_floating_point() or tensor.is_complex() != x.is_complex():
            raise ValueError(f"its {name} of {tensor.dtype} does not go with the other tensors of the model")


def _check_values(family: Family) -> None:
    """Refuses NaN, infinity, what is below zero and measures a spread, and another number of points than is said."""
    if isinstance(family, Empirical):
        kept = {x.shape[1] if x.dim() > 1 else 0 for x in leaves([family.params, family.buffers])}
        if kept != {family.count}:
            raise ValueError(f"expected {family.count} points of each member, got tensors of {short(sorted(kept))}")
    for field in fields(family):  # type: ignore[arg-type]
        value = getattr(family, field.name)
        if isinstance(value, Family):
            _check_values(value)
            continue
        for x in (x for x in leaves(value) if isinstance(x, Tensor) and x.is_floating_point()):
            if not all(bool(some.isfinite().all()) for some in x.reshape(-1).split(AT_ONCE)):
                raise ValueError(f"expected finite values of {field.name}, got NaN or infinity")
            if field.name in SPREADS and bool((x < 0).any()):
                raise ValueError(f"expected {field.name} of at least 0, got {float(x.min()):.3g}")


def _member(raw: Any) -> Member:
    if not (isinstance(raw, list) and len(raw) == 2 and all(type(x) is int for x in raw) and raw[1] >= 0):
        raise ValueError(f"expected a member as its seed and number, got {short(raw)}")
    Noise.seed(raw[0])  # of 64 bits
    return Member(*raw)
