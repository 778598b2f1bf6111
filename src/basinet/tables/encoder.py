"""The whole way from a table to inputs and targets, and from predictions back: fitted once, saved with a posterior."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.registry import Saved
from ..data.data import Data
from .columns import Column, Date
from .table import Table
from .targets import Classes, Labels, Target
from .values import listed, missing, shown

if TYPE_CHECKING:
    from ..predict import Predictive


@dataclass(frozen=True, kw_only=True)
class Encoder(Saved):
    """Columns and target as they were in training. Holds only names and numbers, so it saves as JSON.

    Columns are found by name: their order does not matter, and columns that were not there in training are ignored.
    """

    kind: ClassVar[str] = "encoder"

    target: Target
    """How the target is read and what predictions are in its units."""
    columns: tuple[Column, ...]
    """How each column becomes inputs."""
    unused: tuple[str, ...] = ()
    """Columns of the training file that are not inputs."""

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each input of the network."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The classes, or the labels, in order; None for regression."""
        if isinstance(self.target, Labels):
            return self.target.columns
        return self.target.values if isinstance(self.target, Classes) else None

    def data(self, table: Table) -> Data:
        """Inputs and targets."""
        return Data(self.inputs(table), self.targets(table))

    def inputs(self, table: Table) -> Tensor:
        """(N, inputs) in torch's default dtype."""
        if gone := [column.name for column in self.columns if column.name not in table.columns]:
            raise ValueError(
                f"{table.name}: expected the columns of training, got none named {listed(gone)}; "
                f"there are {listed(table.columns)}"
            )
        widths = [len(column.features) for column in self.columns]
        inputs = _room(table, sum(widths))
        begin = 0
        for column, width in zip(self.columns, widths):
            part = column.encode(table.columns[column.name], f"{table.name}: column {shown(column.name)}")
            inputs[:, begin : begin + width] = torch.from_numpy(part)
            begin += width
        return inputs

    def cells(self, inputs: Tensor) -> np.ndarray:
        """(N, columns) of text: what `inputs` had been in a file, as far as they tell."""
        x = inputs.detach().double().cpu().numpy()
        ends = np.cumsum([len(column.features) for column in self.columns])
        parts = np.split(x, ends[:-1], 1)
        return np.array([c.decode(part) for c, part in zip(self.columns, parts)], np.str_).T

    def targets(self, table: Table) -> Tensor:
        """(N,) class indices, (N, labels) zeros and ones, or (N, 1) standardised numbers."""
        return self.target.read(table)

    def strangers(self, table: Table) -> tuple[str, ...]:
        """Columns of the table that training had not."""
        known = {*self.target.sources, *self.unused, *(column.name for column in self.columns)}
        return tuple(name for name in table.columns if name not in known)

    def empty_rows(self, table: Table) -> int:
        """How many rows of the table have no input at all."""
        gone = [missing(table.columns[column.name]) for column in self.columns if column.name in table.columns]
        return int(np.logical_and.reduce(gone).sum()) if gone else 0

    def predictions(self, predictive: Predictive, level: float = 0.9) -> dict[str, Any]:
        """Columns, one row per input, in the target's own units and names.

        Regression: mean, sd, its parts aleatoric and epistemic (variances), and low and high, the central interval
        that holds `level`. Classes: class (the most probable), entropy and its parts aleatoric and epistemic, and a
        probability p_NAME for each class. Labels: the same without class, entropies summed over labels. Where the
        posterior is calibrated (`bn.conformal`), conformal_low and conformal_high, or conformal_set, come last.
        """
        return self.target.predictions(predictive, level)

    def scores(self, scores: Mapping[str, float]) -> dict[str, float]:
        """What `bn.score` gives for the encoded targets, in the target's own units; the NLL too, by + log sd."""
        return self.target.scores(scores)


def check_encoder(encoder: object) -> None:
    """Raises ValueError where the content of a file is not an encoder, or one that no table can have led to."""
    if not isinstance(encoder, Encoder) or not isinstance(encoder.target, Target):
        raise ValueError("expected an encoder with a target")
    if not encoder.columns or not all(isinstance(column, Column) for column in encoder.columns):
        raise ValueError("expected columns")
    if not _FITS["tuple[str, ...]"](encoder.unused):
        raise ValueError("expected names of columns that are not used")
    for part in (encoder.target, *encoder.columns):
        for field in fields(part):  # type: ignore[arg-type]
            value, kind = getattr(part, field.name), str(field.type)
            fits = _FITS[kind.removesuffix(" | None")](value) or (value is None and kind.endswith("None"))
            fits = fits and not (field.name == "sd" and value <= 0)
            fits = fits and not (field.name in ("values", "columns") and len(set(value)) < max(1, len(value)))
            if not fits:
                raise ValueError(f"expected {field.name} of a {type(part).__name__} as {kind}, got {shown(value)}")
        if isinstance(part, Date) and part.fill is not None:
            np.datetime64(part.fill, "us")  # raises where it is no date
    names = [column.name for column in encoder.columns]
    if len(set(names)) < len(names):
        raise ValueError("expected a name of its own for each column")


_FITS: dict[str, Callable[[Any], bool]] = {  # what a field holds, by its annotation
    "str": lambda v: isinstance(v, str),
    "bool": lambda v: isinstance(v, bool),
    "float": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) < 1e305,
    "tuple[str, ...]": lambda v: isinstance(v, tuple) and all(isinstance(word, str) for word in v),
}


def _room(table: Table, width: int) -> Tensor:
    """An empty (N, width) tensor; refused where it would take more than half of the machine's memory."""
    dtype = torch.get_default_dtype()
    size, whole = table.n * width * dtype.itemsize, _memory()
    if size > whole / 2:
        raise ValueError(
            f"{table.name}: {table.n:,} rows of {width:,} inputs would take {size / 2**30:,.1f} GiB, more than half of "
            f"this machine's memory ({whole / 2**30:,.1f} GiB); drop columns with many values, or use fewer rows"
        )
    return torch.empty(table.n, width, dtype=dtype)


def _memory() -> float:
    """Bytes that the machine has, as far as the system says."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
