"""The command `basinet`."""

from . import compare, files, planning, report, stream, tools
from .app import app, flowing

for command in app.registered_commands:  # a terminal wraps help by its own width
    command.help = flowing(command.callback)

__all__ = ["app", "compare", "files", "planning", "report", "stream", "tools"]
