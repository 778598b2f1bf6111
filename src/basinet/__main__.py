"""`python -m basinet` and the command `basinet`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Runs the command line, or says what is missing."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell ignores it for us
    if heeded:
        signal.signal(signal.SIGINT, _stop)
    try:
        from .cli import app
    except ImportError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit(f'basinet: the command line needs {error.name}: pip install "basinet[all]"')
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app()


def _stop(*_: Any) -> None:
    """Ends at once: while packages are imported, an exception may come out as another one."""
    os.write(2, b"stopped: nothing had begun\n")
    os._exit(130)


if __name__ == "__main__":
    main()
