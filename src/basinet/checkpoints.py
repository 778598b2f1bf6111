"""SWAG from files: the checkpoints that someone else's training wrote, as a posterior."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .averaging import Moments
from .core.model import describe_difference
from .core.noise import Noise
from .core.tree import Params, Point, stack, tree_map
from .data import Data, Stream
from .methods.swag import check_rank, gaussian
from .pool import FileError
from .posterior import Part, Posterior, member_of
from .predict import kept_inputs, refreshed
from .problem import Problem

ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt")
INSIDE = ("state_dict", "model_state_dict", "model")  # where training loops put the weights, among other things
BEFORE = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name


def swag_of_checkpoints(
    files: Path | str | Iterable[Path | str],
    problem: Problem,
    data: Data | Stream | None = None,
    *,
    rank: int = 20,
) -> Posterior:
    """SWAG's posterior, of one member, from checkpoints of one training of the problem's network.

    `files` is a folder, whose checkpoints are taken in the order of their names (numbers in names as numbers), or the
    files themselves in the order in which they were written: the columns are the deviations of the last `rank` of them;
    with rank 0 it is diagonal. A file is a safetensors file or a state_dict saved by torch, on its own or inside a
    larger checkpoint; only tensors are read, and nothing in a file is executed. `data` are the training data, needed if
    the network has norm layers: their statistics are recomputed for each draw. Such files do not contain the parameters
    of the likelihood, which keep their initial values.
    """
    paths = _listed(files)
    check_rank(rank, len(paths), f"give at least {rank} checkpoints")
    if problem.network.norms and data is None:
        raise ValueError(
            "the network has norm layers, whose statistics are recomputed for each draw: pass the training data, data="
        )
    fresh = problem.init(Noise.seed(0))
    last: deque[Params] = deque(maxlen=rank)
    moments, point = Moments.at(fresh.params), fresh
    for count, path in enumerate(paths, 1):
        point = _read(path, problem, fresh)
        moments = moments.add(point.params, torch.tensor(1 / count, dtype=torch.float64))
        last.append(point.params)
    buffers, inputs = point.buffers, None
    if problem.network.norms and data is not None:
        dtype = next(iter(fresh.params.values())).dtype
        inputs = tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, kept_inputs(data)[0])
        buffers = refreshed(problem, Point(moments.mean, buffers), inputs, Noise.seed(0).split("refresh")).buffers
    family = gaussian(moments, len(paths), stack(list(last)) if rank else None, buffers)
    info = {"checkpoints": [path.name for path in paths], "rank": rank}
    return Posterior((Part(problem, stack([family]), (member_of(family.mean()),), inputs=inputs, info=info),))


def read_weights(path: Path | str, problem: Problem) -> Point:
    """The point at which the weights in a file stand: of the problem's network, and nothing else. What the likelihood
    learns is where it starts."""
    return _read(Path(path), problem, problem.init(Noise.seed(0)))


def _listed(files: Path | str | Iterable[Path | str]) -> list[Path]:
    """The checkpoints in order."""
    if not isinstance(files, (str, Path)):
        return [Path(file) for file in files]
    folder = Path(files)
    if not folder.is_dir():
        raise FileError(folder, "expected a folder of checkpoints, or a list of files; there is no such folder")
    listed = [path for path in folder.iterdir() if path.suffix in ENDINGS and path.is_file()]
    if not listed:
        raise FileError(folder, f"expected checkpoints, files that end in {', '.join(ENDINGS)}; there are none")
    return sorted(listed, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A name so that epoch-2 comes before epoch-10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _read(path: Path, problem: Problem, fresh: Point) -> Point:
    """The point at which a checkpoint stands, in the dtype of the network."""
    network = problem.network
    tensors = _untied(_tensors(path), network.module)
    expected = {n: tuple(x.shape) for n, x in network.module.state_dict().items() if isinstance(x, Tensor)}
    if difference := describe_difference(expected, {n: tuple(x.shape) for n, x in tensors.items()}):
        raise FileError(
            path, f"it belongs to another model: {difference}. Expected only weights of the problem's network"
        )
    bad = [n for n, x in tensors.items() if not bool(x.isfinite().all())]
    if bad:
        raise FileError(path, f"expected finite weights, got NaN or infinity in {', '.join(bad)}: leave it out")

    def own(like: Params) -> Params:  # what no file has, such as the likelihood's parameters, is as it starts
        return {n: tensors[n].to(x.dtype) if n in tensors else x for n, x in like.items()}

    return Point(own(fresh.params), own(fresh.buffers))


def _tensors(path: Path) -> Params:
    """The state_dict in a file, with the names that the network itself has."""
    content = _content(path)
    for _ in range(len(INSIDE)):  # a state_dict may lie in a dict in a dict
        inside = next((content[k] for k in INSIDE if isinstance(content.get(k), Mapping)), None)
        if inside is None:
            break
        content = inside
    tensors = {str(n): x for n, x in content.items() if isinstance(x, Tensor)}
    if not tensors:
        raise FileError(path, f"expected a state_dict, alone or under {' or '.join(INSIDE)}; it has no tensors there")
    for prefix in BEFORE:
        if all(n.startswith(prefix) for n in tensors):
            tensors = {n.removeprefix(prefix): x for n, x in tensors.items()}
    return tensors


def _untied(tensors: Params, module: nn.Module) -> Params:
    """With all names of parameters that layers share, of which a file may have one."""
    shared: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    there = ([n for n in names if n in tensors] for names in shared.values())
    return {
        n: tensors[present[0]] for names, present in zip(shared.values(), there) if present for n in names
    } | tensors


def _content(path: Path) -> Mapping[str, Any]:
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileError(path, "there is no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of a file that is anything at all, torch raises whatever its bytes lead to
        raise FileError(
            path,
            "it is damaged, or contains more than tensors and plain values, which could run code when loaded: "
            "save only the state_dict of the network",
        ) from error
    if not isinstance(content, Mapping):
        raise FileError(path, f"expected a state_dict, got {type(content).__name__}: save module.state_dict()")
    return content
