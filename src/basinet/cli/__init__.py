"""The command `basinet`."""

from . import files, tools
from .app import app

__all__ = ["app", "files", "tools"]
