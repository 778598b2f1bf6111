"""Runs the examples: `python docs/tools/examples.py [NAME ...]` writes what they print to docs/examples/NAME.txt, which
their pages show and a test compares, and their pictures to docs/pictures/example-NAME.png."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
    for name in names:
        picture = ROOT / "docs" / "pictures" / f"example-{name.replace('_', '-')}.png"
        command = [sys.executable, ROOT / "examples" / f"{name}.py", picture]
        environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
        began, used = time.time(), os.times().children_user
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
        (ROOT / "docs" / "examples" / f"{name}.txt").write_text(run.stdout)
        print(f"{name}: {time.time() - began:.0f} s, {os.times().children_user - used:.0f} s of one core\n{run.stdout}")


if __name__ == "__main__":
    main()
