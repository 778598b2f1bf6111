"""`python -m basinet` and the command `basinet`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line, or says what is missing."""
    try:
        from .cli import app
    except ImportError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit(f'basinet: the command line needs {error.name}: pip install "basinet[all]"')
    app()


if __name__ == "__main__":
    main()
