"""Tables of a user: csv, parquet and npz files and data frames, and how their columns become inputs and targets."""

from . import uci
from .encoder import Encoder
from .frames import table_of
from .load import fit_table, load_table
from .rules import Rules
from .table import Table, read_table, write_table

__all__ = ["Encoder", "Rules", "Table", "fit_table", "load_table", "read_table", "table_of", "uci", "write_table"]
