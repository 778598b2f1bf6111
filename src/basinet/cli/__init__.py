"""The command `basinet`."""

from . import files, report, tools
from .app import app

__all__ = ["app", "files", "report", "tools"]
