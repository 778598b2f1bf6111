"""The command `basinet`."""

from . import ahead, files, report, tools
from .app import app

__all__ = ["ahead", "app", "files", "report", "tools"]
