"""Data in memory, the sets that come with the library, and image sets in files."""

from . import corruptions, datasets, toys
from .augment import Augmentation, CropFlip
from .data import Data
from .datasets import Splits
from .stream import Piece, Stream, counted, examples, pieces, some, weighed

__all__ = [
    "Augmentation",
    "CropFlip",
    "Data",
    "Piece",
    "Splits",
    "Stream",
    "corruptions",
    "counted",
    "datasets",
    "examples",
    "pieces",
    "some",
    "toys",
    "weighed",
]
