"""The command `basinet`."""

from . import compare, files, planning, report, stream, tools
from .app import app

__all__ = ["app", "compare", "files", "planning", "report", "stream", "tools"]
