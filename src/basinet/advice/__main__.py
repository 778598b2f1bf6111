"""`python -m basinet.advice results`: rewrites the figures that advice cites, from a folder of records."""

import sys
from pathlib import Path

from .records import FILE, write

if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(__file__).parent / FILE)
