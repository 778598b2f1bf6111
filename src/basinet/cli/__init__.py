"""The command `basinet`."""

from . import ahead, files, tools
from .app import app

__all__ = ["ahead", "app", "files", "tools"]
