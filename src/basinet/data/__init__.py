"""Data in memory, the sets that come with the library, and those in files."""

from . import corruptions, datasets
from .augment import Augmentation, CropFlip
from .data import Data
from .datasets import Splits
from .encoder import Encoder
from .frames import table_of
from .rules import Rules
from .stream import Piece, Stream, counted, examples, pieces, some, weighed
from .table import Table, read_table, write_table
from .tables import fit_table, load_table

__all__ = [
    "Augmentation",
    "CropFlip",
    "Data",
    "Encoder",
    "Piece",
    "Rules",
    "Splits",
    "Stream",
    "Table",
    "corruptions",
    "counted",
    "datasets",
    "examples",
    "fit_table",
    "load_table",
    "pieces",
    "read_table",
    "some",
    "table_of",
    "weighed",
    "write_table",
]
