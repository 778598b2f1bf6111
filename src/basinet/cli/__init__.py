"""The command `basinet`."""

from . import ahead, compare, files, report, tools
from .app import app

__all__ = ["ahead", "app", "compare", "files", "report", "tools"]
