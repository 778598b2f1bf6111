"""What pickle keeps of an estimator: its posterior in the format of saved posteriors, the rest as it is.

Networks and recipes may be defined anywhere (in a notebook, in a function), where plain pickle does not find them
again. So parameters go through cloudpickle, which writes such definitions down.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle

from ..saving import load

POSTERIOR, PARAMS = "posterior_", "_pickled_params"


def packed(state: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an estimator, with bytes in place of its parameters and of its posterior."""
    kept = {name: value for name, value in state.items() if name not in params}
    kept[PARAMS] = cloudpickle.dumps(params)
    if POSTERIOR in kept:
        with TemporaryDirectory() as folder:
            kept[POSTERIOR].save(folder)
            files = [file for file in sorted(Path(folder).iterdir()) if not file.name.startswith(".")]
            kept[POSTERIOR] = {file.name: file.read_bytes() for file in files}
    return kept


def unpacked(kept: dict[str, Any], source: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The inverse of `packed`; `source` is the network's, from the other attributes."""
    state = {name: value for name, value in kept.items() if name not in (PARAMS, POSTERIOR)}
    state |= pickle.loads(kept[PARAMS])
    if POSTERIOR in kept:
        with TemporaryDirectory() as folder:
            for name, content in kept[POSTERIOR].items():
                (Path(folder) / name).write_bytes(content)
            state[POSTERIOR] = load(folder, source(state))
    return state
