"""A figure before it is drawn: views to choose from, panels beside each other, series in them.

`page.js` draws these with Plotly and `pictures.py` with matplotlib; neither computes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Numbers = Sequence[float]


@dataclass(frozen=True)
class Series:
    """Points that belong together. Its colour follows from `row`, a line of the comparison, or from `tone`."""

    kind: Literal[
        "line", "steps", "points", "bars", "stack"
    ]  # steps: a line of stairs; stack: bars to the right, piled up
    x: Numbers
    y: Sequence[float] | Sequence[str]  # words where the panel has them along its vertical axis
    name: str = ""
    row: str = ""
    tone: str = ""  # first, second, third: colours of their own; reference: dashed and grey
    low: Numbers = ()  # a band around a line, bars of error at points: along x where y are words, else along y
    high: Numbers = ()
    width: float = 0.0  # of bars
    labelled: bool = False  # its name stands beside its points


@dataclass(frozen=True)
class Axis:
    label: str
    log: bool = False
    percent: bool = False
    whole: bool = False  # it counts things
    span: tuple[float, float] | None = None  # None: as the series have it
    words: Sequence[str] = ()  # categories, from the top down


@dataclass(frozen=True)
class Panel:
    x: Axis
    y: Axis
    series: list[Series]


@dataclass(frozen=True)
class View:
    name: str
    panels: list[Panel]
    note: str = ""  # what this view alone has to tell


@dataclass(frozen=True)
class Figure:
    key: str  # name of its file and its place in the page
    title: str
    see: str  # what there is to see
    read: str  # how to read it
    views: list[View] = field(default_factory=list)
    choose: str = ""  # what one chooses by choosing a view
