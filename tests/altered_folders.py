"""Saved folders that somebody edited, each from a seed: one change, with checksums that fit again."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import basinet as bn
from basinet.pool import read_json, read_tensors, write_json, write_tensors

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    7,
    1.5,
    1e400,
    float("nan"),
    10**30,
    "",
    "x",
    "nan",
    "../x",
    "onnx",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    {"float": "nan"},
    {"float": "-inf"},
    {"float": "x"},
    {"tensor": "x"},
    {"dtype": "onnx"},
    {"dtype": "float32"},
    {"list": []},
    {"dict": {}},
    {"type": "prior/Normal", "fields": {}},
    {"type": "family/Delta", "fields": {}},
    {"type": "family/Diagonal", "fields": {"scale": 1}},
    {"type": "method/MAP", "fields": {"epochs": -1}},
    {"type": "os/system", "fields": {}},
)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


KEY = bn.Noise.seed(3)
DATA = bn.Data(
    KEY.split("x").normal(torch.empty(24, 3)),
    (KEY.split("x").normal(torch.empty(24, 3))[:, 0] > 0).long() + (torch.arange(24) % 5 == 0),
)


def posteriors() -> Iterator[bn.Posterior]:
    """One of each kind that folders hold."""
    problem = bn.Problem(net, bn.likelihoods.Categorical(), bn.priors.Normal(scale={"0": 0.5, "": 1.0}))
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)

    def fit(method: Any, **options: Any) -> bn.Posterior:
        return bn.fit(method, problem, DATA, val=DATA, engine=engine, **options)

    maps = fit(bn.MAP(epochs=20), members=2)
    yield bn.temper(maps, DATA)
    yield fit(bn.SWAG(base=bn.MAP(epochs=1), iterates=3, rank=2), members=2)
    for structure in ("full", "diagonal", "kronecker"):
        yield fit(bn.Laplace(structure=structure), start=maps)
    yield bn.conformal(fit(bn.PEP(draws=2, iterations=1), start=maps), DATA)
    yield bn.mix([maps, fit(bn.Snapshot(epochs=2, cycles=2))], [0.3, 0.7])
    real = bn.Problem(lambda: nn.Linear(3, 1), bn.likelihoods.Gaussian(noise=0.5, learned=True))
    yield bn.Posterior.of(nn.Linear(3, 1), real)


def alter(folder: Path, seed: int) -> None:
    """Changes one thing in a saved folder."""
    draw = random.Random(seed)
    part = draw.choice(sorted(folder.glob("part-*.safetensors")))
    ways: tuple[Callable[[random.Random, Path, Path], None], ...] = (
        _manifest,
        _manifest,
        _meta,
        _meta,
        _meta,
        _meta,
        _tensors,
        _tensors,
        _file,
    )
    draw.choice(ways)(draw, folder / "posterior.json", part)


def _manifest(draw: random.Random, manifest: Path, part: Path) -> None:
    content = _edited(draw, read_json(manifest))
    if draw.random() < 0.1 and isinstance(content, dict) and isinstance(content.get("parts"), list):
        content["parts"] = content["parts"] * draw.choice((0, 2, 20_000))
    write_json(manifest, content)


def _meta(draw: random.Random, manifest: Path, part: Path) -> None:
    tensors, meta = read_tensors(part)
    rewrite(manifest, part, tensors, _edited(draw, meta))


def _tensors(draw: random.Random, manifest: Path, part: Path) -> None:
    tensors, meta = read_tensors(part)
    name = draw.choice(sorted(tensors))
    x = tensors.pop(name)
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x * float("nan"),
        lambda x: x * float("inf"),
        lambda x: -x,
        lambda x: x * 0,
        lambda x: x * 1e30,
        lambda x: x.double(),
        lambda x: x.half(),
        lambda x: x.long(),
        lambda x: x.bool(),
        lambda x: x[:1],
        lambda x: x[..., :1],
        lambda x: x[None],
        lambda x: x.reshape(-1),
        lambda x: x[:0],
        lambda x: x.reshape(-1)[0],
        lambda x: x.to(torch.complex64),
    )
    if draw.random() < 0.9:
        tensors[name if draw.random() < 0.95 else name + "x"] = draw.choice(changes)(x)
    rewrite(manifest, part, tensors, meta)


def _file(draw: random.Random, manifest: Path, part: Path) -> None:
    path = draw.choice((manifest, part))
    content = path.read_bytes()
    path.unlink()
    ways: tuple[Callable[[], Any], ...] = (
        lambda: os.mkfifo(path),
        lambda: path.mkdir(),
        lambda: path.symlink_to(path.name),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(content[: draw.randrange(len(content))]),
        lambda: path.write_bytes(b"\xff" + content),
        lambda: path.write_text("[" * 100_000),
        lambda: path.write_text('{"format": 1e400, "content": 1}'),
        lambda: None,
    )
    draw.choice(ways)()


def rewrite(manifest: Path, part: Path, tensors: dict[str, Tensor], meta: Any) -> None:
    """Writes a part, and its checksum into the manifest."""
    part.unlink()
    checksum = write_tensors(part, tensors, meta)
    content = read_json(manifest)
    for listed in content["parts"]:
        if listed["file"] == part.name:
            listed["checksum"] = checksum
    write_json(manifest, content)


def _edited(draw: random.Random, tree: Any) -> Any:
    """A JSON value with one place in it changed, taken out, or doubled."""
    tree = json.loads(json.dumps(tree))
    places = list(_places(tree))
    node, key = draw.choice(places)
    how = draw.random()
    if how < 0.15:
        del node[key]
    elif how < 0.25 and isinstance(node, list):
        node.append(node[key])
    elif how < 0.3 and isinstance(node, dict):
        node["extra"] = node[key]
    else:
        node[key] = draw.choice(ODD)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in range(len(tree)) if isinstance(tree, list) else list(tree):
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from _places(tree[key])
