"""Published weights: a safetensors file read into a network of the same parameter names."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from torch import nn

from ..core.model import describe_difference

N = TypeVar("N", bound=nn.Module)
COUNTER = "num_batches_tracked"  # of norm layers: files of old versions of torch lack it, and nothing here reads it


def with_weights(network: N, path: Path | str) -> N:
    """The network with the weights of a file, in its own dtype whatever the file's; it is changed and returned.

    Files name every parameter and buffer of the network, and nothing else; counters of batches may be missing.

    >>> import tempfile, torch, safetensors.torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     safetensors.torch.save_file({"weight": torch.ones(1, 2)}, f"{folder}/a.safetensors")
    ...     with_weights(torch.nn.Linear(2, 1, bias=False), f"{folder}/a.safetensors").weight.tolist()
    [[1.0, 1.0]]
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        loaded = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a safetensors file, and it is damaged or none ({error})") from error
    own = network.state_dict()
    expected = {n: tuple(x.shape) for n, x in own.items() if n in loaded or not n.endswith(COUNTER)}
    if difference := describe_difference(expected, {n: tuple(x.shape) for n, x in loaded.items()}):
        raise ValueError(f"{path}: these are weights of another network: {difference}")
    bad = [n for n, x in loaded.items() if not bool(x.isfinite().all())]
    if bad:
        raise ValueError(f"{path}: expected finite weights, got NaN or infinity in {', '.join(bad)}")
    network.load_state_dict(own | loaded)
    return network
